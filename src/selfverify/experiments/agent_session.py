"""One session of an agent: its settings, the watching while it goes on, and the page about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from selfverify.agents.episode import AgentEpisode
from selfverify.agents.reward import AgentRecord
from selfverify.agents.task import AgentTask
from selfverify.clients.openai_client import ServerConfig
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import SelfVerifyError
from selfverify.core.problem import Problem, content_parts, content_text
from selfverify.core.trajectory import Finish
from selfverify.evaluation.samples import StoredSample, StoredStep, written_images
from selfverify.experiments.command_config import AgentSessionConfig
from selfverify.policy.policy import Policy
from selfverify.reports.report import write_agent_page
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.sampler import Sampler
from selfverify.rollouts.script_sampler import TextSampler
from selfverify.rollouts.server_sampler import ServerSampler
from selfverify.rollouts.wrappers import RecordingEpisode
from selfverify.tasks.answering import Verdict

OnTurn = Callable[[int, AgentRecord, str, str], None]
"""Called after each turn with its number, what came of the session so far, what was said, and the reply."""


@dataclass(slots=True)
class AgentRun:
    """An agent's session that is over.

    Args:
        problem: The problem.
        ending: Its result; None where its environment was lost.
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
        settings: The task, the agent and the judge.
        on_begin: Told what is asked.
        on_turn: Told of each turn.

    Raises:
        ConfigError: The model cannot be loaded or has no tools, or a server's address is none; or the task
            cannot be asked like this.
        DataError: There is no such kind of task.
    """
    asked = settings.task
    task.limits = task.limits.model_copy(update={"turns": asked.max_turns})
    problem = _problem(settings, task)
    sampler = _sampler(settings, task, problem)
    on_begin(problem)
    with TemporaryDirectory() as images:
        watched = Watched(task.open(problem, asked.seed), Path(images), on_turn)
        error: BaseException | None = None
        try:
            held = rollout(sampler, task, [problem], [asked.seed], 1, open_episode=lambda *about: watched)
            error = held.errors.get((0, 0))
        except (KeyboardInterrupt, SelfVerifyError) as stopped:
            error = stopped
        if error is not None:
            watched.stop("it was interrupted" if isinstance(error, KeyboardInterrupt) else str(error))
        page = None
        if watched.ended is not None and any(message["role"] == "assistant" for message in watched.messages):
            entry = {"id": problem.id, "question": problem.meta["question"], "target": problem.target}
            page = write_agent_page(
                watched.sample(problem.id), entry, type(task), _about(settings), Path(images), settings.output
            )
    return AgentRun(problem, watched.ended, watched.inner.worked, page, error)


class Watched(RecordingEpisode):
    """An agent's episode, of which every turn is told and kept.

    Args:
        inner: The episode.
        images: The folder that its pictures are written to.
        on_turn: Told of each turn.
    """

    inner: AgentEpisode

    def __init__(self, inner: AgentEpisode, images: Path, on_turn: OnTurn) -> None:
        super().__init__(inner, [], lambda image: written_images(images, [image])[0])
        self.on_turn = on_turn

    def step(self, said: PolicyTurn) -> Observation:
        reply = super().step(said)
        self.on_turn(said.turn, self.inner.worked, said.text, "" if reply.done else reply.text)
        return reply

    def stop(self, why: str) -> None:
        """End what has broken off, without a verdict."""
        if self.ended is None:
            self.inner.give_up(why)
            self.result()

    def sample(self, problem: str) -> StoredSample:
        """The session as the store keeps one."""
        assert self.ended is not None
        steps: list[StoredStep] = []
        turn, records = 0, self.ended.turns
        for message in self.messages:
            own, content = message["role"] == "assistant", message["content"]
            author, channel = ("policy", self.channel) if own else ("environment", "observation")
            images = [part["image"] for part in content_parts(content) if part["type"] == "image"]
            record = records[turn] if own and turn < len(records) else None
            text = content_text(content)
            steps.append(StoredStep(author, turn, channel, text, images, None, {}, None, record))
            turn += own
        judged = self.ended.parsed
        return StoredSample(
            problem, 0, "".join(step.text for step in steps), None, None,
            isinstance(judged, Verdict) and judged.correct, dict(self.ended.rewards), {}, 0, None,
            str(Finish.STOP), 0, steps=steps,
        )  # fmt: skip


def _problem(settings: AgentSessionConfig, task: AgentTask) -> Problem:
    asked = settings.task
    if asked.template is not None:
        return task.named_problem(asked.template, asked.seed)
    return task.asked_problem(asked.instruction or "", asked.seed)


def _sampler(settings: AgentSessionConfig, task: AgentTask, problem: Problem) -> Sampler:
    """The agent; a model is loaded before anything begins."""
    actor, seed = settings.actor, settings.task.seed
    if actor.expert:
        shown = task.demonstrate_turns(problem, np.random.default_rng(seed))
        return TextSampler({(0, 0): [turn.text for turn in shown]})
    if actor.server is not None:
        fields = {"model": actor.model, "temperature": actor.temperature, "max_tokens": actor.max_new_tokens}
        return ServerSampler(ServerConfig(actor.server, timeout_s=actor.timeout), fields, at_once=1)
    policy = Policy.load(actor.model or "")
    task.set_policy(policy)
    sampling = SamplingConfig(
        group_size=1, temperature=actor.temperature, top_p=1.0, max_new_tokens=actor.max_new_tokens
    )
    return PolicySampler(policy, sampling)


def _about(settings: AgentSessionConfig) -> str:
    actor = settings.actor
    who = "A script that knows the way" if actor.expert else f"The model {actor.model}"
    at = f" behind {actor.server}" if actor.server else ""
    judge = f"the model {settings.judge_model}" if settings.judge else "rules"
    judged = judge if settings.judge or settings.task.template else "nobody"
    where = f"in the task {settings.task.environment}, seed {settings.task.seed}"
    return f"{who}{at} acted {where}. Judged by {judged}."
