"""What a visual tool is: arguments with a schema, whether it is available here, and what it finds."""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from selfverify.looking.tools.pictures import Gallery, Made
from selfverify.tasks.tool_calls import ToolError, misfit, tool_schema

CORNERS = ("x_min", "y_min", "x_max", "y_max")


def _as_list(value: Any) -> Any:
    """A box that is written by its corners' names, as VTS-V's models do, as a list."""
    if isinstance(value, dict) and value.keys() == set(CORNERS):
        return [value[corner] for corner in CORNERS]
    return value


ImageIndex = Annotated[int, Field(ge=1)]
"""The number of an image as the model sees it; the first is 1."""
Box = Annotated[
    list[Annotated[float, Field(allow_inf_nan=False)]],
    Field(min_length=4, max_length=4),
    BeforeValidator(_as_list),
]
"""x_min, y_min, x_max, y_max, as the model writes places."""
Phrase = Annotated[str, Field(min_length=1, max_length=200)]


class Arguments(BaseModel):
    """Arguments of a visual tool. Types are not converted, and the text below a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class OnImage(Arguments):
    """Arguments of a tool that looks at one image."""

    image_index: ImageIndex
    """The number of the image, from 1."""


class InBox(OnImage):
    """Arguments of a tool that looks at a part of an image."""

    bounding_box: Box
    """x_min, y_min, x_max, y_max."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a tool gives back.

    Args:
        text: Words for the model.
        images: Images for the model, which gives them their numbers in this order.
    """

    text: str = ""
    images: Sequence[Made] = field(default_factory=list)


A = TypeVar("A", bound=Arguments)


class VisualTool(ABC, Generic[A]):
    """A tool that looks at images. The first paragraph of its docstring tells the model what it does.

    A tool has no state of a conversation, so that all conversations share it, and only reads the gallery.

    Attributes:
        name: What the model calls it.
        also: Other names that models use for it, such as the paper's.
        arguments: Its arguments.
        at_once: Whether it is quick and certain to return, so that it needs no deadline.
    """

    name: ClassVar[str]
    also: ClassVar[tuple[str, ...]] = ()
    arguments: ClassVar[type[Arguments]]
    at_once: ClassVar[bool] = False

    def missing(self) -> str:
        """Why the tool is not available here, and what to do; empty where it is. Nothing is loaded."""
        return ""

    @abstractmethod
    def run(self, asked: A, gallery: Gallery) -> Found:
        """Look.

        Raises:
            ToolError: It cannot be done; the message is for the model.
        """

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The tool as it stands in `Problem.tools`."""
        return tool_schema(self.name, inspect.getdoc(type(self)) or "", TypeAdapter(self.arguments))

    def read(self, arguments: Mapping[str, Any]) -> Arguments:
        """A call's arguments as the tool takes them.

        Raises:
            ToolError: They do not fit the schema.
        """
        try:
            return self.arguments.model_validate_json(json.dumps(dict(arguments)))
        except ValidationError as error:
            raise ToolError(misfit(self.name, error)) from None
