"""Tables in Markdown: for terminals, and for documents."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def percent(value: float | None) -> str:
    """A share in percent; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """A number with two decimals; a dash where there is none."""
    return "–" if value is None else f"{value:.2f}"


def grid(head: Sequence[str], body: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table in Markdown whose first columns, ``texts`` of them, are words."""
    rows = [[cell.replace("|", r"\|").replace("\n", " ") for cell in line] for line in (head, *body)]
    rule = [["---"] * texts + ["---:"] * (len(head) - texts)]
    return "\n".join(f"| {' | '.join(line)} |" for line in itertools.chain(rows[:1], rule, rows[1:]))
