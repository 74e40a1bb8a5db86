"""What second turns make of each kind of error in `digits-pick`, over seeds.

    python -m reproduce.grid adapo-digits-check
    python -m reproduce.turn_errors --of before runs/adapo-digits-check/pick/before \\
        --of adapo runs/adapo-digits-check/pick/adapo/seed-* --output turn-errors.json

Samples keep the kind of error of final answers only, so the task judges the first answers again. For each
kind of first answer the file has its share of all, how often the second turn repeats it and how often it ends
right; besides, the shares of all second answers by kind. They are means over seeds, with 95 % intervals over
problems and seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.scripts import ask_methods, asked_methods, show, with_interval
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import write_json
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.evaluation.samples import StoredSample, StoredVerdict, find_store, read_samples
from selfverify.evaluation.statistics import percentile_interval, pooled_draws, ratio_draws
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Task
from selfverify.tasks.digits_pick import NEITHER, NOT_SHOWN, WRONG_SUM

RIGHT, UNREADABLE = "right", "unreadable"
KINDS = (RIGHT, WRONG_SUM, NOT_SHOWN, NEITHER, UNREADABLE)


@cache
def problem_of(task: Task, name: str) -> Problem:
    """The problem of this name. It is drawn once for all samples and evaluations.

    Raises:
        DataError: It is of another task.
    """
    parts = name.split("/")
    if parts[0] != task.name or len(parts) != 4:
        raise DataError(f"problem {name} is not of {task.name}")
    return task.problem(parts[1], int(parts[2]), int(parts[3]))  # type: ignore[arg-type]


def kinds_of(task: Task, sample: StoredSample) -> tuple[str, str, bool]:
    """What the first answer is, what the second is, and whether they are the same.

    Raises:
        DataError: The sample has no second turn, or is of another task.
    """
    problem = problem_of(task, sample.problem)
    turns = [step.verdict for step in sample.steps if step.author == "policy"]
    if len(turns) < 2 and sample.finish == "stop":
        raise DataError(f"problem {sample.problem} has samples of one turn; evaluate with second turns")

    def kind(verdict: StoredVerdict | None) -> str:
        if verdict is None or not verdict.answer:
            return UNREADABLE
        text = f"<answer>{' '.join(map(str, verdict.answer))}</answer>"
        judged = task.judge(problem, parse_tagged(text, ("answer",)))
        return RIGHT if judged.correct else judged.error or UNREADABLE

    first, second = (*turns, None, None)[:2]
    repeated = first is not None and second is not None and first.key is not None and first.key == second.key
    return kind(first), kind(second), repeated


def counted(task: Task, folder: Path, order: list[str]) -> dict[str, np.ndarray]:
    """How many samples of each problem are ``first.KIND``, ``second.KIND``, ``kept.KIND``, ``mended.KIND``.

    The first evaluation of all fills ``order`` with its problems.

    Raises:
        DataError: There are no samples, or they are of other problems.
    """
    samples = read_samples(find_store(folder))[1]
    order.extend(() if order else dict.fromkeys(sample.problem for sample in samples))
    if {sample.problem for sample in samples} != set(order):
        raise DataError(f"{folder} has other problems than the first evaluation")
    place = {problem: row for row, problem in enumerate(order)}
    counts = {
        f"{of}.{kind}": np.zeros(len(order)) for of in ("first", "second", "kept", "mended") for kind in KINDS
    }
    for sample in samples:
        row = place[sample.problem]
        try:
            first, second, repeated = kinds_of(task, sample)
        except DataError as error:
            raise DataError(f"{folder}: {error}") from None
        counts[f"first.{first}"][row] += 1
        counts[f"second.{second}"][row] += 1
        counts[f"kept.{first}"][row] += repeated
        counts[f"mended.{first}"][row] += second == RIGHT
    return counts


def told(task: Task, folders: Sequence[Path], order: list[str]) -> dict[str, Any]:
    """The figures of one method, whose evaluations are one of each seed."""
    runs = [counted(task, folder, order) for folder in folders]
    for run in runs:
        run["all"] = np.sum([run[f"first.{kind}"] for kind in KINDS], axis=0)
    ratios = [(f"{of}.{kind}", "all") for of in ("first", "second") for kind in KINDS]
    ratios += [(f"{of}.{kind}", f"first.{kind}") for of in ("kept", "mended") for kind in KINDS]
    above, below = zip(*ratios, strict=True)
    found = [
        ratio_draws(np.stack([run[n] for n in above], axis=1), np.stack([run[n] for n in below], axis=1))
        for run in runs
    ]
    means = {}
    for place, (name, _) in enumerate(ratios):
        value = float(np.mean([values[place] for values, _ in found]))
        drawn = pooled_draws([draws[:, place] for _, draws in found])
        means[name] = {"value": None if np.isnan(value) else value, "interval": percentile_interval(drawn)}
    return {
        "seeds": len(runs),
        "first": {
            kind: {
                "share": means[f"first.{kind}"],
                "kept": means[f"kept.{kind}"],
                "right_in_the_end": means[f"mended.{kind}"],
            }
            for kind in KINDS
        },
        "second": {kind: means[f"second.{kind}"] for kind in KINDS},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Read the evaluations, print and write what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask_methods(parser)
    parser.add_argument("--recipe", default="adapo-digits-check", help="names the task's settings")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(argv)
    methods = asked_methods(parser, options)
    order: list[str] = []
    try:
        settings = load_recipe(options.recipe).task
        task = make_task(settings.name, **settings.options)
        found = {name: told(task, folders, order) for name, folders in methods.items()}
    except SelfVerifyError as error:
        parser.error(str(error))
    for name, of in found.items():
        rows = [
            [kind, *[_shown(figure) for figure in of["first"][kind].values()], _shown(of["second"][kind])]
            for kind in KINDS
        ]
        heads = ["", "of first answers", "kept", "right in the end", "of second answers"]
        show(f"{name}, seeds: {of['seeds']}, problems: {len(order)}", heads, rows)
    if options.output:
        write_json(options.output, {"problems": len(order), "methods": found})


def _shown(figure: dict[str, Any]) -> str:
    return "-" if figure["value"] is None else with_interval(figure["value"], figure["interval"])


if __name__ == "__main__":
    main()
