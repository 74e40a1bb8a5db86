"""The stores of samples that tables are made of, and the problems that they are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.evaluation_settings import EvaluationConfig
from selfverify.core.problem import Problem
from selfverify.core.version import __version__
from selfverify.evaluation.held_out import HeldOut
from selfverify.evaluation.store import CORRECT_1, StoredSample, find_store, read_samples
from selfverify.experiments.registry import make_task
from selfverify.experiments.study.run_sources import RunSource
from selfverify.reports.run_data import read_metrics
from selfverify.tasks.base import Task

_SAME = ("temperature", "top_p", "max_new_tokens", "split")
"""Settings of an evaluation that rows of one benchmark share."""


@dataclass(slots=True)
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
        return all(CORRECT_1 in sample.rewards for sample in self.samples)


def read_store(source: RunSource) -> MeasuredStore:
    """Read a store.

    Raises:
        DataError: It holds no samples, or its header lacks settings.
    """
    header, samples = read_samples(find_store(source.store))
    if not samples:
        raise DataError(f"{source.store} holds no samples yet: run its evaluation again, which goes on")
    missing = [name for name in ("task", "task_options", *_SAME) if name not in header]
    if missing:
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
        if one.header["task"] != first.header["task"]:
            raise ConfigError(
                f"{benchmark}: {one.source.store} is about task {one.header['task']}, and "
                f"{first.source.store} about {first.header['task']}"
            )
        for name in _SAME:
            if one.header[name] != first.header[name]:
                raise ConfigError(
                    f"{benchmark}: {one.source.store} was measured with {name}={one.header[name]}, and "
                    f"{first.source.store} with {first.header[name]}; measure both alike"
                )
        others = names ^ {sample.problem for sample in one.samples}
        if others:
            raise DataError(
                f"{benchmark}: {one.source.store} and {first.source.store} need the same problems; "
                f"{len(others)} differ, such as {min(others)}"
            )


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
        task.use_space(lambda size: size)  # targets are in pixels, whoever answers
    try:
        held_out = HeldOut(
            task,
            EvaluationConfig(split=header["split"], problems=header.get("problems"), on_bad="skip"),
        )
        for index in range(held_out.total):  # one at a time: all images may not fit into memory
            held_out.make([index])
        return task, {problem.id: problem for problem in held_out.known(range(held_out.total)).values()}
    except SelfVerifyError as error:
        if task.kind == "continuous":
            raise
        notes.append(f"{measured.source.benchmark}: no categories, as its problems cannot be read: {error}")
        return task, {}


def note_versions(measured: Sequence[MeasuredStore], notes: list[str]) -> None:
    """Say where another version has sampled; the figures are counted by this one."""
    for one in measured:
        version = read_metrics(one.source.folder).get("version")
        if version not in (None, __version__):
            notes.append(f"{one.source.store} was sampled with version {version}; this is {__version__}.")
