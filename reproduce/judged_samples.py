"""Scores that a judge gives to stored samples, kept in a journal, so that a second call goes on."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfverify.core.jsonl_store import StrictRow, open_journal, read_journal
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import ScoreReading
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.evaluation.samples import StoredSample
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Verifier
from selfverify.verifiers.policy_verifiers import PolicyJudge

WRITTEN = ", written"
"""Behind a verifier's name: by scores drawn as it would write them, not by the expected ones."""


@dataclass(frozen=True, slots=True)
class JudgedProblem(StrictRow):
    """A line of a journal of scores: those of a problem's samples, None for answers without one.

    ``written`` has scores that were drawn as the judge would write them; it is empty where a judge has none.
    """

    index: int
    scores: list[float | None]
    written: list[float | None] = field(default_factory=list)


def stored_scores(
    file: Path,
    settings: Mapping[str, Any],
    make: Callable[[], Verifier],
    task: Task,
    problems: Sequence[Problem],
    samples: Sequence[StoredSample],
    batch: int,
) -> dict[str, list[float | None]]:
    """Return a judge's scores in the order of the samples, those that a journal holds and new ones.

    By "" the expected ones or a server's, by `WRITTEN` those that a policy would write, where it has some.

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
    judge = make() if left else None
    for first in range(0, len(left), batch):
        assert judge is not None
        part = left[first : first + batch]
        groups = _groups(task, [problems[index] for index in part], samples)
        if isinstance(judge, PolicyJudge):
            read = judge.readings(groups)
            scores = [[reading.soft if reading else None for reading in row] for row in read]
            written = [
                [_drawn(r, f"{of.problem.id}/{g}") for g, r in enumerate(row)]
                for of, row in zip(groups, read, strict=True)
            ]
        else:
            scores, written = judge.score(groups), [[] for _ in part]
        made = [JudgedProblem(*one) for one in zip(part, scores, written, strict=True)]
        journal.append(*map(asdict, made))
        known |= {row.index: row for row in made}
    found = {}
    for kind, own in (
        ("", [known[i].scores for i in range(len(problems))]),
        (WRITTEN, [known[i].written for i in range(len(problems))]),
    ):
        by_problem = {problem.id: iter(row) for problem, row in zip(problems, own, strict=True)}
        if all(own):
            found[kind] = [next(by_problem[sample.problem]) for sample in samples]
    return found


def _drawn(reading: ScoreReading | None, name: str) -> float | None:
    """Draw a score from a distribution, the same one for each answer's name."""
    if reading is None:
        return None
    shares = reading.distribution()
    return random.Random(name).choices([*shares], [*shares.values()])[0]


def _groups(task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample]) -> list[Group]:
    """The problems with what answered them, in the order of the samples."""
    found = {problem.id: Group(problem, []) for problem in problems}
    for sample in samples:
        if sample.problem in found:
            found[sample.problem].trajectories.append(_trajectory(sample, task))
    return [*found.values()]


def _trajectory(sample: StoredSample, task: Task) -> Trajectory:
    """Make the trajectory that a judge may see: a sample's text up to its score."""
    start = parse_tagged(sample.text, task.tags).score_start
    segment = Segment(ANSWER, [], text=sample.text if start is None else sample.text[:start])
    readable = None if sample.answer is None else Verdict(0.0, sample.correct, sample.answer, sample.key)
    return Trajectory([segment], parsed=readable)
