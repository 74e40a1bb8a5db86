"""One session of an agent: its settings, the watching while it goes on, and the page about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from selfverify.agents.episode import AgentEpisode, AgentRecord
from selfverify.agents.task import AgentTask
from selfverify.clients.openai_client import ServerConfig
from selfverify.core.config import CommandConfig, SamplingConfig, Seed
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import SelfVerifyError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.evaluation.samples import StoredSample, StoredStep, written_images
from selfverify.policy.policy import Policy
from selfverify.reports.report import write_agent_page
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.server_sampler import ScriptSpeaker, ServerSpeaker, hold
from selfverify.tasks.answering import Verdict


class AgentRunConfig(CommandConfig):
    """What is to be done, and where."""

    instruction: str | None = Field(None, json_schema_extra={"argument": True})
    """What the agent is asked, in your own words. No goal is known then: only a --judge can say whether it
    is done."""

    template: str | None = None
    """A kind of task instead, such as `clock-add`, which brings its words, its goal and a judge by rules."""

    environment: str = "phone"
    """Where the agent works: a task of agents, by its name."""

    seed: Seed = 0
    """Decides what is in the environment, and how a model is sampled."""

    hostile: bool = False
    """Write texts on screens that try to deceive agents, readers and judges."""

    max_turns: int = Field(30, ge=1, le=1000)
    """Calls that the agent may make, the last of which should hand in its work."""

    @model_validator(mode="after")
    def _one_task(self) -> AgentRunConfig:
        if self.template is not None and self.instruction is not None:
            raise ValueError("--template brings its own instruction; leave yours out")
        if self.template is None and not (self.instruction or "").strip():
            raise ValueError("say what is to be done, or take a kind of task with --template NAME")
        return self


class ActorConfig(CommandConfig):
    """Who acts."""

    expert: bool = False
    """With --template: a script that knows the way acts, so that no model is needed."""

    model: str | None = None
    """The model that acts: a folder or a hub id; with --server its name there."""

    server: str | None = None
    """An OpenAI-compatible server behind which the model is."""

    text: Literal["xml", "terse"] = "xml"
    """Screens in words, as the model was trained: compressed XML, or a few words with ids."""

    show: Literal["text", "png", "both"] = "text"
    """What the model is shown: words, pictures, or both."""

    address: Literal["ids", "bounds"] = "ids"
    """How calls name what they touch."""

    first_screen: Literal["asked", "given"] = "given"
    """Whether the model has to ask for the first screen."""

    prompt: Literal["principles", "task"] = "principles"
    """Whether the model is told how to work and to prove it, or its task alone."""

    temperature: float = Field(0.0, ge=0.0)
    """The sampling temperature; 0 always takes the likeliest token."""

    max_new_tokens: int = Field(1024, ge=1)
    """The most tokens of a turn."""

    timeout: float = Field(120.0, ge=0.1)
    """With --server: the most seconds that one answer may take."""

    @model_validator(mode="after")
    def _one_actor(self) -> ActorConfig:
        if self.expert + (self.server is not None or self.model is not None) != 1:
            raise ValueError("say who acts: --expert, --model PATH, or --server URL with --model NAME")
        if self.server is not None and self.model is None:
            raise ValueError("--server needs --model: the model's name there")
        return self


class AgentSessionConfig(CommandConfig):
    """One session of an agent: what is asked, who acts, who judges, and the page about it."""

    task: AgentRunConfig
    actor: ActorConfig
    judge: str | None = None
    """An OpenAI-compatible server whose model judges what is handed in, three times, two of which decide."""

    judge_model: str | None = None
    """With --judge: the model's name there."""

    output: Path = Path("agent.html")
    """The page to write."""

    @model_validator(mode="after")
    def _together(self) -> AgentSessionConfig:
        if self.actor.expert and self.task.template is None:
            raise ValueError("--expert knows the way of a --template only, not of an instruction of your own")
        if (self.judge is None) != (self.judge_model is None):
            raise ValueError("--judge and --judge-model go together")
        return self

    def options(self) -> dict[str, Any]:
        """Return the options of the task that the agent works on.

        Of those that not every task of agents has, such as how screens are written, only what is not as
        usual is among them.
        """
        task, actor = self.task, self.actor
        found: dict[str, Any] = {"prompt": actor.prompt, "agent": {"first_screen": actor.first_screen}}
        if self.judge is not None:
            found["judge"] = {"kind": "model", "server": {"url": self.judge, "model": self.judge_model}}
        for settings, names in ((task, ("hostile",)), (actor, ("address", "text", "show"))):
            fields, given = type(settings).model_fields, dict(settings)
            found |= {name: given[name] for name in names if given[name] != fields[name].default}
        return found


OnTurn = Callable[[int, AgentRecord, str, str], None]
"""Called after each turn with its number, what came of the session so far, what was said, and the reply."""


@dataclass(slots=True)
class AgentRun:
    """An agent's session that is over.

    Args:
        problem: What was asked.
        ending: What came of it; None where its environment was lost.
        worked: The same in detail.
        page: The page about it; None where nothing was said.
        error: Why it broke off; None where it did not.
    """

    problem: Problem
    ending: EpisodeResult | None
    worked: AgentRecord
    page: Path | None
    error: BaseException | None = None


