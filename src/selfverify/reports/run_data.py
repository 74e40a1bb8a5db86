"""Reads what a report needs from the folder of a run, and puts its figures into words.

The words are the summary sentence, the tiles and the table of a report.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator

from selfverify.core.errors import DataError
from selfverify.core.events import EVENTS_FILE, read_events, story
from selfverify.core.files import read_regular
from selfverify.core.jsonl_store import read_rows
from selfverify.evaluation.headline import READINGS
from selfverify.evaluation.metrics import HEADLINE, paired_difference, summarise
from selfverify.evaluation.samples import StoredSample, mean_time, read_samples
from selfverify.reports.plots import Line
from selfverify.selection.strategies import STRATEGIES

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
        colour: The name of its colour in charts (`selfverify.reports.plots.PALETTE`).
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


STAGE_TITLES = {"before": "Before training", "after": "After training"}


@dataclass(frozen=True, slots=True)
class MetricWords:
    """A row of the table.

    Args:
        title: The row's title; ``{n}`` stands for the number of samples per problem.
        meaning: A sentence that explains the metric.
        percent: Whether it is shown as a percentage, and its differences in percentage points.
        better: Whether more of it is better. A change of what is neither good nor bad gets no colour.
    """

    title: str
    meaning: str
    percent: bool = True
    better: bool = True


def _rows_of(*strategies: str) -> dict[str, MetricWords]:
    """Return the rows of the strategies' accuracies."""
    found = [STRATEGIES[name] for name in strategies]
    return {strategy.at("{n}"): MetricWords(strategy.title, strategy.meaning) for strategy in found}


METRICS: dict[str, MetricWords] = {
    "turns.acc@t1": MetricWords("First answers (acc@t1)", "Share of first answers that are right."),
    "turns.acc@t2": MetricWords("Second answers (acc@t2)", "Share that is right after the second turn."),
    "turns.delta": MetricWords("Change by the second turn (Δ)", "acc@t2 − acc@t1, which is M₀→₁ − M₁→₀."),
    "turns.0->1": MetricWords("Corrected (M₀→₁)", "Of all answers: wrong first, right then."),
    "turns.1->0": MetricWords("Spoiled (M₁→₀)", "Of all answers: right first, wrong then.", better=False),
    "turns.1->1": MetricWords("Kept right (1→1)", "Of all answers: right in both turns.", better=False),
    "turns.0->0": MetricWords("Kept wrong (0→0)", "Of all answers: wrong in both turns.", better=False),
    "turns.corrected": MetricWords("Corrected, of wrong ones", "How many of the wrong first answers."),
    "turns.spoiled": MetricWords(
        "Spoiled, of right ones", "How many of the right first answers.", better=False
    ),
    **_rows_of("first", "majority", "best", "weighted", "best-of-majority"),
    "best_over_majority@{n}": MetricWords("Own score over vote", "How much the own score beats the vote by."),
    **_rows_of("oracle"),
    "within_problem_auc": MetricWords(
        "Within-problem AUC",
        "How often a right answer is scored above a wrong one of the same problem. 0.5 is chance; this is "
        "what selection can use.",
        percent=False,
    ),
    "auc": MetricWords(
        "Pooled AUC",
        "The same over all problems together. Also high when scores only say which problems are hard.",
        percent=False,
    ),
    "ap": MetricWords("Pooled AP", "Average precision of the scores; chance level is pass@1.", percent=False),
    "logprob.best@{n}": MetricWords(
        "Best of {n} by log-probability", "A free baseline: the likeliest answer."
    ),
    "logprob.within_problem_auc": MetricWords(
        "Within-problem AUC of log-probability", "The same baseline; scores should beat it.", percent=False
    ),
    "fused.best@{n}": MetricWords(
        "Best of {n} by fused score", "Own score and log-probability together; no rule of the paper."
    ),
    "fused.weighted@{n}": MetricWords(
        "Vote of {n} weighted by fused score", "The same scores as weights of the votes."
    ),
    "fused.within_problem_auc": MetricWords(
        "Within-problem AUC of the fused score",
        "What the own score and the log-probability know together.",
        percent=False,
    ),
    "text_rule.best@{n}": MetricWords(
        "Best of {n} by a rule on the text", "A free baseline: what a line of code makes of the words."
    ),
    "text_rule.within_problem_auc": MetricWords(
        "Within-problem AUC of the rule on the text", "The same baseline.", percent=False
    ),
    "text_rule_read.within_problem_auc": MetricWords(
        "Within-problem AUC of the rule with the transcription",
        "The rule also compares what was picked with what the model says that it read.",
        percent=False,
    ),
    "sampled.within_problem_auc": MetricWords(
        "Within-problem AUC of written scores", "Of the number that was written.", percent=False
    ),
    "soft.within_problem_auc": MetricWords(
        "Within-problem AUC of soft scores",
        "Of the score's expectation, which is not written.",
        percent=False,
    ),
    "score_right": MetricWords("Mean score of right answers", "Of all right answers.", percent=False),
    "score_wrong": MetricWords(
        "Mean score of wrong answers", "Of all wrong answers.", percent=False, better=False
    ),
    "score_mean": MetricWords(
        "Mean score", "A well calibrated model's mean score is its pass@1.", percent=False, better=False
    ),
    "score_spread": MetricWords(
        "Score spread",
        "Standard deviation of one problem's scores; near 0 they say nothing.",
        percent=False,
        better=False,
    ),
    "format_rate": MetricWords("Readable format", "Share of responses in the required format."),
    "conversations.turns": MetricWords(
        "Turns", "How often the policy speaks in a conversation.", percent=False, better=False
    ),
    "conversations.stop": MetricWords("Ended by itself", "Share of conversations.", better=False),
    "conversations.length": MetricWords(
        "Ended at a limit of tokens", "Share of conversations.", better=False
    ),
    "conversations.error": MetricWords(
        "Lost", "Share of conversations whose episode failed: without a verdict.", better=False
    ),
    "rewards.tool_calls": MetricWords(
        "Tool calls", "Carried out in a conversation.", percent=False, better=False
    ),
    "rewards.tool_errors": MetricWords(
        "Tool errors", "Calls of a conversation that were refused or failed.", percent=False, better=False
    ),
    "conversations.failed_turns": MetricWords(
        "Turns with tool errors", "Turns of a conversation in which one was.", percent=False, better=False
    ),
}
"""The rows of the table by their name in a summary; a dot leads into a nested table."""

