"""The few figures of an evaluation that come first: which, in which order, under which names.

`selfverify eval` prints them as one table, the quickstart prints and reports them. Everything else stands in
``metrics.json``. The measured figures decide the rows: single answers, two turns, conversations of an agent
or of a model that looks again, or rules that end looking.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text
from ruamel.yaml import YAML

from selfverify.evaluation.metrics import HEADLINE, MIXED_BOTH, other_reading
from selfverify.selection.strategies import STRATEGIES

MOST = 16
"""A table has at most so many rows, those of notes not counted."""
WIDEST = 80
"""And its lines at most so many characters."""

READINGS = {"sampled": "written", "soft": "soft", "greedy": "likeliest"}
"""Names of the ways of reading scores: the number that was written, its expectation, the likeliest."""

_SINGLE = STRATEGIES["first"].figure
"""The strategy of a task's own figures: a single answer."""

TITLES: dict[str, dict[str, str]] = YAML(typ="safe").load(Path(__file__).with_name("headline.yaml"))
"""The figures of each kind of evaluation by their names in summaries, with their titles, in their order."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A figure that was measured elsewhere, and stands beside those that were measured here.

    Args:
        title: Its name, in at most 22 characters.
        value: The figure.
        before: The same before training, where there is one.
        source: How it was measured, the file that holds it, and the command that makes it.
    """

    title: str
    value: float
    before: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Headline:
    """A table of texts.

    Args:
        columns: Its columns' names.
        rows: Its rows.
        notes: Sentences below it.
    """

    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def as_table(self, title: str = "") -> Table:
        """Return it for a terminal, in lines of at most `WIDEST` characters."""
        table = Table(
            title=Text(title) if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for number, name in enumerate(self.columns):
            table.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def headline(
    after: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    stored: Sequence[Stored] = (),
    notes: Sequence[str] = (),
) -> Headline:
    """Return the first figures of one evaluation, or of two about the same problems.

    Args:
        after: A summary (`selfverify.evaluation.evaluate`), or what rules that end looking come to
            (`selfverify.evaluation.visual_metrics`).
        before: The summary before training. Without it there is one column of values, with their intervals.
        changes: The differences between the two, with intervals (`evaluation.metrics.paired_difference`), by
            the figures' names in summaries.
        stored: Figures of other runs, as the last rows.
        notes: Sentences below the table.
    """
    columns = ["", "value", "95 % interval"]
    if before is None or "rules" in after:
        told = ((title, *_value(after, key)) for key, title in _titles(after))
        found = _stopping(after) if "rules" in after else told
        rows = [[title, _number(value), _ends(ends)] for title, value, ends in found if value is not None]
    else:
        columns = ["", "before", "after", "change, 95 % interval"]
        rows = []
        for key, title in _titles(after):
            change = (changes or {}).get(key)
            was, now = _value(before, key)[0], _value(after, key)[0]
            if key == MIXED_BOTH and change is not None:
                was, now = change["before"], change["after"]
            if was is not None or now is not None:
                rows.append([title, _number(was), _number(now), _change(change, was, now)])
    sources = list(dict.fromkeys(one.source for one in stored))
    rows = rows[: MOST - len(stored)]
    for one in stored:
        figures = [_number(one.value), ""]
        if before is not None:
            figures = [_number(one.before), _number(one.value), _change(None, one.before, one.value)]
        rows.append([f"stored: {one.title} [{sources.index(one.source) + 1}]", *figures])
    where = [f"[{n}] stored, not measured in this run: {source}" for n, source in enumerate(sources, start=1)]
    own = [after["score_missing"]] if after.get("score_missing") else []
    for when, of in (("", after), ("before training ", before or {})):
        if count := of.get("unjudged"):
            by_state = "SR" in (of.get("metrics") or {})  # it needs no verdict
            own.append(f"{when}{count} answers have no verdict{'' if by_state else ', and count as wrong'}")
    out = after.get("left_out") or {}
    if count := out.get("problems", 0) + out.get("rows", 0):
        own.append(f"{count} problems were left out, as they cannot be used: `left_out` says why")
    return Headline(columns, rows, [*own, *notes, *where])


def _titles(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names and titles of what is shown of an evaluation, the most important first."""
    n, own = summary.get("samples_per_problem", 0), summary.get("score") or HEADLINE
    other = other_reading(own)
    words = {"n": n, "own": READINGS[own], "other": other, "other_title": READINGS[other]}
    for key, title in _kind(summary).items():
        if n > 1 or "@{n}" not in key:  # of one answer there is nothing to choose
            yield key.format(**words), title.format(**words)


def _kind(summary: Mapping[str, Any]) -> dict[str, str]:
    own = {f"metrics.{name}": name for name in summary.get("metrics") or {}}
    if "turns" in summary:
        return TITLES["turns"] | own
    if "conversations" not in summary:
        return own | TITLES["answers"]
    more = dict([*TITLES["conversations"].items()][1:])  # without single answers
    if "metrics.SR" in own:
        return TITLES["agents"] | more
    if "steps" in (summary.get("rewards") or {}):
        return TITLES["looks"] | own | more
    return own | TITLES["conversations"]


def _value(summary: Mapping[str, Any], key: str) -> tuple[float | None, Sequence[float] | None]:
    """A figure by its name in summaries, and its interval; of a task's own figures those of one answer."""
    table, _, name = key.partition(".")
    found = (summary.get(table) or {}).get(name) if name else summary.get(key)
    intervals = summary.get("intervals") or {}
    if table == "metrics":
        figure, key = found or {}, _SINGLE
        found, intervals = (figure.get("curves", {}).get(key) or [None])[-1], figure.get("intervals", {})
    return found if isinstance(found, (int, float)) else None, intervals.get(key)


def _stopping(found: Mapping[str, Any]) -> Iterator[tuple[str, float | None, Sequence[float] | None]]:
    """Return the figures of the rules that end looking, the verifier's first."""
    rules = found["rules"]
    for rule, against in found["verifier"].items():
        named = {
            "the verifier ends it": rule,
            "the model ends it itself": "self-stop",
            f"after {against['smallest_n']} looks always": f"always {against['smallest_n']}",
            "at the verifier's times, shuffled": f"{rule}, random",
            "once all needed was shown": "oracle",
        }
        for title, name in named.items():
            if name in rules:
                yield f"right, {title}", rules[name]["accuracy"], rules[name]["interval"]
                yield f"looks, {title}", rules[name]["steps"], None
        for title, name in (
            ("verifier - model itself, right", "over_self_stop"),
            (f"verifier - always {against['smallest_n']}, right", "gap_to_smallest_n"),
            ("verifier - shuffled, right", "over_random"),
        ):
            yield title, against[name]["mean"], against[name]["interval"]


def _number(value: float | None) -> str:
    """A figure in three digits; a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    size = abs(value)
    return f"{value:.{3 if size < 1 else 2 if size < 9.995 else 1 if size < 99.95 else 0}f}"


def _ends(interval: Sequence[float] | None) -> str:
    return f"{_number(interval[0])} to {_number(interval[1])}" if interval else ""


def _change(found: Mapping[str, Any] | None, was: float | None, now: float | None) -> str:
    """The paired change with its interval; where there is none, the difference alone."""
    if found is not None and found["interval"] is not None:
        return f"{_signed(found['difference'])} ({' to '.join(map(_signed, found['interval']))})"
    return "" if was is None or now is None else _signed(now - was)


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_number(abs(float(value)))}"
