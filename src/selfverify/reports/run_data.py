"""Reads what a report needs from the folder of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from selfverify.core.errors import DataError
from selfverify.core.events import EVENTS_FILE, read_events, story
from selfverify.core.files import read_regular
from selfverify.core.jsonl_store import read_rows
from selfverify.evaluation.metrics import HEADLINE, paired_difference, summarise
from selfverify.evaluation.samples import StoredSample, mean_time, read_samples
from selfverify.reports.figures import Line

STAGES = ("before", "after")
"""When samples were drawn: before and after training."""

ENOUGH = 5
"""With fewer evaluations than this during training, the steps' own figures are drawn: noisier, but many."""


class _Figure(BaseModel):
    """A figure of `selfverify.evaluation.breakdown`."""

    curves: dict[str, list[float | None]]


class _Summary(BaseModel):
    """What a report reads of an evaluation's summary. All other entries are numbers or tables."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float | dict[str, Any] | None]

    score: Literal["soft", "greedy", "sampled"] | None = None
    score_missing: str | None = None
    problems: int | None = None
    samples_per_problem: int | None = None
    curves: dict[str, list[float] | None] = {}
    intervals: dict[str, tuple[float, float] | None] | None = None
    turns: dict[str, float | None] = {}
    turns_by_category: dict[str, dict[str, dict[str, float]]] = {}
    errors: dict[str, dict[str, float | str | None]] = {}
    metrics: dict[str, _Figure] | None = None
    categories: dict[str, dict[str, dict[str, int | _Figure]]] | None = None

    @field_validator("turns")
    @classmethod
    def _check_turns(cls, turns: dict[str, float | None]) -> dict[str, float | None]:
        lacking = [n for n in ("acc@t1", "acc@t2", "delta", "0->1", "1->0") if turns.get(n) is None]
        if lacking:
            raise ValueError(f"there is no number {lacking[0]}")
        return turns


class _Headline(BaseModel):
    """A table that comes first (`selfverify.evaluation.headline`)."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = []


class _Rule(BaseModel):
    """What a rule that ends looking comes to."""

    accuracy: float
    steps: float


class _Stopping(BaseModel):
    """What rules that end looking come to (`selfverify.evaluation.visual_metrics`)."""

    rules: dict[str, _Rule]
    verifier: dict[str, dict[str, Any]]


class _Metrics(BaseModel):
    """What a report reads of ``metrics.json``."""

    before: _Summary | None = None
    after: _Summary | None = None
    headline: _Headline | None = None
    stopping: _Stopping | None = None
    settings: dict[str, Any] | None = None
    version: str | None = None


class _Shown(BaseModel):
    """What a report needs of an entry of ``gallery/problems.json``."""

    id: str
    regions: list[Any] | None = None


