"""Reads what a report needs from the folder of a run, and makes the rows of its table.

The words of the rows, and those of the curves over training, stand in ``templates/words.yaml``.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator
from ruamel.yaml import YAML

from selfverify.core.errors import DataError
from selfverify.core.events import EVENTS_FILE, read_events
from selfverify.core.files import read_regular
from selfverify.core.jsonl_store import read_rows
from selfverify.evaluation.metrics import HEADLINE, MIXED_BOTH, paired_difference, summarise
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.reports.film import signed
from selfverify.selection.strategies import STRATEGIES

STAGES = ("before", "after")
"""When samples were drawn: before and after training."""
STAGE_TITLES = {"before": "Before training", "after": "After training"}

Line = tuple[str, str, np.ndarray, np.ndarray]
"""A curve: its name, its colour's name, steps ``[T]`` and values ``[T]``, NaN as a gap."""

ENOUGH = 5
"""With fewer evaluations than this during training, the steps' own figures are drawn: noisier, but many."""


class _Figure(BaseModel):
    """A figure of `selfverify.evaluation.breakdown`."""

    curves: dict[str, list[float | None]]


class _Summary(BaseModel):
    """The part of an evaluation's summary that a report reads. All other entries are numbers or tables."""

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
    """The outcome of a rule that ends looking."""

    accuracy: float
    steps: float


class _Stopping(BaseModel):
    """The outcomes of rules that end looking (`selfverify.evaluation.visual_metrics`)."""

    rules: dict[str, _Rule]
    verifier: dict[str, dict[str, Any]]


class _Metrics(BaseModel):
    """The part of ``metrics.json`` that a report reads."""

    before: _Summary | None = None
    after: _Summary | None = None
    headline: _Headline | None = None
    stopping: _Stopping | None = None
    settings: dict[str, Any] | None = None
    version: str | None = None


class _Shown(BaseModel):
    """The part of an entry of ``gallery/problems.json`` that a report needs."""

    id: str
    regions: list[Any] | None = None


