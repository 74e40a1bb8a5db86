"""The scores that a judge gives another model's samples, stored batch by batch as they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from selfverify.core.journal import STRICT, open_journal, read_journal
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.evaluation.store import StoredSample
from selfverify.tasks.base import Judged, Task
from selfverify.verifiers.base import Verifier

FEW = 8
"""Problems whose ratings a server makes before they are stored."""


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """A line of a journal of scores: those of a problem's samples, None for answers without one."""

    __pydantic_config__: ClassVar = STRICT

    index: int
    scores: list[float | None]


def stored_scores(
    file: Path,
    settings: Mapping[str, Any],
    make: Callable[[], Verifier],
    task: Task,
    problems: Sequence[Problem],
    samples: Sequence[StoredSample],
    batch: int,
) -> list[float | None]:
    """Return a judge's scores in the order of the samples, those that a journal holds and new ones.

    Args:
        file: The journal. One of other settings is made anew.
        settings: What decides the scores.
        make: Makes the judge; called only if scores are missing.
        task: Reads the answers.
        problems: The problems.
        samples: The same number of answers to each.
        batch: Problems that are judged before they are stored.

    Raises:
        DataError: The journal is corrupt.
        ServerError: A judge's server failed; what was finished is stored.
    """
    if file.exists() and read_journal(file, JudgedProblem)[0] != settings:
        file.unlink()
    journal, known = open_journal(file, JudgedProblem, settings)
    left = [index for index in range(len(problems)) if index not in known]
    rows: dict[str, list[int]] = {problem.id: [] for problem in problems}
    for place, sample in enumerate(samples):
        rows[sample.problem].append(place)
    judge = make() if left else None
    for first in range(0, len(left), batch):
        assert judge is not None
        part = left[first : first + batch]
        own = {problems[index].id for index in part}
        asked = [sample for sample in samples if sample.problem in own]
        scores = iter(judge_samples(judge, task, [problems[index] for index in part], asked, batch))
        found: dict[str, list[float | None]] = {}
        for sample in asked:
            found.setdefault(sample.problem, []).append(next(scores))
        made = [JudgedProblem(index, found[problems[index].id]) for index in part]
        journal.append(*map(asdict, made))
        known |= {row.index: row for row in made}
    result: list[float | None] = [None] * len(samples)
    for index, problem in enumerate(problems):
        for place, score in zip(rows[problem.id], known[index].scores, strict=True):
            result[place] = score
    return result


def judge_samples(
    judge: Verifier, task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample], batch: int = 64
) -> list[float | None]:
    """Return a judge's scores in the order of the samples; None for answers that could not be read."""
    rows: dict[str, list[int]] = {problem.id: [] for problem in problems}
    for place, sample in enumerate(samples):
        rows[sample.problem].append(place)
    found: list[float | None] = [None] * len(samples)
    for first in range(0, len(problems), batch):
        part = problems[first : first + batch]
        groups = [Group(p, [_trajectory(samples[i], task) for i in rows[p.id]]) for p in part]
        for problem, scores in zip(part, judge.score(groups), strict=True):
            for place, score in zip(rows[problem.id], scores, strict=True):
                found[place] = score
    return found


def _trajectory(sample: StoredSample, task: Task) -> Trajectory:
    """Make the trajectory that a judge may see: a sample's text up to its score."""
    start = parse_tagged(sample.text, task.tags).score_start
    segment = Segment(ANSWER, [], text=sample.text if start is None else sample.text[:start])
    readable = None if sample.answer is None else Judged(0.0, sample.correct, sample.answer, sample.key)
    return Trajectory([segment], parsed=readable)
