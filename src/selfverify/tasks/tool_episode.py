"""A conversation in which the policy calls tools until it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from PIL.Image import Image

from selfverify.core.episode import EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import ANSWER, Finish
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.tool_calls import Shown, Tool, ToolCalls, ToolError, chosen_tool, read_calls

TOOL_CALLS, TOOL_ERRORS = "tool_calls", "tool_errors"
"""Rewards that count, of one conversation, the calls that were carried out and those refused or failed.

Values of a turn (`PolicyTurn.values`) with the same names count them turn by turn."""
ACTION = "action"
"""Channel of a turn in which the policy calls tools, its thoughts before the call included."""


class ToolEpisode(SingleTurn):
    """Carries out the tools that the policy calls and shows what they return, until the policy answers.

    Derive from it and mark methods as tools (`tool`). A task's problems then have
    ``tools=MyEpisode.schemas()``, and its `Task.open` returns
    ``MyEpisode(problem, self.tags, self.verdict)``. A message without a call is the answer, which the task
    judges. A tool marked ``ends`` ends the conversation, too; the text that it returns is the answer then,
    which the task judges as the content of the tag ``answer``.

    A call that cannot be read, of a tool that does not exist or with arguments that do not fit is refused:
    the policy is told why, and nothing of its message is carried out. A tool that raises `ToolError` has
    failed; the policy is told, and the calls behind it are left out. Another exception of a tool ends the
    conversation with ``error`` and without a verdict.

    A conversation that ends without an answer, at a limit or after too many errors in a row, ends wrong.
    Rewards are those of the answer, and the numbers ``tool_calls`` (carried out) and ``tool_errors``.
    """

    tools: ClassVar[dict[str, Tool]] = {}
    """By name; the class's own methods that are marked, and those of the classes it derives from."""
    channel = ACTION
    role: ClassVar[Literal["user", "tool"]] = "tool"
    """The role that shows the results of tools; ``user`` for chat templates without messages of tools."""
    calls_at_once = 1
    """Calls that one message may hold."""
    errors_in_a_row = 3
    """Messages with refused or failed calls after which the conversation ends."""
    longest_result = 12_000
    """Characters of the texts of one message that are shown; the middle is left out of longer ones."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {value.name: value for value in vars(cls).values() if isinstance(value, Tool)}
        if taken := sorted(own.keys() & set(dir(ToolEpisode))):
            raise ConfigError(
                f"{cls.__name__}: a tool cannot be called {taken[0]}, which episodes have already"
            )
        cls.tools = {**cls.tools, **own}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.called, self.errors = 0, 0
        self._in_a_row = 0
        self._turn = 0

    @classmethod
    def schemas(cls) -> list[dict[str, Any]]:
        """The tools as they stand in `Problem.tools`."""
        return [tool.schema for tool in cls.tools.values()]

    def expected_observations(self) -> Sequence[Observation]:
        return [Observation(role=self.role)]

    def step(self, said: PolicyTurn) -> Observation:
        """Carry out the calls of a turn. Its ``tool_calls`` and ``tool_errors`` stand in
        `PolicyTurn.values`."""
        called, errors = self.called, self.errors
        reply = self._carried_out(said)
        for name, count in ((TOOL_CALLS, self.called - called), (TOOL_ERRORS, self.errors - errors)):
            if count:
                said.values[name] = float(count)
        return reply

    def _carried_out(self, said: PolicyTurn) -> Observation:
        self._turn = said.turn
        read = read_calls(said, self.schemas())
        if not read.calls and not read.error:
            return Observation(done=True, channels=self._read(said, ANSWER, split=True))
        if said.finish != Finish.STOP:
            # Nothing can be said to a message that was cut off.
            self.errors += 1
            return Observation(done=True)
        try:
            chosen = self._chosen(read)
        except ToolError as error:
            return self._told([f"Error: {error}"], failed=True)
        shown: list[str | Image] = []
        for tool, arguments in chosen:
            try:
                result: Shown = tool.function(self, **arguments)
            except ToolError as error:
                return self._told([*shown, f"Error: {error}"], failed=True)
            self.called += 1
            if tool.ends:
                self._answers.append(Tagged({"answer": str(result)}, answer_ok=True))
                return Observation(done=True)
            shown += [result] if isinstance(result, str | Image) else result
        return self._told(shown, failed=False)

    def result(self) -> EpisodeResult:
        """Return the verdict on the answer; without one the trajectory is lost."""
        made = super().result()
        made.rewards |= {TOOL_CALLS: float(self.called), TOOL_ERRORS: float(self.errors)}
        if made.turns:
            made.turns = [None] * self._turn + made.turns
        return made

    def _chosen(self, read: ToolCalls) -> list[tuple[Tool, dict[str, Any]]]:
        """The tools that are called, with their arguments; where one does not fit, none is carried out.

        Raises:
            ToolError: Why none is carried out.
        """
        if read.error:
            raise ToolError(read.error)
        if len(read.calls) > self.calls_at_once:
            raise ToolError(
                f"{len(read.calls)} calls in one message, and at most {self.calls_at_once} may be"
            )
        return [chosen_tool(self.tools, call.name, call.arguments) for call in read.calls]

    def _told(self, shown: list[str | Image], failed: bool) -> Observation:
        """Return the results of tools, or why a call was refused, as a reply."""
        self.errors += failed
        self._in_a_row = self._in_a_row + 1 if failed else 0
        if self._in_a_row >= self.errors_in_a_row:
            return Observation(done=True)
        parts: list[dict[str, Any]] = []
        room = self.longest_result
        for piece in shown:
            if isinstance(piece, Image):
                parts.append({"type": "image"})
                continue
            parts.append({"type": "text", "text": shortened(piece, room)})
            room = max(room - len(piece), 0)
        return Observation(parts, [piece for piece in shown if isinstance(piece, Image)], self.role)


def shortened(text: str, room: int) -> str:
    """A text without its middle, where it is longer than ``room`` characters."""
    if len(text) <= room:
        return text
    half = room // 2
    return f"{text[:half]}\n... ({len(text) - 2 * half} characters left out) ...\n{text[len(text) - half :]}"
