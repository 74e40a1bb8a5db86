"""SmartSnap's Tables 1 to 3 (arXiv:2512.22322) of our runs and evaluations, and what its training is worth.

A row is a model in one stage: prompted (PT), fine-tuned with or without evidence (FT, FT vanilla), trained by
reinforcement (RL). Figures are those of a single sample at the evaluation's temperature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from reproduce.scripts import Paper, named_folders, script, show
from reproduce.tables import Column, Labels, figure_table, grid, of_one_sample, published_rows
from selfverify.agents.reward import LEAST_SR
from selfverify.agents.task import AgentTask
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_json
from selfverify.evaluation.breakdown import ACCURACY
from selfverify.experiments.registry import TASKS
from selfverify.reports.run_data import STAGES, is_evaluation, read_metrics

FIGURES = ("SR", "Sub-SR", "RRR", "ROR")
"""The paper's columns of Table 2, as AndroidLab computes them (`selfverify.agents.reward`)."""
TABLE_2 = (
    *(Column(name, name, bold=False) for name in FIGURES),
    Column("ROR-xml", "ROR of texts", bold=False),
    Column("above PT", "above PT", better=False, signed=True),
)
EVIDENCE = (
    Column("evidence", "evidence", percent=False, better=False),
    Column("completeness", "completeness", better=False),
    Column("conciseness", "conciseness", percent=False, better=False),
    Column("creativity", "creativity", percent=False, better=False),
    Column("judged-SR", "judged SR", better=False),
    Column("judge-false-positives", "judges' false positives", better=False),
)
"""More of what SmartSnap is about, in a table of our own."""
RULE = "pass@1"

Figures = dict[str, dict[str, Any]]


@dataclass(slots=True)
class Tables:
    """The tables' content, by the words of a row: type, model, and how many problems it is about.

    Args:
        figures: Tables 2 and of evidence: ``mean`` and ``interval`` by a figure's name.
        apps: Table 3: the same by app.
        counts: Table 1: problems by app.
        notes: What has to be said of single rows.
    """

    figures: dict[Labels, Figures] = field(default_factory=dict)
    apps: dict[Labels, Figures] = field(default_factory=dict)
    counts: dict[Labels, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def agent_tables(named: Sequence[str], by: str = "app") -> Tables:
    """Collect the rows of runs and evaluations.

    Args:
        named: ``FOLDER`` or ``TYPE:MODEL=FOLDER``, each with ``@before`` or ``@after`` where a run has both.
            A folder without a name gives a row for each stage that it has.
        by: The category by which Table 3 divides the problems.

    Raises:
        ConfigError: A folder is not there, has no such stage, or was measured on a task without agents;
            or two rows have one name.
        DataError: A file in it is damaged.
    """
    found = Tables()
    for text in named:
        label, folder, stage = _parsed(text)
        measured, trained = read_metrics(folder), not is_evaluation(folder)
        stages = [stage] if stage else [s for s in STAGES if measured.get(s)]
        if label and not stage:
            stages = stages[-1:]
        if not stages or not measured.get(stages[0]):
            what = f"no figures {stage} training" if stage else "no figures"
            raise ConfigError(f"{folder}: metrics.json has {what}; `selfverify eval` measures a model")
        task = ((measured.get("settings") or {}).get("task") or {}).get("name")
        if task not in TASKS or not issubclass(TASKS[task], AgentTask):
            raise ConfigError(f"{folder}: it is about task {task!r}, which is none of agents")
        for one in stages:
            type, model = label or (one if trained else "", folder.resolve().name)
            _add(found, (type, model, str(measured[one].get("problems") or 0)), measured[one], by)
    prompted = {row[1]: of["SR"]["mean"] for row, of in found.figures.items() if row[0] == "PT"}
    for (type, model, _), of in found.figures.items():
        sr, base = of["SR"]["mean"], prompted.get(model)
        if type != "PT" and None not in (sr, base):
            of["above PT"] = {"mean": sr - base, "interval": None}
    return found


def _parsed(text: str) -> tuple[tuple[str, str] | None, Path, str]:
    """Type and model, folder, and stage. A folder may have an equals sign in its name, as ``lr=1e-6``."""
    plain, at, stage = text.rpartition("@")
    if not at or stage not in STAGES:
        plain, stage = text, ""
    name, equals, place = plain.partition("=")
    if not equals or Path(plain).expanduser().is_dir():
        name, place = "", plain
    type, _, model = name.partition(":")
    if (name or plain.startswith("=")) and not (type and model):
        raise ConfigError(f"{text}: a row is FOLDER or TYPE:MODEL=FOLDER, such as RL:Qwen3-8B=runs/rl")
    folder = Path(place).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"{text}: there is no folder {folder}")
    return ((type, model) if name else None), folder, stage


def _add(found: Tables, row: Labels, summary: Mapping[str, Any], by: str) -> None:
    """Add a row of an evaluation's summary."""
    metrics, name = summary.get("metrics") or {}, " ".join(row[:2]).strip()
    names = [*FIGURES, "SR-all", "ROR-xml", *(str(column.key) for column in EVIDENCE)]
    figures = {figure: of_one_sample(metrics, figure) for figure in names}
    known = "SR" in metrics
    if not known:
        # Of a task whose goal nobody knows: whether the judges have found it done, of all problems.
        figures["SR"] = {"mean": summary.get(RULE), "interval": (summary.get("intervals") or {}).get(RULE)}
        found.notes.append(f"{name}: SR is what judges say: nobody else knows whether those tasks were done.")
    every = figures["SR-all"]["mean"]
    if every is not None and every != figures["SR"]["mean"]:
        found.notes.append(
            f"{name}: SR is over the tasks whose environment was not lost; over all of them, as AndroidLab "
            f"counts, it is {100 * every:.1f}."
        )
    groups = (summary.get("categories") or {}).get(by, {})
    if row in found.figures:
        raise ConfigError(f"two rows are called {name}; name them TYPE:MODEL=FOLDER")
    found.figures[row] = figures
    found.apps[row] = {a: of_one_sample(of, "SR" if known else ACCURACY.name) for a, of in groups.items()}
    found.counts[row] = {app: int(of["problems"]) for app, of in groups.items()}


