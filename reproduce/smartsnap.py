"""SmartSnap's Tables 1 to 3 (arXiv:2512.22322) of our runs and evaluations, and what its training is worth.

A row is a model in one stage: prompted (PT), fine-tuned with or without evidence (FT, FT vanilla), trained by
reinforcement (RL). Figures are those of a single sample at the evaluation's temperature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from reproduce.published import published
from reproduce.scripts import named_folders, script
from reproduce.tables import grid, number, percent
from selfverify.agents.reward import LEAST_SR
from selfverify.agents.task import AgentTask
from selfverify.cli.options import Json, print_json
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_json, write_text
from selfverify.evaluation.breakdown import ACCURACY
from selfverify.experiments.registry import TASKS
from selfverify.reports.run_data import is_evaluation, read_metrics

Stage = Literal["before", "after"]
FIGURES = ("SR", "Sub-SR", "RRR", "ROR")
"""The columns of Table 2, as AndroidLab computes them (`selfverify.agents.reward`)."""
EVIDENCE = ("evidence", "completeness", "conciseness", "creativity", "judged-SR", "judge-false-positives")
"""What SmartSnap is about beside that, in a table of our own."""
RULE = "pass@1"
PAPER = published("smartsnap")
"""What the authors report."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model in one stage.

    Args:
        type: PT, FT vanilla, FT, RL, or whatever it is called.
        model: The model.
        source: Where the figures come from.
        problems: Problems that they are about.
        figures: By name; None where nothing is known, or where a rule withholds it.
        intervals: 95 % intervals of some of them.
        success: What stands in ``SR``: the ground truth, or what judges say where nobody knows that.
        apps: SR by app.
        counts: Problems by app.
    """

    type: str
    model: str
    source: str
    problems: int
    figures: dict[str, float | None]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    success: Literal["truth", "judges"] = "truth"
    apps: dict[str, float | None] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables' content.

    Args:
        rows: The rows of all tables.
        notes: What has to be said of single rows.
    """

    rows: list[Row]
    notes: list[str]


def agent_tables(named: Sequence[str], by: str = "app") -> Tables:
    """Collect the rows of runs and evaluations.

    Args:
        named: ``FOLDER`` or ``TYPE:MODEL=FOLDER``, each with ``@before`` or ``@after`` where a run has both.
            A folder without a name gives a row for each stage that it has.
        by: The category by which Table 3 divides the problems.

    Raises:
        ConfigError: A folder is not there, has no such stage, or was measured on a task without agents.
        DataError: A file in it is damaged.
    """
    rows: list[Row] = []
    notes: list[str] = []
    for text in named:
        label, folder, stage = _parsed(text)
        measured, trained = read_metrics(folder), not is_evaluation(folder)
        stages = [stage] if stage else [s for s in get_args(Stage) if measured.get(s)]
        if label and not stage:
            stages = stages[-1:]
        if not stages or not measured.get(stages[0]):
            what = f"no figures {stage} training" if stage else "no figures"
            raise ConfigError(f"{folder}: metrics.json has {what}; `selfverify eval` measures a model")
        _check(measured.get("settings") or {}, folder)
        for found in stages:
            type, model = label or (found if trained else "", folder.resolve().name)
            rows.append(_row(type, model, f"{folder}, {found} training", measured[found], by))
    for row in rows:
        every = row.figures["SR-all"]
        if every is not None and every != row.figures["SR"]:
            notes.append(
                f"{row.type} {row.model}: SR is over the tasks whose environment was not lost; over all of "
                f"them, as AndroidLab counts, it is {percent(every)}."
            )
    unknown = [f"{row.type} {row.model}".strip() for row in rows if row.success == "judges"]
    if unknown:
        notes.append(
            f"SR of {', '.join(unknown)} is what judges say: nobody else knows whether those tasks were done."
        )
    return Tables(rows, notes)


def _parsed(text: str) -> tuple[tuple[str, str] | None, Path, Stage | None]:
    """Type and model, folder, and stage. A folder may have an equals sign in its name, as ``lr=1e-6``."""
    stage: Stage | None = None
    plain = text
    for known in get_args(Stage):
        if plain.endswith(f"@{known}"):
            plain, stage = plain.removesuffix(f"@{known}"), known
    name, equals, place = plain.partition("=")
    type, colon, model = name.partition(":")
    if equals and Path(plain).expanduser().is_dir():
        equals, place = "", plain
    if equals and not (type and colon and model):
        raise ConfigError(f"{text}: a row is FOLDER or TYPE:MODEL=FOLDER, such as RL:Qwen3-8B=runs/rl")
    if not equals:
        place = plain
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{text}: there is no folder {folder}")
    return ((type, model) if equals else None), folder, stage


def _row(type: str, model: str, source: str, summary: Mapping[str, Any], by: str) -> Row:
    metrics = summary.get("metrics") or {}
    known = "SR" in metrics
    figures = {name: _value(metrics, name) for name in (*FIGURES, "SR-all", "ROR-xml", *EVIDENCE)}
    intervals = {
        name: tuple(found)
        for name in figures
        if (found := metrics.get(name, {}).get("intervals", {}).get(RULE))
    }
    if not known:
        # Of a task whose goal nobody knows: whether the judges have found it done, of all problems.
        figures["SR"] = summary.get(RULE)
        if found := (summary.get("intervals") or {}).get(RULE):
            intervals["SR"] = tuple(found)
    groups = (summary.get("categories") or {}).get(by, {})
    return Row(
        type,
        model,
        source,
        int(summary.get("problems") or 0),
        figures,
        intervals,
        "truth" if known else "judges",
        {app: _value(found, "SR" if known else ACCURACY.name) for app, found in groups.items()},
        {app: int(found["problems"]) for app, found in groups.items()},
    )


