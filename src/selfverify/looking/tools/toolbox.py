"""The tools that a conversation may call: by name, checked before they run, and with a deadline."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.core.events import note
from selfverify.looking.tools.pictures import Gallery
from selfverify.looking.tools.visual_tool import Arguments, Found, VisualTool
from selfverify.tasks.tool_calls import ToolError, short_name

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
        """The same for two calls that ask for the same."""
        return f"{self.tool.name} {self.arguments.model_dump_json()}"


class Toolbox:
    """Tools by name.

    Args:
        tools: In the order in which the model is shown them.
        seconds: How long a call may take.

    Raises:
        ConfigError: Two tools have the same name.
    """

    def __init__(self, tools: Sequence[VisualTool[Any]], seconds: float = 60.0) -> None:
        self.tools, self.seconds = {tool.name: tool for tool in tools}, seconds
        self._by_name: dict[str, VisualTool[Any]] = {}
        self._left_behind: dict[str, list[threading.Thread]] = {}
        self._lock = threading.Lock()
        for tool in tools:
            for name in (tool.name, *tool.also):
                if self._by_name.setdefault(name, tool) is not tool:
                    raise ConfigError(f"two tools are called {name}")

    def schemas(self) -> list[dict[str, Any]]:
        """The tools that are available here, as they stand in `Problem.tools`."""
        return [tool.schema for tool in self.tools.values() if not self.missing(tool)]

    def missing(self, tool: VisualTool[Any]) -> str:
        """Why a tool is not available here; empty where it is."""
        if (hung := self._hung(tool.name)) >= MOST_HUNG:
            return f"{hung} calls of it hang"
        return tool.missing()

    def chosen(self, name: str, arguments: Mapping[str, Any]) -> Chosen:
        """The call of a tool; nothing has run when this returns.

        Raises:
            ToolError: There is no such tool, it is not available here, or the arguments do not fit.
        """
        if (tool := self._by_name.get(name)) is None:
            names = ", ".join(schema["function"]["name"] for schema in self.schemas())
            raise ToolError(f"there is no tool {short_name(name)}; there are {names or 'none'}")
        if why := self.missing(tool):
            raise ToolError(f"{tool.name} is not available here: {why}")
        return Chosen(tool, tool.read(arguments))

    def run(self, call: Chosen, gallery: Gallery) -> Found:
        """What a call finds.

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
            with self._lock:
                self._left_behind.setdefault(tool.name, []).append(thread)
            note(logger, "tool_hung", f"the tool {tool.name} hangs", tool=tool.name, seconds=self.seconds)
            raise ToolFault(f"{tool.name} took longer than {self.seconds:g} s") from None

    def _hung(self, name: str) -> int:
        """How many calls of a tool hang; one that has ended after all, such as a slow one, does not."""
        with self._lock:
            running = [thread for thread in self._left_behind.get(name, []) if thread.is_alive()]
            self._left_behind[name] = running
        return len(running)

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