@dataclass(slots=True)
class RunData:
    """A run, as far as its folder has files.

    Args:
        name: The folder's name.
        path: The folder.
        gallery_images: The folder of the images that ``problems`` name.
        settings: The settings in ``metrics.json``.
        headline: The table that comes first, where there is one: ``title``, ``columns``, ``rows``, ``notes``.
        stopping: What rules that end looking come to, where they were compared.
        summaries: What `summarise` returns, by stage, as far as there are any.
        samples: The samples by stage.
        differences: What `paired_difference` returns for the two stages; empty unless both have samples.
        steps: The lines of ``metrics.jsonl``, with those of ``timing.jsonl`` where there are any.
        happened: What `selfverify.core.events.story` tells of ``events.jsonl``.
        problems: The entries of ``gallery/problems.json``.
        measured_only: Whether the folder comes from `selfverify eval`. Its samples have the stage ``after``,
            also if the model was never trained.
        talk_times: Mean seconds of a conversation by phase (`selfverify.evaluation.samples.mean_time`),
            by stage.
        missing: A sentence for each part of a report that cannot be shown, by section.
        colour: The name of its colour in charts (`selfverify.reports.figures.PALETTE`).
    """

    name: str
    path: Path
    gallery_images: Path
    settings: dict[str, Any] = field(default_factory=dict)
    headline: dict[str, Any] | None = None
    stopping: dict[str, Any] | None = None
    summaries: dict[str, dict[str, Any]] = field(default_factory=dict)
    samples: dict[str, list[StoredSample]] = field(default_factory=dict)
    differences: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    happened: list[str] = field(default_factory=list)
    problems: list[dict[str, Any]] = field(default_factory=list)
    measured_only: bool = False
    talk_times: dict[str, dict[str, float]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    colour: str = "best"

    def leave_out(self, section: str, sentence: str) -> None:
        """Note what a section lacks of this run."""
        self.missing.setdefault(section, []).append(sentence)

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and values ``[T]`` of a logged metric; NaN where a step has no number for it."""
        steps = np.array(
            [row.get("step", index) for index, row in enumerate(self.steps, start=1)], dtype=float
        )
        values = [row.get(name) for row in self.steps]
        numbers = [float(v) if isinstance(v, (int, float)) else np.nan for v in values]
        return steps, np.array([v if np.isfinite(v) else np.nan for v in numbers])

    def lines(self, curves: Mapping[str, tuple[str, str]]) -> list[Line]:
        """Return the curves of logged metrics that have values; ``curves`` gives labels and colours."""
        found = [(label, colour, *self.series(name)) for name, (label, colour) in curves.items()]
        return [line for line in found if not np.isnan(line[3]).all()]

    def turn_accuracy(self, turn: str) -> tuple[np.ndarray, np.ndarray]:
        """Return steps and accuracies ``[T]`` of a turn, of validation or, if that has more, of training."""
        found = []
        for name in (f"eval/turns/acc@t{turn}", f"turns/acc@t{turn}"):
            steps, values = self.series(name)
            known = ~np.isnan(values)
            found.append((steps[known], values[known]))
        measured, logged = found
        return logged if len(measured[0]) < min(ENOUGH, len(logged[0])) else measured

    @property
    def reading(self) -> str:
        """How the figures of the summaries read scores."""
        return str(next((s["score"] for s in self.summaries.values() if s.get("score")), HEADLINE))

    def scores(self, stage: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the scores of the right and of the wrong answers."""
        scored = [(s.scores.get(self.reading), s.correct) for s in self.samples.get(stage, ())]
        right = [score for score, correct in scored if score is not None and correct]
        wrong = [score for score, correct in scored if score is not None and not correct]
        return np.array(right), np.array(wrong)


def load_run(path: Path) -> RunData:
    """Read a run's folder.

    Raises:
        DataError: The folder does not exist or holds nothing of a run, or a file in it is corrupt.
    """
    if not path.is_dir():
        raise DataError(f"{path} is not the folder of a run")
    run = RunData(path.resolve().name, path, path / "gallery")
    stored = read_metrics(path)
    run.settings = stored.get("settings") or {}
    run.headline, run.stopping = stored.get("headline"), stored.get("stopping")
    run.measured_only = is_evaluation(path)
    for stage in STAGES[1:] if run.measured_only else STAGES:
        file = path / ("samples.jsonl" if run.measured_only else f"samples-{stage}.jsonl")
        if file.exists():
            run.samples[stage] = read_samples(file)[1]
            run.talk_times |= {stage: times} if (times := mean_time(file)) else {}
        else:
            run.leave_out(
                "scores", f"{file.name} is missing, so there is no score histogram {stage} training."
            )
        if stored.get(stage):
            run.summaries[stage] = stored[stage]
        elif run.samples.get(stage):
            run.summaries[stage] = summarise(run.samples[stage])
        else:
            run.leave_out(
                "table", f"metrics.json has no figures {stage} training, and {file.name} is missing."
            )
    if all(run.samples.get(stage) for stage in STAGES):
        run.differences = paired_difference(run.samples["before"], run.samples["after"], run.reading)
    elif run.summaries and not run.measured_only:
        run.leave_out("table", "Without the samples of both stages there are no paired differences.")
    timing = {row.get("step"): row for row in _read_steps(path / "timing.jsonl")}
    run.steps = [timing.get(row.get("step"), {}) | row for row in _read_steps(path / "metrics.jsonl")]
    if not run.steps and not run.measured_only:
        run.leave_out("training", "metrics.jsonl is missing or empty, so there are no learning curves.")
    run.happened = story(read_events(path / EVENTS_FILE))
    run.problems = read_entries(path / "gallery")
    if not (stored or run.samples or run.steps or run.happened or run.problems):
        raise DataError(
            f"{path} holds nothing to report: no metrics.json, no samples and no metrics.jsonl; name the "
            "folder of a run or of an evaluation"
        )
    if not run.problems:
        run.leave_out("gallery", "gallery/problems.json is missing, so no problems are shown.")
    return run


def is_evaluation(path: Path) -> bool:
    """Whether a folder comes from `selfverify eval`, and not from a training."""
    return (path / "samples.jsonl").exists() and not (path / "samples-after.jsonl").exists()


def read_metrics(path: Path) -> dict[str, Any]:
    """Return the content of a folder's ``metrics.json``: summaries by stage, and ``settings``; or nothing.

    Raises:
        DataError: The file is damaged.
    """
    found: dict[str, Any] = read_json(path / "metrics.json", _Metrics) or {}
    return found


def read_entries(gallery: Path) -> list[dict[str, Any]]:
    """Return what the folder of a gallery says of its problems; nothing where it is not there.

    Raises:
        DataError: The file is damaged.
    """
    found: list[dict[str, Any]] = read_json(gallery / "problems.json", list[_Shown]) or []
    return found


def read_json(path: Path, shape: Any) -> Any:
    """Return the JSON value of a file; None where there is no file.

    Args:
        path: The file.
        shape: The type that the value has to fit, such as a pydantic model. The value is returned as it is.

    Raises:
        DataError: The file is no JSON, or its value does not fit.
    """
    if not path.exists():
        return None
    try:
        value = json.loads(read_regular(path))
        TypeAdapter(shape).validate_python(value)
    except ValidationError as error:
        fault = error.errors()[0]
        place = "".join(f"{part}: " for part in fault["loc"])
        said = "Input should be an object" if fault["type"] == "model_type" else fault["msg"]
        raise DataError(f"{path}: {place}{said}, but is {fault['input']!r:.80}") from None
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error})") from None
    return value


def _read_steps(path: Path) -> list[dict[str, Any]]:
    rows = read_rows(path)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row.get("step", number), (int, float)):
            raise DataError(f"{path}, line {number}: step: a number is needed, not {row['step']!r:.80}")
    return rows
