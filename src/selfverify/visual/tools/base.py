"""The base of visual tools, the way in which a conversation calls them, and the models behind them."""

from __future__ import annotations

import inspect
import json
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError
from selfverify.core.events import note
from selfverify.tasks.tool_calls import ToolError, is_number, misfit, read_json, short_name, tool_schema
from selfverify.visual.tools.gallery import Gallery, Made

CORNERS = ("x_min", "y_min", "x_max", "y_max")


def _as_list(value: Any) -> Any:
    """Return a box as a list, also one with named corners, as VTS-V's models write it."""
    if isinstance(value, dict) and value.keys() == set(CORNERS):
        return [value[corner] for corner in CORNERS]
    return value


ImageIndex = Annotated[int, Field(ge=1)]
"""The number of an image as the model sees it; the first is 1."""
Box = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=4, max_length=4)]
"""x_min, y_min, x_max, y_max, as the model writes places."""


def _not_blank(text: str) -> str:
    if not text.replace(".", "").strip():
        raise ValueError("it is empty")
    return text


Phrase = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_not_blank)]


class Arguments(BaseModel):
    """Arguments of a visual tool. The text below a field describes it."""

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
    """The findings of a tool.

    Args:
        text: Words for the model.
        images: Images for the model, which gives them their numbers in this order.
    """

    text: str = ""
    images: Sequence[Made] = field(default_factory=list)


A = TypeVar("A", bound=Arguments)


def plain_name(name: str) -> str:
    """Return a tool's name without its writing: ``CropAction`` and ``crop_action`` are ``crop``."""
    return re.sub(r"[\W_]", "", name).casefold().removesuffix("action")


class VisualTool(ABC, Generic[A]):
    """A tool that looks at images. The first paragraph of its docstring tells the model what it does.

    A tool has no state of a conversation, so that all conversations share it, and only reads the gallery.

    Attributes:
        name: The name by which the model calls it.
        also: Other names that models use for it, which `plain_name` does not make equal.
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

        Numbers and lists may be written as texts, whole numbers as 3.0, and texts as numbers, as models do.

        Raises:
            ToolError: They do not fit the schema.
        """
        kinds = self.schema["function"]["parameters"]["properties"]
        fitted = {name: _as_kind(value, kinds.get(name, {})) for name, value in arguments.items()}
        try:
            return self.arguments.model_validate_json(json.dumps(fitted))
        except ValidationError as error:
            raise ToolError(misfit(self.name, error)) from None


def _as_kind(value: Any, schema: Mapping[str, Any]) -> Any:
    """A value as the type of its schema, where it is that in other writing; else the value."""
    kind = schema.get("type")
    if kind == "string":
        return json.dumps(value) if is_number(value) else value
    if kind in ("array", "integer", "number") and isinstance(value, str):
        try:
            value = read_json(value)
        except ValueError:
            return value
    if kind == "array" and isinstance(value := _as_list(value), list):
        return [_as_kind(item, schema.get("items", {})) for item in value]
    return int(value) if kind == "integer" and isinstance(value, float) and value.is_integer() else value


logger = logging.getLogger(__name__)

MOST_HUNG = 8
"""Threads that may hang in one tool; while so many do, it is not offered. A hung thread cannot be ended."""
LONGEST_FAULT = 300
"""Characters of an unexpected error that the model is shown."""


class ToolFault(ToolError):
    """A tool has died or hung: the fault is not the caller's."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A call whose tool exists and whose arguments fit."""

    tool: VisualTool[Any]
    arguments: Arguments

    @property
    def key(self) -> str:
        """Return a text that is the same for two equal calls."""
        return f"{self.tool.name} {self.arguments.model_dump_json()}"


