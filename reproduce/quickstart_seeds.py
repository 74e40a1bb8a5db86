"""What the quickstart wins, over several seeds, and whether it is what was to be reached.

Each training seed has four evaluations, of the policy before and after training: on validation problems,
where the weight of the fused score is fitted, and on test problems, where everything else is measured.

    selfverify train adpo-digits-marked seed=0 name=quickstart-0 evaluation.split=validation
    selfverify eval adpo-digits-marked seed=0 --output test-before-0
    selfverify eval runs/quickstart-0 evaluation.split=test --output test-after-0
    python -m reproduce.quickstart_seeds --runs runs/quickstart-* --before test-before-* \
        --after test-after-* --output adpo.json

Intervals are 95 %, over seeds and problems (`reproduce.statistics`). The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.scripts import show, with_interval
from reproduce.statistics import compare
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import differences, write_json
from selfverify.evaluation.calibrate import fusion_of_samples, with_fused
from selfverify.evaluation.metrics import SampleTable, statistics
from selfverify.evaluation.samples import StoredSample, find_store, read_samples
from selfverify.evaluation.statistics import draws, on_all
from selfverify.selection.calibration import Fusion
from selfverify.selection.rules import Floats

SHOWN = (
    "pass@1", "majority@8", "best@8", "weighted@8", "oracle@8", "within_problem_auc", "auc",
    "logprob.within_problem_auc", "fused.best@8", "fused.weighted@8", "fused.within_problem_auc",
)  # fmt: skip
"""Figures that are kept for each seed."""

CLASSES = {name: f"errors.{name}.within_problem_auc" for name in ("wrong sum", "digit not shown")}
"""The figure of each class of error that is kept of the validation problems before training."""


@dataclass(frozen=True)
class Goal:
    """A difference of two figures that was to be reached: its value, and its interval's lower end.

    Args:
        own: The figure, and whether it is that of after training.
        other: What it is compared with; None: with nothing.
        least: What it has to be at least; None: no bound.
        low: What its interval has to lie above; None: no bound.
        above: What it has to be more than; None: no bound. Level is not above.
    """

    own: tuple[str, bool]
    other: tuple[str, bool] | None
    least: float | None = None
    low: float | None = None
    above: float | None = None


GOALS = {
    "auc": Goal(("within_problem_auc", True), None, least=0.85),
    "auc_over_before": Goal(("within_problem_auc", True), ("within_problem_auc", False), low=0.0),
    "best_over_majority": Goal(("best@8", True), ("majority@8", True), least=0.02, low=0.0),
    "pass_over_before": Goal(("pass@1", True), ("pass@1", False), least=0.0),
    "fused_over_majority": Goal(("fused.best@8", True), ("majority@8", True), least=0.11),
    "fused_over_before": Goal(("fused.best@8", True), ("fused.best@8", False), above=0.0),
    "fused_over_weighted": Goal(("fused.best@8", True), ("weighted@8", True), above=0.0),
    "fused_over_weighted_before": Goal(("fused.best@8", True), ("weighted@8", False)),
    "weighted_over_before": Goal(("weighted@8", True), ("weighted@8", False)),
    "best_over_before": Goal(("best@8", True), ("best@8", False)),
    "majority_over_before": Goal(("majority@8", True), ("majority@8", False)),
}
"""What the project asks of its quickstart; the last four are told and have no bound."""

Measured = dict[str, tuple[float, Floats]]
"""A sample set's figures: the value, and the values on draws of its problems."""


SAME = (
    "task", "task_options", "split", "problems", "samples", "temperature", "top_p", "seed", "second_turn",
)  # fmt: skip
"""What has to be the same in all test evaluations, of the settings that they were made with."""


def measured(
    samples: Sequence[StoredSample], source: Path, order: Sequence[str], needed: Sequence[str]
) -> Measured:
    """The figures of a sample set on the problems in ``order``, so that equal draws are equal problems.

    Raises:
        DataError: There are other problems, or a needed figure cannot be measured.
    """
    if differing := {sample.problem for sample in samples} ^ set(order):
        raise DataError(
            f"{source}: seeds are compared on the same problems, and {len(differing)} differ, such as "
            f"{min(differing)}; evaluate anew with the settings of the others"
        )
    try:
        table = SampleTable.from_samples(samples, order)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None
    problems = len(order)
    found = {n: (on_all(s, problems), draws(s, problems)) for n, s in statistics(table).items()}
    if missing := [name for name in needed if name not in found or math.isnan(found[name][0])]:
        raise DataError(
            f"{source}: these samples have no {', '.join(missing)}; evaluate a recipe that asks for "
            "scores, such as `quickstart`, with evaluation.samples=8"
        )
    return found


def fitted(samples: Sequence[StoredSample], source: Path, tested: Sequence[str]) -> Fusion:
    """The fusion that a run's validation problems ask for.

    Raises:
        DataError: The problems are those that it is measured on, or nothing can be fitted.
    """
    if shared := {sample.problem for sample in samples} & set(tested):
        raise DataError(
            f"{source}: {len(shared)} problems, such as {min(shared)}, are also among the test problems, "
            "which the fused score's weight must not be fitted on; train with evaluation.split=validation"
        )
    try:
        return fusion_of_samples(samples)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None


