"""The galleries of a report: a dozen problems with all sampled answers, and what would be chosen.

`draw_places` draws boxes, clicks and swipes on a problem's image: the truth, the choices and the other
candidates. `agent_gallery` shows what agents did with the same problems in all evaluations of a page, such as
before and after training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from selfverify.evaluation.metrics import SampleTable, by_problem
from selfverify.evaluation.samples import CORRECT_1, IMAGES, StoredSample
from selfverify.reports.film import (
    Drawings,
    Pictures,
    Shown,
    agent_film,
    answer_text,
    embedded,
    end_of,
    film_of_sample,
    sample_strip,
)
from selfverify.reports.run_data import STAGES, RunData, stage_title
from selfverify.selection.rules import best_weights, cluster_boxes, elect
from selfverify.tasks.base import Task

TRUTH, BEST, VOTE, OTHER = "truth", "own", "vote", "other"
"""Classes of marks; earlier ones are drawn on top of later ones."""


def draw_places(
    frame: Sequence[float], target: Any, regions: Sequence[Any], answers: Sequence[tuple[Any, str]]
) -> Markup | None:
    """Return an SVG that lies upon an image; None where nothing has a place.

    Args:
        frame: The width and height that coordinates refer to.
        target: The truth: a box ``[x1, y1, x2, y2]``, or an action with coordinates.
        regions: Further outlines ``[[x, y], ...]`` of the truth.
        answers: Canonical answers with their class, the most important ones first.
    """
    if not (_numbers(frame, 2) and min(frame) > 0):
        return None
    unit = max(frame) / 100
    drawn = [mark for answer, name in reversed(answers) for mark in _marks(answer, name, unit)]
    drawn += [_polygon(region, TRUTH) for region in regions if _outline(region)]
    drawn += _marks(target, TRUTH, unit)
    if not drawn:
        return None
    width, height = frame
    # Every value below is a number or one of our own words: nothing is left to escape.
    box = f'viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
    return Markup(f'<svg class="places" {box} aria-hidden="true">{"".join(drawn)}</svg>')


def _marks(value: Any, name: str, unit: float) -> Iterator[str]:
    if _numbers(value, 4):
        x1, y1, x2, y2 = value
        yield _polygon([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], name)
    elif isinstance(value, Mapping) and _numbers(value.get("coordinate"), 2):
        x, y = value["coordinate"]
        if _numbers(value.get("coordinate2"), 2):
            yield from _arrow((x, y), value["coordinate2"], name, unit)
        else:
            yield f'<circle class="{name}" cx="{x:g}" cy="{y:g}" r="{2 * unit:g}" />'
            yield f'<circle class="{name} dot" cx="{x:g}" cy="{y:g}" r="{unit / 2:g}" />'


def _arrow(start: Sequence[float], end: Sequence[float], name: str, unit: float) -> Iterator[str]:
    (x1, y1), (x2, y2) = start, end
    yield f'<line class="{name}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" />'
    angle = math.atan2(y2 - y1, x2 - x1)
    for turn in (2.6, -2.6):
        x, y = x2 + 3 * unit * math.cos(angle + turn), y2 + 3 * unit * math.sin(angle + turn)
        yield f'<line class="{name}" x1="{x2:g}" y1="{y2:g}" x2="{x:g}" y2="{y:g}" />'


def _polygon(points: Sequence[Sequence[float]], name: str) -> str:
    return f'<polygon class="{name}" points="{" ".join(f"{x:g},{y:g}" for x, y in points)}" />'


def _numbers(value: Any, count: int) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == count
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in value)
    )


def _outline(points: Any) -> bool:
    return isinstance(points, list) and len(points) > 2 and all(_numbers(point, 2) for point in points)


KINDS = {
    "corrected": ("Second turns correct more", 5),
    "spoiled": ("Second turns spoil more", 5),
    "even": ("Second turns correct as many as they spoil", 1),
    "unchanged": ("Second turns change nothing", 1),
    "wins": ("Own score beats the vote", 5),
    "fails": ("The vote beats the own score", 4),
    "missed": ("A right answer, missed by both", 2),
    "both": ("Mixed, and both choose right", 3),
    "same": ("All samples right, or all wrong", 1),
    "wrong": ("Answered wrong", 6),
    "right": ("Answered right", 6),
}
"""Kinds of problems in the order in which they are shown: a title, and how many are wanted."""

MOST = 12
"""The gallery has at most so many problems."""


def gallery(run: RunData) -> list[dict[str, Any]]:
    """Return cards of up to `MOST` problems of a run; problems with something to choose come first.

    The cards show the samples after training, or those before it if there are no others.
    """
    samples = run.samples.get("after") or run.samples.get("before") or []
    known = {sample.problem for sample in samples}
    entries = {str(entry.get("id")): entry for entry in run.problems if str(entry.get("id")) in known}
    if not entries:
        if run.problems:
            run.leave_out("gallery", "None of the gallery's problems is among the stored samples.")
        return []
    shown = [sample for sample in samples if sample.problem in entries]
    table, grouped = SampleTable.from_samples(shown), by_problem(shown)
    keys = table.keys if table.boxes is None else cluster_boxes(table.boxes)[0]
    vote, best = elect(keys, np.ones(keys.shape)), best_weights(table.scores[run.reading])
    if CORRECT_1 in table.rewards:
        turns = zip(table.rewards[CORRECT_1], table.correct, strict=True)
        kinds = [_turns_kind(first, second) for first, second in turns]
    else:
        # Without a vote there is nothing that an own choice could beat.
        picked = zip(table.correct, vote if table.comparable else best, best, strict=True)
        kinds = [_kind(right, float(v @ right), float(b @ right)) for right, v, b in picked]
    cards, pictures, asked = [], Pictures(run.path / IMAGES), Pictures(run.gallery_images)
    for row in _choose(kinds):
        problem = table.problems[row]
        entry, own = entries[problem], grouped[problem]
        film = partial(film_of_sample, entry=entry, asked=asked)
        image, note = embedded(run.gallery_images, entry.get("image"))
        cards.append(
            {
                "id": problem,
                "kind": kinds[row],
                "question": entry.get("question", ""),
                "target": answer_text(entry.get("target")),
                "image": image,
                "image_note": note,
                "places": _places(entry, own, vote[row], best[row]),
                "rows": _rows(own, vote[row], best[row], pictures, film, run.reading),
            }
        )
    return cards


def _places(
    entry: dict[str, Any], samples: list[StoredSample], vote: np.ndarray, best: np.ndarray
) -> Markup | None:
    """Draw where the target and the answers are in the image; None if they are no places."""
    if not entry.get("frame"):
        return None
    kinds = [BEST if b > 0 else VOTE if v > 0 else OTHER for v, b in zip(vote, best, strict=True)]
    answers = [(sample.answer, kind) for sample, kind in zip(samples, kinds, strict=True)]
    answers.sort(key=lambda answer: (BEST, VOTE, OTHER).index(answer[1]))
    return draw_places(entry["frame"], entry.get("target"), entry.get("regions") or [], answers)


def _choose(kinds: list[str]) -> list[int]:
    """Return the places of as many problems of each kind as are wanted, and of others if there is room."""
    chosen, rest = [], []
    for kind, (_, wanted) in KINDS.items():
        own = [place for place, its in enumerate(kinds) if its == kind]
        chosen += own[:wanted]
        rest += own[wanted:]
    order = list(KINDS)
    return sorted((chosen + rest)[:MOST], key=lambda place: order.index(kinds[place]))


def _kind(right: np.ndarray, vote: float, best: float) -> str:
    if len(right) == 1:
        return "right" if right[0] else "wrong"
    if right.min() == right.max():
        return "same"
    if abs(best - vote) > 1e-9:  # weights such as 7 x 1/7 do not add up to 1 exactly
        return "wins" if best > vote else "fails"
    return "both" if best > 0.5 else "missed"


def _turns_kind(first: np.ndarray, second: np.ndarray) -> str:
    corrected, spoiled = int((second > first).sum()), int((second < first).sum())
    if corrected == spoiled:
        return "even" if corrected else "unchanged"
    return "corrected" if corrected > spoiled else "spoiled"


def _change(sample: StoredSample) -> str | None:
    """Return whether the second of two turns corrected or spoiled the answer; None if neither."""
    first = sample.rewards.get(CORRECT_1)
    if first is None or (first > 0) == sample.correct:
        return None
    return "corrected" if sample.correct else "spoiled"


def _rows(
    samples: list[StoredSample],
    vote: np.ndarray,
    best: np.ndarray,
    pictures: Pictures,
    film: Callable[..., Shown | None],
    reading: str,
) -> list[dict[str, Any]]:
    """Return one row per sample, highest score first.

    Args:
        samples: The problem's.
        vote: The probability that a vote picks each sample.
        best: The probability that the best score does.
        pictures: The images that conversations show.
        film: Shows a conversation in which the model has looked again.
        reading: Which of the scores is meant.
    """
    several = len(samples) > 1  # of one sample there is nothing to choose
    rows = [
        {
            "answer": answer_text(sample.answer),
            "readable": sample.answer is not None,
            "text": sample.text,
            "film": (looked := film(sample, pictures=pictures)),
            "steps": [] if looked else sample_strip(sample, pictures),
            "score": sample.scores.get(reading),
            "correct": sample.correct,
            "change": _change(sample),
            "vote": several and bool(voted > 0),
            "best": several and bool(chosen > 0),
        }
        for sample, voted, chosen in zip(samples, vote, best, strict=True)
    ]
    return sorted(rows, key=lambda row: -1.0 if row["score"] is None else row["score"], reverse=True)


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
