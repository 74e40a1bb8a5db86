"""What second turns make of each kind of error in `digits-pick`, over seeds.

    selfverify study study-adapo-digits-check
    python benchmarks/turn_errors.py --of before runs/adapo-digits-check/pick/before \\
        --of adapo runs/adapo-digits-check/pick/adapo/seed-* --output turn-errors.json

Samples keep the kind of error of final answers only, so the task judges the first answers again. For each
kind of first answer the file has its share of all, how often the second turn repeats it and how often it ends
right; besides, the shares of all second answers by kind. They are means over seeds, with 95 % intervals over
problems and seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import show, with_interval

from selfverify.core.atomic_files import write_json
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.tags import parse_tagged
from selfverify.evaluation.statistics import draws, on_all, percentile_interval, pooled_draws, ratio_statistic
from selfverify.evaluation.store import StoredSample, StoredVerdict, find_store, read_samples
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Task
from selfverify.tasks.digits.digits_pick import NEITHER, NOT_SHOWN, WRONG_SUM

RIGHT, UNREADABLE = "right", "unreadable"
KINDS = (RIGHT, WRONG_SUM, NOT_SHOWN, NEITHER, UNREADABLE)


def kinds_of(task: Task, sample: StoredSample) -> tuple[str, str, bool]:
    """What the first answer is, what the second is, and whether they are the same.

    Raises:
        DataError: The sample has no second turn, or is of another task.
    """
    turns = [step.verdict for step in sample.steps if step.author == "policy"]
    parts = sample.problem.split("/")
    if parts[0] != task.name or len(parts) != 4:
        raise DataError(f"problem {sample.problem} is not of {task.name}")
    if len(turns) < 2 and sample.finish == "stop":
        raise DataError(f"problem {sample.problem} has samples of one turn; evaluate with second turns")
    problem = task.problem(parts[1], int(parts[2]), int(parts[3]))  # type: ignore[arg-type]

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
    every = [sum(run[f"first.{kind}"] for kind in KINDS) for run in runs]

    def mean(above: str, below: str | None) -> dict[str, Any]:
        statistics = [
            ratio_statistic(run[above], run[below] if below else whole)
            for run, whole in zip(runs, every, strict=True)
        ]
        drawn = pooled_draws([draws(statistic, len(order)) for statistic in statistics])
        value = float(np.mean([on_all(statistic, len(order)) for statistic in statistics]))
        return {"value": None if np.isnan(value) else value, "interval": percentile_interval(drawn)}

    return {
        "seeds": len(runs),
        "first": {
            kind: {
                "share": mean(f"first.{kind}", None),
                "kept": mean(f"kept.{kind}", f"first.{kind}"),
                "right_in_the_end": mean(f"mended.{kind}", f"first.{kind}"),
            }
            for kind in KINDS
        },
        "second": {kind: mean(f"second.{kind}", None) for kind in KINDS},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Read the evaluations, print and write what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--of",
        nargs="+",
        action="append",
        required=True,
        metavar="NAME",
        help="a name, then a folder a seed",
    )
    parser.add_argument("--recipe", default="adapo-digits-check", help="names the task's settings")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(argv)
    methods = {name: [Path(folder) for folder in folders] for name, *folders in options.of}
    if len(methods) < len(options.of) or not all(methods.values()):
        parser.error("--of takes a name that no other has, and one folder at least")
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
