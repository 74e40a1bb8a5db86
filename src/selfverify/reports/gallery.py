"""The galleries of a report: a dozen problems with all sampled answers, and what would be chosen.

`places` are boxes, clicks and swipes on a problem's image: the truth, the choices and the other candidates.
`agent_gallery` shows what agents did with the same problems in all evaluations of a page, such as before and
after training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfverify.evaluation.metrics import SampleTable, by_problem
from selfverify.evaluation.samples import CORRECT_1, IMAGES, StoredSample, StoredStep
from selfverify.reports.film import PageImages, Shown, agent_film, end_of, film_of_sample, numbers, strip
from selfverify.reports.run_data import STAGES, WORDING, RunData
from selfverify.selection.rules import Floats, best_weights, cluster_boxes, elect
from selfverify.tasks.base import Task

TRUTH, BEST, VOTE, OTHER = "truth", "own", "vote", "other"
"""Kinds of marks; earlier ones are drawn on top of later ones."""


def places(
    frame: Any, target: Any, regions: Sequence[Any], answers: Sequence[tuple[Any, str]]
) -> list[Shown]:
    """Return the marks that lie upon an image, in the order in which they are drawn.

    A mark has a ``kind``, and ``points`` of an outline, or ``at``, and ``to`` of a swipe. A value that is no
    place has no mark.

    Args:
        frame: The width and height that coordinates refer to; without them there are no marks.
        target: The truth: a box ``[x1, y1, x2, y2]``, or an action with coordinates.
        regions: Further outlines ``[[x, y], ...]`` of the truth.
        answers: Canonical answers with their kind, the most important ones first.
    """
    if not (numbers(frame, 2) and min(frame) > 0):
        return []
    outlines = [points for points in regions if isinstance(points, list) and len(points) > 2]
    marks = [
        *(_mark(answer, kind) for answer, kind in reversed(answers)),
        *({"kind": TRUTH, "points": p} for p in outlines if all(numbers(point, 2) for point in p)),
        _mark(target, TRUTH),
    ]
    return [mark for mark in marks if mark is not None]


def _mark(value: Any, kind: str) -> Shown | None:
    if numbers(value, 4):
        x1, y1, x2, y2 = value
        return {"kind": kind, "points": [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]}
    if isinstance(value, Mapping) and numbers(value.get("coordinate"), 2):
        to = value.get("coordinate2")
        return {"kind": kind, "at": value["coordinate"], "to": to if numbers(to, 2) else None}
    return None


KINDS: dict[str, tuple[str, int]] = WORDING["problems"]
"""Kinds of problems in the order in which they are shown: a title, and how many are wanted."""

MOST = 12
"""The gallery has at most so many problems."""


def gallery(run: RunData, images: PageImages) -> list[Shown]:
    """Return cards of up to `MOST` problems of a run; problems with something to choose come first.

    The cards show the samples after training, or those before it if there are no others; ``images`` takes
    what they show.
    """
    samples = run.samples.get("after") or run.samples.get("before") or []
    known = {sample.problem for sample in samples}
    entries = {entry["id"]: entry for entry in run.problems if entry["id"] in known}
    if not entries:
        if run.problems:
            run.leave_out("gallery", "None of the gallery's problems is among the stored samples.")
        return []
    shown = [sample for sample in samples if sample.problem in entries]
    table, grouped = SampleTable(shown), by_problem(shown)
    keys = table.keys if table.boxes is None else cluster_boxes(table.boxes)[0]
    vote, best = elect(keys, np.ones(keys.shape)), best_weights(table.scores[run.reading])
    if CORRECT_1 in table.rewards:
        turns = zip(table.rewards[CORRECT_1], table.correct, strict=True)
        kinds = [_turns_kind(first, second) for first, second in turns]
    else:
        # Without a vote there is nothing that an own choice could beat.
        picked = zip(table.correct, vote if table.comparable else best, best, strict=True)
        kinds = [_kind(right, float(v @ right), float(b @ right)) for right, v, b in picked]
    return [
        _card(run, entries[problem], grouped[problem], vote[row], best[row], images) | {"kind": kinds[row]}
        for row, problem in ((row, table.problems[row]) for row in _choose(kinds))
    ]


def _card(
    run: RunData, entry: Shown, samples: list[StoredSample], vote: Floats, best: Floats, images: PageImages
) -> Shown:
    """Return a problem with one row per sample, highest score first.

    ``vote`` and ``best`` are the probabilities that a vote, and that the best score, picks each sample.
    """
    image = images.of_file(run.gallery_images, entry["image"]) if entry.get("image") else None
    stored = images.of_files(run.path / IMAGES)

    def message(step: StoredStep) -> Shown:
        return {"step": step, "images": [stored(name) for name in step.images]}

    several = len(samples) > 1  # of one sample there is nothing to choose
    rows, answers = [], []
    for sample, voted, chosen in zip(samples, vote, best, strict=True):
        answers.append((sample.answer, BEST if chosen > 0 else VOTE if voted > 0 else OTHER))
        looked = film_of_sample(sample, {1: image} if image else {}, stored)
        rows.append(
            {
                "sample": sample,
                "film": looked,
                "steps": [] if looked else strip(sample.steps, message),
                "score": sample.scores.get(run.reading),
                "change": _change(sample),
                "vote": several and bool(voted > 0),
                "best": several and bool(chosen > 0),
            }
        )
    answers.sort(key=lambda answer: (BEST, VOTE, OTHER).index(answer[1]))
    target, regions = entry.get("target"), entry.get("regions") or []
    return {
        "id": entry["id"],
        "question": entry.get("question", ""),
        "target": target,
        "image": image,
        "frame": entry.get("frame"),
        "places": places(entry.get("frame"), target, regions, answers),
        "rows": sorted(rows, key=lambda row: -1.0 if row["score"] is None else row["score"], reverse=True),
    }


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


MOST_SAMPLES = 2
"""Conversations about a problem that are shown of each evaluation."""


def has_agents(run: RunData) -> bool:
    """Whether a run's samples are conversations of agents."""
    return any(end_of(sample) is not None for rows in run.samples.values() for sample in rows[:1])


