"""Figures of each rule that ends looking, on the same conversations (VTS-V, Algorithm 1).

In these conversations a model looked to the cap and was asked for an answer after every step. They are held
once, stored, and gone on with where that was stopped (`run_to_cap`); `as_arrays` reads them.

A rule is a function from conversations to the step after which each is told to answer. The answers after
every step are known, so that what a rule would have come to is a matter of arithmetic: for rules nothing is
sampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode
from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import StrictRow
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Trajectory
from selfverify.evaluation.evaluate import HeldOut
from selfverify.evaluation.samples import Progress, ResumableBatches
from selfverify.evaluation.statistics import Statistic, compare, interval, measure, ratio_statistic
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import rollout
from selfverify.selection.rules import Floats
from selfverify.tasks.answering import SingleTurn
from selfverify.visual.episode import VisualTask, asked_anew
from selfverify.visual.stopping import Kind, stop_steps


@dataclass(slots=True)
class CappedStep:
    """A step of such a conversation.

    Args:
        delta_r: The verifier's Δr, nats; None where it has measured nothing.
        delta_r_plan: The plan's part of it.
        correct: Whether the answer that was asked for after the step is right (1 or 0); None where that is
            not known.
        own: The same of the answer with which the model wanted to end looking in this step, which was
            refused; None where it wanted no such thing.
        tokens: The number of tokens that the model wrote in the step.
        visual_tokens: Of the images that the step showed.
        tool: The tool that was called.
        error: Why nothing was found.
        seen: How much of what the answer needs has been shown after the step, from 0 to 1; None where the
            task does not know.
        text: The model's words in the step.
        logprob: Their log-probability, nats: log V_φ0 where the model is the verifier's reference.
        confidence: The mean log-probability of the answer that was asked for after the step.
    """

    delta_r: float | None
    delta_r_plan: float | None
    correct: float | None
    own: float | None
    tokens: int
    visual_tokens: int
    tool: str
    error: str
    seen: float | None = None
    text: str = ""
    logprob: float | None = None
    confidence: float | None = None


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

    steps: list[CappedStep]
    before: float | None
    final: float | None
    enough: int | None
    lost: bool


@dataclass(slots=True)
class CappedProblem(StrictRow):
    """The conversations about one problem.

    Args:
        index: The problem's index in its split.
        problem: Its id.
        digest: `Problem.digest`.
        visual_tokens: Of the question's images.
        talks: The conversations.
    """

    STORED_AS: ClassVar[str] = "LookedProblem"

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
    """Let a model look at problems to the cap of its steps, and ask it for an answer after each step.

    Args:
        policy: The reasoner.
        task: The way it looks; no rule stops it. With ``terminate: refuse`` the model cannot end looking
            itself.
        config: The problems, the number of conversations about each, and the sampling.
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
    more = {"looking": task.settings.model_dump(mode="json"), **(describe or {})}
    held_out = HeldOut(task, config)
    settings = held_out.settings(policy.whole(policy.fingerprint), max_new_tokens, more)
    sampling = held_out.sampling(max_new_tokens)
    total, batch = held_out.total, config.batch_problems

    def held() -> Mapping[int, CappedProblem]:
        sweep = ResumableBatches(store, CappedProblem, settings, total, batch, progress)
        for share in sweep.shares():
            problems = ranks.everywhere(partial(held_out.make, share, policy.encoder))
            sweep.store(ranks.everywhere(partial(_held, policy, task, problems, config, sampling)))
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
    sampler, size = PolicySampler(policy, sampling), sampling.group_size
    limits = task.limits.model_copy(update={"retries": config.retries})
    held = rollout(sampler, task, asked, seeds, size, limits=limits)
    silent = task.looking_by({"verifier": None})
    # As it is asked where the first step is taken back: it has begun to speak, and has said nothing.
    told: list[dict[str, Any]] = [{"type": "text", "text": task.settings.answer_now}]
    unseen = [asked_anew(problem, [("", told, [])], "user", "") for problem in asked]

    def once(problem: Problem, seed: int) -> Episode:
        return SingleTurn(problem, task.tags, task.verdict)

    before = rollout(sampler, silent, unseen, seeds, size, open_episode=once, limits=RolloutLimits(turns=1))
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
        asked, refused = record["asked"], record["own"]
        said = [s for s in own if s.turn == number]
        if asked is not None:
            correct = asked["correct"]
        else:
            # The conversation's own answer follows the last step; without one there is none to be judged.
            correct = final if number + 1 == len(records) else False
        if refused is not None and refused["correct"] is None:
            correct = None  # the model wanted to end here, and its answer has no verdict
        steps.append(
            CappedStep(
                record["delta_r"],
                record["delta_r_plan"],
                None if correct is None else float(correct),
                None if refused is None or refused["correct"] is None else float(refused["correct"]),
                sum(len(s.tokens) for s in said),
                0 if image is None else sum(s.tokens.count(image) for s in following),
                record["tool"],
                record["error"],
                None if seen is None else seen[number],
                "".join(s.text for s in said),
                math.fsum(part for s in said for part in s.logprobs),
                None if asked is None else asked["logprob"],
            )
        )
    return CappedConversation(steps, before, final, task.enough(problem, records), trajectory.lost)


Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CappedArrays:
    """Conversations as arrays: N conversations about P problems, of at most H steps, H above 0.

    Args:
        problem: ``[N]`` the problem's place, from 0 to P - 1.
        lengths: ``[N]`` how many steps each has.
        delta_r: ``[N, H]`` Δr, nats; NaN where nothing was measured, and behind the last step.
        delta_r_plan: ``[N, H]`` the plan's part of it.
        correct: ``[N, H + 1]`` whether the answer after h = 0, 1, ... steps is right; NaN behind the last.
        own: ``[N, H]`` whether the model's own, refused answer in a step is right; NaN where there is none.
        final: ``[N]`` whether the answer is right with which the conversation ended.
        visual: ``[N, H + 1]`` visual tokens that have been shown after h steps, the question's among them.
        enough: ``[N]`` the step after which everything needed had been shown, 0 where it never had; None
            where the task does not know.
        left_out: How many conversations were left out, as they failed or a judge had no verdict.
        seen: ``[N, H + 1]`` how much of what the answer needs had been shown after h steps, from 0 to 1; NaN
            behind the last step, None where the task does not know.
        names: The ids of the P problems.
    """

    problem: Ints
    lengths: Ints
    delta_r: Floats
    delta_r_plan: Floats
    correct: Floats
    own: Floats
    final: Floats
    visual: Floats
    enough: Ints | None
    left_out: int
    seen: Floats | None = None
    names: Sequence[str] = ()

    @property
    def problems(self) -> int:
        """P."""
        return int(self.problem.max(initial=-1)) + 1


