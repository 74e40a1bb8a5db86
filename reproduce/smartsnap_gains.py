"""The worth of SmartSnap's training on the phone: every model of the study on the same new tasks.

    python -m reproduce.grid smartsnap-phone --jobs 2
    python -m reproduce.smartsnap gains runs/study-smartsnap-phone smartsnap.json \
        habitless=runs/cold-start-phone-2-work/model vanilla=runs/cold-start-phone-vanilla/model

The study trains one model for each variant and seed. This measures them, and the model that all began from,
on `SETS`: contents that no model was trained and no design was compared on, of trained kinds of tasks, of
held-out kinds and of held-out apps. Other models are measured beside them as ``NAME=FOLDER``, such as the one
before it learnt to forget. Samples stay in ``STUDY/measured``, so that a second call goes on where the first
one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.statistics import MeasuredRun, difference, pooled, ratio_run
from reproduce.tables import Column, difference_table, figure_table
from selfverify.core.errors import ConfigError
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.experiments.recipe import load_recipe, recipe_task
from selfverify.experiments.run import measure
from selfverify.policy.policy import Policy
from selfverify.selection.rules import Floats
from selfverify_phone.demonstrations import can_be_forgotten
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import make_task

RECIPE, VARIANT, BEFORE = "smartsnap-phone", "smartsnap", "before"
FIRST = 640
"""The number of the first task that counts. Designs were compared on those before it."""
SETS: Mapping[str, Sequence[str]] = {
    "tasks": ["evaluation.problems=512", "evaluation.samples=4"],
    "greedy": ["evaluation.problems=512", "evaluation.samples=1", "evaluation.temperature=0"],
    "templates": ["evaluation.split=test", "evaluation.problems=256", "evaluation.samples=2"],
    "apps": [
        *("evaluation.problems=256", "evaluation.samples=2"),
        *("task.apps=[music, reader]", "task.held_out=seeds"),
    ],
}
"""New contents of trained templates at T = 1 and at T = 0, held-out templates, held-out apps."""
ARMS: Mapping[str, Sequence[str]] = {
    "tasks": ["evaluation.problems=512", "evaluation.samples=2"],
    "greedy": SETS["greedy"],
}
"""The tasks that the other variants are measured on."""
SPEAKING: Mapping[str, Sequence[str]] = {"vanilla": ["task.agent.evidence.source=last"]}
"""Options of models that were taught another way of handing in; ``vanilla`` gives a message alone."""

Rewards = Mapping[str, float]


def _submitted(of: Rewards) -> bool:
    """Whether something proper was handed in; a conversation that broke off has no reward for its form."""
    return of.get("format_error", -1.0) >= 0


def done(of: Rewards) -> float:
    """Submitted with the task done, whatever a judge says."""
    return float(of.get("truth", 0.0) > 0 and _submitted(of))


FIGURES: Mapping[str, Callable[[Rewards], float | None]] = {
    "sr": done,
    "done": lambda of: float(of.get("truth", 0.0) > 0),
    "submitted": lambda of: float(_submitted(of)),
    "exhibits": lambda of: of.get("evidence"),
    "completeness": lambda of: of.get("sufficient"),
    "judged_success": lambda of: of.get("judged_success"),
    "false_positive": lambda of: of.get("judged_success") if of.get("truth") == 0.0 else None,
    "calls": lambda of: of.get("tool_calls"),
}
"""Means over samples; None takes no part. ``false_positive`` is the share judged a success of the submissions
whose task is not done; ``done`` asks for no submission; ``completeness`` is about the
submissions that could have proven their task: the share of them that do."""
COLUMNS = [
    Column("sr", "SR"), Column("sr, habit", "SR of forgotten ends"), Column("sr, other", "SR of others"),
    *(Column(name, name, better=False) for name in ("done", "submitted", "completeness")),
    *(Column(name, name.replace("_", " "), better=False) for name in ("judged_success", "false_positive")),
    *(Column(name, name, percent=False, better=False) for name in ("exhibits", "calls")),
]  # fmt: skip


@cache
def forgotten(tasks: tuple[str, ...], overrides: tuple[str, ...]) -> Floats:
    """For tasks with these ids, made again with these overrides, whether teachers forget their last tap."""
    recipe = load_recipe(RECIPE, overrides)
    task = recipe_task(recipe, measured=True)
    found = []
    for name in tasks:
        target = task.problem(recipe.evaluation.split, 0, int(name.rsplit("/", 1)[1])).target
        made = make_task(target["reset"]["template"], target["seed"], target["reset"]["start"])
        found.append(can_be_forgotten(made, carry_out(made.phone(), made.solve, "ids")))
    return np.array(found, dtype=np.float64)


def figures_of(samples: Sequence[StoredSample], overrides: Sequence[str]) -> MeasuredRun:
    """The figures of one model's samples, of tasks that were made with these overrides."""
    tasks = tuple(dict.fromkeys(sample.problem for sample in samples))
    place = np.array([tasks.index(sample.problem) for sample in samples])
    parts: dict[str, tuple[Floats, Floats]] = {}
    for name, read in FIGURES.items():
        values = np.array([read(sample.rewards) for sample in samples], dtype=np.float64)
        known = ~np.isnan(values)
        sums = (np.where(known, values, 0.0), known.astype(np.float64))
        above, below = (np.bincount(place, part, minlength=len(tasks)) for part in sums)
        parts[name] = above.astype(np.float64), below.astype(np.float64)
    (done, tried), habit = parts["sr"], forgotten(tasks, tuple(overrides))
    parts |= {"sr, habit": (done * habit, tried * habit)}
    parts |= {"sr, other": (done * (1.0 - habit), tried * (1.0 - habit))}
    return ratio_run(parts)


