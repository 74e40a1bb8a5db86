"""What scores that learn cost answers: methods against a GRPO of the same start, over seeds.

    selfverify train adpo-digits-marked seed=0 name=joint-0 learner.channels=joint
    selfverify train adpo-digits-marked seed=0 name=apart-0
    selfverify train adpo-digits-marked seed=0 name=grpo-0 method.name=grpo method.kl=0.2 \\
        learner.denominator=sequence
    selfverify eval runs/joint-0 evaluation.problems=2048 evaluation.samples=4 --output e/joint-0 # and so on
    selfverify eval adpo-digits-marked evaluation.problems=2048 evaluation.samples=4 --output e/before
    python -m reproduce.against_grpo --grpo e/grpo-* --of joint e/joint-* --of apart e/apart-* \\
        [--before e/before] --output against-grpo.json [--update adpo.json]

All evaluations have the same problems. Differences have 95 % intervals over problems and seeds
(`reproduce.statistics`). ``--update`` puts the figures into a file that
`reproduce/quickstart_seeds.py` wrote, as ``grpo`` and ``grpo_gap_low``: the lower end of the first method's
difference in pass@1.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.grid_results import MeasuredRun, difference, measure_samples, pooled
from reproduce.scripts import ask_methods, asked_methods, show, with_interval
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import write_json
from selfverify.evaluation.samples import find_store, read_samples

PASS = "pass@1"
SHOWN = ("pass@1", "majority", "best", "weighted", "within_problem_auc", "logprob.within_problem_auc")
"""What is told; the figures of N samples at the N that was drawn."""


def measured(folders: Sequence[Path], order: list[str]) -> dict[int, MeasuredRun]:
    """The figures of a method's evaluations, one of each seed, on the problems in ``order``.

    The first evaluation of all fills ``order``.

    Raises:
        DataError: An evaluation has no samples, or has other problems.
    """
    found = {}
    for seed, folder in enumerate(folders):
        samples = read_samples(find_store(folder))[1]
        order.extend(() if order else dict.fromkeys(sample.problem for sample in samples))
        try:
            found[seed] = measure_samples(samples, order)
        except DataError as error:
            raise DataError(f"{folder}: {error}") from None
    return found


def told(
    grpo: Sequence[Path], methods: Mapping[str, Sequence[Path]], before: Path | None = None
) -> dict[str, Any]:
    """Each method's figures, and their differences from GRPO's and from the policy's before training.

    Raises:
        DataError: An evaluation is missing, or they differ in their problems or their numbers of samples.
    """
    order: list[str] = []
    runs = {"grpo": measured(grpo, order)} | {name: measured(of, order) for name, of in methods.items()}
    start = measured([before], order)[0] if before else None
    names = _names(runs | ({"before": {0: start}} if start else {}))
    found: dict[str, Any] = {"problems": len(order), "methods": {}}
    if start:
        figures = pooled({0: start})
        found["before"] = {key: figures[key] for key in names}
    for name, of in runs.items():
        figures = pooled(of)
        found["methods"][name] = {key: figures[key] for key in names} | {"seeds": len(of)}
        if name != "grpo":
            over = difference(of, runs["grpo"])
            found["methods"][name]["over_grpo"] = {key: over[key] for key in names}
        if start:
            over = difference(of, dict.fromkeys(of, start))
            found["methods"][name]["over_before"] = {key: over[key] for key in names}
    return found


def _names(runs: Mapping[str, Mapping[int, MeasuredRun]]) -> list[str]:
    """The metrics that are told, by their full names."""
    every = [set(one.values) for of in runs.values() for one in of.values()]
    common = set.intersection(*every)
    most = {name.rpartition("@")[2] for name in common if name.startswith("oracle@")}
    count = max(map(int, most), default=1)
    if any(f"oracle@{count}" not in one or f"oracle@{count + 1}" in one for one in every):
        raise DataError("the evaluations have other numbers of samples; give all of them the same")
    names = [name if name in common else f"{name}@{count}" for name in SHOWN]
    return [name for name in names if name in common]


def main(argv: Sequence[str] | None = None) -> None:
    """Read the evaluations, print and write what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--grpo", type=Path, nargs="+", required=True, metavar="FOLDER", help="GRPO's, by seed"
    )
    ask_methods(parser)
    parser.add_argument("--before", type=Path, help="the evaluation of the policy that all start from")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    parser.add_argument("--update", type=Path, help="a file of quickstart_seeds.py that gets them, too")
    options = parser.parse_args(argv)
    methods = asked_methods(parser, options, taken="grpo")
    try:
        found = told(options.grpo, methods, options.before)
        if options.update:
            write_json(options.update, _updated(options.update, found))
    except SelfVerifyError as error:
        parser.error(str(error))
    for name, of in found["methods"].items():
        rows = [
            [
                key,
                with_interval(of[key]["mean"], of[key]["interval"]),
                _over(of, "over_grpo", key),
                _over(of, "over_before", key),
            ]
            for key in of
            if key not in ("seeds", "over_grpo", "over_before")
        ]
        heads = ["", "found", "over GRPO", "over before"]
        show(f"{name}, {of['seeds']} seeds, {found['problems']} problems", heads, rows)
    if options.output:
        write_json(options.output, found)


def _updated(path: Path, found: Mapping[str, Any]) -> dict[str, Any]:
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no file of quickstart_seeds.py ({error})") from None
    first = next(of for name, of in found["methods"].items() if name != "grpo")
    low = (first["over_grpo"][PASS]["interval"] or [None])[0]
    return before | {"grpo": dict(found), "grpo_gap_low": low}


def _over(of: Mapping[str, Any], what: str, key: str) -> str:
    over = of.get(what, {}).get(key)
    return with_interval(over["difference"], over["interval"], "+") if over else ""


if __name__ == "__main__":
    main()
