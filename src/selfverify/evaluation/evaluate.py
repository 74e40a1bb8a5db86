"""Evaluate a policy on held-out problems: sample, store every sample once, summarise what is stored.

`HeldOut` says how many problems there are, and what becomes of those that cannot be used. `write_gallery`
writes down the problems that a report shows: their images, questions and targets.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.files import make_folder, naming, write_json
from selfverify.core.images import to_rgb
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG
from selfverify.core.trajectory import ANSWER, TURN_2, Group
from selfverify.evaluation.answerers import Answerer, AskedProblems, as_answerer
from selfverify.evaluation.breakdown import breakdown
from selfverify.evaluation.calibrate import with_fused
from selfverify.evaluation.extraction import Extractor, read_again
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.samples import (
    CORRECT_1,
    TOOL_COUNTS,
    Progress,
    ResumableBatches,
    StoredProblem,
    StoredSample,
    make_problems,
    stored_steps,
    with_rule_scores,
)
from selfverify.policy.encoding import Encoder
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout, opening
from selfverify.selection.calibration import Fusion
from selfverify.tasks.base import NotCounted, Task, Verdict
from selfverify.visual.episode import STEPS
from selfverify.visual.tools.gallery import CROP_HIT

logger = logging.getLogger(__name__)

NAMED = 10
"""A summary lists at most so many reasons."""


class HeldOut:
    """The problems of `EvaluationConfig.split`, by index.

    Args:
        task: Makes the problems.
        config: How many problems there are, and what to do about broken ones.

    Raises:
        ConfigError: The configuration asks for all problems of a task whose problems never end.
    """

    def __init__(self, task: Task, config: EvaluationConfig) -> None:
        self.task, self.config = task, config
        known = task.count(config.split)
        if known is None and config.problems is None:
            raise ConfigError(
                f"task {task.name} makes problems without end: set evaluation.problems to a number"
            )
        self.total: int = min(n for n in (known, config.problems) if n is not None)
        """The number of indices. Some may be of problems that cannot be used."""
        self._made: dict[int, Problem] = {}
        self._broken: dict[int, str] = {}
        self._not_counted: set[int] = set()

    def make(self, indices: Iterable[int], encoder: Encoder | None = None) -> dict[int, Problem]:
        """Make the problems with these indices; returns those that can be used.

        A problem cannot be used if it cannot be made, if the task's scoring does not count it, or if the
        ``encoder`` cannot encode it.

        Raises:
            DataError: A problem cannot be used, and `EvaluationConfig.on_bad` is ``refuse``.
        """
        problems, unusable = make_problems(self.task, self.config.split, 0, indices, encoder)
        # Without their images: those of a whole benchmark may not fit into memory.
        self._made |= {index: replace(problem, images=[]) for index, problem in problems.items()}
        for index, error in unusable.items():
            if isinstance(error, NotCounted):
                self._not_counted.add(index)
            elif self.config.on_bad == "refuse":
                raise error
            elif index not in self._broken:
                self._broken[index] = str(error)
                name = f"{self.task.name}/{self.config.split}#{index}"
                message = f"a problem is left out: {error}"
                note(logger, "problem_skipped", message, problem=name, reason=str(error))
        return problems

    def settings(
        self, weights: str, max_new_tokens: int, more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the settings that decide the stored samples; only a store with equal settings is continued.

        Args:
            weights: A text that tells the weights apart (`Policy.fingerprint`); of a served model its
                address.
            max_new_tokens: Length limit of a response.
            more: All else that decides it; its entries come last.
        """
        return {
            "task": self.task.name,
            "task_options": self.task.config.model_dump(mode="json"),
            "max_new_tokens": max_new_tokens,
            "weights": weights,
            **self.config.model_dump(exclude={"batch_problems", "on_bad", "score"}),
            **(more or {}),
        }

    def sampling(self, max_new_tokens: int) -> SamplingConfig:
        """Return how a problem's samples are drawn, each turn of at most so many tokens."""
        return SamplingConfig(
            group_size=self.config.samples,
            temperature=self.config.temperature,
            top_p=self.config.top_p,
            max_new_tokens=max_new_tokens,
        )

    def share(self) -> None:
        """Tell all processes what each of them has made and left out. All processes have to call this."""
        for made, broken, not_counted in ranks.gather((self._made, self._broken, self._not_counted)):
            self._made |= made
            self._broken |= broken
            self._not_counted |= not_counted

    def known(self, indices: Iterable[int]) -> dict[int, Problem]:
        """Return the problems with these indices that some process has made, without their images."""
        return {index: self._made[index] for index in indices if index in self._made}

    def left_out(self) -> dict[str, Any]:
        """Count what was left out: ``{"left_out": {"rows", "problems", "not_counted", "reasons"}}``.

        ``rows`` counts rows of the data file that make no problem, ``problems`` counts problems that cannot
        be made or encoded, and ``not_counted`` those that the task's scoring does not count. The result is
        empty if nothing was left out.
        """
        rows = self.task.broken(self.config.split)
        counts = {"rows": len(rows), "problems": len(self._broken), "not_counted": len(self._not_counted)}
        if not any(counts.values()):
            return {}
        reasons = [*rows, *(self._broken[index] for index in sorted(self._broken))]
        return {"left_out": {**counts, "reasons": reasons[:NAMED]}}

    def why(self) -> str:
        """Say in a sentence why no problem is left."""
        if self._broken:
            first = self._broken[min(self._broken)]
            return f"none of {len(self._broken)} problems can be used; the first: {first}"
        return f"task {self.task.name} counts none of {len(self._not_counted)} problems"