def over_seeds(pairs: Sequence[tuple[float, Floats]], problems: int) -> dict[str, Any]:
    """The mean over seeds, with its interval over seeds and problems."""
    nothing = np.zeros_like(pairs[0][1])
    found = compare([v for v, _ in pairs], [d for _, d in pairs], [0.0], [nothing], problems)
    return {"value": found.difference, "interval": found.interval}


def judged(
    goal: Goal, before: Sequence[Measured], after: Sequence[Measured], problems: int
) -> dict[str, Any]:
    """A goal's figure, and whether it is reached."""

    def find(which: tuple[str, bool]) -> list[tuple[float, Floats]]:
        name, trained = which
        return [figures[name] for figures in (after if trained else before)]

    pairs = find(goal.own)
    if goal.other is not None:
        pairs = [(v - w, d - e) for (v, d), (w, e) in zip(pairs, find(goal.other), strict=True)]
    found = over_seeds(pairs, problems)
    bounds = {"at_least": goal.least, "more_than": goal.above, "interval_above": goal.low}
    if all(bound is None for bound in bounds.values()):
        return found
    reached = goal.least is None or found["value"] >= goal.least
    reached = reached and (goal.above is None or found["value"] > goal.above)
    if goal.low is not None:
        reached = reached and found["interval"] is not None and found["interval"][0] > goal.low
    return found | bounds | {"reached": reached}


def told(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is written.

    Raises:
        DataError: Seeds lack an evaluation, or their evaluations cannot be compared.
    """
    folders = (options.runs, options.before, options.after)
    if len({len(each) for each in folders}) > 1:
        raise DataError("--runs, --before and --after each take one folder for each seed, in the same order")
    before: list[Any] = []
    after: list[Any] = []
    starts, weights = [], []
    order: list[str] = []
    known: list[str] = []
    settings: dict[str, Any] = {}
    for run, *evaluations in zip(*folders, strict=True):
        row = []
        for stage, folder, figures in zip(("before", "after"), evaluations, (before, after), strict=True):
            store = find_store(folder)
            made, samples = read_samples(store)
            own = {name: made.get(name) for name in SAME}
            settings = settings or own
            if changed := differences(settings, own):
                raise DataError(
                    f"{store} was made with other settings than the first --before: {'; '.join(changed)}; "
                    "evaluate anew with the same"
                )
            order = order or list(dict.fromkeys(sample.problem for sample in samples))
            source = find_store(run / f"samples-{stage}.jsonl")
            held_out = read_samples(source)[1]
            fusion = fitted(held_out, source, order)
            row.append(fusion.weight)
            figures.append(measured(with_fused(samples, fusion), store, order, SHOWN))
            if stage == "before":
                known = known or list(dict.fromkeys(sample.problem for sample in held_out))
                starts.append(measured(held_out, source, known, list(CLASSES.values())))
        weights.append(row)
    problems = len(order)

    def mean(figures: Sequence[Measured]) -> dict[str, Any]:
        return {name: over_seeds([one[name] for one in figures], problems) for name in SHOWN}

    def each(figures: Sequence[Measured]) -> list[dict[str, float]]:
        return [{name: one[name][0] for name in SHOWN} for one in figures]

    def against(name: str) -> dict[str, Any]:
        return over_seeds([figures[CLASSES[name]] for figures in starts], len(known))

    return {
        "seeds": len(before),
        "problems": problems,
        "samples": 8,
        "before": mean(before),
        "after": mean(after),
        "before_by_seed": each(before),
        "after_by_seed": each(after),
        "weight_of_logprob": weights,
        "start_on_validation": {name: against(name) for name in CLASSES},
        "goals": {name: judged(goal, before, after, problems) for name, goal in GOALS.items()},
    }


def printed(found: Mapping[str, Any]) -> None:
    """Two tables: figures before and after, and goals."""

    def cell(each: Mapping[str, Any]) -> str:
        return with_interval(each["value"], each["interval"])

    rows = [[name, cell(found["before"][name]), cell(found["after"][name])] for name in SHOWN]
    show(f"{found['seeds']} seeds, {found['problems']} problems", ["", "before", "after"], rows)
    goals = found["goals"].items()
    show("Goals", ["", "found", "reached"], [[n, cell(g), g.get("reached", "-")] for n, g in goals])


def main(argv: Sequence[str] | None = None) -> None:
    """Read the evaluations, print and write what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words = {"runs": "the run of each seed, measured on validation problems"}
    words |= {"before": "each seed's test evaluation before training", "after": "and after it"}
    for name, text in words.items():
        parser.add_argument(f"--{name}", type=Path, nargs="+", required=True, metavar="FOLDER", help=text)
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(argv)
    try:
        found = told(options)
    except SelfVerifyError as error:
        parser.error(str(error))
    printed(found)
    if options.output:
        write_json(options.output, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
