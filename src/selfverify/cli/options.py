"""The parts that commands share: options made of settings models, settings files, printing, finding models.

A model's field is declared once, with its description, its default and its bounds. Here it becomes an option:
``max_tokens`` is ``--max-tokens``, ``n`` is ``-n``, a bool is a flag, and a list is an option that may be
repeated. A field of a nested model is an option, too, so that names must be unique within the whole model; a
field with ``json_schema_extra={"option": "stop_looking"}`` is ``--stop-looking``, also where its own name
differs. A field with ``json_schema_extra={"argument": True}`` is an argument instead; with a text in place of
True the help calls it so.

A model takes settings files if it has a field with ``json_schema_extra={"settings_file": True}``, which
becomes the option that names one:
a YAML file with the model's sections and all other options. Typed options win over the file, the file over
defaults; every flag then has an opposite, so that it can be typed against the file.

Commands print results on stdout, everything else on stderr.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import is_saved_model, is_served
from selfverify.experiments.recipe import RECIPE_FILE
from selfverify.experiments.recipe_yaml import dump_yaml, read_document, reason

if TYPE_CHECKING:
    from selfverify.evaluation.headline import Headline


def _extra(field: FieldInfo, name: str) -> Any:
    """Return what a field says in its ``json_schema_extra``; None where it says nothing."""
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, dict) else None


def option_name(name: str, field: FieldInfo) -> str:
    """Return the name of the option for a field: the field's own, or one that it gives."""
    return str(_extra(field, "option") or name)


def file_field(model: type[BaseModel]) -> str | None:
    """Return the field of a model that names a settings file; None where it takes none."""
    return next((name for name, field in model.model_fields.items() if _extra(field, "settings_file")), None)


def with_file(model: type[BaseModel], path: Path, typed: Mapping[str, Any]) -> BaseModel:
    """Return the settings in a file, with those that were typed laid over them.

    Args:
        model: The settings' model.
        path: The file.
        typed: The values that were typed, in the model's sections.

    Raises:
        ConfigError: The file cannot be read, or settings do not fit. There is a line for each fault, which
            begins with the file and its line, or with the option that was typed.
    """
    document = read_document(path, "settings file")
    own = file_field(model)
    if own is not None and own in document.data:
        raise ConfigError(f"{document.place((own,))}: {own}: a settings file names no other; leave this out")
    try:
        return model.model_validate(_laid_over(document.data, typed))
    except ValidationError as error:
        faults: list[str] = []
        for fault in error.errors(include_url=False):
            is_typed = _is_typed(fault["loc"], typed)
            faults += [_complaint(model, fault)] if is_typed else document.complaints([fault], model)
        raise ConfigError("\n".join(faults)) from None


def file_text(settings: BaseModel) -> str:
    """Return the settings file that stands for settings, with all that is at its default."""
    own = file_field(type(settings))
    return dump_yaml(settings.model_dump(mode="json", exclude={own} if own else None))


