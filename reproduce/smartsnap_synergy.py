"""Does handing in evidence help an agent to succeed (SmartSnap's synergy)? Starts with and without it.

    python -m reproduce.grid smartsnap-starts --jobs 2
    python -m reproduce.grid smartsnap-synergy --jobs 2
    python -m reproduce.smartsnap synergy runs synergy.json

The first study makes three starts a side on equal tokens, the second trains two models from each on the
true state. All are measured on the tasks of `reproduce.smartsnap_gains`. Starts vary more than what is
trained from one of them, so that the two are averaged, and intervals are over starts and tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.smartsnap_gains import ARMS, COLUMNS, measured
from reproduce.statistics import BySeed, MeasuredRun, difference, pooled
from reproduce.tables import difference_table, figure_table
from selfverify.evaluation.statistics import Measured

SIDES: Mapping[str, Sequence[str]] = {"evidence": [], "message": ["task.agent.evidence.source=last"]}
"""What the starts hand in beside their message, and the options that let them."""
STARTS, SEEDS = range(3), range(2)


def synergy(runs: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Compare the sides' starts, what was trained from them, and the gains; return all by set of tasks.

    Args:
        runs: The folder of the two studies; samples stay under ``smartsnap-synergy/measured`` there.
        say: Hears the tables.
    """
    found: dict[str, Any] = {}
    for name, overrides in ARMS.items():
        before = {side: _starts(runs, name, side, overrides) for side in SIDES}
        after = {side: _trained(runs, name, side, overrides) for side in SIDES}
        gains = {side: _gaps(after[side], before[side]) for side in SIDES}
        rows = {f"{side}, start": before[side] for side in SIDES}
        rows |= {f"{side}, trained": after[side] for side in SIDES}
        figures = {row: pooled(of) for row, of in rows.items()}
        changes = {f"gain of {side}": difference(after[side], before[side], "paired") for side in SIDES}
        for what, of in (("start", before), ("trained", after), ("gain", gains)):
            changes[f"{what}: evidence − message"] = difference(of["evidence"], of["message"], "apart")
        found[name] = {"figures": figures, "differences": changes}
        say(f"## {name}\n\n{figure_table(['models'], _labelled(figures), COLUMNS)}\n")
        say(difference_table(["difference"], _labelled(changes), COLUMNS)[0] + "\n")
    return found


def averaged(runs: Sequence[MeasuredRun]) -> MeasuredRun:
    """The mean of models on the same tasks, as one model's figures; what one of them lacks is left out."""

    def mean(figures: Sequence[Measured]) -> Measured:
        changes = np.mean([one.changes for one in figures], axis=0)
        used = np.any([one.used for one in figures], axis=0)
        return Measured(float(np.mean([one.value for one in figures])), changes, used, figures[0].share)

    return {name: mean([run[name] for run in runs]) for name in runs[0] if all(name in run for run in runs)}


def _starts(runs: Path, tasks: str, side: str, overrides: Sequence[str]) -> BySeed:
    study = runs / "smartsnap-starts" / side / "work"
    return {k: _figures(study / f"seed-{k}", runs, tasks, f"{side}-{k}", overrides) for k in STARTS}


def _trained(runs: Path, tasks: str, side: str, overrides: Sequence[str]) -> BySeed:
    def of_start(k: int) -> MeasuredRun:
        study, label = runs / "smartsnap-synergy" / f"{side}-{k}" / "state", f"{side}-{k}"
        found = [_figures(study / f"seed-{s}", runs, tasks, f"{label}-{s}", overrides) for s in SEEDS]
        return averaged(found)

    return {k: of_start(k) for k in STARTS}


def _figures(run: Path, runs: Path, tasks: str, label: str, overrides: Sequence[str]) -> MeasuredRun:
    store = runs / "smartsnap-synergy" / "measured" / tasks / f"{label}.jsonl"
    speaking = SIDES[label.partition("-")[0]]
    return measured(str(run / "model"), store, [*overrides, *speaking], overrides)


def _gaps(after: BySeed, before: BySeed) -> BySeed:
    """What each start gained."""
    return {
        k: {name: run[name] - before[k][name] for name in run if name in before[k]}
        for k, run in after.items()
    }


def _labelled(rows: Mapping[str, Any]) -> dict[tuple[str], Any]:
    return {(name,): row for name, row in rows.items()}
