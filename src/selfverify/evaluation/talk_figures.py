"""How long stored conversations were, how they ended, and how long they took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from selfverify.core.jsonl_store import JsonlStore, read_rows
from selfverify.core.trajectory import Finish
from selfverify.evaluation.store import StoredSample
from selfverify.selection.rules import Floats
from selfverify.tasks.tool_episode import TOOL_CALLS, TOOL_ERRORS

TOOL_COUNTS = (TOOL_CALLS, TOOL_ERRORS)
"""Rewards that count tools; they have intervals, as other figures of conversations have."""
PHASES = ("say", "reply", "hear")
"""What a conversation's time goes into: the policy speaks, episodes reply, the policy reads the replies."""


def talk_figures(rows: Sequence[Sequence[StoredSample]]) -> dict[str, Floats]:
    """Return figures ``[P, G]`` of conversations by name; none where the policy has always spoken once.

    ``turns`` is how often the policy spoke, ``stop``, ``length`` and ``error`` are 1 where the conversation
    ended so, ``lost`` where its episode failed every time (a part of ``error``). ``retries`` is how often it
    was held again, and ``failed_turns``, where there are tools, the number of turns whose call was refused or
    failed.
    """
    samples = [sample for row in rows for sample in row]
    if not any(sample.steps or sample.lost for sample in samples):
        return {}
    own = [[step for step in sample.steps if step.author == "policy"] for sample in samples]
    # A single answer has no steps; a conversation that was over before the policy spoke has no tokens.
    turns = [len(steps) or int(sample.tokens > 0) for sample, steps in zip(samples, own, strict=True)]
    figures = {"turns": turns, "retries": [sample.retries for sample in samples]}
    figures["lost"] = [sample.lost for sample in samples]
    figures |= {str(finish): [sample.finish == finish for sample in samples] for finish in Finish}
    if any(TOOL_ERRORS in sample.rewards for sample in samples):
        failed = [sum(step.values.get(TOOL_ERRORS, 0.0) > 0 for step in steps) for steps in own]
        figures["failed_turns"] = failed
    return {
        name: np.array(values, dtype=np.float64).reshape(len(rows), -1) for name, values in figures.items()
    }


def timing_file(store: Path) -> Path:
    """Return where the time of a store's conversations stands; the clock is no part of the samples."""
    return store.with_name(f"timing-{store.name}")


def note_time(store: Path, conversations: int, seconds: dict[str, float]) -> None:
    """Append how long a batch of conversations took."""
    line = {"conversations": conversations, **{f"{phase}_s": seconds[phase] for phase in PHASES}}
    JsonlStore(timing_file(store)).append(line)


def mean_time(store: Path) -> dict[str, float]:
    """Return the mean seconds of a conversation by phase; nothing where no time was noted.

    Conversations of a batch take turns, so that this is a batch's time over its conversations.

    Raises:
        DataError: A complete line is corrupt.
    """
    rows = [
        row
        for row in read_rows(timing_file(store))
        if all(isinstance(row.get(name), (int, float)) for name in ("conversations", *_columns()))
    ]
    total = sum(row["conversations"] for row in rows)
    if total <= 0:
        return {}
    return {
        phase: sum(row[name] for row in rows) / total for phase, name in zip(PHASES, _columns(), strict=True)
    }


def _columns() -> list[str]:
    return [f"{phase}_s" for phase in PHASES]
