"""Writes reports: self-contained HTML pages of runs and sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from selfverify.core.errors import DataError
from selfverify.core.files import flatten, make_folder, write_text
from selfverify.evaluation.breakdown import SHOWN, tabulate
from selfverify.evaluation.headline import READINGS
from selfverify.evaluation.metrics import COLUMNS, tabulate_errors
from selfverify.evaluation.samples import StoredSample
from selfverify.reports import charts
from selfverify.reports.film import PageImages, agent_film, answer_text, call_text, signed
from selfverify.reports.gallery import KINDS, agent_gallery, gallery, has_agents
from selfverify.reports.run_data import (
    STAGE_TITLES,
    STAGES,
    RunData,
    comparison,
    percent,
    points,
    table,
    tiles,
)
from selfverify.tasks.base import Task
from selfverify.tasks.tool_episode import shortened

_LONGEST = 6_000
"""Characters of a text that a frame shows; longer ones lose their middle."""


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
    runs = [RunData(Path(folder)) for folder in folders]
    names = [run.name for run in runs]
    for index, (run, folder) in enumerate(zip(runs, folders, strict=True)):
        run.colour = charts.RUN_COLOURS[index % len(charts.RUN_COLOURS)]
        if names.count(run.name) > 1:
            run.name = str(folder)
    images = PageImages()
    return _write_page(
        out,
        "report.html.j2",
        images,
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        runs=runs,
        sentence=sentence,
        tiles=tiles,
        table=table,
        flatten=flatten,
        scored=any(of.get("score_mean") is not None for run in runs for of in run.summaries.values()),
        breakdowns=[found for run in runs if (found := _breakdown(run))],
        errors=[
            (run, stage, rows)
            for run in runs
            for stage in STAGES
            if (rows := tabulate_errors(run.summaries.get(stage, {})))
        ],
        columns=COLUMNS,
        galleries=[(run, gallery(run, images)) for run in runs if not has_agents(run)],
        agent_cards=agent_gallery(runs, tasks, images),
        agents_only=all(has_agents(run) for run in runs),
        comparison=comparison(runs) if len(runs) > 1 else [],
        small="small" if len(runs) == 1 else "",
        stages=STAGE_TITLES,
        **{draw.__name__: list(draw(runs)) for draw in charts.SECTIONS},
        kinds={kind: title for kind, (title, _) in KINDS.items()},
    )


def write_agent_page(
    sample: StoredSample, entry: dict[str, Any], task: type[Task], about: str, images: Path, out: Path
) -> Path:
    """Write a page about one session of an agent.

    Args:
        sample: The session; its steps have their records.
        entry: The problem's ``id``, ``question`` and ``target``, as in a gallery.
        task: Draws the session, if it can.
        about: A sentence that says which agent acted, and where.
        images: The folder of the images that the sample names.
        out: The HTML file; its folder is created.

    Raises:
        DataError: The sample is no session of an agent.
    """
    kept = PageImages()
    shown = agent_film(sample, entry["target"], task, kept, images, open=True)
    if shown is None:
        raise DataError(f"{entry['id']}: there is no session of an agent to be shown")
    column = {"title": "", "colour": "best", "shows": [shown], "more": 0}
    card = {"id": entry["id"], "question": entry["question"], "columns": [column]}
    return _write_page(out, "agent_page.html.j2", kept, title=entry["question"][:80], about=about, card=card)


def _write_page(out: str | Path, template: str, images: PageImages, **shown: Any) -> Path:
    """Write a page that a template makes of what is shown."""
    page = _templates().get_template(template).render(images=images.kept, palette=charts.PALETTE, **shown)
    out = Path(out)
    make_folder(out.parent)
    write_text(out, page)
    return out


def _templates() -> Environment:
    """Return the pages' templates; all values that fill them are text."""
    made = Environment(
        loader=PackageLoader("selfverify.reports"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "answer": answer_text, "call": call_text, "cell": _cell, "percent": percent, "points": points,
        "short": partial(shortened, room=_LONGEST), "signed": signed, "with_code": _with_code,
    }  # fmt: skip
    return made


def sentence(run: RunData) -> Markup:
    """Return what happened in one sentence with figures, as HTML."""
    told = _templates().get_template("sentence.j2").render(run=run, stages=STAGE_TITLES, readings=READINGS)
    return Markup(re.sub(r"[ \n]+", " ", told).strip())


def _with_code(text: str) -> Markup:
    """A sentence of ours in which what stands between backticks is a command; all else is text."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _breakdown(run: RunData) -> tuple[RunData, list[dict[str, Any]], dict[str, str]] | None:
    """Return the task's own figures and categories of the later stage, and their heads; None without any."""
    for stage in reversed(STAGES):
        if rows := tabulate(run.summaries.get(stage, {})):
            total = run.summaries[stage].get("samples_per_problem", 0)
            heads = {rule.at(total): rule.title.format(n=total) for rule in SHOWN}
            heads |= {"part": run.stage_title(stage), "problems": "Problems", "figure": "Figure"}
            return run, rows, heads
    return None


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
