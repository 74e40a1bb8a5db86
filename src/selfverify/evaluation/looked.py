"""Conversations in which a model looked to the cap and was asked for an answer after every step.

All rules that end looking read these: what each of them would have come to is a matter of arithmetic
(`selfverify.evaluation.stop_outcomes`). They are held once, stored, and gone on with where that was stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.jsonl_store import STRICT
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Trajectory
from selfverify.evaluation.held_out import HeldOut, measured_with, sampling_of
from selfverify.evaluation.sweep import Progress, ResumableBatches
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import hold_again, rollout
from selfverify.tasks.answering import SingleTurn
from selfverify.visual.episode import asked_anew
from selfverify.visual.task import VisualTask

VERIFIER_WEIGHTS = "verifier_weights"
"""Of the settings in a journal's header the one that tells verifiers apart; older journals lack it."""


@dataclass(slots=True)
class CappedStep:
    """A step of such a conversation.

    Args:
        delta_r: The verifier's Δr, nats; None where it has measured nothing.
        delta_r_plan: The plan's part of it.
        correct: Whether the answer that was asked for after the step is right (1 or 0); None where nobody can
            tell.
        own: The same of the answer with which the model wanted to end looking in this step, which was
            refused; None where it wanted no such thing.
        tokens: What the model wrote in the step.
        visual_tokens: Of the images that the step showed.
        tool: The tool that was called.
        error: Why nothing was found.
        seen: How much of what the answer needs has been shown after the step, from 0 to 1; None where the
            task does not know.
    """

    __pydantic_config__: ClassVar = STRICT

    delta_r: float | None
    delta_r_plan: float | None
    correct: float | None
    own: float | None
    tokens: int
    visual_tokens: int
    tool: str
    error: str
    seen: float | None = None


@dataclass(slots=True)
class CappedConversation:
    """One such conversation.

    Args:
        steps: Its steps.
        before: Whether the answer is right that is asked for without a look.
        final: Whether the answer is right with which it ended.
        enough: After which step everything needed has been shown, 0 where it never has; None where the task
            does not know.
        lost: Whether its episode failed, so that nothing can be said of it.
    """

    __pydantic_config__: ClassVar = STRICT

    steps: list[CappedStep]
    before: float | None
    final: float | None
    enough: int | None
    lost: bool


@dataclass(slots=True)
class CappedProblem:
    """The conversations about one problem.

    Args:
        index: The problem's index in its split.
        problem: Its id.
        digest: What it asks and wants.
        visual_tokens: Of the question's images.
        talks: The conversations.
    """

    __pydantic_config__: ClassVar = STRICT

    index: int
    problem: str
    digest: str
    visual_tokens: int
    talks: list[CappedConversation]


def run_to_cap(
    policy: Policy,
    task: VisualTask,
    config: EvaluationConfig,
    store: Path,
    *,
    max_new_tokens: int = 48,
    describe: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Mapping[int, CappedProblem]:
    """Let a model look at problems to the cap of its steps; after each it is asked for an answer, too.

    Args:
        policy: The reasoner.
        task: How it looks; no rule stops it. With ``terminate: refuse`` its own ending does not, either.
        config: Which problems, how many conversations about each, how they are drawn.
        store: The journal. An unfinished one of the same settings is gone on with.
        max_new_tokens: Length limit of a turn.
        describe: More settings for the journal's header.
        progress: Called after each batch.

    Returns:
        The rows by index.

    Raises:
        ConfigError: The journal belongs to other settings.
        DataError: A problem cannot be made or read, and ``config.on_bad`` is ``refuse``.
    """
    task = task.looking_by({"stop": "never", "answer_each_step": True})
    task.set_coordinate_space(policy.coordinate_space)
    task.set_policy(policy)
    looking = {"looking": task.settings.model_dump(mode="json")}
    weights = policy.whole(policy.fingerprint)
    settings = measured_with(weights, task, config, max_new_tokens, {**looking, **(describe or {})})
    sampling = sampling_of(config, max_new_tokens)
    held_out = HeldOut(task, config)

    def held() -> Mapping[int, CappedProblem]:
        total, batch = held_out.total, config.batch_problems
        sweep = ResumableBatches(store, CappedProblem, settings, total, batch, progress, (VERIFIER_WEIGHTS,))
        for share in sweep.shares():
            problems = ranks.everywhere(partial(held_out.make, share, policy.encoder))
            hold = partial(_held, policy, task, problems, config, sampling)
            sweep.store(ranks.everywhere(hold))
        return sweep.rows

    return policy.whole(held)


def _held(
    policy: Policy,
    task: VisualTask,
    problems: Mapping[int, Problem],
    config: EvaluationConfig,
    sampling: SamplingConfig,
) -> list[CappedProblem]:
    if not problems:
        return []
    asked, seeds = [*problems.values()], [config.seed * 1_000_003 + index for index in problems]
    held = rollout(policy, task, asked, seeds, sampling)
    hold_again(policy, task, held, seeds, sampling, config.retries)
    silent = task.looking_by({"verifier": None})
    # As it is asked where the first step is taken back: it has begun to speak, and has said nothing.
    told: list[dict[str, Any]] = [{"type": "text", "text": task.settings.answer_now}]
    unseen = [asked_anew(problem, [("", told, [])], "user", "") for problem in asked]

    def once(problem: Problem, seed: int) -> Episode:
        return SingleTurn(problem, task.tags, task.verdict)

    before = rollout(policy, silent, unseen, seeds, sampling, once, RolloutLimits(turns=1))
    image = policy.loaded.family.placeholder(policy.model)
    rows = []
    for index, prompt, group, plain in zip(problems, held.prompts, held.groups, before.groups, strict=True):
        talks = [
            _talk(task, group.problem, one, _verdict(other), image)
            for one, other in zip(group.trajectories, plain.trajectories, strict=True)
        ]
        shown = 0 if image is None else int((prompt.ids == image).sum())
        rows.append(CappedProblem(index, group.problem.id, group.problem.digest(), shown, talks))
    return rows


def _verdict(trajectory: Trajectory) -> float | None:
    return None if trajectory.finish == Finish.ERROR else trajectory.rewards.get("correct")


def _talk(
    task: VisualTask, problem: Problem, trajectory: Trajectory, before: float | None, image: int | None
) -> CappedConversation:
    own = [s for s in trajectory.segments if s.author == "policy"]
    records = [s.parsed for s in own if isinstance(s.parsed, dict)]
    final, steps, seen = _verdict(trajectory), [], task.seen(problem, records)
    for number, record in enumerate(records):
        following = [s for s in trajectory.segments if s.author == "environment" and s.turn == number + 1]
        last = number + 1 == len(records)
        asked, refused = record["asked"], record["own"]
        if asked is not None:
            correct = _right(asked)
        else:
            # The conversation's own answer follows the last step; without one there is none to be judged.
            correct = final if last else 0.0
        steps.append(
            CappedStep(
                record["delta_r"],
                record["delta_r_plan"],
                correct,
                None if refused is None else _right(refused),
                sum(len(s.tokens) for s in own if s.turn == number),
                0 if image is None else sum(s.tokens.count(image) for s in following),
                record["tool"],
                record["error"],
                None if seen is None else seen[number],
            )
        )
    return CappedConversation(steps, before, final, task.enough(problem, records), trajectory.lost)


def _right(answer: Mapping[str, Any]) -> float | None:
    return None if answer["correct"] is None else float(answer["correct"])
