"""Sample a policy on held-out problems, store every sample once, and summarise what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfverify import ranks
from selfverify.errors import ConfigError, DataError
from selfverify.evaluation.breakdown import breakdown
from selfverify.evaluation.config import EvaluationConfig
from selfverify.evaluation.extraction import Extractor, make_extractor, read_again
from selfverify.evaluation.held_out import HeldOut
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.store import CORRECT_1, Sample, SampleStore
from selfverify.evaluation.turn_categories import turns_by_category
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import ANSWER, Rollout, read_rollout, roll_out
from selfverify.rollouts.two_turn import TURN_2, roll_out_turns
from selfverify.rollouts.types import Problem, Trajectory
from selfverify.tasks import Task
from selfverify.tasks.base import problem_digest, tell_space

Progress = Callable[[int, int], None]
"""Called with the problems done and the problems there are."""


def _sample(
    problem: Problem,
    number: int,
    trajectory: Trajectory,
    continuous: bool,
    seed: int,
) -> Sample:
    judged = trajectory.parsed
    logprobs = [v for s in trajectory.segments if s.channel in (ANSWER, TURN_2) for v in s.logprobs]
    rewards = trajectory.rewards
    stored = {
        **(judged.parts if judged else {}),
        "answer": rewards["answer"],
        "format": min(rewards["answer_format"], rewards["score_format"]),
    }
    if "correct_1" in rewards:
        stored[CORRECT_1] = rewards["correct_1"]
    return Sample(
        problem=problem.id,
        sample=number,
        text=trajectory.text,
        answer=judged.answer if judged else None,
        key=None if judged is None or continuous else judged.key,
        correct=rewards["correct"] > 0,
        rewards=stored,
        scores={
            "sampled": trajectory.scores.get("sampled"),
            "greedy": trajectory.scores.get("greedy"),
            "soft": trajectory.scores.get("soft"),
        },
        tokens=trajectory.written,
        logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        finish=trajectory.finish,
        seed=seed,
        read_by=judged.read_by if judged and judged.answer is not None else None,
        digest=problem_digest(problem),
    )


def evaluation_batch(
    policy: Policy,
    task: Task,
    problems: Mapping[int, Problem],
    sampling: SamplingConfig,
    seed: int,
    second_turn: str | None = None,
    extractor: Extractor | None = None,
) -> list[list[Sample]]:
    """Samples of a batch of problems, by index, with their scores read all three ways."""
    if not problems:
        return []
    seeds = [seed * 1_000_003 + index for index in problems]
    asked = [*problems.values()]
    rollout: Rollout
    if second_turn is None:
        rollout = roll_out(policy, task, asked, seeds, sampling)
    else:
        rollout = roll_out_turns(policy, task, asked, seeds, sampling, second_turn, split_score=True)
    read_rollout(policy, rollout)
    if extractor is not None:
        read_again(task, rollout.groups, extractor)
    continuous = task.kind == "continuous"
    return [
        [
            _sample(group.problem, number, trajectory, continuous, s)
            for number, trajectory in enumerate(group.trajectories)
        ]
        for group, s in zip(rollout.groups, seeds, strict=True)
    ]


def _options(task: Task) -> dict[str, Any]:
    """A task's options as JSON values, where it has any."""
    config = getattr(task, "config", None)
    return config.model_dump(mode="json") if isinstance(config, BaseModel) else {}


def evaluate(
    policy: Policy,
    task: Task,
    config: EvaluationConfig | None = None,
    store: Path | None = None,
    *,
    describe: dict[str, Any] | None = None,
    max_new_tokens: int = 48,
    progress: Progress | None = None,
    extractor: Extractor | None = None,
) -> dict[str, Any]:
    """Measure a policy: pass@1, majority@N, best@N, oracle@N, verification AUC and AP, with intervals.

    With a ``second_turn`` all of them are of the second answers, and there is a table ``turns``; with
    problems whose ``meta["categories"]`` has lists of values by column another one, ``turns_by_category``.
    Figures of the task's own and by category are those of `selfverify.evaluation.breakdown`; ``left_out``
    counts what could not be evaluated, if there was anything.

    Args:
        policy: What to measure.
        task: Where the problems come from.
        config: How many problems and samples, and how they are drawn.
        store: A JSONL file that gets every sample; an unfinished one of the same weights is continued.
        describe: More settings for the store's header (the model's name, the step).
        max_new_tokens: Length limit of a response.
        progress: Called after each batch.
        extractor: Reads answers that the rules cannot read, instead of ``config.extractor``.

    Returns:
        The summary of `selfverify.evaluation.metrics.summarise` with the above.

    Raises:
        ConfigError: The store holds samples of other settings, of other weights or of other problems.
        DataError: A problem cannot be made or encoded, and ``config.on_bad`` is ``refuse``. Training skips
            such a problem; leaving it out of a measurement changes what is measured.
    """
    config = config or EvaluationConfig()
    if extractor is None and config.extractor is not None:
        extractor = make_extractor(config.extractor, policy)
    tell_space(task, policy.coordinate_space)
    sampling = SamplingConfig(
        group_size=config.samples,
        temperature=config.temperature,
        top_p=config.top_p,
        max_new_tokens=max_new_tokens,
    )
    settings = {
        "task": task.name,
        "task_options": _options(task),
        "max_new_tokens": max_new_tokens,
        "weights": policy.whole(policy.fingerprint),
        **config.model_dump(exclude={"batch_problems", "on_bad"}),
        **(describe or {}),
        **({"extractor": extractor.name} if extractor is not None else {}),
    }
    return policy.whole(
        lambda: _measure(policy, task, config, store, settings, sampling, progress, extractor)
    )


