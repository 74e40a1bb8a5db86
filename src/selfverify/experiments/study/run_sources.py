"""Which stored samples are meant by METHOD:BENCHMARK=FOLDER, and those of a study's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.evaluation.store import STORES, find_store, read_samples
from selfverify.experiments.study.study_file import BEFORE
from selfverify.reports.run_data import read_json

RESULTS = "results.json"
"""What a study writes, and tells its folder from others."""


@dataclass(frozen=True, slots=True)
class RunSource:
    """One store of samples.

    Args:
        method: The row that it belongs to.
        benchmark: What was measured.
        store: The file.
    """

    method: str
    benchmark: str
    store: Path

    @property
    def folder(self) -> Path:
        """The folder of the run or evaluation."""
        return self.store.parent


def run_sources(named: Sequence[str]) -> list[RunSource]:
    """Find the stores that are meant.

    Args:
        named: ``METHOD:BENCHMARK=FOLDER`` or ``METHOD=FOLDER`` (the benchmark is then the task's name), each
            with ``@before`` or ``@after`` where a run has both; or a study's folder, whose tasks are
            benchmarks and whose variants are methods.

    Raises:
        ConfigError: A text has another form, or there are no samples.
        DataError: A study's file is damaged.
    """
    found: list[RunSource] = []
    for text in named:
        if (Path(text).expanduser() / RESULTS).is_file():
            found += _of_study(Path(text).expanduser())
            continue
        name, equals, place = text.partition("=")
        method, colon, benchmark = name.partition(":")
        if not (equals and method and place) or (colon and not benchmark):
            raise ConfigError(
                f"{text}: a row is METHOD:BENCHMARK=FOLDER, such as adpo:mathvista=runs/adpo/eval, or a "
                f"study's folder with its {RESULTS}"
            )
        store = _store(place)
        found.append(RunSource(method, benchmark or str(read_samples(store)[0].get("task", "?")), store))
    if not found:
        raise ConfigError("name rows as METHOD:BENCHMARK=FOLDER, or a study's folder")
    return found


def _store(text: str) -> Path:
    """The store in a folder; ``@before`` and ``@after`` choose one of a run's two."""
    plain, at, stage = text.rpartition("@")
    if at and stage in ("before", "after"):
        file = Path(plain).expanduser() / f"samples-{stage}.jsonl"
        if not file.is_file():
            raise ConfigError(f"{text}: there is no {file}")
        return file
    return find_store(Path(text).expanduser())


def _of_study(folder: Path) -> list[RunSource]:
    results: dict[str, Any] = read_json(folder / RESULTS, dict[str, Any]) or {}
    found = []
    for task, about in results.get("tasks", {}).items():
        before = folder / task / BEFORE / STORES[0]
        found += [RunSource(BEFORE, task, before)] if before.is_file() else []
        for variant, row in about["variants"].items():
            for seed in row["seeds"]:
                store = folder / task / variant / f"seed-{seed}" / STORES[1]
                if not store.is_file():
                    raise ConfigError(f"{store} is missing, which {folder / RESULTS} tells of")
                found.append(RunSource(variant, task, store))
    return found