_OF_TALKS = MetricWords("Success rate", "Share of conversations that reach their goal.")
"""What a single answer's figure is called of conversations."""
_TALK_TILES = (
    "pass@1", "oracle@{n}", "conversations.turns", "rewards.tool_errors", "conversations.length",
    "conversations.error",
)  # fmt: skip
_TILES = ("pass@1", "majority@{n}", "weighted@{n}", "within_problem_auc")
_TURN_TILES = ("turns.acc@t1", "turns.acc@t2", "turns.0->1", "turns.1->0")


def total(run: RunData) -> int | None:
    """Return N, the number of samples per problem, of the later stage if the stages differ."""
    for stage in reversed(STAGES):
        if count := run.summaries.get(stage, {}).get("samples_per_problem"):
            return int(count)
    return None


def sentence(run: RunData) -> str:
    """Return what happened in one sentence with figures."""
    if run.stopping is not None:
        return _stopping_sentence(run)
    stage = "after" if "after" in run.summaries else "before"
    found, n = run.summaries.get(stage, {}), total(run)
    if "turns" in found:
        return _turns_sentence(found, _when(run, stage))
    best, majority, weighted = (found.get(f"{rule}@{n}") for rule in ("best", "majority", "weighted"))
    if found.get("pass@1") is None:
        return "This run has no evaluation yet."
    where = f"{found.get('problems', '?')} held-out problems"
    if "conversations" in found:
        return _talks_sentence(run, found, stage)
    if best is None:
        return f"{_when(run, stage)} a single answer is right on {_percent(found['pass@1'])} of {where}."
    text = (
        f"{_sees(run, stage)}{_when(run, stage)} the answer that the model itself scores highest among {n} "
        f"is right on {_percent(best)} of {where}"
    )
    earlier = run.summaries.get("before", {}).get(f"best@{n}") if stage == "after" else None
    if earlier is not None:
        gain = best - earlier
        more = f"{abs(gain) * 100:.1f} points {'more' if gain > 0 else 'less'} than before"
        text += f", {'as before' if abs(gain) < 5e-4 else more}"
    if majority is None:
        return f"{text}."
    text += f"; a majority vote over the same answers reaches {_percent(majority)}"
    both = f" Votes weighted by the scores reach {_percent(weighted)}." if weighted is not None else ""
    interval = (found.get("intervals") or {}).get(f"best_over_majority@{n}")
    if interval and interval[0] <= 0 <= interval[1]:
        chance = f"({_points(interval[0])} to {_points(interval[1])} points)"
        return f"{text}, a difference within chance {chance}.{both}"
    wins = "wins" if best > majority else "does not pay yet and loses"
    points = f"{abs(best - majority) * 100:.1f} points{_interval(interval)}"
    return f"{text}, so self-verification {wins} by {points}.{both}"