def _check(settings: Mapping[str, Any], folder: Path) -> None:
    """See that a folder is about agents."""
    task = settings.get("task", {}).get("name") if isinstance(settings.get("task"), dict) else None
    if task not in TASKS or not issubclass(TASKS[task], AgentTask):
        raise ConfigError(f"{folder}: it is about task {task!r}, which is none of agents")


def _value(metrics: Mapping[str, Any], name: str) -> float | None:
    curve = metrics.get(name, {}).get("curves", {}).get(RULE)
    return None if not curve else curve[-1]


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
        cited = [[r["type"], r["model"], "138", *map(number, r["figures"])] for r in PAPER["rows"]]
        parts += [
            f"Published ({PAPER['cited']}, Table 2; AndroidLab, judged by GLM-4):",
            grid(head, cited, 2),
        ]
    apps = sorted({app for row in tables.rows for app in row.apps})
    if apps:
        parts += [
            f"## Table 3: SR by {by} (%)",
            grid(["type", "model", *apps], _table_3(tables.rows, apps), 2),
        ]
    if paper:
        cited = [[r["type"], r["model"], *map(number, r["apps"])] for r in PAPER["rows"] if r.get("apps")]
        parts += [
            f"Published ({PAPER['cited']}, Table 3):",
            grid(["type", "model", *PAPER["apps"]], cited, 2),
        ]
    if any(row.figures.get(name) is not None for row in tables.rows for name in EVIDENCE):
        parts += ["## Evidence and judges", grid(["type", "model", *EVIDENCE], _evidence(tables.rows), 2)]
    parts.append(
        f"RRR is not given where SR is below {LEAST_SR:.0%}. ROR compares pixels, or texts (ᵗ) where screens "
        "have no pictures. In brackets: points above PT of the same model."
    )
    return "\n\n".join([*parts, *tables.notes]) + "\n"


def _distribution(tables: Tables, paper: bool, by: str) -> str:
    """Table 1: how many problems of each app there were."""
    counted = {
        tuple(row.counts.items()): f"{row.type} {row.model}".strip()
        for row in reversed(tables.rows)
        if row.counts
    }
    found = [_shares(dict(counts), name) for counts, name in counted.items()]
    if not found:
        found = [f"No problem has a category {by!r}."]
    for name in ("training", "validation") if paper else ():
        counts = dict(zip(PAPER["apps"], PAPER[name], strict=True))
        found.append(_shares(counts, f"published ({PAPER['cited']}, Table 1), {name}"))
    return "\n\n".join(found)


def _shares(counts: Mapping[str, int], name: str) -> str:
    total = sum(counts.values())
    cells = [f"{count} ({count / total:.1%})" for count in counts.values()]
    return grid(["tasks", *counts, "total"], [[name, *cells, str(total)]])


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
            *((number if name in plain else percent)(row.figures[name]) for name in EVIDENCE),
        ]
        for row in rows
    ]


def tables(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[TYPE:MODEL=]FOLDER[@before|@after]...",
            help="Folders of runs and evaluations, and what their rows are called.",
        ),
    ],
    paper: Annotated[bool, typer.Option("--paper", help="Print the paper's published figures, too.")] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Print 95 % intervals (bootstrap over problems).")
    ] = False,
    by: Annotated[str, typer.Option(help="The category by which the third table divides problems.")] = "app",
    output: Annotated[Path | None, typer.Option(help="A file for the tables, in Markdown.")] = None,
    as_json: Json = False,
) -> None:
    """Print SmartSnap's Tables 1 to 3 of runs and evaluations: tasks, AndroidLab's figures, success by app.

    A row is a model that was prompted (PT), fine-tuned without evidence (FT vanilla) or with it (FT), or
    trained by reinforcement (RL). A folder without a name gives a row for each stage that it has.

    Examples:

    - `python -m reproduce.smartsnap tables runs/smartsnap-phone`

    - `python -m reproduce.smartsnap tables PT:Qwen3-8B=evals/base "FT vanilla:Qwen3-8B=evals/vanilla"
      FT:Qwen3-8B=runs/rl@before RL:Qwen3-8B=runs/rl --paper`
    """
    found = agent_tables(runs, by)
    text = markdown(found, paper, intervals, by)
    if output is not None:
        write_text(output, text)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(text, nl=False)


def gains(
    study: Annotated[Path, typer.Argument(help="The folder of the study `smartsnap-phone`.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    named: Annotated[list[str] | None, typer.Argument(metavar="[NAME=MODEL]...", help="More models.")] = None,
) -> None:
    """Measure every model of the study on new tasks; `reproduce/smartsnap_gains.py` has an example."""
    from reproduce.smartsnap_gains import compared  # the phone is a distribution of its own

    write_json(result, compared(study, dict(named_folders(named or []))))


app = script(tables, gains, about="SmartSnap's tables of our own runs, and what its training is worth.")

if __name__ == "__main__":
    app()
