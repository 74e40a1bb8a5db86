"""Command-line options that come from settings models, and parameters that several commands share.

A model's field is declared once, with its description, its default and its bounds. Here it becomes an option:
``max_tokens`` is ``--max-tokens``, ``n`` is ``-n``, a bool is a flag, and a list is an option that may be
repeated. A field of a nested model is an option, too, so that names must be unique within the whole model; a
field with ``json_schema_extra={"option": "stop_looking"}`` is ``--stop-looking``, whatever its own name is.
A field with ``json_schema_extra={"argument": True}`` is an argument instead. Where a field has
`SETTINGS_FILE`, its option names a file with all the others, and every flag has an opposite, so that it can
be typed against the file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Annotated, Any, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from selfverify.cli.settings_file import file_field, with_file
from selfverify.core.config import option_name
from selfverify.core.errors import ConfigError

RecipeName = Annotated[str, typer.Argument(help="A built-in recipe's name, a YAML file, or a run's folder.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as `learner.steps=100`."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text for people.")]


_CONTEXT = "command_line"
"""The parameter in which Typer tells what was typed."""


def settings_as_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace a command's parameter that is a settings model by one option for each of the model's fields.

    The command is called with a validated object of the model.

    Raises:
        ConfigError: When the command is called and the values do not fit the model. The message has one line
            per fault and names options as they are typed.
    """
    parameters: list[inspect.Parameter] = []
    models: dict[str, type[BaseModel]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if model := _model(parameter.annotation):
            models[parameter.name] = model
            opposites = file_field(model) is not None
            parameters += [_parameter(name, field, opposites) for name, field in _fields(model)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**values: Any) -> None:
        given = _given(values.pop(_CONTEXT, None), values)
        settings = {name: _validated(model, values, given) for name, model in models.items()}
        taken = {name for model in models.values() for name, _ in _fields(model)}
        command(**settings, **{name: value for name, value in values.items() if name not in taken})

    if any(file_field(model) for model in models.values()):  # Typer tells in it which options were typed
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(_CONTEXT, kind, default=None, annotation=typer.Context))
    # Typer reads both.
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _model(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a model and of the models in it, by name."""
    for name, field in model.model_fields.items():
        if inner := _model(field.annotation):
            yield from _fields(inner)
        else:
            yield option_name(name, field), field


def _named(model: type[BaseModel], place: Sequence[int | str]) -> str | None:
    """Return the name of the option at whose ``place`` a model has found a fault, if it is one's."""
    for part in place:
        field = model.model_fields.get(str(part))
        if field is None:
            return None
        inner = _model(field.annotation)
        if inner is None:
            return option_name(str(part), field)
        model = inner
    return None


def _option(name: str) -> str:
    """Return the option of a field, as it is typed."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def _parameter(name: str, field: FieldInfo, opposites: bool = False) -> inspect.Parameter:
    """Return the parameter of a field. ``opposites``: a flag can also be turned off."""
    kind: Any = field.annotation
    required = field.is_required()
    default = inspect.Parameter.empty if required else field.get_default(call_default_factory=True)
    if get_origin(kind) is list:
        kind, default = kind | None, default or None
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get("argument"):
        declared: Any = typer.Argument(help=field.description)
    else:
        least = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
        most = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
        flag = _option(name)
        flag += f"/--no-{flag[2:]}" if kind is bool and (opposites or default) else ""
        declared = typer.Option(flag, help=field.description, min=least, max=most)  # type: ignore[arg-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


def _given(context: typer.Context | None, values: dict[str, Any]) -> set[str]:
    """Return the names of the options that were typed, rather than left at their defaults."""
    if context is None:
        return set(values)
    sources = {name: context.get_parameter_source(name) for name in values}
    return {name for name, source in sources.items() if source is not None and source.name != "DEFAULT"}


def _validated(model: type[BaseModel], values: dict[str, Any], given: set[str]) -> BaseModel:
    """Return the settings that the options' values make; what is None is at its default.

    Where a file has settings too, only the values of the options that were ``given`` are laid over them.
    """
    own = file_field(model)
    if own and values[own] is not None:
        typed = _nested(model, {name: value for name, value in values.items() if name in given})
        return with_file(model, values[own], typed, lambda place: _option(_named(model, place) or ""))
    try:
        return model.model_validate(_nested(model, values))
    except ValidationError as error:
        from selfverify.experiments.recipe_yaml import reason

        faults = []
        for fault in error.errors(include_url=False):
            name = _named(model, fault["loc"])
            faults.append(reason(fault) if name is None else f"{_option(name)}: {reason(fault)}")
        raise ConfigError("\n".join(faults)) from None


def _nested(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a model's fields, those of nested models in dictionaries of their own."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if inner := _model(field.annotation):
            found[name] = _nested(inner, values)
        elif values.get(option_name(name, field)) is not None:
            found[name] = values[option_name(name, field)]
    return found
