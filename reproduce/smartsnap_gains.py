"""What SmartSnap's training on the phone is worth: every model of the study on the same new tasks.

    python -m reproduce.grid smartsnap-phone --jobs 2
    python -m reproduce.smartsnap_gains runs/study-smartsnap-phone docs/results/smartsnap.json \
        habitless=runs/cold-start-phone-2-work/model vanilla=runs/cold-start-phone-vanilla/model

The study trains one model for each variant and seed. This measures them, and the model that all began from,
on `SETS`: contents that no model was trained and no design was compared on, of trained kinds of tasks, of
held-out kinds and of held-out apps. Other models are measured beside them as ``NAME=FOLDER``, such as the one
before it learnt to forget. Samples stay in ``STUDY/measured``, so that a second call goes on where the first
one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from reproduce.scripts import named_folders, script
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_json
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.evaluation.statistics import seeds_interval
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import measure, recipe_task
from selfverify.policy.policy import Policy
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
"""What the other variants are measured on."""
SPEAKING: Mapping[str, Sequence[str]] = {"vanilla": ["task.agent.evidence.source=last"]}
"""Options of models that were taught another way of handing in; ``vanilla`` gives a message alone."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on one set of tasks.

    Args:
        tasks: The ids of the P tasks.
        sr: ``[P]`` share of a task's samples that are submitted with the task done, whatever a judge says.
        best: ``[P]`` whether one of a task's samples does.
        figures: Means over samples, by name.
    """

    tasks: list[str]
    sr: np.ndarray
    best: np.ndarray
    figures: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Kinds:
    """What the tasks of a set are.

    Args:
        templates: ``[P]`` the number of each task's template.
        forgotten: ``[P]`` whether the cold start's teachers forget the last tap of such a task.
    """

    templates: np.ndarray
    forgotten: np.ndarray


def kinds_of(tasks: Sequence[str], overrides: Sequence[str]) -> Kinds:
    """What tasks with these ids are, made again by the recipe with these overrides."""
    recipe = load_recipe(RECIPE, overrides)
    task = recipe_task(recipe, measured=True)
    names, forgotten = [], []
    for name in tasks:
        target = task.problem(recipe.evaluation.split, 0, int(name.rsplit("/", 1)[1])).target
        made = make_task(target["reset"]["template"], target["seed"], target["reset"]["start"])
        names.append(made.template)
        forgotten.append(can_be_forgotten(made, carry_out(made.phone(), made.solve, "ids")))
    return Kinds(np.unique(names, return_inverse=True)[1], np.array(forgotten))


def measured(model: str, store: Path, overrides: Sequence[str]) -> Measured:
    """Sample what is missing of a store, and read it."""
    recipe = load_recipe(RECIPE, [f"policy.path={model}", *overrides])
    policy, task = Policy.load(recipe.policy), recipe_task(recipe, measured=True)
    make = task.problem
    vars(task)["problem"] = lambda split, seed, index: make(split, seed, index + FIRST)
    measure(policy, task, recipe, store, model)
    return figures_of(read_samples(store)[1])


def figures_of(samples: Sequence[StoredSample]) -> Measured:
    """The figures of one model's samples.

    ``false_positive`` is the share judged a success of the submissions whose task is not done;
    ``completeness`` of the submissions that could have proven their task the share that do.
    """
    tasks: dict[str, list[float]] = {}
    for sample in samples:
        done = sample.rewards.get("truth", 0.0) > 0 and _submitted(sample.rewards)
        tasks.setdefault(sample.problem, []).append(float(done))
    found = [sample.rewards for sample in samples]

    def mean(name: str, counts: Callable[[Mapping[str, float]], bool] = lambda of: True) -> float | None:
        values = [of[name] for of in found if name in of and counts(of)]
        return float(np.mean(values)) if values else None

    figures = {
        "submitted": float(np.mean([_submitted(of) for of in found])),
        "reward": mean("answer"),
        "exhibits": mean("evidence"),
        "completeness": mean("sufficient"),
        "conciseness": mean("excess"),
        "creativity": mean("evidence_turns"),
        "judged_success": mean("judged_success"),
        "false_positive": mean("judged_success", lambda of: of.get("truth") == 0.0),
        "calls": mean("tool_calls"),
    }
    sr = np.array([np.mean(values) for values in tasks.values()])
    return Measured(list(tasks), sr, np.array([max(values) for values in tasks.values()]), figures)


def _submitted(rewards: Mapping[str, float]) -> bool:
    """Whether something proper was handed in; a conversation that was cut off has no reward for its form."""
    return rewards.get("format_error", -1.0) >= 0


def gain(
    before: np.ndarray, after: Sequence[np.ndarray], clusters: np.ndarray | None = None
) -> tuple[float, list[float]]:
    """The mean gain, and its 95 % bootstrap interval over seeds and tasks.

    Args:
        before: ``[P]`` of the model that all began from.
        after: ``[P]`` of each seed's model, of the same tasks in the same order.
        clusters: ``[P]`` numbers of what is drawn as a whole, such as templates; None draws single tasks.
    """
    differences = np.stack(after) - before
    return float(differences.mean()), seeds_interval(differences, clusters)


def models_of(study: Path) -> dict[str, list[Path]]:
    """The study's trained models by variant, in the order of their seeds.

    Raises:
        ConfigError: There are none of `VARIANT`.
    """
    found: dict[str, list[Path]] = {}
    for folder in sorted(study.glob("phone/*/seed-*/model")):
        found.setdefault(folder.parents[1].name, []).append(folder)
    if VARIANT not in found:
        raise ConfigError(
            f"{study}: no trained model of {VARIANT} is in it; `python -m reproduce.grid {RECIPE}` makes them"
        )
    return found


def compared(
    study: Path, others: Mapping[str, str] | None = None, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Measure all models of a study, and others by their names; return what this module writes."""
    models: dict[str, list[str]] = {BEFORE: [load_recipe(RECIPE).policy.path]}
    models |= {name: [str(path) for path in paths] for name, paths in models_of(study).items()}
    models |= {name: [folder] for name, folder in (others or {}).items()}
    rows: dict[str, dict[str, Any]] = {}
    kept: dict[tuple[str, str], list[Measured]] = {}
    kinds: dict[str, Kinds] = {}
    for variant, paths in models.items():
        for name, overrides in (SETS if variant in (BEFORE, VARIANT) else ARMS).items():
            stores = [study / "measured" / name / f"{variant}-{number}.jsonl" for number in range(len(paths))]
            kept[variant, name] = [
                measured(path, store, [*overrides, *SPEAKING.get(variant, ())])
                for path, store in zip(paths, stores, strict=True)
            ]
            first = kept[BEFORE, name][0]
            if name not in kinds:
                kinds[name] = kinds_of(first.tasks, overrides)
            row = _row(kept[variant, name], first, kinds[name])
            rows.setdefault(name, {})[variant] = row
            say(f"{name} {variant}: SR {100 * row['sr']:.1f}, exhibits {row['exhibits'] or 0:.2f}")
    first, last = rows["tasks"][BEFORE], rows["tasks"][VARIANT]
    return {
        "sr_before": first["sr"],
        "sr_after": last["sr"],
        "sr_gain": last["gain"],
        "sr_gain_low": last["interval"][0],
        "sr_gain_greedy": rows["greedy"][VARIANT]["gain"],
        "exhibits": last["exhibits"],
        "completeness_change": last["completeness"] - first["completeness"],
        "judge_false_positive": last["false_positive"],
        "seeds": len(models[VARIANT]),
        "sets": rows,
    }


