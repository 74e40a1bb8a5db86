"""SmartSnap's Tables 1 to 3 of our runs as Markdown, with the paper's own rows beside them."""

from __future__ import annotations

from collections.abc import Sequence

from selfverify.agents.agent_figures import LEAST_SR
from selfverify.experiments.agent_tables import EVIDENCE, FIGURES, Row, Tables
from selfverify.experiments.markdown_tables import grid, number, percent
from selfverify.experiments.published_smartsnap import APPS, CITED, ROWS, TRAINING, VALIDATION


def markdown(tables: Tables, paper: bool = False, intervals: bool = False, by: str = "app") -> str:
    """The tables as text.

    Args:
        tables: What `agent_tables` has collected.
        paper: Add the paper's own rows.
        intervals: Add 95 % intervals (bootstrap over problems), where they are known.
        by: The heading of what Table 3 divides by.
    """
    parts = ["## Table 1: tasks", _distribution(tables, paper, by)]
    head = ["type", "model", "problems", *FIGURES]
    parts += ["## Table 2: AndroidLab's figures (%)", grid(head, _table_2(tables.rows, intervals), 2)]
    if paper:
        cited = [[r.type, r.model, "138", *map(number, r.figures)] for r in ROWS]
        parts += [f"Published ({CITED}, Table 2; AndroidLab, judged by GLM-4):", grid(head, cited, 2)]
    apps = sorted({app for row in tables.rows for app in row.apps})
    if apps:
        parts += [
            f"## Table 3: SR by {by} (%)",
            grid(["type", "model", *apps], _table_3(tables.rows, apps), 2),
        ]
    if paper:
        cited = [[r.type, r.model, *map(number, r.apps)] for r in ROWS if r.apps]
        parts += [f"Published ({CITED}, Table 3):", grid(["type", "model", *APPS], cited, 2)]
    if any(row.figures.get(name) is not None for row in tables.rows for name in EVIDENCE):
        parts += ["## Evidence and judges", grid(["type", "model", *EVIDENCE], _evidence(tables.rows), 2)]
    parts.append(
        f"RRR is not given where SR is below {LEAST_SR:.0%}. ROR compares pixels, or texts (ᵗ) where screens "
        "have no pictures. In brackets: points above PT of the same model."
    )
    return "\n\n".join([*parts, *tables.notes]) + "\n"


def _distribution(tables: Tables, paper: bool, by: str) -> str:
    """Table 1: a line per split."""
    lines = [(f"training ({label})", counts) for label, counts in tables.training.items()]
    seen: list[dict[str, int]] = []
    for row in tables.rows:
        if row.counts and row.counts not in seen:
            seen.append(row.counts)
            lines.append((f"evaluation ({row.type} {row.model})".replace("( ", "("), row.counts))
    apps = sorted({app for _, counts in lines for app in counts})
    body = []
    for name, counts in lines:
        total = sum(counts.values()) or 1
        shares = [f"{counts.get(app, 0)} ({counts.get(app, 0) / total:.1%})" for app in apps]
        body.append([name, *shares, str(sum(counts.values()))])
    found = [grid(["split", *apps, "total"], body)] if body else [f"No problem has a category {by!r}."]
    if paper:
        cited = [
            [name, *(f"{n} ({n / sum(counts):.1%})" for n in counts), str(sum(counts))]
            for name, counts in (("training", TRAINING), ("validation", VALIDATION))
        ]
        found += [f"Published ({CITED}, Table 1):", grid(["split", *APPS, "total"], cited)]
    return "\n\n".join(found)


def _table_2(rows: Sequence[Row], intervals: bool) -> list[list[str]]:
    prompted = {row.model: row.figures["SR"] for row in rows if row.type == "PT"}
    body = []
    for row in rows:
        cells = [row.type, row.model, str(row.problems)]
        for name in FIGURES:
            value, mark = row.figures[name], ""
            if name == "ROR" and value is None and row.figures["ROR-xml"] is not None:
                name, value, mark = "ROR-xml", row.figures["ROR-xml"], "ᵗ"
            text = percent(value) + mark
            base = prompted.get(row.model)
            if name == "SR" and row.type != "PT" and value is not None and base is not None:
                text += f" ({100 * (value - base):+.1f})".replace("-", "−")
            if intervals and name in row.intervals:
                low, high = row.intervals[name]
                text += f" [{percent(low)}, {percent(high)}]"
            cells.append(text)
        body.append(cells)
    return body


def _table_3(rows: Sequence[Row], apps: Sequence[str]) -> list[list[str]]:
    return [[row.type, row.model, *(percent(row.apps.get(app)) for app in apps)] for row in rows]


def _evidence(rows: Sequence[Row]) -> list[list[str]]:
    plain = ("evidence", "conciseness", "creativity")  # these are no shares
    return [
        [
            row.type,
            row.model,
            *(
                number(row.figures[name]) if name in plain else percent(row.figures[name])
                for name in EVIDENCE
            ),
        ]
        for row in rows
    ]