def as_arrays(rows: Mapping[int, CappedProblem]) -> CappedArrays:
    """The conversations of a journal as arrays; those of which nothing can be said are left out and counted.

    Raises:
        DataError: None is left.
    """
    kept = [(row, whole) for _, row in sorted(rows.items()) if (whole := _usable(row))]
    left_out = sum(len(row.talks) for row in rows.values()) - sum(len(whole) for _, whole in kept)
    if not kept:
        raise DataError(
            f"all {left_out} conversations failed or have no verdict; there is nothing to compare"
        )
    talks, each = [talk for _, whole in kept for talk in whole], [len(whole) for _, whole in kept]
    steps, none = partial(step_values, rows), np.zeros(len(talks))
    before = np.array([talk.before for talk in talks], dtype=np.float64)
    first = np.repeat([float(row.visual_tokens) for row, _ in kept], each)
    shown = np.cumsum(np.nan_to_num(steps(lambda step: step.visual_tokens)), axis=1)
    enough = [talk.enough for talk in talks]
    known = all(step.seen is not None for talk in talks for step in talk.steps) and None not in enough
    return CappedArrays(
        problem=np.repeat(np.arange(len(kept)), each),
        lengths=np.array([len(talk.steps) for talk in talks]),
        delta_r=steps(lambda step: step.delta_r),
        delta_r_plan=steps(lambda step: step.delta_r_plan),
        correct=np.column_stack([before, steps(lambda step: step.correct)]),
        own=steps(lambda step: step.own),
        final=np.array([talk.final for talk in talks], dtype=np.float64),
        visual=first[:, None] + np.column_stack([none, shown]),
        enough=None if None in enough else np.array(enough, dtype=np.int64),
        left_out=left_out,
        seen=np.column_stack([none, steps(lambda step: step.seen)]) if known else None,
        names=[row.problem for row, _ in kept],
    )