def markdown(tables: Tables, paper: bool = False, by: str = "app") -> str:
    """The tables as text.

    Args:
        tables: What `agent_tables` has collected.
        paper: Add the paper's own rows.
        by: The heading of what Table 3 divides by.
    """
    head = ["type", "model", "problems"]
    figures, theirs = dict(tables.figures), dict[Labels, Figures]()
    counted = {tuple(of.items()): row for row, of in reversed(tables.counts.items()) if of}
    shares = [_shares(dict(counts), " ".join(row[:2]).strip()) for counts, row in counted.items()]
    if paper:
        figures |= published_rows("smartsnap", "2")
        theirs = published_rows("smartsnap", "3")
        for (name,), tasks in published_rows("smartsnap", "1").items():
            shares.append(_shares({app: round(100 * count["mean"]) for app, count in tasks.items()}, name))
    parts = ["## Table 1: tasks", *(shares or [f"No problem has a category {by!r}."])]
    parts += ["## Table 2: AndroidLab's figures", figure_table(head, figures, TABLE_2)]
    for of in (tables.apps, theirs):
        apps = sorted({app for row in of.values() for app in row})
        if apps:
            columns = [Column(app, app, bold=False) for app in apps]
            parts += [f"## Table 3: SR by {by}", figure_table(head, of, columns)]
    if any(of[str(column.key)]["mean"] is not None for of in tables.figures.values() for column in EVIDENCE):
        parts += ["## Evidence and judges", figure_table(head, tables.figures, EVIDENCE)]
    parts.append(
        f"RRR is not given where SR is below {LEAST_SR:.0%}. ROR compares pixels, or texts where screens "
        "have no pictures."
    )
    return "\n\n".join([*parts, *tables.notes]) + "\n"


def _shares(counts: Mapping[str, int], name: str) -> str:
    total = sum(counts.values())
    cells = [f"{count} ({count / total:.1%})" for count in counts.values()]
    return grid(["tasks", *counts, "total"], [[name, *cells, str(total)]])


def tables(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[TYPE:MODEL=]FOLDER[@before|@after]...",
            help="Folders of runs and evaluations, and what their rows are called.",
        ),
    ],
    paper: Paper = False,
    by: Annotated[str, typer.Option(help="The category by which the third table divides problems.")] = "app",
    output: Annotated[Path | None, typer.Option(help="A file for the tables, in Markdown.")] = None,
) -> None:
    """Print SmartSnap's Tables 1 to 3 of runs and evaluations: tasks, AndroidLab's figures, success by app.

    A row is a model that was prompted (PT), fine-tuned without evidence (FT vanilla) or with it (FT), or
    trained by reinforcement (RL). A folder without a name gives a row for each stage that it has.

    Examples:

    - `python -m reproduce.smartsnap tables runs/smartsnap-phone`

    - `python -m reproduce.smartsnap tables PT:Qwen3-8B=evals/base "FT vanilla:Qwen3-8B=evals/vanilla"
      FT:Qwen3-8B=runs/rl@before RL:Qwen3-8B=runs/rl --paper`
    """
    show(markdown(agent_tables(runs, by), paper, by), output)


def gains(
    study: Annotated[Path, typer.Argument(help="The folder of the study `smartsnap-phone`.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    named: Annotated[list[str] | None, typer.Argument(metavar="[NAME=MODEL]...", help="More models.")] = None,
) -> None:
    """Measure every model of the study on new tasks; `reproduce/smartsnap_gains.py` has an example."""
    from reproduce.smartsnap_gains import compared  # the phone is a distribution of its own

    write_json(result, compared(study, dict(named_folders(named or []))))


def synergy(
    runs: Annotated[Path, typer.Argument(help="The folder of `smartsnap-starts` and `smartsnap-synergy`.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
) -> None:
    """Compare agents that hand in evidence with agents that do not, before and after training."""
    from reproduce import smartsnap_synergy  # the phone is a distribution of its own

    write_json(result, smartsnap_synergy.synergy(runs))


def failures(
    run: Annotated[Path, typer.Argument(help="A run's folder that has kept its rollouts.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
) -> None:
    """Say what goes wrong in a run's conversations, and how many groups hold both ends."""
    from reproduce import smartsnap_failures  # the phone is a distribution of its own

    write_json(result, smartsnap_failures.failures(run))


def chances(
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    named: Annotated[list[str], typer.Argument(metavar="NAME=MODEL...", help="The models.")],
) -> None:
    """Say how likely models are to do the expert's next call."""
    from reproduce import smartsnap_failures  # the phone is a distribution of its own

    write_json(result, smartsnap_failures.chances(dict(named_folders(named))))


def curves(
    study: Annotated[Path, typer.Argument(help="The folder of a study such as `smartsnap-phone-judges`.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    figure: Annotated[Path | None, typer.Option(help="A PNG file for them as a picture.")] = None,
) -> None:
    """Say over the steps of a study's runs what the judge said, and what was so."""
    from reproduce import smartsnap_curves

    found = smartsnap_curves.curves(study)
    write_json(result, found)
    if figure:
        smartsnap_curves.draw(found, figure)


app = script(
    *(tables, gains, synergy, failures, chances, curves),
    about="SmartSnap's tables of our own runs, and what its training is worth.",
)

if __name__ == "__main__":
    app()
