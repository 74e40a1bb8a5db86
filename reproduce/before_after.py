"""What one run changed: its figures before and after training, and the differences, paired over problems.

    selfverify train smollm2-word-sums
    python -m reproduce.before_after runs/smollm2-word-sums --output smollm2.json

The run's report shows the same. Intervals are 95 %, over problems: one run tells nothing of other seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduce.scripts import show, with_interval
from selfverify.core.atomic_files import write_json
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.evaluation.metrics import paired_difference, summarise
from selfverify.evaluation.store import read_samples

STAGES = ("before", "after")


def told(run: Path) -> dict[str, Any]:
    """The figures of both stages and their differences, each with its interval, by metric.

    Raises:
        ConfigError: A store cannot be read.
        DataError: The samples of a stage are missing, or the stages have other problems.
    """
    stores = {stage: run / f"samples-{stage}.jsonl" for stage in STAGES}
    for stage, store in stores.items():
        if not store.is_file():
            raise DataError(f"{store} is missing; a run that measures {stage} training writes it")
    samples = {stage: read_samples(store)[1] for stage, store in stores.items()}
    over = paired_difference(samples["before"], samples["after"])
    summaries = {stage: summarise(of) for stage, of in samples.items()}
    found: dict[str, Any] = {
        "run": run.resolve().name,
        "problems": summaries["before"]["problems"],
        "samples_per_problem": {stage: of["samples_per_problem"] for stage, of in summaries.items()},
    }
    for stage, of in summaries.items():
        found[stage] = {name: {"value": _value(of, name), "interval": of["intervals"][name]} for name in over}
    return found | {"difference": over}


def _value(of: dict[str, Any], name: str) -> float:
    """A figure by its name; dots lead into tables, as in ``logprob.within_problem_auc``."""
    table, _, key = name.rpartition(".")
    return float((of[table] if table else of)[key])


def main(argv: Sequence[str] | None = None) -> None:
    """Read the run's samples, print and write what they say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="the folder of a run that was measured before and after")
    parser.add_argument("--output", type=Path, help="where the figures go, as JSON")
    options = parser.parse_args(argv)
    try:
        found = told(options.run)
    except SelfVerifyError as error:
        parser.error(str(error))
    rows = [
        [
            name,
            *(with_interval(found[stage][name]["value"], found[stage][name]["interval"]) for stage in STAGES),
            with_interval(over["difference"], over["interval"], "+"),
        ]
        for name, over in found["difference"].items()
    ]
    show(f"{found['run']}, {found['problems']} problems", ["", *STAGES, "difference"], rows)
    if options.output:
        write_json(options.output, found)


if __name__ == "__main__":
    main()
