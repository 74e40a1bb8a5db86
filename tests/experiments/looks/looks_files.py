"""A folder with traces and pairs made by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.experiments.looks.looks_recipe import make_pairs, trace

from selfverify.experiments.visual_sets import pair_line, sft_line
from selfverify.visual.pairs import Pairing


def write_looks(folder: Path, problems: int = 2, single: bool = False) -> Path:
    """Right and wrong traces of problems, which share a step; with ``single`` only the answers differ."""
    traces = []
    for number in range(problems):
        name, first = f"p{number}", f"so {number} crop"
        rest = () if single else ("then crop",)
        lied = () if single else ("else crop", "more crop")
        traces += [
            trace(folder, f"r{number}", first, *rest, f"it is {number}", problem=name),
            trace(folder, f"w{number}", first, *lied, f"it is not {number}", problem=name, right=False),
        ]
    pairs, _ = make_pairs(traces, Pairing(match_lengths=False))
    assert len(pairs) == problems
    write_lines(folder / "sft.jsonl", [sft_line(one) for one in traces if one.correct])
    write_lines(folder / "pairs.jsonl", [pair_line(pair) for pair in pairs])
    return folder


def write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
