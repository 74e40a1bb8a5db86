"""Simple rules beside the verifier that ends looking, on the same conversations.

    selfverify train looking-digits
    python -m reproduce.vts_v rivals runs/looking-digits runs/looking-rivals rivals.json

A rule's threshold is chosen as the verifier's ε was, on the run's validation conversations and for the same
aim: a mean number of looks, or how often the answer is right. ``told_apart`` in the file is the AUC by which
places, Δr and log V_φ0 tell needed looks from first looks in vain, each alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from reproduce.looking_gains import PROBLEMS, StudySeed, by_problem, capped, epsilons_of, gains
from selfverify.core.jsonl_store import read_journal
from selfverify.evaluation.visual_metrics import (
    CappedProblem,
    CappedStep,
    StopOutcome,
    as_arrays,
    never,
    outcomes,
    shuffled,
    step_values,
    stopped,
    verifier_steps,
)
from selfverify.experiments.train_stopping import CAP_FILE, LOOKING
from selfverify.selection.rules import Floats
from selfverify.visual.stopping import Target, fit_epsilon

Journal = Mapping[int, CappedProblem]
PRINTED = 1e-4
"""An ε above 0, as the paper's Algorithm 1 asks for."""
NUMBERS, MOST_STEPS, FOLDS = 5, 16, 5
"""Numbers of a call that are read, an image's and a box's; steps whose calls are; folds over problems."""


def plan_of(step: CappedStep) -> str:
    """The words between ``<think>`` and ``</think>``."""
    return step.text.partition("<think>")[2].partition("</think>")[0].strip()


def steps_of(rows: Journal) -> list[CappedStep]:
    """All steps of all conversations."""
    return [step for row in rows.values() for talk in row.talks for step in talk.steps]


def bag_of_words(fitted: Journal, rows: Journal) -> Floats:
    """``[N, H]`` minus the chance that the answer after a step is right, told by the words of its plan alone.

    Args:
        fitted: Conversations on which the logistic regression is fitted.
        rows: Others.
    """
    known = [step for step in steps_of(fitted) if step.correct is not None]
    model = make_pipeline(CountVectorizer(token_pattern=r"\S+"), LogisticRegression(max_iter=1000))
    model.fit([plan_of(step) for step in known], [bool(step.correct) for step in known])
    plans = sorted({plan_of(step) for step in steps_of(rows)})
    chance = dict(zip(plans, model.predict_proba(plans)[:, 1], strict=True))
    return step_values(rows, lambda step: -chance[plan_of(step)])


def places(rows: Journal) -> dict[int, list[int]]:
    """What places say at each step, by the step's ``id``: the step's number, whether its call was made
    before, and the numbers of its call and of the calls before it, the last one first."""
    made = {}
    for talk in [talk for row in rows.values() for talk in row.talks]:
        calls: list[list[int]] = []
        for step in talk.steps:
            numbers = [int(number) for number in re.findall(r"\d+", step.text.rpartition("</think>")[2])]
            calls.insert(0, [*numbers, *[-1] * NUMBERS][:NUMBERS])
            said = [number for call in calls for number in call]
            made[id(step)] = [len(calls), int(calls[0] in calls[1:]), *said]
    width = 2 + NUMBERS * MOST_STEPS
    return {key: [*values, *[-1] * width][:width] for key, values in made.items()}


def told_by_places(fitted: Journal, rows: Journal) -> Floats:
    """``[N, H]`` minus the chance that the answer after a step is right, told by places alone.

    Args:
        fitted: Conversations on which boosted trees are fitted.
        rows: Others.
    """
    known, there = [step for step in steps_of(fitted) if step.correct is not None], places(fitted)
    model = HistGradientBoostingClassifier(random_state=0)
    model.fit([there[id(step)] for step in known], [bool(step.correct) for step in known])
    asked = places(rows)
    chance = dict(zip(asked, model.predict_proba([*asked.values()])[:, 1], strict=True))
    return step_values(rows, lambda step: -chance[id(step)])


