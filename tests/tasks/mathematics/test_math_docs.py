"""The table in docs/reference/answers.md: which spellings are equal and which are not, by `verdicts.json`."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "answers.md"
VERDICTS = Path(__file__).with_name("verdicts.json")
TELLING = [
    ("spellings, neighbours", "1/2", "one value, whatever its spelling"),
    ("numbers", "50%", "a missing per cent sign is forgiven"),
    ("thousands, neighbours", "12{,}345", "groups of three digits; a space behind the comma makes a list"),
    ("thousands, neighbours", "(1,234)", "in brackets one comma separates"),
    ("powers of ten, neighbours", "3e8", "powers of ten; a lone e is Euler's number"),
    ("underflow, neighbours", "10^{-400}", "no value is rounded to 0"),
    ("expressions", "2\\sqrt{3}", "expressions are exact without a `precision`"),
    ("spellings, neighbours", "\\sqrt[3]{4}", "without brackets a power ends with its number"),
    ("names, neighbours", "8", "before `=` stands a name, not something to be computed"),
    ("names, neighbours", "60", "or arithmetic, which has to be true"),
    ("names, neighbours", "(1,2)", "names in their order are a point"),
    ("names, neighbours", "1, 2", "solutions have no order"),
    ("labels, neighbours", "10-20 cm", "a range is no difference"),
    ("labels, neighbours", "2020-01-01", "nor is a date"),
    ("labels, neighbours", "3:4", "ratios and scores are compared as they are"),
    ("labels, neighbours", "May 1, 2012", "words with numbers are words"),
    ("signs that are no arithmetic", "12A", "a code is no product"),
    ("subscripts, neighbours", "101_2", "the base counts, and may be left out"),
    ("subscripts, neighbours", "x_1", "subscripts count"),
    ("degrees, neighbours", "\\frac{\\sqrt{2}}{2}", "in a function a degree is pi / 180"),
    ("units", "5 cm", "a unit may be missing, but not be another"),
    ("units, neighbours", "10 m/s", "units are read with their powers"),
    ("what is counted", "3", "a plural behind a number is what is counted; other words change it"),
    ("what is counted", "2 h 30 min", "each part has its unit"),
    ("inequalities", "x<3", "an inequality is an interval"),
    ("intervals, neighbours", "(-\\infty, 2) \\cup (3, \\infty)", "`or` is a union, `and` is none"),
    ("lists", "(1,2)", "brackets `( )` keep the order"),
    ("lists", "\\{1,2\\}", "sets have none"),
    ("times", "10:00 am", "times of day"),
    ("words", "AB", "words are no multiplied letters"),
    ("letters, neighbours", "B", "one option, and nothing that takes it back (here of 12, 15, 18, 21)"),
]
"""Section, target and reason of the rows to show."""


def table() -> str:
    """Return the table: of every target at most four right and four wrong answers."""
    known = json.loads(VERDICTS.read_text("utf-8"))
    lines = ["| target | right | wrong | because |", "|---|---|---|---|"]
    for section, target, reason in TELLING:
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