def target_boxes(task: Task, problems: Iterable[Problem]) -> dict[str, Any] | None:
    """Return the true boxes by problem id; None for a task whose answers are no boxes."""
    return {problem.id: problem.target for problem in problems} if task.kind == "continuous" else None


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
    `selfverify.evaluation.metrics` a table ``errors`` where the task names classes of error.
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
    answerer = as_answerer(policy)
    held_out, named = HeldOut(task, config), answerer.prepare(task, config)
    extractor = extractor or named
    backend = answerer.image_backend
    settings = {
        **held_out.settings(answerer.weights(), max_new_tokens, describe),
        **({"extractor": extractor.name} if extractor is not None else {}),
        **({"image_backend": backend} if backend else {}),
        # Its samples depend on no seed, so that they are not mixed with those that do.
        **({"engine": engine} if engine != "own" else {}),
    }
    sampling = held_out.sampling(max_new_tokens).model_copy(update={"engine": engine})
    begin, limits = opening(task, config.second_turn, config.retries)
    path = None if store is None else Path(store)
    if path is not None:
        task.set_cache_folder(path.parent)

    def measure() -> dict[str, Any]:
        sweep = ResumableBatches(
            path, StoredProblem, settings, held_out.total, config.batch_problems, progress
        )
        ranks.on_first(lambda: _refuse_other_data(path, held_out, sweep.rows))
        for share in sweep.shares():
            problems = ranks.everywhere(partial(held_out.make, share, answerer.encoder))
            if problems.keys() <= sweep.rows.keys():
                problems = {}  # all are stored; what else is in the share cannot be used
            seeds = {index: config.seed * 1_000_003 + index for index in problems}
            asked = AskedProblems(task, problems, seeds, sampling, begin, limits, path)
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
    """Return the rows of a rollout about the problems with these indices."""
    if extractor is not None:
        read_again(asked.task, rollout.groups, extractor)
    rows = []
    for place, (index, group) in enumerate(zip(indices, rollout.groups, strict=True)):
        samples = [
            _stored(asked, group, number, asked.seeds[index], rollout.retries[place, number])
            for number in range(len(group.trajectories))
        ]
        rows.append(StoredProblem(index, group.problem.digest(), samples))
    return rows


def _stored(asked: AskedProblems, group: Group, number: int, seed: int, retries: int) -> StoredSample:
    task = asked.task
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
        steps=stored_steps(trajectory, asked.store),
    )


def _summary(
    task: Task, held_out: HeldOut, rows: Mapping[int, StoredProblem], score: str, fusion: Fusion | None
) -> dict[str, Any]:
    problems = held_out.known(sorted(rows))
    if not problems:
        raise DataError(f"there is nothing to evaluate: {held_out.why()}")
    stored = [sample for index in problems for sample in rows[index].samples]
    known = {problem.id: problem for problem in problems.values()}
    samples = with_rule_scores(with_fused(stored, fusion), task, known)
    summary = (
        summarise(samples, target_boxes(task, known.values()), score, task.errors)
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


def write_gallery(task: Task, config: EvaluationConfig, folder: Path, count: int) -> None:
    """Write the first ``count`` problems of a split into ``folder``, for the report."""
    make_folder(folder)
    entries = []
    made = HeldOut(task, config)
    for index, problem in made.make(range(min(count, made.total))).items():
        name = f"{index:05d}.png"
        if problem.images:
            with naming(folder / name):
                to_rgb(problem.images[0]).save(folder / name)  # PNG knows no CMYK
        entries.append(shown_entry(task, problem, name))
    write_json(folder / "problems.json", entries)


def shown_entry(task: Task, problem: Problem, image: str) -> dict[str, Any]:
    """Return what is shown of a problem, whose image, where it has one, is called ``image``."""
    entry = {
        "id": problem.id,
        "question": problem.meta.get("question", ""),
        "target": problem.target,
        "image": image if problem.images else None,
    }
    if problem.images and (task.kind == "continuous" or "screen" in problem.meta):
        # Answers are places: the size that their coordinates refer to, and outlines of what is meant.
        entry["frame"] = problem.meta.get("screen") or problem.images[0].size
        boxes = problem.meta.get("ui_boxes", ())
        corners = [[[x1, y1], [x2, y1], [x2, y2], [x1, y2]] for x1, y1, x2, y2 in boxes]
        entry["regions"] = [*problem.meta.get("polygons", ()), *corners]
    return entry