def told_apart(rows: Journal) -> dict[str, float]:
    """The AUC by which needed looks behind the first are told from first looks in vain.

    Those follow the step that shows the last of what the answer needs.

    Returns:
        ``places``: by places alone, told by boosted trees in `FOLDS` over problems. ``delta_r`` and
        ``logprob``: by Δr and by log V_φ0 alone, where they were measured; the lower, the more in vain. What
        too few conversations can tell is left out.
    """
    there, looks = places(rows), list[tuple[CappedStep, bool, int]]()
    for index, row in rows.items():
        for talk in row.talks:
            first = (talk.enough or len(talk.steps)) + 1  # the first look in vain
            for number, step in enumerate(talk.steps[1:first], 2):
                looks.append((step, number == first, index))
    vain, problems = ([look[part] for look in looks] for part in (1, 2))
    found = {}
    if len({*vain}) == 2 and len({*problems}) >= FOLDS:
        folds = cross_val_predict(
            HistGradientBoostingClassifier(random_state=0),
            [there[id(step)] for step, _, _ in looks],
            vain,
            groups=problems,
            cv=GroupKFold(FOLDS),
            method="predict_proba",
        )
        found["places"] = float(roc_auc_score(vain, folds[:, 1]))
    for name in ("delta_r", "logprob"):
        measured = [(one, -value) for step, one, _ in looks if (value := getattr(step, name)) is not None]
        if len({one for one, _ in measured}) == 2:
            found[name] = float(roc_auc_score(*zip(*measured, strict=True)))
    return found


def rivals(known: Journal, rows: Journal, target: Target, wanted: float) -> dict[str, StopOutcome]:
    """Return the outcomes of simple rules by name.

    Args:
        known: Validation conversations, with verdicts, on which thresholds are chosen. The bag of words and
            the trees on places learn from the first half of them, and their thresholds are chosen on the
            others. Rules on plans are left out where nobody plans.
        rows: The conversations in which looking ends.
        target: The aim of a threshold, see `fit_epsilon`.
        wanted: Its number.
    """
    half = sorted(known)[: len(known) // 2]
    first, second = ({n: row for n, row in known.items() if (n in half) == mine} for mine in (True, False))
    least = {
        "log V_φ0": (known, lambda of: step_values(of, lambda step: step.logprob)),
        "answer confidence": (known, lambda of: -step_values(of, lambda step: step.confidence)),
        "places": (second, lambda of: told_by_places(first, of)),
    }
    plans = any(plan_of(step) for step in steps_of(known))
    if plans:
        least["bag of words"] = second, lambda of: bag_of_words(first, of)
    looked, made = as_arrays(rows), {}
    for name, (chosen_on, values) in least.items():
        there = as_arrays(chosen_on)
        right = there.correct[:, 1:]
        fitted = fit_epsilon(values(chosen_on), right, "signed", target, wanted, lengths=there.lengths)
        below = values(rows) < fitted.epsilon
        at = np.where(below.any(1), below.argmax(1) + 1, never(looked))
        made[name] = stopped(looked, at)
    if plans:
        says = step_values(rows, lambda step: float(plan_of(step) == "0")) == 1
        at = np.where(says.any(1), says.argmax(1) + 1, never(looked))
        made["the plan says so"] = stopped(looked, at)
        made["the plan says so, skip"] = stopped(looked, at, on_stop="skip")
        made["the plan says so, random"] = shuffled(looked, at)
    made[f"signed, ε = {PRINTED}"] = stopped(looked, verifier_steps(looked, "signed", PRINTED))
    return made


def with_rivals(run: Path, study: Path, problems: int = PROBLEMS, temperature: float = 0.0) -> dict[str, Any]:
    """Hold the test conversations of a run's reasoner, or read them, and return all rules' figures.

    Args:
        run: A run of `looking-digits`.
        study: The folder in which the conversations are kept.
        problems: Test problems.
        temperature: At which looks are sampled.
    """
    seed, folder = StudySeed(run, {}), study / "shown"
    looked = capped(seed, folder, problems, temperature)
    known, rows = (
        read_journal(place / CAP_FILE.format(split=split), CappedProblem)[1]
        for place, split in ((run / LOOKING, "validation"), (folder, "test"))
    )
    epsilons = epsilons_of(seed)
    made = rivals(known, rows, seed.stored.target, seed.stored.wanted)
    found = by_problem(looked, outcomes(looked, epsilons) | made)
    figures = gains({name: [row] for name, row in found.items()}, seed.stored.rule)
    return figures | {"epsilons": epsilons, "told_apart": told_apart(rows)}