def _sees(run: RunData, stage: str) -> str:
    """How often scores, and a rule on the text, tell right answers from wrong ones, where that is known."""
    found, key = run.summaries[stage], "within_problem_auc"
    if found.get(key) is None:
        return ""
    earlier = run.summaries.get("before", {}).get(key) if stage == "after" else None
    rule = (found.get("text_rule") or {}).get(key)
    return (
        f"{_when(run, stage)} a right answer has a higher {READINGS[run.reading]} score than a wrong one "
        f"to the same problem in {_percent(found[key])} of cases"
        f"{f', before in {_percent(earlier)}' if earlier is not None else ''}"
        f"{f'; a rule of one line on the text says so in {_percent(rule)}' if rule else ''}. "
    )


def _stopping_sentence(run: RunData) -> str:
    """What ending looking by a verifier comes to, beside what ends it otherwise."""
    assert run.stopping is not None
    rules, told = run.stopping["rules"], []
    for rule, against in run.stopping["verifier"].items():
        for start, name in (
            ("Where the verifier ends looking", rule),
            ("where the model ends it itself", "self-stop"),
            (f"after {against['smallest_n']} looks always", f"always {against['smallest_n']}"),
            ("where the verifier's stopping times belong to other problems", f"{rule}, random"),
        ):
            row = rules[name]
            told.append(f"{start}, {_percent(row['accuracy'])} are right after {row['steps']:.1f} looks")
    return "; ".join(told) + "." if told else "No conversation could be compared."


def _talks_sentence(run: RunData, found: dict[str, Any], stage: str) -> str:
    """How many conversations succeed, and what of them is worth knowing first."""
    talks, n = found["conversations"], total(run)
    ends = (found.get("intervals") or {}).get("pass@1")
    sure = f" (95\u00a0% interval {_percent(ends[0])} to {_percent(ends[1])})" if ends else ""
    text = (
        f"{_when(run, stage)} {_percent(found['pass@1'])} of the conversations about "
        f"{found.get('problems', '?')} held-out problems succeed{sure}"
    )
    earlier = run.summaries.get("before", {}).get("pass@1") if stage == "after" else None
    if earlier is not None:
        gain, of = found["pass@1"] - earlier, (run.differences.get("pass@1") or {}).get("interval")
        more = f"{abs(gain) * 100:.1f} points {'more' if gain > 0 else 'less'} than before{_interval(of)}"
        text += f", {'as before' if abs(gain) < 5e-4 else more}"
    text += f", in {talks['turns']:.1f} turns on average"
    if talks.get("lost"):
        text += f"; {_percent(talks['lost'])} were lost and count as failures"
    best = found.get(f"best@{n}")
    if best is not None:
        text += f". The one of {n} that the model itself scores highest succeeds in {_percent(best)}"
    return f"{text}."


def _turns_sentence(found: dict[str, Any], when: str) -> str:
    turns, interval = found["turns"], (found.get("intervals") or {}).get("turns.delta")
    return (
        f"{when} {_percent(turns['acc@t1'])} of the first and {_percent(turns['acc@t2'])} of the "
        f"second answers to {found.get('problems', '?')} held-out problems are right, a change of "
        f"{_points(turns['delta'])} points{_interval(interval)}: {_percent(turns['0->1'])} of all answers "
        f"are corrected and {_percent(turns['1->0'])} spoiled."
    )


def _interval(ends: Sequence[float] | None) -> str:
    return f" (95\u00a0% interval {_points(ends[0])} to {_points(ends[1])})" if ends else ""


def tiles(run: RunData) -> list[dict[str, Any]]:
    """Return the few rows of `table` that matter most; of rules that end looking the sentence tells all."""
    if run.stopping is not None:
        return []
    rows = {row["name"]: row for row in table(run)}
    talks = "conversations.turns" in rows
    names = _TURN_TILES if "turns.acc@t1" in rows else _TALK_TILES if talks else _TILES
    return [rows[name] for name in names if name in rows]