def _measure(
    policy: Policy,
    task: Task,
    config: EvaluationConfig,
    store: Path | None,
    settings: dict[str, Any],
    sampling: SamplingConfig,
    progress: Progress | None,
    extractor: Extractor | None,
) -> dict[str, Any]:
    """Of several processes each samples its share of every batch; the first one keeps the file."""
    problems = HeldOut(task, config, policy.encoder)
    known: dict[str, Problem] = {}
    samples: list[Sample] = []
    first_process = ranks.index() == 0
    archive: SampleStore | None = None

    def open_archive() -> dict[str, str | None]:
        nonlocal archive
        archive = SampleStore(store, settings, config.samples) if store else None
        return archive.finished if archive else {}

    def summary() -> dict[str, Any]:
        if not known:
            raise DataError(f"there is nothing to evaluate: {problems.why()}")
        found = [s for s in (archive.samples if archive else samples) if s.problem in known]
        boxes = {name: p.target for name, p in known.items()} if task.kind == "continuous" else None
        by_category = turns_by_category(found, {n: p.meta.get("categories", {}) for n, p in known.items()})
        return (
            summarise(found, boxes)
            | ({"turns_by_category": by_category} if by_category else {})
            | breakdown(found, task, known)
            | problems.left_out()
        )

    try:
        finished = ranks.on_first(open_archive)
        size = config.batch_problems * ranks.count()
        for first in range(0, problems.total, size):
            last = min(first + size, problems.total)
            # Batch by batch: the images of a whole benchmark may not fit into memory.
            batch = problems.make(range(first, last))
            for problem in batch.values():
                if finished.get(problem.id) not in (None, problem_digest(problem)):
                    raise ConfigError(
                        f"{store} belongs to other data: problem {problem.id} asks or wants something else "
                        "now; write to another path, or delete the file to start over"
                    )
            start = first + ranks.index() * config.batch_problems
            if not all(problem.id in finished for problem in batch.values()):
                share = range(start, min(start + config.batch_problems, last))
                own = problems.encodable({i: batch[i] for i in share if i in batch}, finished)
                if all(problem.id in finished for problem in own.values()):
                    own = {}
                made = evaluation_batch(
                    policy, task, own, sampling, config.seed, config.second_turn, extractor
                )
                for rows in (rows for part in ranks.gather(made) for rows in part):
                    if rows[0].problem not in finished:
                        samples.extend(rows)
                        if archive:
                            archive.append(rows)
            bad = problems.share_bad()
            # Without their images, which summaries do not need.
            known |= {p.id: replace(p, images=[]) for i, p in batch.items() if i not in bad}
            if progress and first_process:
                progress(last, problems.total)
        return ranks.on_first(summary)
    finally:
        if archive:
            archive.close()


def _corners(box: Sequence[float]) -> list[list[float]]:
    x1, y1, x2, y2 = box
    return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]


def write_gallery(task: Task, config: EvaluationConfig, folder: Path, count: int) -> None:
    """Images and questions of the first ``count`` problems, for the report."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    made = HeldOut(task, config)
    for index, problem in made.make(range(min(count, made.total))).items():
        name = f"{index:05d}.png"
        if problem.images:
            problem.images[0].convert("RGB").save(folder / name)  # PNG knows no CMYK
        entry = {
            "id": problem.id,
            "question": problem.meta.get("question", ""),
            "target": problem.target,
            "image": name if problem.images else None,
        }
        if problem.images and (task.kind == "continuous" or "screen" in problem.meta):
            # Answers are places: what their coordinates refer to, and outlines of what is meant.
            entry["frame"] = problem.meta.get("screen") or problem.images[0].size
            entry["regions"] = [
                *problem.meta.get("polygons", ()),
                *map(_corners, problem.meta.get("ui_boxes", ())),
            ]
        entries.append(entry)
    (folder / "problems.json").write_text(json.dumps(entries, indent=1))