class Toolbox:
    """The tools that a conversation may call: by name, checked before they run, and with a deadline.

    Args:
        tools: In the order in which the model is shown them.
        seconds: How long a call may take.

    Raises:
        ConfigError: Two tools have the same name.
    """

    def __init__(self, tools: Sequence[VisualTool[Any]], seconds: float = 60.0) -> None:
        self.tools, self.seconds = {tool.name: tool for tool in tools}, seconds
        self._by_name: dict[str, VisualTool[Any]] = {}
        self._left_behind: list[tuple[str, threading.Thread]] = []
        """Calls that took too long: of which tool, and their threads."""
        for tool in tools:
            for name in (tool.name, *tool.also):
                if self._by_name.setdefault(plain_name(name), tool) is not tool:
                    raise ConfigError(f"two tools are called {name}")

    def schemas(self) -> list[dict[str, Any]]:
        """The tools that are available here, as they stand in `Problem.tools`."""
        return [tool.schema for tool in self.tools.values() if not self.missing(tool)]

    @property
    def names(self) -> Collection[str]:
        """The names by which tools are called, also of those that are not available here."""
        return {name for tool in self.tools.values() for name in (tool.name, *tool.also)}

    def missing(self, tool: VisualTool[Any]) -> str:
        """Why a tool is not available here; empty where it is."""
        # A call that has ended after all, such as a slow one, does not hang.
        hung = sum(thread.is_alive() for name, thread in [*self._left_behind] if name == tool.name)
        if hung >= MOST_HUNG:
            return f"{hung} calls of it hang"
        return tool.missing()

    def chosen(self, name: str, arguments: Mapping[str, Any]) -> Chosen:
        """The call of a tool; nothing has run when this returns.

        Raises:
            ToolError: There is no such tool, it is not available here, or the arguments do not fit.
        """
        if (tool := self._by_name.get(plain_name(name))) is None:
            names = ", ".join(schema["function"]["name"] for schema in self.schemas())
            raise ToolError(f"there is no tool {short_name(name)}; there are {names or 'none'}")
        if why := self.missing(tool):
            raise ToolError(f"{tool.name} is not available here: {why}")
        return Chosen(tool, tool.read(arguments))

    def run(self, call: Chosen, gallery: Gallery) -> Found:
        """Return the findings of a call.

        Raises:
            ToolError: It cannot be done.
            ToolFault: The tool has died or hung.
        """
        tool = call.tool
        if tool.at_once:
            return self._guarded(call, gallery)
        result: Future[Found] = Future()

        def work() -> None:
            try:
                result.set_result(self._guarded(call, gallery))
            except ToolError as error:
                result.set_exception(error)

        thread = threading.Thread(target=work, daemon=True, name=f"tool {tool.name}")
        thread.start()
        try:
            return result.result(self.seconds)
        except TimeoutError:
            self._left_behind.append((tool.name, thread))
            note(logger, "tool_hung", f"the tool {tool.name} hangs", tool=tool.name, seconds=self.seconds)
            raise ToolFault(f"{tool.name} took longer than {self.seconds:g} s") from None

    def _guarded(self, call: Chosen, gallery: Gallery) -> Found:
        name = call.tool.name
        try:
            found = call.tool.run(call.arguments, gallery)
        except ToolError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            note(logger, "tool_failed", f"the tool {name} has failed: {reason}", tool=name, reason=reason)
            raise ToolFault(f"{name} has failed: {reason[:LONGEST_FAULT]}") from error
        if not isinstance(found, Found):
            raise ToolFault(f"{name} has returned a {type(found).__name__}, which is no finding")
        return found


Q = TypeVar("Q")
R = TypeVar("R")

_lock = threading.Lock()
_shared: dict[Hashable, Batched[Any, Any]] = {}


