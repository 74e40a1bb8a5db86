"""From traces to data sets: those for supervised fine-tuning, and pairs for the verifier (VTS-V §4.2)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.core.files import write_json, written_whole
from selfverify.core.jsonl_store import read_journal
from selfverify.evaluation.samples import IMAGES
from selfverify.experiments.looks.judge_looks import OnAnswer
from selfverify.experiments.looks.looks_folder import ABOUT, PAIRS, SFT, VERDICTS, all_traces
from selfverify.visual.traces import (
    Curation,
    Demands,
    Message,
    Pair,
    Pairing,
    VisualTrace,
    is_image,
    make_pairs,
    parts_of,
)

JUDGED_WRONG = "a model judged the answer wrong"
NOT_JUDGED = "no model has judged the answer"


@dataclass(slots=True)
class Sets:
    """What came of a folder's traces.

    Args:
        traces: How many there were.
        sft: How many are in ``sft.jsonl``.
        pairs: How many pairs are in ``pairs.jsonl``.
        sft_dropped: How many traces are not in ``sft.jsonl``, by the reason.
        pairs_dropped: How many traces and possible pairs are not in ``pairs.jsonl``, by the reason.
        kinds: How many pairs there are of each kind and source.
    """

    traces: int = 0
    sft: int = 0
    pairs: int = 0
    sft_dropped: dict[str, int] = field(default_factory=dict)
    pairs_dropped: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)


def make_sets(folder: Path, demands: Demands, pairing: Pairing, judged: bool = False) -> Sets:
    """Write ``sft.jsonl``, ``pairs.jsonl`` and ``data.json`` from what was collected in a folder.

    D_SFT has the right traces that were sampled or branched, D_DPO the pairs. Of the same traces the same
    files come, so that the call may be made again at any time.

    Args:
        folder: See `looks_folder`.
        demands: What a trace has to be.
        pairing: How pairs are made.
        judged: Whether right traces have to be right for a model, too (``verdicts.jsonl``, §4.1).

    Raises:
        ConfigError: Nothing was collected.
        DataError: A journal is damaged, or no right trace is left; the message says what was dropped and why.
    """
    found, everything = Sets(), list(all_traces(folder))
    found.traces = len(everything)
    curation = Curation(folder / IMAGES, demands)
    kept = curation.take(everything)
    if judged:
        kept = _as_judged(kept, folder, curation.dropped)
    right = [trace for trace in kept if trace.correct and trace.source not in _WHY_NOT]
    found.sft = len(right)
    unwanted = Counter(
        _WHY_NOT.get(trace.source, "their answer is wrong")
        for trace in kept
        if trace.source in _WHY_NOT or not trace.correct
    )
    found.sft_dropped = dict(curation.dropped + unwanted)
    if not right:
        reasons = ", ".join(f"{count} because {why}" for why, count in found.sft_dropped.items())
        raise DataError(f"{folder}: no right trace is left of {found.traces}; dropped: {reasons or 'none'}")
    pairs, dropped = make_pairs(kept, pairing)
    found.pairs, found.pairs_dropped = len(pairs), dict(curation.dropped + dropped)
    found.kinds = dict(Counter(f"{pair.kind}, {pair.source}" for pair in pairs))
    _write_lines(folder / SFT, map(sft_line, right))
    _write_lines(folder / PAIRS, map(pair_line, pairs))
    write_json(folder / ABOUT, {"demands": asdict(demands), "pairing": asdict(pairing), **asdict(found)})
    return found


_WHY_NOT = {
    "induced": "they were induced to be wrong", "hurried": "they were told to answer at once"
}  # fmt: skip
"""Why traces are not imitated, by their source."""


def sft_line(trace: VisualTrace) -> dict[str, Any]:
    """A line of ``sft.jsonl``."""
    return {
        "id": trace.id,
        "question_id": trace.problem,
        "data_source": trace.task,
        "category": trace.category,
        "messages": in_folder(trace.messages),
        "cuts": trace.cuts,
        "steps": trace.steps,
    }


def pair_line(pair: Pair) -> dict[str, Any]:
    """A line of ``pairs.jsonl``."""
    line = asdict(pair)
    return line | {name: in_folder(line[name]) for name in ("prompt", "chosen", "rejected")}


def in_folder(messages: Iterable[Message]) -> list[Message]:
    """Messages whose images are named as seen from beside the folder of images."""
    return [
        {
            "role": message["role"],
            "content": message["content"]
            if isinstance(message["content"], str)
            else [
                part | {"image": f"{IMAGES}/{part['image']}"} if is_image(part) else part
                for part in parts_of(message)
            ],
        }
        for message in messages
    ]


def _as_judged(traces: Iterable[VisualTrace], folder: Path, dropped: Counter[str]) -> list[VisualTrace]:
    """Traces without those whose right answer the model did not find right."""
    _, rows = read_journal(folder / VERDICTS, OnAnswer)
    opinions = {row.trace: row for row in rows.values()}
    kept = []
    for trace in traces:
        opinion = opinions.get(trace.id)
        if trace.correct and (opinion is None or opinion.right is None):
            dropped[NOT_JUDGED] += 1
        elif trace.correct and opinion is not None and not opinion.right:
            dropped[JUDGED_WRONG] += 1
        else:
            kept.append(trace)
    return kept


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with written_whole(path) as partial, partial.open("w", encoding="utf-8", errors="replace") as file:
        for line in lines:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