class RunData:
    """A run, as far as its folder has files.

    Args:
        path: The folder.

    Attributes:
        name: The folder's name.
        gallery_images: The folder of the images that ``problems`` name.
        settings: The settings in ``metrics.json``.
        headline: The table that comes first, where there is one: ``title``, ``columns``, ``rows``, ``notes``.
        stopping: The outcomes of rules that end looking, where they were compared.
        summaries: Results of `summarise` by stage, as far as there are any.
        samples: The samples by stage.
        differences: `paired_difference` of the two stages; empty unless both have samples.
        steps: The lines of ``metrics.jsonl``, with those of ``timing.jsonl`` where there are any.
        happened: The `story` of ``events.jsonl``.
        problems: The entries of ``gallery/problems.json``.
        measured_only: Whether the folder comes from `selfverify eval`. Its samples have the stage ``after``,
            also if the model was never trained.
        missing: A sentence for each part of a report that cannot be shown, by section.
        colour: The name of its colour in charts (`selfverify.reports.charts.PALETTE`).

    Raises:
        DataError: The folder does not exist or holds nothing of a run, or a file in it is corrupt.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise DataError(f"{path} is not the folder of a run")
        self.name, self.path, self.gallery_images = path.resolve().name, path, path / "gallery"
        self.colour = "best"
        self.summaries: dict[str, dict[str, Any]] = {}
        self.samples: dict[str, list[StoredSample]] = {}
        self.differences: dict[str, dict[str, Any]] = {}
        self.missing: dict[str, list[str]] = {}
        stored = read_metrics(path)
        self.settings: dict[str, Any] = stored.get("settings") or {}
        self.headline, self.stopping = stored.get("headline"), stored.get("stopping")
        self.measured_only = is_evaluation(path)
        for stage in STAGES[1:] if self.measured_only else STAGES:
            file = path / ("samples.jsonl" if self.measured_only else f"samples-{stage}.jsonl")
            if file.exists():
                self.samples[stage] = read_samples(file)[1]
            else:
                self.leave_out(
                    "scores", f"{file.name} is missing, so there is no score histogram {stage} training."
                )
            if stored.get(stage):
                self.summaries[stage] = stored[stage]
            elif self.samples.get(stage):
                self.summaries[stage] = summarise(self.samples[stage])
            else:
                self.leave_out(
                    "table", f"metrics.json has no figures {stage} training, and {file.name} is missing."
                )
        if all(self.samples.get(stage) for stage in STAGES):
            self.differences = paired_difference(self.samples["before"], self.samples["after"], self.reading)
        elif self.summaries and not self.measured_only:
            self.leave_out("table", "Without the samples of both stages there are no paired differences.")
        timing = {row.get("step"): row for row in _read_steps(path / "timing.jsonl")}
        self.steps = [timing.get(row.get("step"), {}) | row for row in _read_steps(path / "metrics.jsonl")]
        if not self.steps and not self.measured_only:
            self.leave_out("training", "metrics.jsonl is missing or empty, so there are no learning curves.")
        self.happened = story(read_events(path / EVENTS_FILE))
        self.problems = read_entries(path / "gallery")
        if not (stored or self.samples or self.steps or self.happened or self.problems):
            raise DataError(
                f"{path} holds nothing to report: no metrics.json, no samples and no metrics.jsonl; name the "
                "folder of a run or of an evaluation"
            )
        if not self.problems:
            self.leave_out("gallery", "gallery/problems.json is missing, so no problems are shown.")

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
    def total(self) -> int | None:
        """N, the number of samples per problem, of the later stage if the stages differ."""
        found = self.latest("samples_per_problem")
        return found[1] if found else None

    def latest(self, name: str) -> tuple[str, Any] | None:
        """Return the later stage whose summary has something of that name, and that."""
        for stage in reversed(STAGES):
            if found := self.summaries.get(stage, {}).get(name):
                return stage, found
        return None

    def stage_title(self, stage: str) -> str:
        """Return the name of a stage; an evaluation on its own has only one."""
        return "Evaluation" if self.measured_only else STAGE_TITLES[stage]

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


class Words(BaseModel):
    """The words of a row of the table, or of a curve over training.

    Args:
        title: The row's title; ``{n}`` stands for the number of samples per problem.
        meaning: A sentence that explains the metric.
        unit: How its values are shown.
        better: Whether more of it is better. A change of what is neither good nor bad gets no colour.
        percent: Whether a curve shows shares.
    """

    title: str
    meaning: str
    unit: Literal["percent", "points", "number"] = "percent"
    better: bool = True
    percent: bool = False


WORDING: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("templates") / "words.yaml")
"""All words of a report."""


@cache
def words(part: Literal["metrics", "curves"]) -> dict[str, Words]:
    """Return the words of all rows by their name in a summary, or of all curves by their name in the log."""
    rules = {rule.at("{n}"): {"title": rule.title, "meaning": rule.meaning} for rule in STRATEGIES.values()}
    return {name: Words.model_validate(given or rules[name]) for name, given in WORDING[part].items()}


_OF_TALKS = Words(title="Success rate", meaning="Share of conversations that reach their goal.")
"""The name of a single answer's figure in conversations."""


def tiles(run: RunData) -> list[dict[str, Any]]:
    """Return the few rows of `table` that matter most; of rules that end looking the sentence tells all."""
    if run.stopping is not None:
        return []
    rows = {row["name"]: row for row in table(run)}
    talks = "conversations.turns" in rows
    kind = "turns" if "turns.acc@t1" in rows else "conversations" if talks else "answers"
    return [rows[name] for name in WORDING["tiles"][kind] if name in rows]


def table(run: RunData) -> list[dict[str, Any]]:
    """Return one row per metric that some stage has, in the order of ``words.yaml``.

    Each holds ``name``, ``title``, ``meaning``, ``before`` and ``after`` (``{"value", "interval"}`` or None),
    and ``difference`` (``{"value", "interval", "trend"}``, or None), all as text. ``trend`` is ``up`` or
    ``down`` where the interval excludes 0 and the direction is good or bad, else ``flat``.
    """
    rows = []
    talks = any("conversations" in of and "turns" not in of for of in run.summaries.values())
    for name, metric in words("metrics").items():
        if name.startswith(f"{run.reading}."):
            continue  # the rows without a name of a reading are of that one
        metric = _OF_TALKS if talks and name == "pass@1" else metric
        key = name.format(n=run.total)
        cells = {stage: _cell(run.summaries.get(stage, {}), key, metric) for stage in STAGES}
        if name == MIXED_BOTH and key in run.differences:
            cells = {
                stage: {"value": f"{run.differences[key][stage]:.3f}", "interval": ""} for stage in STAGES
            }
        if any(cells.values()):
            shown = {"name": name, "title": metric.title.format(n=run.total), "meaning": metric.meaning}
            rows.append(shown | cells | {"difference": _difference(run.differences.get(key), metric)})
    return rows