class Batched(Generic[Q, R]):
    """Asks a model that works on lists. Questions that come while it works wait, and go in together next.

    Args:
        load: Loads the model and returns what asks it. It is called once, when the first question comes.
        most: How many questions it is asked at a time.
    """

    def __init__(self, load: Callable[[], Callable[[list[Q]], Sequence[R]]], most: int = 16) -> None:
        self.load, self.most = load, most
        self._ask: Callable[[list[Q]], Sequence[R]] | None = None
        self._failed: str = ""
        self._working = threading.Lock()
        self._line = threading.Lock()
        self._waiting: list[tuple[Q, Future[R]]] = []
        self.asked: list[int] = []
        """How many questions went in together, each time."""

    def __call__(self, questions: Sequence[Q]) -> list[R]:
        """The answers, in order.

        Raises:
            ToolError: The model cannot be loaded; it is not tried again.
            Exception: The model raises for one of the questions.
        """
        own: list[Future[R]] = [Future() for _ in questions]
        with self._line:
            self._waiting += zip(questions, own, strict=True)
        while not all(future.done() for future in own):
            with self._working:
                self._work()
        return [future.result() for future in own]

    def _work(self) -> None:
        """Answer the questions that have waited longest."""
        with self._line:
            some, self._waiting = self._waiting[: self.most], self._waiting[self.most :]
        if not some:
            return
        try:
            answers = self._answers([question for question, _ in some])
        except Exception as error:
            if len(some) == 1:
                some[0][1].set_exception(error)
                return
            # One bad question must not spoil the others.
            for question, future in some:
                try:
                    future.set_result(self._answers([question])[0])
                except Exception as its_own:
                    future.set_exception(its_own)
            return
        for (_, future), answer in zip(some, answers, strict=True):
            future.set_result(answer)

    def _answers(self, questions: list[Q]) -> Sequence[R]:
        if self._failed:
            raise ToolError(self._failed)
        if self._ask is None:
            try:
                self._ask = self.load()
            except Exception as error:
                self._failed = f"its model cannot be loaded: {type(error).__name__}: {error}"[:500]
                raise ToolError(self._failed) from error
        self.asked.append(len(questions))
        answers = self._ask(questions)
        if len(answers) != len(questions):
            raise RuntimeError(f"the model has given {len(answers)} answers to {len(questions)} questions")
        return answers


def shared(
    key: Hashable, load: Callable[[], Callable[[list[Q]], Sequence[R]]], most: int = 16
) -> Batched[Q, R]:
    """The model of this name in this process; it is loaded when the first question comes.

    Args:
        key: Says which model it is, with all that its answers depend on.
        load: See `Batched`.
        most: See `Batched`.
    """
    with _lock:
        if key not in _shared:
            _shared[key] = Batched(load, most)
        return _shared[key]


def missing_model(name: str | None, setting: str) -> str:
    """Why a model is not available; empty where it may be. Nothing is loaded, and no hub is asked.

    Args:
        name: A folder or a hub id; None where none was named.
        setting: The setting that names it.
    """
    if name is None:
        return f"no model is named: {setting}"
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local and not (path / "config.json").is_file():
        return f"{setting}: {name} is no folder with a config.json"
    return ""


def loaded(kind: Any, name: str, device: str) -> Any:
    """A model of a class of transformers, read from safetensors and ready to be asked.

    Args:
        kind: One of transformers' ``AutoModel`` classes.
        name: A folder or a hub id.
        device: Where it runs.
    """
    model = kind.from_pretrained(place_of(name), use_safetensors=True)
    return model.to(device).eval()


def pipeline_of(task: str, name: str, device: str) -> Any:
    """A pipeline of transformers, ready to be asked.

    Args:
        task: Its name in transformers.
        name: The model: a folder or a hub id.
        device: Where it runs.
    """
    from transformers import pipeline

    model = place_of(name)
    return pipeline(task, model=model, device=device, model_kwargs={"use_safetensors": True})


def processor_of(name: str) -> Any:
    """Load the processor that prepares a model's images and texts."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(place_of(name))


def place_of(name: str) -> str:
    """A folder or a hub id as transformers takes it: without ``~``."""
    return str(Path(name).expanduser())


class ModelTool(VisualTool[A], Generic[A]):
    """A tool that is available where a model is named for it.

    Args:
        model: A folder or a hub id; None where none is named.
        device: Where it runs.

    Attributes:
        setting: The field of `ToolModelsConfig` that names the model.
    """

    setting: ClassVar[str]

    def __init__(self, model: str | None = None, device: str = "cpu") -> None:
        self.model, self.device = model, device

    def missing(self) -> str:
        return missing_model(self.model, self.setting)

    @property
    def named(self) -> str:
        """The model; only a tool that is not `missing` has one."""
        assert self.model is not None
        return self.model


class TerminateArguments(Arguments):
    """Arguments of `Terminate`."""

    final_response: Annotated[str, AfterValidator(_not_blank)] = Field(max_length=20_000)
    """The answer to the question."""


class Terminate(VisualTool[TerminateArguments]):
    """Ends looking and answers the question."""

    name = "terminate"
    arguments = TerminateArguments
    at_once = True

    def run(self, asked: TerminateArguments, gallery: Gallery) -> Found:
        """Find nothing: the episode takes the answer itself."""
        return Found()
