"""Settings of a command that come from a YAML file: what is typed wins over the file, the file over defaults.

The file has the sections of the settings' model. A model takes files if it has a field with `SETTINGS_FILE`,
which becomes the option that names one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from selfverify.core.config import SETTINGS_FILE, is_marked, secret_places
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe_yaml import complaint, dump_yaml, read_document, reason

OptionOf = Callable[[Sequence[int | str]], str | None]
"""Returns the option, as it is typed, of the setting at a place; None where there is none."""


def file_field(model: type[BaseModel]) -> str | None:
    """Return the field of a model that names a settings file; None where it takes none."""
    return next((name for name, field in model.model_fields.items() if is_marked(field, SETTINGS_FILE)), None)


def with_file(model: type[BaseModel], path: Path, typed: Mapping[str, Any], option_of: OptionOf) -> BaseModel:
    """Return the settings in a file, with those that were typed laid over them.

    Args:
        model: The settings' model.
        path: The file.
        typed: The values that were typed, in the model's sections.
        option_of: Names options in messages.

    Raises:
        ConfigError: The file cannot be read, or settings do not fit. There is a line for each fault, which
            begins with the file and its line, or with the option that was typed.
    """
    document = read_document(path, "settings file", secret_places(model))
    own = file_field(model)
    if own in document.data:
        raise ConfigError(f"{document.place((own,))}: {own}: a settings file names no other; leave this out")
    try:
        return model.model_validate(_laid_over(document.data, typed))
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False):
            if _is_typed(fault["loc"], typed):
                faults.append(f"{option_of(fault['loc'])}: {reason(fault)}")
            else:
                faults += complaint(fault, model, document)
        raise ConfigError("\n".join(faults)) from None


def file_text(settings: BaseModel) -> str:
    """Return the settings file that stands for settings, with all that is at its default, without secrets."""
    own = file_field(type(settings))
    found = settings.model_dump(mode="json", exclude={own} if own else None)
    for *sections, name in secret_places(type(settings)):
        section = found
        for inner in sections:
            section = section[inner]
        section.pop(name)
    return dump_yaml(found)


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's values with typed ones over them; what is no section in the file is left to fail."""
    found = dict(below)
    for name, value in above.items():
        if not isinstance(value, Mapping):
            found[name] = value
        elif isinstance(inner := found.get(name, {}), dict):
            found[name] = _laid_over(inner, value)
    return found


def _is_typed(place: Sequence[int | str], typed: Mapping[str, Any]) -> bool:
    """Whether what stands at a place was typed. A section is none that was."""
    value: Any = typed
    for part in place:
        if not isinstance(value, Mapping):  # an item of a list, or a field of one
            return True
        if part not in value:
            return False
        value = value[part]
    return not isinstance(value, Mapping)
