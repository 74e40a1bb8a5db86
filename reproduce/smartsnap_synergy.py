"""Does handing in evidence help an agent to succeed (SmartSnap's synergy)? Starts with and without it.

    python -m reproduce.grid smartsnap-starts --jobs 2
    python -m reproduce.grid smartsnap-synergy --jobs 2
    python -m reproduce.smartsnap synergy runs synergy.json

The first study makes five starts a side on equal tokens, the second trains a model from each on the true
state. Those whose models are all there are measured on the tasks of `reproduce.smartsnap_gains`, three a side
at least; intervals are over starts and tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reproduce.grid import METRICS
from reproduce.smartsnap_gains import ARMS, COLUMNS, measured
from reproduce.statistics import BySeed, difference, pooled
from reproduce.tables import difference_table, figure_table
from selfverify.core.errors import ConfigError

SIDES: Mapping[str, Sequence[str]] = {"evidence": [], "message": ["task.agent.evidence.source=last"]}
"""What the starts hand in beside their message, and the options that let them."""
STARTS, SEED, LEAST = range(5), 10, 3
TRAINED = "smartsnap-synergy"


def synergy(runs: Path, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Compare the sides' starts, what was trained from them, and the gains; return all by set of tasks.

    Args:
        runs: The folder of the two studies; samples stay under ``smartsnap-synergy/measured`` there.
        say: Hears the tables.

    Raises:
        ConfigError: Fewer than `LEAST` starts a side are trained; the missing ones are named.
    """
    models = {
        (side, k): {
            "start": runs / "smartsnap-starts" / side / "work" / f"seed-{k}" / "model",
            "trained": runs / TRAINED / f"{side}-{k}" / "state" / f"seed-{SEED}" / "model",
        }
        for side in SIDES
        for k in STARTS
    }
    missing = {
        k: [m for side in SIDES for m in models[side, k].values() if not (m.parent / METRICS).is_file()]
        for k in STARTS
    }
    numbers = [k for k in STARTS if not missing[k]]
    if len(numbers) < LEAST:
        absent = ", ".join(str(model) for of in missing.values() for model in of)
        raise ConfigError(
            f"{len(numbers)} starts a side have all their models, {LEAST} are needed; not there: {absent}"
        )
    found: dict[str, Any] = {}
    for name, overrides in ARMS.items():
        before, after = dict[str, BySeed](), dict[str, BySeed]()
        for side in SIDES:
            store = runs / TRAINED / "measured" / name
            for of, when in ((before, "start"), (after, "trained")):
                of[side] = {
                    k: measured(
                        str(models[side, k][when]),
                        store / f"{side}-{k}-{when}.jsonl",
                        [*overrides, *SIDES[side]],
                        overrides,
                    )
                    for k in numbers
                }
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


def _gaps(after: BySeed, before: BySeed) -> BySeed:
    """What each start gained."""
    return {
        k: {name: run[name] - before[k][name] for name in run if name in before[k]}
        for k, run in after.items()
    }


def _labelled(rows: Mapping[str, Any]) -> dict[tuple[str], Any]:
    return {(name,): row for name, row in rows.items()}