def _laid_over(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's values with typed ones over them; a value that is no section in the file is left for
    the check to refuse."""
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
            parameters += [_parameter(name, field, model, opposites) for name, field in _fields(model)]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def called(**values: Any) -> None:
        given = _given(values.pop(_CONTEXT, None), values)
        settings = {name: _validated(model, values, given) for name, model in models.items()}
        taken = {option_name(*each) for model in models.values() for each in _fields(model)}
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
            yield name, field


def _options(model: type[BaseModel]) -> dict[str, str]:
    """Return the option of each field, as it is typed."""
    return {name: _option(option_name(name, field)) for name, field in _fields(model)}


def _option(name: str) -> str:
    """Return the option of a field, as it is typed."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


def _spelled(text: str, model: type[BaseModel]) -> str:
    """Return a text in which a model's fields that stand in backticks are spelled as options."""
    options = _options(model)
    return re.sub(r"`(\w+)`", lambda match: options.get(match[1], match[0]), text)


def _parameter(
    name: str, field: FieldInfo, model: type[BaseModel], opposites: bool = False
) -> inspect.Parameter:
    """Return the parameter of a field. ``opposites``: a flag can also be turned off."""
    name, said = option_name(name, field), _spelled(field.description or "", model)
    kind: Any = field.annotation
    required = field.is_required()
    default = inspect.Parameter.empty if required else field.get_default(call_default_factory=True)
    if get_origin(kind) is list:
        kind, default = kind | None, default or None
    if argument := _extra(field, "argument"):
        declared: Any = typer.Argument(help=said, metavar=argument if isinstance(argument, str) else None)
    else:
        least = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
        most = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
        flag = _option(name)
        flag += f"/--no-{flag[2:]}" if kind is bool and (opposites or default) else ""
        declared = typer.Option(flag, help=said, min=least, max=most)  # type: ignore[arg-type]
    typed: Any = Annotated[kind, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=typed)


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
        return with_file(model, values[own], typed)
    try:
        return model.model_validate(_nested(model, values))
    except ValidationError as error:
        faults = (_complaint(model, fault) for fault in error.errors(include_url=False))
        raise ConfigError("\n".join(faults)) from None


def _complaint(model: type[BaseModel], fault: ErrorDetails) -> str:
    """Return what is wrong with an option, which is named as it is typed."""
    said = _spelled(reason(fault), model)
    named = [option for name, option in _options(model).items() if name in fault["loc"]]
    return ": ".join([*named[:1], said])


def _nested(model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a model's fields, those of nested models in dictionaries of their own."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        if inner := _model(field.annotation):
            found[name] = _nested(inner, values)
        elif values.get(option_name(name, field)) is not None:
            found[name] = values[option_name(name, field)]
    return found


def say(text: str, style: str = "", prefix: str = "") -> None:
    """Print to stderr. ``text`` is no markup: it may hold a path with brackets or a model's words."""
    Console(stderr=True).print(Text(prefix, style).append(text, ""), soft_wrap=True, highlight=False)


def harmless(text: str) -> str:
    """A text of a model or a screen without what a terminal would obey, such as escape sequences."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


@contextmanager
def bar(name: str, hidden: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show how much is done while a block runs, and clear it away then.

    Args:
        name: The name of the things that are counted.
        hidden: Whether to show nothing.

    Yields:
        A function to be called with the number of what is done and that of all.
    """
    from rich.progress import Progress  # most commands show none

    from selfverify.trainer.logging import no_bars_of_transformers

    with no_bars_of_transformers(), Progress(transient=True, disable=hidden) as shown:
        task = shown.add_task(name, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def announced(host: str, what: str, path: str = "") -> Callable[[int], None]:
    """Log what a server does from now on; return a function that says at which port it serves ``what``."""
    from selfverify.connectors.server import address_of

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return lambda port: say(f"{address_of(host, port)}{path} serves {what}; Ctrl-C stops it")


def print_json(data: Any, indent: int | None = 2) -> None:
    """Print data as JSON. A value that JSON does not know, such as a path, is written as a text."""
    typer.echo(json.dumps(data, indent=indent, ensure_ascii=False, default=str))


def print_outcome(done: Any, as_json: bool, text: str, warning: str = "") -> None:
    """Print what came of a command: its data in one line of JSON, or a text, and a warning where there is
    one."""
    if as_json:
        print_json(done if isinstance(done, dict) else asdict(done), indent=None)
        return
    typer.echo(text)
    if warning:
        say(warning, "yellow")


def figure(value: Any, digits: str = ".4g") -> Text:
    """Return a cell of a table; a figure that does not exist is a dash."""
    if value is None:
        return Text("–")
    return Text(format(value, digits) if isinstance(value, float) else str(value))


def print_headline(found: Headline, title: str) -> None:
    """Print the first figures of an evaluation, and what has to be known of them."""
    console = Console()
    console.print(found.as_table(title))
    for note in found.notes:
        console.print(Text(note), highlight=False)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str = "", no_wrap: Sequence[str] = ()
) -> None:
    """Print a table. Its texts are no markup; the columns in ``no_wrap`` are not broken into lines."""
    table = Table(title=Text(title) if title else None)
    for name in columns:
        table.add_column(name, no_wrap=name in no_wrap)
    for row in rows:
        table.add_row(*(figure(value) for value in row))
    Console().print(table)


def resolve_target(target: str, recipe: str | None) -> tuple[str, str | None]:
    """Return the recipe to measure by and the model to measure; None is the model the recipe starts from.

    Raises:
        ConfigError: ``target`` is a model that belongs to no run, and no recipe is given.
    """
    folder, served = Path(target).expanduser(), is_served(target)
    if not served and (folder / RECIPE_FILE).is_file():
        return recipe or target, _trained_model(folder)
    if not served and not is_saved_model(folder):
        return recipe or target, None
    above = () if served else folder.resolve().parents
    run = recipe or next((str(path) for path in above if (path / RECIPE_FILE).is_file()), None)
    if run is None:
        raise ConfigError(f"{target} is a model: say with --recipe NAME what to measure it by")
    return run, target


def saved_model(target: str) -> str:
    """Return the model's folder: ``target`` itself, or the model that the run in ``target`` has trained.

    Raises:
        ConfigError: ``target`` is neither a run nor a model.
    """
    folder = Path(target).expanduser()
    if (folder / RECIPE_FILE).is_file():
        return _trained_model(folder)
    if is_saved_model(folder):
        return str(folder)
    raise ConfigError(f"{target} is neither a run nor a saved model")


def _trained_model(run: Path) -> str:
    from selfverify.trainer.checkpoint import (
        CHECKPOINTS_FOLDER,
        MODEL_FOLDER,
        best_checkpoint,
        latest_checkpoint,
    )

    checkpoints = run / CHECKPOINTS_FOLDER
    best = best_checkpoint(checkpoints, verify=True)
    if best is None and is_saved_model(run / MODEL_FOLDER):
        return str(run / MODEL_FOLDER)
    checkpoint = best or latest_checkpoint(checkpoints, verify=True)
    if checkpoint is None:
        raise ConfigError(f"{run}: this run holds no trained model and no complete checkpoint")
    return str(checkpoint / MODEL_FOLDER)
