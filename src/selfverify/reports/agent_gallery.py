"""What agents did: the same problems in all evaluations of a page, such as before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.evaluation.metrics import by_problem
from selfverify.evaluation.samples import IMAGES, StoredSample
from selfverify.reports.agent_film import agent_film
from selfverify.reports.agent_records import end_of
from selfverify.reports.film_strip import Drawings, Pictures, Shown
from selfverify.reports.run_data import STAGES, RunData
from selfverify.reports.wording import stage_title
from selfverify.tasks.base import Task

MOST = 12
"""A page has at most so many problems."""
MOST_SAMPLES = 2
"""Conversations about a problem that are shown of each evaluation."""

Column = tuple[str, RunData, dict[str, list[StoredSample]]]
"""An evaluation: its title, its run, and its samples by problem."""


def has_agents(run: RunData) -> bool:
    """Whether a run's samples are conversations of agents."""
    return any(end_of(sample) is not None for rows in run.samples.values() for sample in rows[:1])


def agent_gallery(
    runs: Sequence[RunData], tasks: Mapping[str, type[Task]], drawings: Drawings
) -> list[Shown]:
    """Cards of up to `MOST` problems, each with its conversations in every evaluation.

    Problems on which evaluations differ come first, then those on which a judge is wrong. Only what is shown
    is drawn.

    Args:
        runs: The page's runs; those without agents are left out.
        tasks: By name, with which the ids of their problems begin; they draw the screens.
        drawings: Takes the screens.
    """
    columns = [column for run in runs if has_agents(run) for column in _columns(run, len(runs) > 1)]
    entries: dict[str, dict[str, Any]] = {}
    for _, run, samples in columns:
        for entry in run.problems:
            if entry["id"] in samples:
                entries.setdefault(entry["id"], entry)
    if columns and not entries:
        columns[0][1].leave_out("agents", "None of the gallery's problems is among the stored samples.")
    ordered = sorted(entries, key=lambda problem: _rank([its.get(problem, []) for _, _, its in columns]))
    pictures = {id(run): Pictures(run.path / IMAGES) for _, run, _ in columns}
    return [
        {
            "id": problem,
            "question": str(entries[problem].get("question", "")),
            "columns": [
                {
                    "title": title,
                    "colour": run.colour,
                    "shows": _shows(
                        samples.get(problem, []),
                        entries[problem].get("target"),
                        tasks.get(problem.partition("/")[0]),
                        pictures[id(run)],
                        drawings,
                    ),
                    "more": max(len(samples.get(problem, [])) - MOST_SAMPLES, 0),
                }
                for title, run, samples in columns
            ],
        }
        for problem in ordered[:MOST]
    ]


def _columns(run: RunData, several: bool) -> list[Column]:
    found = []
    for stage in STAGES:
        if rows := run.samples.get(stage):
            title = stage_title(run, stage)
            found.append((f"{run.name}, {title}" if several else title, run, by_problem(rows)))
    return found


def _shows(
    samples: list[StoredSample],
    target: Any,
    task: type[Task] | None,
    pictures: Pictures,
    drawings: Drawings,
) -> list[Shown]:
    chosen = samples[:MOST_SAMPLES]
    films = (agent_film(sample, target, task, pictures, drawings, n == 0) for n, sample in enumerate(chosen))
    return [film for film in films if film is not None]


def _rank(columns: list[list[StoredSample]]) -> tuple[bool, bool]:
    """Smaller is shown earlier."""
    done, wrong = set(), False
    for samples in columns:
        ends = [end for sample in samples[:MOST_SAMPLES] if (end := end_of(sample)) is not None]
        done |= {end.truth.complete for end in ends[:1] if end.truth is not None}
        wrong |= any(
            end.truth is not None
            and end.judgement is not None
            and end.judgement.success not in (None, end.truth.complete)
            for end in ends
        )
    return (len(done) < 2, not wrong)
