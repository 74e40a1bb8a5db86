"""The parts that tasks of agents share in all environments: prompt, tools, judges and the conversation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from selfverify.agents.episode import AgentConfig, AgentEpisode
from selfverify.agents.evidence import submit_tool
from selfverify.agents.goals import Goal
from selfverify.agents.judges.make_judge import JudgeConfig, World, agent_prompt, make_jury
from selfverify.agents.judges.own_judge import ShortForm
from selfverify.agents.reward import METRICS
from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Environment
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.tasks.base import Task, TaskConfig, Verdict
from selfverify.tasks.tool_calls import CallForm


class AgentTaskConfig(TaskConfig):
    """Options of every task of agents; a task adds those of its environment."""

    prompt: Literal["principles", "examples", "task"] = "principles"
    """What the agent is told: how to work and to prove it (the 3C principles), the same with examples of work
    on phones, or its task alone, for a policy that has learnt the rest from demonstrations."""

    react: bool = True
    """Whether the agent says before each call why it makes it (ReAct), or calls only."""

    calls: CallForm = "tagged"
    """How demonstrated calls are written: between <tool_call> tags; as plain JSON, which leaves no room for
    words (`react: false`); or as plain JSON whose texts begin with a space (`spaced`), so that small models
    copy words as they stand on a screen. Agents may write any."""

    hints: list[str] = []
    """Kinds of apps of which the agent is told what is usual."""

    agent: AgentConfig = Field(default_factory=AgentConfig)
    """First screen, evidence, refused calls, reward."""

    judge: JudgeConfig = Field(default_factory=JudgeConfig)
    """Who judges submissions."""

    @model_validator(mode="after")
    def _check_calls(self) -> AgentTaskConfig:
        if self.react and self.calls != "tagged":
            raise ValueError(f"calls={self.calls} leaves messages no room for words: set react=false with it")
        return self


class AgentTask(Task):
    """Lets an agent work in an environment until it submits; `AgentEpisode` gives the reward.

    A problem's target is plain JSON: what the environment is reset to, with which seed, and the goal, where
    it is known.

    Attributes:
        world: The world that the agent operates.
        looking: Tools that show the screen and do nothing.
        short: Its cases in few words, for small judges (`judge.own.form=short`); None where there are none.
        done_from: The environment's own reward from which a task counts as done; see `AgentEpisode`.
    """

    config: AgentTaskConfig
    world: ClassVar[World]
    looking: frozenset[str] = frozenset()
    short: ClassVar[ShortForm | None] = None
    done_from: float | None = None
    tags = ("answer",)
    metrics = METRICS
    limits = RolloutLimits(turns=30)

    def __init__(self, config: TaskConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.repeatable = self.repeatable and c.judge.kind != "model"
        # At once, so that what cannot work is refused before a model is loaded.
        self.jury = make_jury(c.judge, self.world, self.short)
        calls = c.calls if c.prompt == "examples" else None
        told = (c.agent.evidence.source, c.react, c.agent.first_screen, c.hints, self.world, calls)
        self._told = agent_prompt(*told)

    @abstractmethod
    def environment(self) -> Environment:
        """An environment for one conversation, which closes it."""

    @abstractmethod
    def tools(self) -> Sequence[dict[str, Any]]:
        """The environment's tools."""

    def named_problem(self, kind: str, seed: int) -> Problem:
        """A problem of a kind that has a name, whose contents the seed decides.

        Raises:
            ConfigError: The task's kinds of problems have no names, which is the default.
            DataError: There is no such kind.
        """
        raise ConfigError(f"task {self.name} has no kinds of problems to be asked for by name")

    def asked_problem(self, instruction: str, seed: int) -> Problem:
        """A person's request in an environment whose contents the seed decides; no goal is known.

        Raises:
            ConfigError: The task's environment cannot be begun without a problem of its own, the default.
        """
        raise ConfigError(f"task {self.name} takes no instructions of your own")

    def agent_problem(
        self, name: str, instruction: str, target: Mapping[str, Any], about: Mapping[str, Any]
    ) -> Problem:
        """Return a problem of an agent.

        Args:
            name: Its id.
            instruction: The agent's task in words.
            target: ``reset``, ``seed`` and ``goal``; see the class.
            about: All else that is known of it, for `Problem.meta`.
        """
        c = self.config
        told: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "text", "text": f"# Task\n{instruction}"}]}
        ]
        if c.prompt != "task":
            told.insert(0, {"role": "system", "content": [{"type": "text", "text": self._told}]})
        return Problem(
            id=name,
            messages=told,
            target=dict(target),
            meta={"question": instruction, **about},
            tools=[*self.tools(), submit_tool(c.agent.evidence.source)],
            environment_begins=c.agent.first_screen == "given",
        )

    def open(self, problem: Problem, seed: int) -> AgentEpisode:
        """Open an agent's conversation. All that is random in the environment depends on the problem, and not
        on ``seed``."""
        target = problem.target
        goal = None if target["goal"] is None else Goal.read(target["goal"], problem.id)
        unjudged = goal is None and self.done_from is None and self.config.judge.needs_goal
        return AgentEpisode(
            problem,
            self.environment,
            target["reset"],
            target["seed"],
            None if unjudged else self.jury,
            self.config.agent,
            self.limits.turns,
            goal,
            self.looking,
            self.done_from,
        )

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Words alone are no work."""
        return Verdict(0.0, False)

    def set_policy(self, policy: object) -> None:
        self.jury.judge.set_policy(policy)

    def set_cache_folder(self, folder: Path) -> None:
        self.jury.judge.set_cache_folder(folder)

    def counters(self) -> dict[str, float]:
        return self.jury.counters()