def _usable(row: CappedProblem) -> list[CappedConversation]:
    """The conversations of a problem of which something can be said."""
    return [
        talk
        for talk in row.talks
        if not (talk.lost or None in (talk.before, talk.final, *(step.correct for step in talk.steps)))
    ]


def step_values(rows: Mapping[int, CappedProblem], figure: Callable[[CappedStep], float | None]) -> Floats:
    """Return ``[N, H]``, a figure of each step of the conversations in `as_arrays`; NaN where it is None."""
    talks = [talk for _, row in sorted(rows.items()) for talk in _usable(row)]
    filled = np.full((len(talks), max(1, *(len(talk.steps) for talk in talks))), np.nan)
    for values, talk in zip(filled, talks, strict=True):
        values[: len(talk.steps)] = np.array([figure(step) for step in talk.steps], dtype=np.float64)
    return filled


WITHIN = 0.01
"""How far the smallest fixed number of steps may be below the best one."""


StopOutcome = dict[str, Floats]
"""The outcome of a rule in each of N conversations, figures ``[N]`` by name.

- ``accuracy``: how often the answer is right, from 0 to 1
- ``steps``: how many steps were made
- ``visual_tokens``: the visual tokens that were shown
- ``too_early``: whether looking ended before everything needed had been shown, and
- ``too_late``: whether it ended after more steps than were needed, where the task knows that
- ``crop_hit``: how much of what the answer needs had been shown, from 0 to 1, where the task knows that
"""


def stopped(looked: CappedArrays, at: Ints, on_stop: Literal["run", "skip"] = "run") -> StopOutcome:
    """Looking ends with given steps; where a conversation has fewer, as it did.

    A step in which the model wants to answer by itself ends looking with that answer, and is no look.

    Args:
        looked: The conversations.
        at: ``[N]`` the step, from 1; 0 is an answer without a look.
        on_stop: ``skip``: the step that ends looking is dropped, and the answer comes from what was there
            before it.
    """
    rows, ends = np.arange(len(at)), at > looked.lengths
    place = np.minimum(at, looked.lengths)
    own = looked.own[rows, np.maximum(place - 1, 0)]
    takes_own = ~ends & (place > 0) & ~np.isnan(own)
    place = place - (takes_own | (~ends & (place > 0) & (on_stop == "skip")))
    answered = np.where(ends, looked.final, looked.correct[rows, place])
    right, enough = np.where(takes_own, own, answered).astype(np.float64), looked.enough
    found = {
        "accuracy": right,
        "steps": place.astype(np.float64),
        "visual_tokens": looked.visual[rows, place],
    }
    if enough is not None:
        found["too_early"] = ((enough == 0) | (place < enough)).astype(np.float64)
        found["too_late"] = ((enough > 0) & (place > enough)).astype(np.float64)
    if looked.seen is not None:
        found["crop_hit"] = looked.seen[rows, place]
    return found


def own_end(looked: CappedArrays) -> Ints:
    """``[N]`` the step in which the model wants to answer by itself; `never` where it does not."""
    wants = ~np.isnan(looked.own)
    return np.where(wants.any(1), wants.argmax(1) + 1, never(looked)).astype(np.int64)


def never(looked: CappedArrays) -> int:
    """A step beyond all conversations."""
    return looked.delta_r.shape[1] + 1


def always(looked: CappedArrays, steps: int) -> StopOutcome:
    """Looking ends after a fixed number of steps."""
    return stopped(looked, np.full(len(looked.lengths), steps))


def verifier_steps(looked: CappedArrays, rule: Kind, epsilon: float) -> Ints:
    """``[N]`` the step with which the verifier ends looking (Lemma 3.1); `never` where it does not."""
    at = stop_steps(looked.delta_r, rule, epsilon, looked.lengths)
    shown = looked.delta_r[np.arange(len(at)), np.maximum(at - 1, 0)]
    fulfils = (np.abs(shown) if rule == "absolute" else shown) < epsilon
    return np.where(fulfils, at, never(looked)).astype(np.int64)


