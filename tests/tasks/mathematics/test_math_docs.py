"""The table in docs/reference/answers.md: which spellings are equal and which are not, by `verdicts.json`."""

from __future__ import annotations

import json
from pathlib import Path

from tables import read_tables

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "answers.md"
VERDICTS = Path(__file__).with_name("verdicts.json")


def table() -> str:
    """Return the table: of every target at most four right and four wrong answers."""
    known = json.loads(VERDICTS.read_text("utf-8"))
    lines = ["| target | right | wrong | because |", "|---|---|---|---|"]
    for section, target, reason in read_tables(Path(__file__).with_suffix(".yaml")):
        rows = [row for row in known[section] if row[0] == target and "\n" not in row[1] and row[1].strip()]
        shown = [[row[1] for row in rows if row[2] is right][:4] for right in (True, False)]
        assert any(shown), (section, target)
        cells = [
            (", ".join(f"`{text}`" for text in cell) or "–").replace("|", r"\|")
            for cell in ([target], *shown)
        ]
        lines.append(f"| {' | '.join(cells)} | {reason} |")
    return "\n".join(lines)


def test_the_docs_show_what_holds() -> None:
    assert table() in DOCS.read_text("utf-8"), f"docs/reference/answers.md needs this table:\n{table()}"
