"""The gallery of a report: a dozen problems with all sampled answers, and which one would be chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from markupsafe import Markup

from selfverify.evaluation.metrics import SampleTable, by_problem
from selfverify.evaluation.samples import CORRECT_1, IMAGES, StoredSample
from selfverify.reports.film_strip import Pictures, Shown, answer_text, embedded, sample_strip
from selfverify.reports.look_film import film_of_sample
from selfverify.reports.places import BEST, OTHER, VOTE, draw_places
from selfverify.reports.run_data import RunData
from selfverify.selection.rules import best_weights, cluster_boxes, elect

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
