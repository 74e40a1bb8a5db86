"""What a study of second turns found, in one file: is AdaPO above its baselines, and what does it spoil?

    python -m reproduce.grid adapo-digits-check
    selfverify eval adapo-digits-check --output greedy/before evaluation.samples=1 evaluation.temperature=0
    selfverify eval runs/adapo-digits-check/pick/adapo/seed-0 --output greedy/adapo/seed-0 \\
        evaluation.samples=1 evaluation.temperature=0      # and so on for every run that the study has
    python -m reproduce.adapo runs/adapo-digits-check --greedy greedy --output adapo.json

From the study's own samples (T = 1) come AdaPO's differences from every other variant and from the policy
before training, of first and second answers; from those at T = 0 each variant's shares of spoiled and
corrected answers. All are means over seeds; intervals are those of the study
(`reproduce.grid_results`): over problems and seeds, or, where a variant has one seed, over
problems for that trained model alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.grid_file import BEFORE
from reproduce.grid_results import MeasuredRun, difference, measure_samples, pooled
from reproduce.scripts import show
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import write_json
from selfverify.evaluation.samples import find_store, read_samples
from selfverify.experiments.recipe import load_recipe

FIRST, SECOND = "turns.acc@t1", "turns.acc@t2"
SPOILED, CORRECTED, DELTA = "turns.1->0", "turns.0->1", "turns.delta"


def measured(folder: Path, order: list[str]) -> MeasuredRun:
    """The figures of an evaluation on the problems in ``order``, which the first one fills.

    Raises:
        DataError: There are no second turns, or other problems.
    """
    settings, samples = read_samples(find_store(folder))
    if settings.get("temperature", 0):
        raise DataError(
            f"{folder} was sampled at T = {settings['temperature']:g}; "
            "evaluate anew with evaluation.temperature=0"
        )
    order.extend(() if order else dict.fromkeys(sample.problem for sample in samples))
    try:
        found = measure_samples(samples, order)
    except DataError as error:
        raise DataError(f"{folder}: {error}") from None
    if SPOILED not in found.values:
        raise DataError(f"{folder}: these samples have no second turns; evaluate with evaluation.second_turn")
    return found


def over(found: Mapping[str, Any], sign: int) -> dict[str, Any]:
    """A difference as ``difference``, ``low`` and ``high``, the other way round where ``sign`` is -1."""
    ends = sorted(sign * end for end in found["interval"]) if found["interval"] else [None, None]
    return {
        "difference": sign * found["difference"],
        "low": ends[0],
        "high": ends[1],
        "seeds": len(found["per_seed"]),
    }


def share(found: Mapping[str, Any]) -> dict[str, Any]:
    """A mean as ``value``, ``low`` and ``high``."""
    low, high = found["interval"] or (None, None)
    return {"value": found["mean"], "low": low, "high": high}


def sampled(task: Mapping[str, Any], own: str) -> dict[str, Any]:
    """Differences of the variant ``own`` from all others, and from the policy before training, at T = 1."""
    variants = task["variants"]
    others = {name: of["difference"] for name, of in variants.items() if "difference" in of}
    seconds = {name: over(of[SECOND], -1) for name, of in others.items()}
    seconds[BEFORE] = over(variants[own]["gain"][SECOND], 1)
    firsts = {name: over(of[FIRST], -1) for name, of in others.items()}
    firsts[BEFORE] = over(variants[own]["gain"][FIRST], 1)
    rows = {BEFORE: task[BEFORE]["metrics"]} | {name: of["metrics"] for name, of in variants.items()}
    names = {"acc_t1": FIRST, "acc_t2": SECOND, "m01": CORRECTED, "m10": SPOILED}
    return {
        "acc_t2_over": seconds,
        "acc_t1_over": firsts,
        "acc_t1_gap_to_grpo": firsts.get("grpo"),
        "sampled": {
            row: {key: share(of[metric]) for key, metric in names.items()} for row, of in rows.items()
        },
        "seeds": {name: of["seeds"] for name, of in variants.items()},
        "problems": task["problems"],
        "samples_per_problem": task["samples_per_problem"],
    }


def greedy(folder: Path, seeds: Mapping[str, Sequence[int]], own: str) -> dict[str, Any]:
    """Shares at T = 0 of each variant, and of the policy before training, and differences of ``own``."""
    order: list[str] = []
    runs = {BEFORE: {0: measured(folder / BEFORE, order)}}
    for variant, of in seeds.items():
        runs[variant] = {seed: measured(folder / variant / f"seed-{seed}", order) for seed in of}
    figures = {name: pooled(of) for name, of in runs.items()}
    start = dict.fromkeys(seeds[own], runs[BEFORE][0])
    gaps = {
        name: difference(runs[own], start if name == BEFORE else runs[name]) for name in runs if name != own
    }
    names = {
        "acc_t1_greedy": FIRST,
        "acc_t2_greedy": SECOND,
        "delta_greedy": DELTA,
        "m10_greedy": SPOILED,
        "m01_greedy": CORRECTED,
    }
    return {
        **{key: {row: share(of[metric]) for row, of in figures.items()} for key, metric in names.items()},
        "acc_t2_over_greedy": {name: over(of[SECOND], 1) for name, of in gaps.items()},
        "acc_t1_over_greedy": {name: over(of[FIRST], 1) for name, of in gaps.items()},
        "problems_greedy": len(order),
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Read the study and the evaluations, print the figures, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.add_argument("--greedy", type=Path, required=True, help="folder of evaluations at T = 0")
    parser.add_argument("--task", default="pick", help="the task's label in the study")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(argv)
    try:
        found = figures_of(options.study, options.greedy, options.task)
    except SelfVerifyError as error:
        parser.error(str(error))
    rows = []
    for name, of in found["sampled"].items():
        zero = [found[f"{key}_greedy"][name]["value"] for key in ("acc_t1", "acc_t2", "m01", "m10")]
        rows.append([name, *[f"{100 * value:.1f}" for value in (*[f["value"] for f in of.values()], *zero)]])
    heads = ["acc@t1", "acc@t2", "0->1", "1->0"]
    show("Percent, at T = 1 and at T = 0", ["", *heads, *[f"T=0 {head}" for head in heads]], rows)
    if options.output:
        write_json(options.output, found)


def figures_of(study: Path, evaluations: Path, label: str) -> dict[str, Any]:
    """All figures of a study.

    Raises:
        DataError: The study has no results, no such task or no baseline, or an evaluation is missing.
    """
    file = study / "results.json"
    try:
        results = json.loads(file.read_text(encoding="utf-8"))
        own, tasks = results["baseline"], results["tasks"]
    except FileNotFoundError:
        raise DataError(f"{study} has no results.json; `python -m reproduce.grid` writes it") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{file} is not what `reproduce.grid` writes; run the study again") from None
    if label not in tasks:
        raise DataError(f"{study} has no task {label!r}, but {', '.join(tasks)}; give --task")
    task = tasks[label]
    if own not in task["variants"]:
        raise DataError(f"{study}: the study's baseline {own!r} has no runs; the others are compared with it")
    if SECOND not in task["variants"][own]["gain"]:
        raise DataError(f"{file}: {label!r} has no second turns; give a study such as adapo-digits")
    at_one = sampled(task, own)
    seeds = at_one["seeds"]
    recipe = load_recipe(study / label / own / f"seed-{seeds[own][0]}")
    learner = recipe.learner
    trained = {
        "steps": learner.steps,
        "problems_per_step": learner.groups_per_step,
        "trajectories_per_problem": recipe.sampling.group_size,
    }
    return {"study": results["study"], "of": own} | trained | at_one | greedy(evaluations, seeds, own)


if __name__ == "__main__":
    main()
