"""Which stored samples are meant by METHOD:BENCHMARK=FOLDER, and the problems that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from reproduce.grid_file import BEFORE
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.problem import Problem
from selfverify.evaluation.evaluate import HeldOut
from selfverify.evaluation.samples import CORRECT_1, STORES, StoredSample, find_store, read_samples
from selfverify.experiments.registry import make_task
from selfverify.reports.run_data import read_json
from selfverify.tasks.base import Task

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


def run_sources(named: Sequence[str]) -> list[RunSource]:
    """Find the stores that are meant.

    Args:
        named: ``METHOD:BENCHMARK=FOLDER`` or ``METHOD=FOLDER`` (the benchmark is then the task's name), where
            a file of samples may stand for the folder; or a study's folder, whose tasks are benchmarks and
            whose variants are methods.

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
        store = find_store(Path(place).expanduser())
        found.append(RunSource(method, benchmark or str(read_samples(store)[0].get("task", "?")), store))
    if not found:
        raise ConfigError("name rows as METHOD:BENCHMARK=FOLDER, or a study's folder")
    return found


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


_SAME = ("task", "temperature", "top_p", "max_new_tokens", "split")
"""Settings of an evaluation that rows of one benchmark share."""


@dataclass(frozen=True, slots=True)
class MeasuredStore:
    """One store.

    Args:
        source: Where it is from.
        header: Its settings.
        samples: What is stored.
    """

    source: RunSource
    header: dict[str, Any]
    samples: list[StoredSample]

    @property
    def two_turns(self) -> bool:
        """Whether its samples have two turns."""
        return all(CORRECT_1 in sample.rewards for sample in self.samples)


def read_store(source: RunSource) -> MeasuredStore:
    """Read a store.

    Raises:
        DataError: It holds no samples, or its header lacks settings.
    """
    header, samples = read_samples(source.store)
    if not samples:
        raise DataError(f"{source.store} holds no samples yet: run its evaluation again, which goes on")
    if missing := [name for name in ("task_options", *_SAME) if name not in header]:
        raise DataError(
            f"{source.store}: its header has no {missing[0]!r}; it was made with another version, or is no "
            "evaluation's: run it again"
        )
    return MeasuredStore(source, header, samples)


def refuse_different(benchmark: str, measured: Sequence[MeasuredStore]) -> None:
    """Refuse rows that were not measured alike on the same problems.

    Raises:
        ConfigError: They are about other tasks, or were sampled otherwise.
        DataError: They are about other problems.
    """
    first = measured[0]
    names = {sample.problem for sample in first.samples}
    for one in measured[1:]:
        both = f"{benchmark}: {one.source.store} and {first.source.store}"
        for name in _SAME:
            if one.header[name] != first.header[name]:
                raise ConfigError(
                    f"{both} were measured with {name}={one.header[name]} and {name}={first.header[name]}; "
                    "measure both alike"
                )
        if others := names ^ {sample.problem for sample in one.samples}:
            raise DataError(f"{both} need the same problems; {len(others)} differ, such as {min(others)}")


def problems_of(measured: MeasuredStore, notes: list[str]) -> tuple[Task, dict[str, Problem]]:
    """The task, and its problems by id without images; none where their file cannot be read any more.

    Raises:
        ConfigError: The task had other options when the store was made.
    """
    header, store = measured.header, measured.source.store
    try:
        task = make_task(header["task"], **header["task_options"])
    except (ValidationError, ConfigError) as error:
        fault = " ".join(str(error).split())
        raise ConfigError(
            f"{store} was made with another version of this library, whose task {header['task']} had other "
            f"options: {fault[:200]}"
        ) from None
    if task.writes_places:
        task.set_coordinate_space(lambda size: size)  # targets are in pixels, whoever answers
    try:
        config = EvaluationConfig(split=header["split"], problems=header.get("problems"), on_bad="skip")
        held_out = HeldOut(task, config)
        for index in range(held_out.total):  # one at a time: all images may not fit into memory
            held_out.make([index])
        return task, {problem.id: problem for problem in held_out.known(range(held_out.total)).values()}
    except SelfVerifyError as error:
        if task.kind == "continuous":
            raise
        notes.append(f"{measured.source.benchmark}: no categories, as its problems cannot be read: {error}")
        return task, {}