def agent_gallery(
    runs: Sequence[RunData], tasks: Mapping[str, type[Task]], images: PageImages
) -> list[Shown]:
    """Return cards of up to `MOST` problems, each with its conversations in every evaluation.

    Problems on which evaluations differ come first, then those on which a judge is wrong. Only what is shown
    is drawn.

    Args:
        runs: The page's runs; those without agents are left out.
        tasks: By name, with which the ids of their problems begin; they draw the screens.
        images: Takes what is shown.
    """
    columns = [
        (run, stage, by_problem(rows))
        for run in runs
        if has_agents(run)
        for stage in STAGES
        if (rows := run.samples.get(stage))
    ]
    entries: dict[str, Shown] = {}
    for run, _, samples in columns:
        entries = {entry["id"]: entry for entry in run.problems if entry["id"] in samples} | entries
    if columns and not entries:
        columns[0][0].leave_out("agents", "None of the gallery's problems is among the stored samples.")
    ordered = sorted(entries, key=lambda problem: _rank([its.get(problem, []) for _, _, its in columns]))

    def side(run: RunData, stage: str, samples: list[StoredSample], entry: Shown) -> Shown:
        title, task = run.stage_title(stage), tasks.get(entry["id"].partition("/")[0])
        films = [
            agent_film(sample, entry.get("target"), task, images, run.path / IMAGES, open=number == 0)
            for number, sample in enumerate(samples[:MOST_SAMPLES])
        ]
        return {
            "title": f"{run.name}, {title}" if len(runs) > 1 else title,
            "colour": run.colour,
            "shows": [film for film in films if film is not None],
            "more": max(len(samples) - MOST_SAMPLES, 0),
        }

    return [
        {
            "id": problem,
            "question": str(entries[problem].get("question", "")),
            "columns": [
                side(run, stage, its.get(problem, []), entries[problem]) for run, stage, its in columns
            ],
        }
        for problem in ordered[:MOST]
    ]


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