def shuffled(looked: CappedArrays, at: Ints) -> StopOutcome:
    """Random stopping: a rule's stopping times belong to other conversations.

    The mean over all permutations of the times, each as likely; no permutation is drawn.
    """
    times, counts = np.unique(at, return_counts=True)
    each = [always(looked, time) for time in times]
    return {name: np.average([one[name] for one in each], axis=0, weights=counts) for name in each[0]}


def outcomes(looked: CappedArrays, epsilons: Mapping[Kind, float]) -> dict[str, StopOutcome]:
    """Return the outcomes of all rules by name.

    ``always n`` ends looking after n steps, ``self-stop`` with the model's first own answer, and ``oracle``
    with the first step after which everything needed has been shown. With ``accept`` the model may end
    looking before the verifier does, with ``skip`` the step that ends looking is dropped, and ``random``
    gives the verifier's stopping times to other conversations.

    Args:
        looked: The conversations.
        epsilons: ε of the verifier's rules that are to be compared.
    """
    found = {f"always {n}": always(looked, n) for n in range(looked.delta_r.shape[1] + 1)}
    own = own_end(looked)
    found["self-stop"] = stopped(looked, own)
    for rule, epsilon in epsilons.items():
        at = verifier_steps(looked, rule, epsilon)
        found[rule] = stopped(looked, at)
        found[f"{rule}, skip"] = stopped(looked, at, on_stop="skip")
        found[f"{rule}, accept"] = stopped(looked, np.minimum(at, own))
        found[f"{rule}, random"] = shuffled(looked, at)
    if looked.enough is not None:
        found["oracle"] = stopped(looked, np.where(looked.enough > 0, looked.enough, never(looked)))
    return found


def compared(looked: CappedArrays, epsilons: Mapping[Kind, float]) -> dict[str, dict[str, Any]]:
    """Figures of all rules, with intervals over problems, and each verifier's rule against the others.

    Args:
        looked: See `outcomes`.
        epsilons: See `outcomes`.

    Returns:
        ``rules``: by name ``accuracy`` with its 95 % ``interval``, ``steps``, ``visual_tokens``, and where
        the task knows ``too_early``, ``too_late`` and ``crop_hit``, the share of what is needed that had been
        shown. ``verifier``: by rule ``best_n`` and ``smallest_n``,
        the smallest fixed number of steps within `WITHIN` of the best; ``gap_to_smallest_n``, ``over_random``
        and ``over_self_stop``, paired differences of accuracy with intervals; and ``steps_share`` of the
        smallest.
    """
    found = outcomes(looked, epsilons)
    rules: dict[str, Any] = {}
    for name, outcome in found.items():
        rules[name] = {figure: float(values.mean()) for figure, values in outcome.items()}
        rules[name]["interval"] = interval([measure(_mean(looked, outcome["accuracy"]))])
    fixed = {n: found[f"always {n}"] for n in range(1, looked.delta_r.shape[1] + 1)}
    right = {n: float(outcome["accuracy"].mean()) for n, outcome in fixed.items()}
    best = max(fixed, key=lambda n: (right[n], -n), default=0)
    near = [n for n in fixed if right[n] >= right[best] - WITHIN]
    against: dict[str, Any] = {}
    for rule in epsilons if near else ():
        own, smallest = found[rule], fixed[min(near)]
        against[rule] = {
            "epsilon": epsilons[rule],
            "best_n": best,
            "smallest_n": min(near),
            "gap_to_smallest_n": _difference(looked, own, smallest),
            "steps_share": float(own["steps"].mean() / smallest["steps"].mean()),
            "over_random": _difference(looked, own, found[f"{rule}, random"]),
            "over_self_stop": _difference(looked, own, found["self-stop"]),
        }
    return {"rules": rules, "verifier": against}


def _mean(looked: CappedArrays, values: Floats) -> Statistic:
    """The mean over conversations, of which whole problems are drawn."""
    sums = np.bincount(looked.problem, values, minlength=looked.problems)
    counts = np.bincount(looked.problem, minlength=looked.problems).astype(np.float64)
    return ratio_statistic(sums, counts)


def _difference(looked: CappedArrays, own: StopOutcome, other: StopOutcome) -> dict[str, Any]:
    found = compare([measure(_mean(looked, own["accuracy"] - other["accuracy"]))])
    return {"mean": found["difference"], "interval": found["interval"]}
