"""Sample a policy on held-out problems, store every sample once, and summarise what is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfverify import ranks
from selfverify.evaluation.config import EvaluationConfig
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.store import CORRECT_1, Sample, SampleStore
from selfverify.evaluation.turn_categories import turns_by_category
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import ANSWER, Rollout, read_rollout, roll_out
from selfverify.rollouts.two_turn import TURN_2, roll_out_turns
from selfverify.rollouts.types import Problem, Trajectory
from selfverify.tasks import Task
from selfverify.tasks.base import tell_space

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
    )


def evaluation_batch(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    seed: int,
    first: int,
    second_turn: str | None = None,
) -> list[list[Sample]]:
    """Samples of a batch of problems with their scores read all three ways."""
    seeds = [seed * 1_000_003 + first + i for i in range(len(problems))]
    rollout: Rollout
    if second_turn is None:
        rollout = roll_out(policy, task, problems, seeds, sampling)
    else:
        rollout = roll_out_turns(policy, task, problems, seeds, sampling, second_turn, split_score=True)
    read_rollout(policy, rollout)
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
) -> dict[str, Any]:
    """Measure a policy: pass@1, majority@N, best@N, oracle@N, verification AUC and AP, with intervals.

    With a ``second_turn`` all of them are of the second answers, and there is a table ``turns``; with
    problems whose ``meta["categories"]`` has lists of values by column another one, ``turns_by_category``.

    Args:
        policy: What to measure.
        task: Where the problems come from.
        config: How many problems and samples, and how they are drawn.
        store: A JSONL file that gets every sample; an unfinished one of the same weights is continued.
        describe: More settings for the store's header (the model's name, the step).
        max_new_tokens: Length limit of a response.
        progress: Called after each batch.

    Returns:
        The summary of `selfverify.evaluation.metrics.summarise`.

    Raises:
        ConfigError: The store holds samples of other settings or of other weights.
        DataError: A problem cannot be made or encoded. Training skips such a problem; leaving it out of a
            measurement would change what is measured.
    """
    config = config or EvaluationConfig()
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
        **config.model_dump(exclude={"batch_problems"}),
        **(describe or {}),
    }
    return policy.whole(lambda: _measure(policy, task, config, store, settings, sampling, progress))


def _measure(
    policy: Policy,
    task: Task,
    config: EvaluationConfig,
    store: Path | None,
    settings: dict[str, Any],
    sampling: SamplingConfig,
    progress: Progress | None,
) -> dict[str, Any]:
    """Of several processes each samples its share of every batch; the first one keeps the file."""
    boxes: dict[str, Any] | None = {} if task.kind == "continuous" else None
    categories: dict[str, dict[str, list[str]]] = {}
    samples: list[Sample] = []
    first_process = ranks.index() == 0
    archive: SampleStore | None = None

    def open_archive() -> set[str]:
        nonlocal archive
        archive = SampleStore(store, settings, config.samples) if store else None
        return archive.finished if archive else set()

    try:
        finished = ranks.on_first(open_archive)
        size = config.batch_problems * ranks.count()
        for first in range(0, config.problems, size):
            last = min(first + size, config.problems)
            # Batch by batch: the images of a whole benchmark may not fit into memory.
            batch = [task.problem(config.split, 0, index) for index in range(first, last)]
            if boxes is not None:
                boxes |= {problem.id: problem.target for problem in batch}
            categories |= {problem.id: problem.meta.get("categories", {}) for problem in batch}
            if not all(p.id in finished for p in batch):
                start = first + ranks.index() * config.batch_problems
                own = batch[start - first : start - first + config.batch_problems]
                made = (
                    evaluation_batch(policy, task, own, sampling, config.seed, start, config.second_turn)
                    if own
                    else []
                )
                everyone = [rows for part in ranks.gather(made) for rows in part]
                for problem, rows in zip(batch, everyone, strict=True):
                    if problem.id not in finished:
                        samples.extend(rows)
                        if archive:
                            archive.append(rows)
            if progress and first_process:
                progress(last, config.problems)

        def summary() -> dict[str, Any]:
            found = archive.samples if archive else samples
            by_category = turns_by_category(found, categories)
            return summarise(found, boxes) | ({"turns_by_category": by_category} if by_category else {})

        return ranks.on_first(summary)
    finally:
        if archive:
            archive.close()


def write_gallery(task: Task, config: EvaluationConfig, folder: Path, count: int) -> None:
    """Images and questions of the first ``count`` problems, for the report."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for index in range(min(count, config.problems)):
        problem = task.problem(config.split, 0, index)
        name = f"{index:05d}.png"
        if problem.images:
            problem.images[0].save(folder / name)
        entries.append(
            {
                "id": problem.id,
                "question": problem.meta.get("question", ""),
                "target": problem.target,
                "image": name if problem.images else None,
            }
        )
    (folder / "problems.json").write_text(json.dumps(entries, indent=1))
