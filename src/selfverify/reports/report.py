"""Writes reports: self-contained HTML pages of runs, sessions and traces, and a picture for a README."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from selfverify.core.errors import DataError
from selfverify.core.files import flatten, make_folder, write_bytes, write_text
from selfverify.core.problem import content_text
from selfverify.evaluation.breakdown import SHOWN, tabulate
from selfverify.evaluation.metrics import COLUMNS, ERRORS, MISSING, tabulate_errors
from selfverify.evaluation.samples import StoredSample
from selfverify.reports import charts, plots
from selfverify.reports.film import Drawings, Pictures, agent_film, film_of_trace
from selfverify.reports.gallery import KINDS, agent_gallery, gallery, has_agents
from selfverify.reports.run_data import (
    STAGE_TITLES,
    STAGES,
    RunData,
    comparison,
    load_run,
    sentence,
    stage_title,
    table,
    talk_times,
    tiles,
    turn_categories,
)
from selfverify.tasks.base import Task
from selfverify.visual.traces import VisualTrace


def write_report(
    run_dirs: Sequence[str | Path] | str | Path,
    out: str | Path,
    tasks: Mapping[str, type[Task]] = MappingProxyType({}),
) -> Path:
    """Write the page.

    A run's folder holds ``metrics.json`` (``{"before": summary, "after": summary, "settings": {...}}``),
    ``metrics.jsonl`` (one object per training step), ``samples-before.jsonl`` and ``samples-after.jsonl``
    (`selfverify.evaluation.samples`), and ``gallery/problems.json`` (a list of ``{"id", "question", "target",
    "image"}``, images relative to it). A part whose file is missing is left out, with a line that says so.

    Args:
        run_dirs: One folder, or several, which are then shown side by side.
        out: The HTML file; its folder is created.
        tasks: By name; those that can draw their sessions do (`Task.frames`).

    Returns:
        The path of the file.

    Raises:
        DataError: A folder does not exist or holds nothing of a run, or a file in it is corrupt.
    """
    folders = [run_dirs] if isinstance(run_dirs, (str, Path)) else list(run_dirs)
    if not folders:
        raise DataError("a report needs at least one run")
    runs = [load_run(Path(folder)) for folder in folders]
    names = [run.name for run in runs]
    for index, (run, folder) in enumerate(zip(runs, folders, strict=True)):
        run.colour = plots.RUN_COLOURS[index % len(plots.RUN_COLOURS)]
        if names.count(run.name) > 1:
            run.name = str(folder)
    drawings = Drawings()
    agents = agent_gallery(runs, tasks, drawings)
    page = (
        templates()
        .get_template("report.html.j2")
        .render(
            title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
            palette=plots.PALETTE,
            runs=[
                {
                    "name": run.name,
                    "colour": run.colour,
                    "sentence": sentence(run),
                    "tiles": tiles(run),
                    "headline": run.headline,
                    "table": table(run),
                    "breakdown": _breakdown(run),
                    "errors": _errors(run),
                    "scored": any(of.get("score_mean") is not None for of in run.summaries.values()),
                    "turn_categories": turn_categories(run),
                    "gallery": [] if has_agents(run) else gallery(run),
                    "times": talk_times(run),
                    "settings": [
                        (name, _plain(value)) for name, value in sorted(flatten(run.settings).items())
                    ],
                    "happened": run.happened,
                    "missing": run.missing,
                }
                for run in runs
            ],
            agent_cards=agents,
            agents_only=all(has_agents(run) for run in runs),
            drawn=list(drawings.known.values()),
            comparison=comparison(runs) if len(runs) > 1 else [],
            small="small" if len(runs) == 1 else "",
            stages=[(stage, STAGE_TITLES[stage]) for stage in STAGES],
            accuracy=list(charts.accuracy(runs)),
            stopping=list(charts.stopping(runs)),
            turns=list(charts.turns(runs)),
            training=list(charts.training(runs)),
            conversations=list(charts.conversations(runs)),
            signal=list(charts.signal(runs)),
            scores=list(charts.scores(runs)),
            kinds={kind: title for kind, (title, _) in KINDS.items()},
        )
    )
    out = Path(out)
    make_folder(out.parent)
    write_text(out, page)
    return out


def write_agent_page(
    sample: StoredSample, entry: dict[str, Any], task: type[Task], about: str, images: Path, out: Path
) -> Path:
    """Write a page about one session of an agent.

    Args:
        sample: The session; its steps have their records.
        entry: The problem's ``id``, ``question`` and ``target``, as in a gallery.
        task: Draws the session, if it can.
        about: Who acted and where, in a sentence.
        images: The folder of the images that the sample names.
        out: The HTML file; its folder is created.

    Raises:
        DataError: The sample is no session of an agent.
    """
    drawings = Drawings()
    shown = agent_film(sample, entry["target"], task, Pictures(images), drawings, open=True)
    if shown is None:
        raise DataError(f"{entry['id']}: there is no session of an agent to be shown")
    column = {"title": "", "colour": "best", "shows": [shown], "more": 0}
    page = (
        templates()
        .get_template("agent_page.html.j2")
        .render(
            about=about,
            card={"id": entry["id"], "question": entry["question"], "columns": [column]},
            palette=plots.PALETTE,
            drawn=list(drawings.known.values()),
        )
    )
    make_folder(out.parent)
    write_text(out, page)
    return out


def templates() -> Environment:
    """The pages' templates; whatever they are filled with is text."""
    made = Environment(
        loader=PackageLoader("selfverify.reports"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters["with_code"] = _with_code
    return made


def _with_code(text: str) -> Markup:
    """A sentence of ours in which what stands between backticks is a command; all else is text."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def write_overview(run_dir: str | Path, png_path: str | Path) -> Path:
    """Write a PNG of 1600 x 700 pixels: accuracy against N and score histograms, before and after.

    Raises:
        DataError: The run has neither summaries with curves nor stored samples.
    """
    run = load_run(Path(run_dir))
    curves, scores = [], []
    for stage in STAGES:
        if found := run.summaries.get(stage, {}).get("curves"):
            curves.append((f"Accuracy {stage} training", found))
        if run.samples.get(stage):
            scores.append((f"Scores {stage} training", *run.scores(stage)))
    if not curves or not scores:
        raise DataError(
            f"{run_dir} has no evaluated samples to draw: neither samples-before nor samples-after"
        )
    png_path = Path(png_path)
    make_folder(png_path.parent)
    write_bytes(png_path, plots.overview(curves, scores))
    return png_path


def _breakdown(run: RunData) -> dict[str, Any] | None:
    """Return the task's own figures and categories of the later stage as text; None without any."""
    for stage in reversed(STAGES):
        if rows := tabulate(run.summaries.get(stage, {})):
            total = run.summaries[stage].get("samples_per_problem", 0)
            names = {rule.at(total): rule.title.format(n=total) for rule in SHOWN}
            names |= {"part": stage_title(run, stage), "problems": "Problems", "figure": "Figure"}
            cells = [[_cell(value) for value in row.values()] for row in rows]
            return {"heads": [names[key] for key in rows[0]], "rows": cells}
    return None


def _errors(run: RunData) -> list[dict[str, Any]]:
    """Return each stage's figures by class of error as text; nothing where a task names no classes."""
    found = []
    for stage in STAGES:
        if rows := tabulate_errors(run.summaries.get(stage, {})):
            intervals = run.summaries[stage].get("intervals") or {}
            heads = ["Class", *(COLUMNS[name] for name in rows[0] if name != "error")]
            cells = [
                [
                    {
                        "value": _cell(value),
                        "interval": _ends(intervals.get(f"{ERRORS}.{row['error']}.{name}")),
                        "words": name == MISSING,
                    }
                    for name, value in row.items()
                ]
                for row in rows
            ]
            found.append({"title": stage_title(run, stage), "heads": heads, "rows": cells})
    return found


def _ends(interval: Sequence[float] | None) -> str:
    """An interval as text; empty where there is none."""
    return f"{interval[0]:.3f} – {interval[1]:.3f}" if interval else ""


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def write_look_page(
    traces: Sequence[VisualTrace], about: str, images: Path, out: Path, more: int = 0
) -> Path:
    """Write a page with a film strip of each trace.

    Args:
        traces: What is shown.
        about: Where they come from, in a sentence.
        images: The folder of the images that they name. Those that are gone are left out, and that is said.
        out: The HTML file; its folder is created.
        more: How many others there are.

    Returns:
        The path of the file.

    Raises:
        DataError: There is no trace.
    """
    if not traces:
        raise DataError("there is no conversation to be shown")
    pictures = Pictures(images)
    cards = [
        {
            "id": trace.id,
            "question": content_text(trace.messages[0]["content"]).strip(),
            "film": film_of_trace(trace, pictures),
        }
        for trace in traces
    ]
    page = templates().get_template("look_page.html.j2").render(
        cards=cards, about=about, more=more, palette=plots.PALETTE
    )  # fmt: skip
    make_folder(out.parent)
    write_text(out, page)
    return out