def comparison(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return one row per metric with a cell per run, of the figures after training where there are any."""
    rows: dict[str, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        for row in table(run):
            shared = {"title": row["title"], "meaning": row["meaning"], "cells": [None] * len(runs)}
            rows.setdefault(row["name"], shared)["cells"][index] = row["after"] or row["before"]
    return [rows[name] for name in words("metrics") if name in rows]


def _cell(summary: dict[str, Any], key: str, metric: Words) -> dict[str, str] | None:
    group, _, name = key.rpartition(".")
    value = (summary.get(group) or {}).get(name) if group else summary.get(key)
    if value is None:
        return None
    ends = (summary.get("intervals") or {}).get(key) or ()
    if metric.unit == "number":
        return {"value": f"{value:.3f}", "interval": " – ".join(f"{end:.3f}" for end in ends)}
    if metric.unit == "points":
        return {"value": f"{points(value)} points", "interval": " – ".join(map(points, ends))}
    return {"value": percent(value), "interval": " – ".join(f"{end * 100:.1f}" for end in ends)}


def _difference(found: dict[str, Any] | None, metric: Words) -> dict[str, str] | None:
    if found is None:
        return None
    low, high = found["interval"] or (-math.inf, math.inf)
    shown = [
        signed(value, 3) if metric.unit == "number" else points(value)
        for value in (found["difference"], *(found["interval"] or ()))
    ]
    trend = "flat" if not metric.better else "up" if low > 0 else "down" if high < 0 else "flat"
    return {"value": shown[0], "interval": " – ".join(shown[1:]), "trend": trend}


def percent(value: float) -> str:
    """Return a share as people write one."""
    return f"{value * 100:.1f}\u00a0%"


def points(value: float) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    return signed(value * 100, 1)


def story(events: Sequence[dict[str, Any]], named: int = 10) -> list[str]:
    """Tell in sentences what happened to a run; returns an empty list if there was nothing but training.

    Args:
        events: The events of a run's file. Events before the last start without resuming are left out,
            because they belong to an earlier run.
        named: At most so many skipped problems, and so many other warnings, are named.
    """
    begun = [i for i, e in enumerate(events) if e["event"] == "started" and not e.get("resume")]
    events = events[begun[-1] if begun else 0 :]
    lines = []
    for number, event in enumerate(events):
        match event["event"]:
            case "started" if number:
                lines.append(f"started again from the beginning, there was no checkpoint ({_when(event)})")
            case "resumed":
                lost = f"; steps done again: {again}" if (again := event.get("steps_again")) else ""
                lines.append(f"resumed at step {event.get('step')} ({_when(event)}){lost}")
            case "interrupted" | "time_limit":
                how = event["event"].replace("_", " ")
                lines.append(f"{how} at step {event.get('step')} ({_when(event)})")
            case "settings_changed":
                lines.append(f"{event.get('message')} (step {event.get('step')}, {_when(event)})")
            case "failed":
                lines.append(f"failed at step {event.get('step')} ({_when(event)}): {event.get('message')}")
    counts = Counter(event["event"] for event in events)
    lines += [f"{words}: {counts[name]}" for name, words in WORDING["events"].items() if counts[name]]
    # Once per text, because a run that was killed and resumed warns twice of the same thing.
    lines += _some({str(e.get("message")): "" for e in events if e["event"] == "warning"}, named)
    skipped = {str(e.get("problem")): str(e.get("reason")) for e in events if e["event"] == "problem_skipped"}
    if skipped:
        lines.append(f"problems skipped: {len(skipped)}")
        lines += _some(skipped, named)
    return lines


def _some(named: dict[str, str], most: int) -> list[str]:
    lines = [f"  {name}: {reason}" if reason else f"  {name}" for name, reason in named.items()]
    more = len(lines) - most
    return lines[:most] + ([f"  and {more} more, see {EVENTS_FILE}"] if more > 0 else [])


def _when(event: dict[str, Any]) -> str:
    return str(event.get("time", ""))[:19].replace("T", " ") + " UTC"