def _row(found: Sequence[Measured], before: Measured, kinds: Kinds) -> dict[str, Any]:
    """Means over a variant's models, and what they gain over the first model on the same tasks."""
    after = [of.sr for of in found]
    difference, interval = gain(before.sr, after)
    row: dict[str, Any] = {
        "sr": float(np.mean([of.sr.mean() for of in found])),
        "sr_by_seed": [float(of.sr.mean()) for of in found],
        "pass_at_k": float(np.mean([of.best.mean() for of in found])),
        "gain": difference,
        "interval": interval,
        "interval_over_templates": gain(before.sr, after, kinds.templates)[1],
        "tasks": len(before.sr),
    }
    for name, part in (("forgotten", kinds.forgotten), ("other", ~kinds.forgotten)):
        if part.any():
            one, its = gain(before.sr[part], [sr[part] for sr in after])
            shown = float(np.mean([sr[part].mean() for sr in after]))
            row[name] = {"tasks": int(part.sum()), "sr": shown, "gain": one, "interval": its}
    for name in found[0].figures:
        values = [value for of in found if (value := of.figures[name]) is not None]
        row[name] = float(np.mean(values)) if values else None
    return row


def main(
    study: Annotated[Path, typer.Argument(help="The study's folder.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    named: Annotated[list[str] | None, typer.Argument(metavar="[NAME=MODEL]...", help="More models.")] = None,
) -> None:
    """Measure every model of the study on the same new tasks; the module's docstring has an example."""
    write_json(result, compared(study, dict(named_folders(named or []))))
    print(result)


app = script(main)

if __name__ == "__main__":
    app()
