"""What a judge makes of sessions, by what it reads: message, last screen, all screens, chosen evidence.

SmartSnap's §3.2 and Fig. 2 argue that little, chosen evidence is cheaper to judge than whole trajectories,
and more reliable. Here the same judges read the same sessions in all ways, and are held against the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from selfverify.agents.cases import Judgement, Panel
from selfverify.agents.evidence import Source
from selfverify.agents.fenced import render
from selfverify.agents.finished import Finished
from selfverify.evaluation.statistics import Statistic, bootstrap_interval, on_all, ratio_statistic
from selfverify.experiments.markdown_tables import grid, percent

READS: dict[str, tuple[Source, bool]] = {
    "message": ("message", False),
    "last": ("last", False),
    "all": ("all", False),
    "chosen": ("chosen", False),
    "chosen and last": ("chosen", True),
}
"""What judges read, by its name in tables: the source, and whether the last screen is shown, too."""

Row = dict[str, Any]
"""Of one judge and what it reads: figures by name, and their intervals."""


def compare_judges(sessions: Sequence[Finished], judges: Mapping[str, Panel]) -> list[Row]:
    """Let judges judge all sessions by all that they can read.

    A session without a verdict takes part in no figure but ``undecided``.

    Args:
        sessions: With their truth.
        judges: By name; those that need one have their policy.

    Returns:
        A row for each judge and each of `READS`, whose names are ``judge`` and ``reads``:

        - ``sessions`` and ``undecided``, their numbers;
        - ``accuracy``, the share that was judged rightly;
        - ``precision``, of what was judged a success the share that is done, and ``recall``, of what is done
          the share that was judged a success;
        - ``false_positives``, of what is not done the share that was judged a success;
        - ``exhibits`` and ``characters`` that a judge is shown of a session on average, written as for a
          model, and ``tokens`` that its votes cost, where they are counted.

        A figure of nothing is None. ``intervals`` has 95 % intervals by a bootstrap over problems.
    """
    return [
        {"judge": name, "reads": read, **_figures(sessions, *how, panel)}
        for name, panel in judges.items()
        for read, how in READS.items()
    ]


def markdown(rows: Sequence[Row], intervals: bool = False) -> str:
    """The rows as a table, shares in percent; with ``intervals`` their 95 % intervals, too."""
    shares = ("accuracy", "precision", "recall", "false_positives")

    def share(row: Row, name: str) -> str:
        bounds = row["intervals"][name]
        more = f" [{percent(bounds[0])}, {percent(bounds[1])}]" if intervals and bounds else ""
        return percent(row[name]) + more

    head = ["judge", "reads", "right %", "precision %", "recall %", "false positives %", "no verdict"]
    body = [
        [
            row["judge"],
            row["reads"],
            *(share(row, name) for name in shares),
            str(row["undecided"]),
            f"{row['exhibits']:.1f}",
            f"{row['characters']:.0f}",
            "–" if row["tokens"] is None else f"{row['tokens']:.0f}",
        ]
        for row in rows
    ]
    return grid([*head, "rounds", "characters", "tokens"], body, 2)


def _figures(sessions: Sequence[Finished], read: Source, last_screen: bool, panel: Panel) -> Row:
    cases = [session.case(read, last_screen) for session in sessions]
    pending = [panel.ask(case) for case in cases]
    verdicts = [wait() for wait in pending]
    said = np.array([verdict.success is True for verdict in verdicts])
    known = np.array([verdict.decided for verdict in verdicts])
    true = np.array([session.truth.complete for session in sessions])
    problems = [*dict.fromkeys(session.name for session in sessions)]
    place = {name: number for number, name in enumerate(problems)}
    of = np.array([place[session.name] for session in sessions])

    def share(above: np.ndarray, below: np.ndarray) -> Statistic:
        counts = [np.bincount(of, weights=known & mask, minlength=len(problems)) for mask in (above, below)]
        return ratio_statistic(*counts)

    statistics = {
        "accuracy": share(said == true, np.ones_like(true)),
        "precision": share(said & true, said),
        "recall": share(said & true, true),
        "false_positives": share(said & ~true, ~true),
    }
    values = {name: on_all(statistic, len(problems)) for name, statistic in statistics.items()}
    return {
        "sessions": len(sessions),
        "undecided": int((~known).sum()),
        **{name: None if np.isnan(value) else float(value) for name, value in values.items()},
        "exhibits": float(np.mean([len(case.submission.evidence) for case in cases])),
        "characters": float(np.mean([len(render(case).text) for case in cases])),
        "tokens": _tokens(verdicts),
        "intervals": {name: bootstrap_interval(one, len(problems)) for name, one in statistics.items()},
    }


def _tokens(verdicts: Sequence[Judgement]) -> float | None:
    """Tokens that a session's votes cost on average; None where nobody counts them."""
    spent = [verdict.tokens for verdict in verdicts]
    return None if all(tokens is None for tokens in spent) else float(np.mean([t or 0 for t in spent]))