def table(run: RunData) -> list[dict[str, Any]]:
    """Return one row per metric of `METRICS` that some stage has.

    Each holds ``name``, ``title``, ``meaning``, ``before`` and ``after`` (``{"value", "interval"}`` or None),
    and ``difference`` (``{"value", "interval", "trend"}``, or None), all as text. ``trend`` is ``up`` or
    ``down`` where the interval excludes 0 and the direction is good or bad, else ``flat``.
    """
    n = total(run)
    rows = []
    talks = any("conversations" in of and "turns" not in of for of in run.summaries.values())
    for name, metric in METRICS.items():
        if name.startswith(f"{run.reading}."):
            continue  # the rows without a name of a reading are of that one
        metric = _OF_TALKS if talks and name == "pass@1" else metric
        key = name.format(n=n)
        cells = {stage: _cell(run.summaries.get(stage, {}), key, metric) for stage in STAGES}
        if any(cells.values()):
            shown = {"name": name, "title": metric.title.format(n=n), "meaning": metric.meaning}
            rows.append(shown | cells | {"difference": _difference(run.differences.get(key), metric)})
    return rows


_TURN_HEADS = {
    "acc@t1": "acc@t1", "acc@t2": "acc@t2", "delta": "Δ", "0->1": "M₀→₁", "1->0": "M₁→₀", "1->1": "1→1",
    "0->0": "0→0", "corrected": "corrected", "spoiled": "spoiled",
}  # fmt: skip


def turn_categories(run: RunData) -> dict[str, Any] | None:
    """Return two-turn figures by category as text, of the later stage that has any; None without them."""
    for stage in reversed(STAGES):
        found = run.summaries.get(stage, {}).get("turns_by_category")
        if not found:
            continue
        columns = [
            (column, [(value, _turn_cells(figures)) for value, figures in of.items()])
            for column, of in found.items()
        ]
        heads = ["problems", *_TURN_HEADS.values()]
        return {"stage": stage_title(run, stage).lower(), "heads": heads, "columns": columns}
    return None


def _turn_cells(figures: dict[str, Any]) -> list[str]:
    shown = [str(figures.get("problems", "–"))]
    for name in _TURN_HEADS:
        value = figures.get(name)
        shown.append("–" if value is None else _points(value) if name == "delta" else _percent(value))
    return shown


def talk_times(run: RunData) -> list[str]:
    """Return a sentence for each stage in which the time of conversations was noted."""
    return [
        f"{stage_title(run, stage)}, a conversation took {sum(times.values()):.3g} s, as those of a batch "
        f"share theirs: {times['say']:.3g} s in which the policy spoke, {times['reply']:.3g} s in which "
        f"episodes replied, {times['hear']:.3g} s in which the policy read their replies."
        for stage, times in run.talk_times.items()
    ]


def comparison(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Return one row per metric with a cell per run, of the figures after training where there are any."""
    rows: dict[str, dict[str, Any]] = {}
    for index, run in enumerate(runs):
        for row in table(run):
            shared = {"title": row["title"], "meaning": row["meaning"], "cells": [None] * len(runs)}
            rows.setdefault(row["name"], shared)["cells"][index] = row["after"] or row["before"]
    return [rows[name] for name in METRICS if name in rows]


def _cell(summary: dict[str, Any], key: str, metric: MetricWords) -> dict[str, str] | None:
    group, _, name = key.rpartition(".")
    value = (summary.get(group) or {}).get(name) if group else summary.get(key)
    if value is None:
        return None
    interval = (summary.get("intervals") or {}).get(key)
    if key.startswith("best_over") or key == "turns.delta":
        shown, unit = _points(value), " points"
        ends = [_points(end) for end in interval or ()]
    else:
        shown, unit = (_percent(value), "") if metric.percent else (f"{value:.3f}", "")
        ends = [f"{end * 100:.1f}" if metric.percent else f"{end:.3f}" for end in interval or ()]
    return {"value": shown + unit, "interval": " – ".join(ends)}


def _difference(found: dict[str, Any] | None, metric: MetricWords) -> dict[str, str] | None:
    if found is None:
        return None
    low, high = found["interval"]
    write = _points if metric.percent else _signed
    trend = "up" if low > 0 else "down" if high < 0 else "flat"
    trend = trend if metric.better else "flat"
    return {"value": write(found["difference"]), "interval": f"{write(low)} – {write(high)}", "trend": trend}


def stage_title(run: RunData, stage: str) -> str:
    """Return the name of a stage; an evaluation on its own has only one."""
    return "Evaluation" if run.measured_only else STAGE_TITLES[stage]


def _when(run: RunData, stage: str) -> str:
    return "In this evaluation," if run.measured_only else f"{STAGE_TITLES[stage]},"


def _percent(value: float) -> str:
    return f"{value * 100:.1f}\u00a0%"


def _points(value: float) -> str:
    return f"{value * 100:+.1f}".replace("-", "\u2212")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\u2212")
