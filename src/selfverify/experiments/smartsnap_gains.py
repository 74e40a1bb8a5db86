"""What SmartSnap's training on the phone is worth: every model of the study on the same unseen tasks.

    selfverify study study-smartsnap-phone --jobs 2
    python -m selfverify.experiments.smartsnap_gains runs/study-smartsnap-phone docs/results/smartsnap.json \\
        vanilla=runs/cold-start-phone-vanilla/model

The study trains one model for each variant and seed. This measures them, and the model that all began from,
on `SETS`: contents that nobody was trained or tuned on, of trained kinds of tasks, of held-out kinds and of
held-out apps. Other models are measured beside them as ``NAME=FOLDER``. Samples stay in ``STUDY/measured``,
so that a second call goes on where the first one stopped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfverify.core.atomic_files import write_json
from selfverify.core.errors import ConfigError
from selfverify.evaluation.store import StoredSample, read_samples
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import measure, recipe_task
from selfverify.policy.policy import Policy

RECIPE, VARIANT, BEFORE = "smartsnap-phone", "smartsnap", "before"
TUNED = 128
"""Settings were chosen on the first validation tasks; they count nowhere here."""
UNSEEN = [f"evaluation.problems={TUNED + 512}"]
SETS: Mapping[str, Sequence[str]] = {
    "tasks": [*UNSEEN, "evaluation.samples=4"],
    "greedy": [*UNSEEN, "evaluation.samples=1", "evaluation.temperature=0"],
    "templates": ["evaluation.split=test", f"evaluation.problems={TUNED + 256}", "evaluation.samples=2"],
    "apps": [
        *(f"evaluation.problems={TUNED + 256}", "evaluation.samples=2"),
        *("task.apps=[music, reader]", "task.held_out=seeds"),
    ],
}
"""Unseen contents of trained templates at T = 1 and at T = 0, held-out templates, held-out apps."""
ARMS: Mapping[str, Sequence[str]] = {"tasks": [*UNSEEN, "evaluation.samples=2"]}
"""What the other variants are measured on."""
SPEAKING: Mapping[str, Sequence[str]] = {"vanilla": ["task.agent.evidence.source=last"]}
"""Options of models that were taught another way of handing in; ``vanilla`` gives a message alone."""
DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on one set of tasks.

    Args:
        sr: ``[P]`` share of a task's samples that are submitted with the task done, whatever a judge says.
        best: ``[P]`` whether one of a task's samples does.
        figures: Means over samples, by name.
    """

    sr: np.ndarray
    best: np.ndarray
    figures: dict[str, float | None]


def measured(model: str, store: Path, overrides: Sequence[str]) -> Measured:
    """Sample what is missing of a store, and read it."""
    recipe = load_recipe(RECIPE, [f"policy.path={model}", *overrides])
    policy, task = Policy.load(recipe.policy), recipe_task(recipe, measured=True)
    measure(policy, task, recipe, store, model)
    _, samples = read_samples(store)
    return figures_of([sample for sample in samples if int(sample.problem.rsplit("/", 1)[1]) >= TUNED])


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
    return Measured(sr, np.array([max(values) for values in tasks.values()]), figures)


def _submitted(rewards: Mapping[str, float]) -> bool:
    """Whether something proper was handed in; a conversation that was cut off has no reward for its form."""
    return rewards.get("format_error", -1.0) >= 0


def gain(before: np.ndarray, after: Sequence[np.ndarray], seed: int = 0) -> tuple[float, list[float]]:
    """The mean gain, and its 95 % bootstrap interval over seeds and tasks.

    Args:
        before: ``[P]`` of the model that all began from.
        after: ``[P]`` of each seed's model, of the same tasks in the same order.
        seed: Of the draws.
    """
    rng, differences = np.random.default_rng(seed), np.stack(after) - before
    models, tasks = differences.shape
    drawn = np.array(
        [
            differences[np.ix_(rng.integers(models, size=models), rng.integers(tasks, size=tasks))].mean()
            for _ in range(DRAWS)
        ]
    )
    return float(differences.mean()), np.quantile(drawn, [0.025, 0.975]).tolist()


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
            f"{study}: no trained model of {VARIANT} is in it; selfverify study study-{RECIPE} makes them"
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
    for variant, paths in models.items():
        for name, overrides in (SETS if variant in (BEFORE, VARIANT) else ARMS).items():
            stores = [study / "measured" / name / f"{variant}-{number}.jsonl" for number in range(len(paths))]
            kept[variant, name] = [
                measured(path, store, [*overrides, *SPEAKING.get(variant, ())])
                for path, store in zip(paths, stores, strict=True)
            ]
            row = _row(kept[variant, name], kept[BEFORE, name][0])
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


def _row(found: Sequence[Measured], before: Measured) -> dict[str, Any]:
    """Means over a variant's models, and what they gain over the first model on the same tasks."""
    difference, interval = gain(before.sr, [of.sr for of in found])
    row: dict[str, Any] = {
        "sr": float(np.mean([of.sr.mean() for of in found])),
        "sr_by_seed": [float(of.sr.mean()) for of in found],
        "pass_at_k": float(np.mean([of.best.mean() for of in found])),
        "gain": difference,
        "interval": interval,
        "tasks": len(before.sr),
    }
    for name in found[0].figures:
        values = [value for of in found if (value := of.figures[name]) is not None]
        row[name] = float(np.mean(values)) if values else None
    return row


if __name__ == "__main__":
    target = Path(sys.argv[2])
    write_json(target, compared(Path(sys.argv[1]), dict(other.split("=", 1) for other in sys.argv[3:])))
    print(target)
