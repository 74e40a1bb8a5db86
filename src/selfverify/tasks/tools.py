"""Tools: functions of an environment that the policy may call."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NotRequired, get_type_hints

from PIL.Image import Image
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict

from selfverify.core.errors import ConfigError
from selfverify.tasks.tool_calls import short_name

Shown = str | Image | Sequence[str | Image]
"""What a tool returns to be shown: a text, an image, or several in order."""


class ToolError(Exception):
    """A tool cannot do what it was asked. The message is for the policy, and the conversation goes on."""


class _Untitled(GenerateJsonSchema):
    """Schemas without titles, which say nothing that the names do not."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Tool:
    """A method that the policy may call; see `tool`.

    Args:
        function: The method. Its parameters have annotations; ``Annotated[int, Field(description=...)]`` says
            what one means. The first paragraph of its docstring says what the tool does.
        ends: Whether a call that succeeds ends the conversation.

    Raises:
        ConfigError: A parameter has no annotation, or is ``*args`` or ``**kwargs``.
    """

    def __init__(self, function: Callable[..., Any], ends: bool = False) -> None:
        self.function, self.ends, self.name = function, ends, function.__name__
        hints = get_type_hints(function, include_extras=True)
        arguments: dict[str, Any] = {}
        for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
            if name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigError(
                    f"tool {self.name}: parameter {name} needs an annotation and must be a plain one"
                )
            arguments[name] = (
                hints[name] if parameter.default is parameter.empty else NotRequired[hints[name]]
            )
        strict = with_config(ConfigDict(extra="forbid", strict=True))
        self._arguments = TypeAdapter[dict[str, Any]](strict(TypedDict(self.name, arguments)))  # type: ignore

    def __get__(self, episode: Any, kind: type) -> Any:
        """The method bound to its episode, as of any method; of the class the tool itself."""
        return self if episode is None else partial(self.function, episode)

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as it stands in `Problem.tools`."""
        return tool_schema(self.name, inspect.getdoc(self.function) or "", self._arguments)

    def check(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The arguments as the method takes them, or what is wrong with them; types are not converted."""
        try:
            return self._arguments.validate_json(json.dumps(arguments)), ""
        except ValidationError as error:
            return {}, misfit(self.name, error)


def tool_schema(name: str, described: str, arguments: TypeAdapter[Any]) -> dict[str, Any]:
    """A tool as it stands in `Problem.tools`.

    Args:
        name: Its name.
        described: What it does; the first paragraph is shown.
        arguments: Its arguments.
    """
    parameters = arguments.json_schema(schema_generator=_Untitled)
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": " ".join(described.split("\n\n")[0].split()),
            "parameters": {
                "type": "object",
                "properties": {},
                **{k: v for k, v in parameters.items() if k in ("$defs", "properties", "required")},
            },
        },
    }


def misfit(name: str, error: ValidationError) -> str:
    """What does not fit in the arguments of the tool ``name``, in words for the policy."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    said = [f"{_place(fault['loc'])}: {fault['msg']}" for fault in faults[:3]]
    return f"the arguments of {name} do not fit: {'; '.join(said)}"


def chosen_tool(
    tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any]
) -> tuple[Tool, dict[str, Any]]:
    """The tool that is called, and the arguments as its method takes them.

    Raises:
        ToolError: There is no such tool, or its arguments do not fit.
    """
    if (tool := tools.get(name)) is None:
        raise ToolError(f"there is no tool {short_name(name)}; there are {', '.join(tools)}")
    fitted, fault = tool.check(dict(arguments))
    if fault:
        raise ToolError(fault)
    return tool, fitted


def _place(parts: tuple[int | str, ...]) -> str:
    return ".".join(str(part) if isinstance(part, int) else short_name(part) for part in parts)


def tool(function: Callable[..., Any] | None = None, *, ends: bool = False) -> Any:
    """Marks a method of a `ToolEpisode` as a tool that the policy may call.

    Args:
        function: The method.
        ends: Whether a call that succeeds ends the conversation.
    """
    return partial(tool, ends=ends) if function is None else Tool(function, ends)
