"""Judged answers per second: our plain rules against math-verify's own judging of the same answers.

    python benchmarks/answers.py

The answers are those of the tests' table that we judge without math-verify. Both sides run in this process,
with CPU time taken; what they have read before is forgotten between repeats.
"""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from math_verify import parse, verify

from selfverify.tasks.math_answer import Target, compare
from selfverify.tasks.math_text import final_expression
from selfverify.tasks.math_values import read

TABLE = Path(__file__).parents[1] / "tests" / "tasks" / "mathematics" / "verdicts.json"
REPEATS = 5


def ours(target: str, answer: str) -> str:
    wanted, content = final_expression(target), final_expression(answer)
    return compare(Target(wanted), content).verdict if wanted and content else "wrong"


def theirs(target: str, answer: str) -> str:
    sides = [parse(f"${text}$", parsing_timeout=None) for text in (target, answer)]
    return "right" if verify(*sides, timeout_seconds=None) else "wrong"


def measured(judge: Callable[[str, str], str], rows: Sequence[Any]) -> tuple[float, int]:
    """Return answers per second, of the quickest repeat, and how many verdicts are those of the table."""
    seconds, same = [], 0
    for _ in range(REPEATS):
        read.cache_clear()
        begun = time.process_time()
        same = sum((judge(target, answer) == "right") == right for target, answer, right in rows)
        seconds.append(time.process_time() - begun)
    return len(rows) / min(seconds), same


if __name__ == "__main__":
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    known = itertools.chain.from_iterable(json.loads(TABLE.read_text("utf-8")).values())
    plain = [row for row in known if len(row) == 3 and ours(*row[:2]) != "ask" and len(row[1]) < 200]
    (fast, right), (slow, same) = (measured(judge, plain) for judge in (ours, theirs))
    print(f"{len(plain)} answers: {fast:,.0f} a second ({right} verdicts of the table) against math-verify's "
          f"{slow:,.0f} ({same}): {fast / slow:.1f} times as many")  # fmt: skip
