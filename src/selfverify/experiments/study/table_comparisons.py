"""Which row of the papers' tables the others are compared with, and what the tests say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfverify.core.errors import ConfigError
from selfverify.evaluation.by_size import TURNS, FigurePlace
from selfverify.evaluation.paired_tests import compare, holm
from selfverify.selection.rules import Floats
from selfverify.selection.strategies import find_strategy

BySeed = dict[tuple[str, str], dict[FigurePlace, list[tuple[float, Floats]]]]
"""By method and benchmark (empty for the mean over benchmarks): for each figure every training seed's value,
and its values on the draws of problems."""


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """A row that the others are compared with.

    Args:
        method: Its method.
        strategy: What chooses in it; None for what chooses in the row that is compared.
    """

    method: str
    strategy: str | None = None

    def __str__(self) -> str:
        return self.method if self.strategy is None else f"{self.method}:{self.strategy}"

    def place(self, place: FigurePlace) -> FigurePlace:
        """Where it has the figure that another row has at ``place``."""
        single = place.n == 1 or place.chooser == TURNS
        return place if self.strategy is None or single else place._replace(chooser=self.strategy)


@dataclass(frozen=True, slots=True)
class RowComparison:
    """A figure against that of the baseline row.

    Args:
        method: The row.
        benchmark: The block of columns; empty for the mean over benchmarks.
        place: See `FigurePlace`.
        difference: The figure minus the baseline's.
        interval: 95 %, over problems and training seeds; None where nothing varies.
        p: Of no difference, two-sided.
        p_holm: The same, adjusted for all comparisons of the tables.
        seeds: Training seeds of the row.
        baseline_seeds: Training seeds of the baseline.
    """

    method: str
    benchmark: str
    place: FigurePlace
    difference: float
    interval: list[float] | None
    p: float | None
    p_holm: float | None
    seeds: int
    baseline_seeds: int


def baseline_row(text: str, methods: Sequence[str], strategies: Sequence[str]) -> BaselineRow:
    """Read ``METHOD`` or ``METHOD:STRATEGY``.

    Raises:
        ConfigError: The tables have no such row.
    """
    method, colon, strategy = text.partition(":")
    if method not in methods:
        raise ConfigError(f"--against {text}: no row is of method {method!r}; methods: {', '.join(methods)}")
    if not colon:
        return BaselineRow(method)
    find_strategy(strategy)
    if strategy not in strategies:
        raise ConfigError(
            f"--against {text}: the tables do not show {strategy!r}; add it to --by {','.join(strategies)}"
        )
    return BaselineRow(method, strategy)


def comparisons(
    measured: BySeed,
    problems: Mapping[tuple[str, FigurePlace], int],
    baseline: BaselineRow,
    notes: list[str],
) -> list[RowComparison]:
    """Compare every figure with that of the baseline row, where it has one.

    Args:
        measured: All figures.
        problems: Their numbers of problems, by benchmark and place.
        baseline: What they are compared with.
        notes: Gets a line about what could not be compared.
    """
    found: list[RowComparison] = []
    for (method, benchmark), figures in measured.items():
        known = measured.get((baseline.method, benchmark), {})
        lacking: dict[str, None] = {}
        for place, own in figures.items():
            where = baseline.place(place)
            if method == baseline.method and where == place:
                continue
            if where not in known:
                lacking[place.chooser] = None
                continue
            other = known[where]
            if method == baseline.method:  # the same trained models, so that their seeds are paired, too
                own = [
                    (value - less, draws - by) for (value, draws), (less, by) in zip(own, other, strict=True)
                ]
                other = [(0.0, np.zeros_like(own[0][1]))]
            compared = compare(*_split(own), *_split(other), problems[benchmark, place])
            found.append(
                RowComparison(
                    method, benchmark, place, compared.difference, compared.interval, compared.p, None,
                    len(own), len(known[where]),
                )
            )  # fmt: skip
        if lacking:
            where_from = benchmark or "the mean over benchmarks"
            notes.append(
                f"{method} on {where_from}: no comparison of {', '.join(lacking)}, as {baseline} has no such "
                "figure there."
            )
    adjusted = holm([one.p for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, adjusted, strict=True)]


def _split(own: Sequence[tuple[float, Floats]]) -> tuple[list[float], list[Floats]]:
    return [value for value, _ in own], [draws for _, draws in own]
