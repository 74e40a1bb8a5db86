"""A task whose questions are answered by looking again with tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.looking.look_episode import VisualEpisode
from selfverify.looking.look_prompt import with_tools
from selfverify.looking.look_settings import VisualConfig, tool_models
from selfverify.looking.look_stopping import StoppingVerifier
from selfverify.looking.look_task import VisualTask, limits_of
from selfverify.looking.make_toolbox import all_tools, make_toolbox
from selfverify.looking.tools.pictures import space_named
from selfverify.tasks.base import Floats, Space, Task, Verdict


class VisualToolTask(VisualTask):
    """Another task's problems, judged as that task judges, each a conversation with visual tools.

    Args:
        inner: Makes problems and judges answers.
        settings: How a model looks.

    Raises:
        ConfigError: A tool or a rule that was asked for does not exist or is not available here; or images
            of other problems are to be shown, which are not known here.
    """

    def __init__(self, inner: Task, settings: VisualConfig) -> None:
        super().__init__()
        _check_results(settings)
        self.inner, self.settings = inner, settings
        self.name, self.summary, self.kind = f"looking/{inner.name}", inner.name, inner.kind
        self.tags, self.metrics, self.judges = inner.tags, inner.metrics, inner.judges
        self.limits = limits_of(settings)
        self._tools = all_tools(settings, settings.tool_seconds)
        self.toolbox, self.stopping = make_toolbox(settings, self._tools), StoppingVerifier(settings)
        named = settings.coordinates
        self._space = space_named("thousandths" if named == "family" else named)

    def set_coordinate_space(self, space: Space) -> None:
        """See `Task`."""
        self.inner.set_coordinate_space(space)
        if self.settings.coordinates == "family":
            self._space = space

    def set_policy(self, policy: object) -> None:
        """See `Task`."""
        self.inner.set_policy(policy)
        super().set_policy(policy)

    def looking_by(self, changes: Mapping[str, Any]) -> VisualToolTask:
        """See `VisualTask`."""
        changed = super().looking_by(changes)
        _check_results(changed.settings)
        if tool_models(changed.settings) != tool_models(self.settings):
            changed._tools = all_tools(changed.settings, changed.settings.tool_seconds)
        changed.toolbox = make_toolbox(changed.settings, changed._tools)
        return changed

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task`."""
        return self.asked(self.inner.problem(split, seed, index))

    def asked(self, problem: Problem) -> Problem:
        """A problem of the inner task with the tools described.

        Raises:
            ConfigError: It has tools of its own.
        """
        if problem.tools:
            raise ConfigError(f"problem {problem.id} has tools of its own; it cannot be given others")
        return with_tools(problem, self.toolbox, self._space, self.settings.calls)

    def look(self, problem: Problem) -> VisualEpisode:
        """See `VisualTask`; ``problem`` is one that `asked` has returned."""
        return VisualEpisode(
            problem,
            self.tags,
            self.inner.verdict,
            self.toolbox,
            self.settings,
            self._space,
            self.stopping.rule,
            tokens_of=self.tokens_of,
        )

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """See `Task`."""
        return self.inner.judge(problem, tagged)

    def prepare(self, answers: Sequence[tuple[Problem, Tagged]]) -> None:
        """See `Task`."""
        self.inner.prepare(answers)

    def unreadable(self, problem: Problem) -> Verdict:
        """See `Task`."""
        return self.inner.unreadable(problem)

    def answer_parts(self, problem: Problem, answers: Floats) -> dict[str, Floats]:
        """See `Task`."""
        return self.inner.answer_parts(problem, answers)

    def count(self, split: Split) -> int | None:
        """See `Task`."""
        return self.inner.count(split)

    def counters(self) -> dict[str, float]:
        """See `Task`."""
        return self.inner.counters()


def _check_results(settings: VisualConfig) -> None:
    if settings.results == "swapped":
        raise ConfigError("results: swapped needs a task that makes its problems itself, such as digits-far")