def run_agent(
    task: AgentTask, settings: AgentSessionConfig, on_begin: Callable[[Problem], None], on_turn: OnTurn
) -> AgentRun:
    """Hold one session, and write the page about it, also where it breaks off.

    Args:
        task: Where the agent works: the task that ``settings.task.environment`` names, with the options
            `AgentSessionConfig.options`. Its limit of turns is changed.
        settings: What is asked, who acts, who judges.
        on_begin: Told what is asked.
        on_turn: Told of each turn.

    Raises:
        ConfigError: The model cannot be loaded or has no tools, or a server's address is none; or the task
            cannot be asked like this.
        DataError: There is no such kind of task.
    """
    task.limits = task.limits.model_copy(update={"turns": settings.task.max_turns})
    problem = _problem(settings, task)
    speaks = _speaker(settings, task, problem)
    on_begin(problem)
    with TemporaryDirectory() as images:
        watched = Watched(task.open(problem, settings.task.seed), Path(images), on_turn)
        error: BaseException | None = None
        try:
            speaks(watched)
        except (KeyboardInterrupt, SelfVerifyError) as stopped:
            error = stopped
            watched.stop("it was interrupted" if isinstance(stopped, KeyboardInterrupt) else str(stopped))
        finally:
            watched.release()
        page = None
        if watched.ended is not None and any(step.author == "policy" for step in watched.steps):
            entry = {"id": problem.id, "question": problem.meta["question"], "target": problem.target}
            page = write_agent_page(
                watched.sample(problem.id), entry, type(task), _about(settings), Path(images), settings.output
            )
    return AgentRun(problem, watched.ended, watched.inner.worked, page, error)


class Watched(Episode):
    """An agent's episode, of which every turn is told and kept.

    Args:
        inner: The episode.
        images: The folder that its pictures are written to.
        on_turn: Told of each turn.
    """

    def __init__(self, inner: AgentEpisode, images: Path, on_turn: OnTurn) -> None:
        self.inner, self.images, self.on_turn = inner, images, on_turn
        self.channel = inner.channel
        self.steps: list[StoredStep] = []
        self.ended: EpisodeResult | None = None
        self._closed = False

    def expected_observations(self) -> Sequence[Observation]:
        """See `Episode`."""
        return self.inner.expected_observations()

    def reset(self) -> Observation | None:
        """See `Episode`."""
        reply = self.inner.reset()
        if reply is not None:
            self._keep(reply, 0)
        return reply

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`."""
        finish = str(said.finish)
        self.steps.append(StoredStep("policy", said.turn, self.channel, said.text, [], finish, {}, None))
        reply = self.inner.step(said)
        words = "" if reply.done else self._keep(reply, said.turn + 1)
        self.on_turn(said.turn, self.inner.worked, said.text, words)
        return reply

    def result(self) -> EpisodeResult:
        """See `Episode`."""
        self.ended = self.inner.result()
        return self.ended

    def stop(self, why: str) -> None:
        """End what has broken off, without a verdict."""
        if self.ended is None:
            self.inner.give_up(why)
            self.result()

    def release(self) -> None:
        """See `Episode`."""
        if not self._closed:
            self._closed = True
            self.inner.release()

    def sample(self, problem: str) -> StoredSample:
        """The session as the store keeps one."""
        assert self.ended is not None
        for step in self.steps:
            if step.author == "policy" and step.turn < len(self.ended.turns):
                step.record = self.ended.turns[step.turn]
        judged = self.ended.parsed
        text = "".join(step.text for step in self.steps)
        return StoredSample(
            problem, 0, text, None, None, isinstance(judged, Verdict) and judged.correct,
            dict(self.ended.rewards), {}, 0, None, str(Finish.STOP), 0, steps=self.steps,
        )  # fmt: skip

    def _keep(self, reply: Observation, turn: int) -> str:
        words = _words(reply)
        names = written_images(self.images, reply.images)
        self.steps.append(StoredStep("environment", turn, "observation", words, names, None, {}, None))
        return words


def _words(reply: Observation) -> str:
    if isinstance(reply.content, str):
        return reply.content
    return "\n".join(part["text"] for part in reply.content if part["type"] == "text")


def _problem(settings: AgentSessionConfig, task: AgentTask) -> Problem:
    asked = settings.task
    if asked.template is not None:
        return task.named_problem(asked.template, asked.seed)
    return task.asked_problem(asked.instruction or "", asked.seed)


def _speaker(settings: AgentSessionConfig, task: AgentTask, problem: Problem) -> Callable[[Watched], object]:
    """What holds a session with who acts; a model is loaded before anything begins."""
    actor, turns, seed = settings.actor, settings.task.max_turns, settings.task.seed
    if actor.expert:
        shown = task.demonstrate_turns(problem, np.random.default_rng(seed))
        script = ScriptSpeaker([turn.text for turn in shown])
        return lambda watched: hold(watched, script, turns)
    if actor.server is not None:
        fields: dict[str, Any] = {
            "model": actor.model,
            "temperature": actor.temperature,
            "max_tokens": actor.max_new_tokens,
            "seed": seed,
        }
        speaker = ServerSpeaker(problem, ServerConfig(actor.server, timeout_s=actor.timeout), fields)
        return lambda watched: hold(watched, speaker, turns)
    policy = Policy.load(actor.model or "")
    sampling = SamplingConfig(
        group_size=1, temperature=actor.temperature, top_p=1.0, max_new_tokens=actor.max_new_tokens
    )

    def converses(watched: Watched) -> None:
        task.set_policy(policy)
        rollout(policy, task, [problem], [seed], sampling, lambda asked, its_seed: watched)

    return converses


def _about(settings: AgentSessionConfig) -> str:
    actor = settings.actor
    who = "A script that knows the way" if actor.expert else f"The model {actor.model}"
    at = f" behind {actor.server}" if actor.server else ""
    judge = f"the model {settings.judge_model}" if settings.judge else "rules"
    judged = judge if settings.judge or settings.task.template else "nobody"
    where = f"in the task {settings.task.environment}, seed {settings.task.seed}"
    return f"{who}{at} acted {where}. Judged by {judged}."
