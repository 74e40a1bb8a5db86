"""What all settings have in common: those of recipes, and those that become options of commands."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic.fields import FieldInfo


class Config(BaseModel):
    """A pydantic model that forbids unknown keys, does not change, and whose numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def option_name(name: str, field: FieldInfo) -> str:
    """The name under which a field of `CommandConfig` is an option of a command: its own, or one that it
    gives."""
    extra = field.json_schema_extra
    return str(extra.get("option", name)) if isinstance(extra, dict) else name


SETTINGS_FILE: dict[str, JsonValue] = {"settings_file": True}
"""What the field of `CommandConfig` gives as ``json_schema_extra`` that names a file with all the others."""


SECRET: dict[str, JsonValue] = {"secret": True}
"""What a field gives as ``json_schema_extra`` of which messages quote nothing: it holds keys, or stands where
people write them."""


def is_marked(field: FieldInfo, mark: dict[str, JsonValue]) -> bool:
    """Whether a field has `SETTINGS_FILE` or `SECRET`."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and mark.items() <= extra.items()


def secret_places(model: type[BaseModel], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of a model's fields that have `SECRET`, those of the models in it included."""
    found = []
    for name, field in model.model_fields.items():
        if is_marked(field, SECRET):
            found.append((*above, name))
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found += secret_places(field.annotation, (*above, name))
    return found


class CommandConfig(Config):
    """Settings of a command. The text below a field describes it to people."""

    model_config = ConfigDict(use_attribute_docstrings=True)


Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every generator takes."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


PathText = Annotated[str, BeforeValidator(_as_text)]
"""A path, which stays a text; given as a `pathlib.Path` it becomes one."""
