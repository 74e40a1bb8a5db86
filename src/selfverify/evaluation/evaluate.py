"""Sample a policy on held-out problems, store every sample once, and summarise what is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.tags import SCORE_TAG
from selfverify.core.trajectory import ANSWER, TURN_2, Group
from selfverify.evaluation.answerers import Answerer, AskedProblems, PolicyAnswerer
from selfverify.evaluation.breakdown import breakdown
from selfverify.evaluation.extraction import Extractor, read_again
from selfverify.evaluation.fuse import with_fused
from selfverify.evaluation.held_out import HeldOut, measured_with, sampling_of, target_boxes
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.rule_scores import with_rule_scores
from selfverify.evaluation.steps import stored_steps
from selfverify.evaluation.store import CORRECT_1, StoredProblem, StoredSample
from selfverify.evaluation.sweep import Progress, ResumableBatches
from selfverify.evaluation.talk_figures import TOOL_COUNTS
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.selection.calibration import Fusion
from selfverify.tasks.base import Task, Verdict
from selfverify.visual.episode import STEPS
from selfverify.visual.tools.gallery import CROP_HIT

IMAGE_BACKEND = "image_backend"
"""The setting that names what prepares images (`Policy.image_backend`)."""


def evaluate(
    policy: Policy | Answerer,
    task: Task,
    config: EvaluationConfig | None = None,
    store: str | Path | None = None,
    *,
    describe: dict[str, Any] | None = None,
    max_new_tokens: int = 48,
    progress: Progress | None = None,
    extractor: Extractor | None = None,
    fusion: Fusion | None = None,
    engine: Literal["own", "vllm"] = "own",
) -> dict[str, Any]:
    """Measure a policy: pass@1, majority@N, best@N, oracle@N, verification AUC and AP, with intervals.

    With a ``second_turn`` all figures are about the second answers, and a table ``turns`` is added. Where
    problems have ``meta["categories"]`` (lists of values by column), a table ``turns_by_category`` is added.
    `selfverify.evaluation.breakdown` adds the task's own figures and those by category, and
    `selfverify.evaluation.error_classes` a table ``errors`` where the task names classes of error.
    ``left_out`` counts problems that could not be evaluated, if there were any.

    Args:
        policy: The policy to measure, or a model behind a server (`ServerAnswerer`).
        task: The task that the problems come from.
        config: How many problems and samples there are, and how samples are drawn.
        store: A JSONL file that gets every sample. An unfinished one of the same weights is continued.
        describe: More settings for the store's header, such as the model's name.
        max_new_tokens: Length limit of a response.
        progress: Called after each batch.
        extractor: Reads answers that the rules cannot read, in place of ``config.extractor``.
        fusion: Makes fused scores, whose figures are told beside the others.
        engine: Samples the answers; with ``vllm`` the policy has to have one (`Policy.engine`).

    Returns:
        The summary of `selfverify.evaluation.metrics.summarise`, with the tables named above.

    Raises:
        ConfigError: The store holds samples of other settings, of other weights or of other problems; or
            other code prepared its images; or a served model cannot be measured in this way.
        DataError: A problem cannot be made or encoded, and ``config.on_bad`` is ``refuse``. (Training skips
            such a problem. A measurement would change if it did.)
        ServerError: A served model's server failed; what was finished is stored.
    """
    config = config or EvaluationConfig()
    answerer = policy if isinstance(policy, Answerer) else PolicyAnswerer(policy)
    answerer.check(config)
    if extractor is None and config.extractor is not None:
        extractor = answerer.extractor(config.extractor)
    answerer.introduce(task)
    backend = answerer.image_backend
    settings = {
        **measured_with(answerer.weights(), task, config, max_new_tokens, describe),
        **({"extractor": extractor.name} if extractor is not None else {}),
        **({IMAGE_BACKEND: backend} if backend else {}),
        # Its samples depend on no seed, so that they are not mixed with those that do.
        **({"engine": engine} if engine != "own" else {}),
    }
    sampling = sampling_of(config, max_new_tokens, engine)
    held_out = HeldOut(task, config)
    path = None if store is None else Path(store)
    if path is not None:
        task.set_cache_folder(path.parent)

    def measure() -> dict[str, Any]:
        sweep = ResumableBatches(
            path, StoredProblem, settings, held_out.total, config.batch_problems, progress, {IMAGE_BACKEND}
        )
        ranks.on_first(lambda: _refuse_other_data(path, held_out, sweep.rows))
        for share in sweep.shares():
            problems = ranks.everywhere(partial(held_out.make, share, answerer.encoder))
            if problems.keys() <= sweep.rows.keys():
                problems = {}  # all are stored; what else is in the share cannot be used
            seeds = {index: config.seed * 1_000_003 + index for index in problems}
            asked = AskedProblems(task, problems, seeds, sampling, config.second_turn, config.retries, path)
            answerer.answer(asked, sweep, partial(_rows, asked, extractor))
        held_out.share()
        return ranks.on_first(lambda: _summary(task, held_out, sweep.rows, config.score, fusion))

    return answerer.whole(measure)


def _refuse_other_data(store: Path | None, held_out: HeldOut, rows: Mapping[int, StoredProblem]) -> None:
    for index, row in rows.items():
        for problem in held_out.make([index]).values():
            if problem.digest() != row.digest:
                raise ConfigError(
                    f"{store} belongs to other data: problem {problem.id} asks or wants something else now; "
                    "write to another path, or delete the file to start over"
                )


def _rows(
    asked: AskedProblems, extractor: Extractor | None, indices: Sequence[int], rollout: Rollout
) -> list[StoredProblem]:
    """What is stored of a rollout about the problems with these indices."""
    if extractor is not None:
        read_again(asked.task, rollout.groups, extractor)
    return [
        StoredProblem(
            index,
            group.problem.digest(),
            [
                _stored(
                    asked.task, group, number, asked.seeds[index], asked.store,
                    rollout.held_again[place, number],
                )
                for number in range(len(group.trajectories))
            ],
        )
        for place, (index, group) in enumerate(zip(indices, rollout.groups, strict=True))
    ]  # fmt: skip


def _stored(
    task: Task, group: Group, number: int, seed: int, store: Path | None, retries: int
) -> StoredSample:
    trajectory = group.trajectories[number]
    judged, rewards = trajectory.parsed, trajectory.rewards
    judged = judged if isinstance(judged, Verdict) else None
    last = trajectory.segments[-1].turn
    answers = [s for s in trajectory.segments if s.channel in (ANSWER, TURN_2) and s.turn == last]
    logprobs = [value for segment in answers for value in segment.logprobs]
    formats = ["answer_format", *(["score_format"] if SCORE_TAG in task.tags else [])]
    figures = {
        **(judged.parts if judged else {}),
        "answer": rewards.get("answer", 0.0),
        "format": min(rewards.get(name, 0.0) for name in formats),
    }
    figures |= {name: rewards[name] for name in (CORRECT_1, *TOOL_COUNTS, CROP_HIT, STEPS) if name in rewards}
    return StoredSample(
        problem=group.problem.id,
        sample=number,
        text=trajectory.text,
        answer=judged.answer if judged else None,
        key=None if judged is None or task.kind == "continuous" else judged.key,
        correct=rewards.get("correct", 0.0) > 0,
        rewards=figures,
        scores={name: trajectory.scores.get(name) for name in ("sampled", "greedy", "soft")},
        tokens=trajectory.written,
        logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        finish=trajectory.finish,
        seed=seed,
        error=judged.error if judged else None,
        read_by=judged.read_by if judged and judged.answer is not None else None,
        lost=trajectory.lost,
        retries=retries,
        steps=stored_steps(trajectory, store),
    )


def _summary(
    task: Task,
    held_out: HeldOut,
    rows: Mapping[int, StoredProblem],
    score: str,
    fusion: Fusion | None,
) -> dict[str, Any]:
    problems = held_out.known(sorted(rows))
    if not problems:
        raise DataError(f"there is nothing to evaluate: {held_out.why()}")
    samples = [sample for index in problems for sample in rows[index].samples]
    samples = samples if fusion is None else with_fused(samples, fusion)
    known = {problem.id: problem for problem in problems.values()}
    samples = with_rule_scores(samples, task, known)
    boxes = target_boxes(task, known.values())
    summary = (
        summarise(samples, boxes, score, task.errors)
        | breakdown(samples, task, known, score)
        | held_out.left_out()
    )
    read = {name for sample in samples for name, value in sample.scores.items() if value is not None}
    if score not in read and "sampled" in read:
        summary["score_missing"] = (
            f"no answer has a {score} score, as the server shows no probabilities of its tokens (this "
            "library's gateway shows none of a model that it runs itself: evaluate that model's folder); "
            "evaluation.score=sampled counts the written ones, from the same samples"
        )
    return summary