def measured(model: str, store: Path, overrides: Sequence[str], kinds: Sequence[str]) -> MeasuredRun:
    """Sample what is missing of a store, and read it."""
    recipe = load_recipe(RECIPE, [f"policy.path={model}", *overrides])
    policy, task = Policy.load(recipe.policy), recipe_task(recipe, measured=True)
    make = task.problem
    vars(task)["problem"] = lambda split, seed, index: make(split, seed, index + FIRST)
    measure(policy, task, recipe, store, model)
    return figures_of(read_samples(store)[1], kinds)


def models_of(study: Path) -> dict[str, list[str]]:
    """The study's trained models by variant, in the order of their seeds, behind what `VARIANT` began from.

    Raises:
        ConfigError: There are none of `VARIANT`.
    """
    trained: dict[str, list[str]] = {}
    for folder in sorted(study.glob("phone/*/seed-*/model")):
        trained.setdefault(folder.parents[1].name, []).append(str(folder))
    if VARIANT not in trained:
        raise ConfigError(
            f"{study}: no trained model of {VARIANT} is in it; `python -m reproduce.grid {RECIPE}` makes them"
        )
    start = load_recipe(Path(trained[VARIANT][0]).parent).policy.path
    return {BEFORE: [start], **trained}


def compared(study: Path, others: Mapping[str, str], say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure all models of a study, and others by their names; return the figures by set and variant."""
    models = models_of(study) | {name: [folder] for name, folder in others.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, overrides in SETS.items():
        runs: dict[str, dict[int, MeasuredRun]] = {}
        for variant, paths in models.items():
            own = overrides if variant in (BEFORE, VARIANT) else ARMS.get(name)
            for number, path in enumerate(paths if own is not None else ()):
                store = study / "measured" / name / f"{variant}-{number}.jsonl"
                settings = [*(own or ()), *SPEAKING.get(variant, ())]
                runs.setdefault(variant, {})[number] = measured(path, store, settings, overrides)
        start = runs[BEFORE][0]
        found[name] = {
            variant: {"metrics": pooled(of), "gain": difference(of, dict.fromkeys(of, start))}
            for variant, of in runs.items()
        }
        for variant, of in runs.items():
            if variant not in (BEFORE, VARIANT):  # models of other seeds: apart
                found[name][variant]["behind"] = difference(runs[VARIANT], of, "apart")
        figures = {(variant,): row["metrics"] for variant, row in found[name].items()}
        changes = {(variant,): row["gain"] for variant, row in found[name].items() if variant != BEFORE}
        say(f"## {name}\n\n{figure_table(['variant'], figures, COLUMNS)}\n")
        say(f"Gain over {BEFORE}:\n\n{difference_table(['variant'], changes, COLUMNS)[0]}\n")
        leads = {(variant,): row["behind"] for variant, row in found[name].items() if "behind" in row}
        if leads:
            say(f"{VARIANT} over each:\n\n{difference_table(['variant'], leads, COLUMNS)[0]}\n")
    return found
