"""One self-contained HTML page about one or several runs, and an overview picture for a README."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from selfverify.errors import DataError
from selfverify.evaluation import figures
from selfverify.evaluation.breakdown import SHOWN, tabulate
from selfverify.evaluation.gallery import KINDS, gallery
from selfverify.evaluation.run_data import STAGES, RunData, load_run
from selfverify.evaluation.wording import (
    STAGE_TITLES,
    comparison,
    sentence,
    stage_title,
    table,
    tiles,
    turn_categories,
)

LEARNING_CURVES = {
    "reward/answer": ("Answer reward", "Mean reward of the answers, format part included.", False),
    "accuracy": ("Accuracy", "Share of sampled answers that are right (pass rate).", True),
    "verification/auc": (
        "Within-problem AUC", "How often a right answer outscores a wrong one of its problem (sampled).",
        False,
    ),
    "reward/verification": ("Verification reward", "Mean reward of the scores.", False),
    "verification/score_mean": ("Mean score", "Drifting to 1 or 0 means scores say less and less.", False),
    "verification/score_std": ("Spread of scores", "Standard deviation of all scores of a step.", False),
    "format/answer": ("Readable answers", "Share of answers that could be parsed.", True),
    "format/score": ("Readable scores", "Share of scores that could be parsed.", True),
    "turns/acc@t1": ("First answers", "Share of first answers that are right (AdaPO's Fig. 2).", True),
    "turns/acc@t2": ("Second answers", "Share of answers that are right after a second turn.", True),
    "turns/0->1": ("Corrected", "Share of answers that the second turn corrects.", True),
    "turns/1->0": ("Spoiled", "Share of answers that the second turn spoils.", True),
    "tokens/response": ("Response length", "Mean number of tokens the model writes.", False),
    "truncated": ("Cut off", "Share of responses that hit the length limit.", True),
    "groups/kept": ("Groups that teach", "Problems of a step whose samples differ in some reward.", False),
    "kl": ("KL to the reference", "How far the policy has moved from the model it started as.", False),
    "clip_share": ("Clipped tokens", "Share of trained tokens whose ratio was clipped.", True),
    "grad_norm": ("Gradient norm", "Before clipping.", False),
    "tokens_per_s": ("Tokens per second", "Sampled tokens over the time of a whole training step.", False),
}  # fmt: skip
"""Logged metrics that a report draws if they are there: title, explanation, whether it is a share."""

MANY_POINTS = 40
"""A curve of more points is drawn with its running mean."""

SIGNAL_CURVES = {
    "verification/correct_given_reward1": ("right, given reward 1", "right"),
    "verification/score_is_1": ("score is 1", "wrong"),
}


def write_report(run_dirs: Sequence[str | Path] | str | Path, out: str | Path) -> Path:
    """Write the page.

    A run's folder holds ``metrics.json`` (``{"before": summary, "after": summary, "settings": {...}}``),
    ``metrics.jsonl`` (one object per training step), ``samples-before.jsonl`` and ``samples-after.jsonl``
    (`selfverify.evaluation.store`), and ``gallery/problems.json`` (a list of ``{"id", "question", "target",
    "image"}``, images relative to it). A part whose file is missing is left out, with a line that says so.

    Args:
        run_dirs: One folder, or several, which are then shown side by side.
        out: The HTML file; its folder is created.

    Returns:
        The path of the file.

    Raises:
        DataError: A folder does not exist or a file in it is corrupt.
    """
    folders = [run_dirs] if isinstance(run_dirs, (str, Path)) else list(run_dirs)
    if not folders:
        raise DataError("a report needs at least one run")
    runs = [load_run(Path(folder)) for folder in folders]
    names = [run.name for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if names.count(run.name) > 1:
            run.name = str(folder)
    environment = Environment(
        loader=PackageLoader("selfverify.evaluation"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    page = environment.get_template("report.html.j2").render(
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        palette=figures.PALETTE,
        runs=[
            {
                "name": run.name,
                "colour": figures.RUN_COLOURS[index % len(figures.RUN_COLOURS)],
                "sentence": sentence(run),
                "tiles": tiles(run),
                "table": table(run),
                "breakdown": _breakdown(run),
                "turn_categories": turn_categories(run),
                "gallery": gallery(run),
                "settings": sorted((key, _plain(value)) for key, value in _flat(run.settings)),
                "happened": run.happened,
                "missing": run.missing,
            }
            for index, run in enumerate(runs)
        ],
        comparison=comparison(runs) if len(runs) > 1 else [],
        small="small" if len(runs) == 1 else "",
        stages=[(stage, STAGE_TITLES[stage]) for stage in STAGES],
        accuracy=list(_accuracy(runs)),
        turns=list(_turns(runs)),
        training=list(_training(runs)),
        signal=list(_signal(runs)),
        scores=list(_scores(runs)),
        kinds={kind: title for kind, (title, _) in KINDS.items()},
    )
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")
    return out


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
    png_path.parent.mkdir(parents=True, exist_ok=True)
    png_path.write_bytes(figures.overview(curves, scores))
    return png_path


Chart = dict[str, Any]


def _chart(
    draw: Callable[[Any], None], label: str, note: str = "", size: tuple[float, float] = (4.8, 3.0)
) -> Chart:
    return {"svg": figures.svg(draw, label, size), "note": note}


def _accuracy(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Fig.: accuracy against N, one chart per run and stage, all with the same limits."""
    found = [
        (run, stage, run.summaries[stage]["curves"])
        for run in runs
        for stage in STAGES
        if run.summaries.get(stage, {}).get("curves")
    ]
    limits = figures.accuracy_limits([curves for _, _, curves in found])
    for run, stage, curves in found:
        title = _title(runs, run, stage_title(run, stage))
        yield _chart(
            partial(figures.draw_accuracy, curves=curves, title=title, limits=limits),
            f"Accuracy by samples per problem, {run.name}, {stage} training",
        )


def _turns(runs: Sequence[RunData]) -> Iterator[Chart]:
    """AdaPO's Fig. 4, all runs in one chart, and its Fig. 2, a chart per run."""
    points = []
    for index, run in enumerate(runs):
        for stage in STAGES:
            found = run.summaries.get(stage, {}).get("turns")
            if found:
                strong = stage == "after" or "turns" not in run.summaries.get("after", {})
                colour = figures.RUN_COLOURS[index % len(figures.RUN_COLOURS)] if strong else "pass"
                name = stage if len(runs) == 1 else f"{run.name}, {stage}"
                shade = figures.PALETTE[colour]
                points.append(figures.Bubble(name, shade, found["1->0"], found["0->1"]))
    if points:
        yield _chart(
            partial(figures.draw_bubbles, points=points, title="Corrected and spoiled"),
            "Shares of answers that second turns corrected and spoiled",
            "As many are corrected as are spoiled on the dotted line. A bubble is as large as the change in "
            "accuracy, and hollow where it is a loss (AdaPO's Fig. 4).",
            size=(4.8, 4.2),
        )
    for run in runs:
        lines = []
        for turn, colour in (("1", "pass"), ("2", "best")):
            steps, values = run.turn_accuracy(turn)
            if len(steps):
                lines.append((f"turn {turn}", colour, steps, values))
        if lines:
            title = _title(runs, run, "Both turns over training")
            many = len(lines[0][2]) > MANY_POINTS
            yield _chart(
                partial(figures.draw_lines, lines=lines, title=title, percent=True, smoothed=many),
                f"Accuracy of both turns over training, {run.name}",
                "Of validation problems where measured often, else of training's (AdaPO's Fig. 2).",
            )


def _training(runs: Sequence[RunData]) -> Iterator[Chart]:
    """A chart per logged metric, with one line per run."""
    for name, (title, note, percent) in LEARNING_CURVES.items():
        lines = []
        for index, run in enumerate(runs):
            steps, values = run.series(name)
            if not np.isnan(values).all():
                colour = figures.RUN_COLOURS[index % len(figures.RUN_COLOURS)]
                lines.append((run.name if len(runs) > 1 else "", colour, steps, values))
        if lines:
            yield _chart(
                partial(figures.draw_lines, lines=lines, title=title, percent=percent),
                f"{title} over training steps",
                note,
                size=(4.0, 2.5) if len(runs) == 1 else (4.8, 2.7),
            )


def _signal(runs: Sequence[RunData]) -> Iterator[Chart]:
    """ADPO's Fig. 2 and 7: what a verification reward of 1 is paid for, and whether scores collapse to 1."""
    for run in runs:
        lines = []
        for name, (label, colour) in SIGNAL_CURVES.items():
            steps, values = run.series(name)
            if not np.isnan(values).all():
                lines.append((label, colour, steps, values))
        if lines:
            title = _title(runs, run, "Reward signal over training")
            yield _chart(
                partial(_draw_signal, lines=lines, title=title),
                f"Reward signal over training, {run.name}",
            )  # fmt: skip


def _draw_signal(axes: Any, lines: list[Any], title: str) -> None:
    figures.draw_lines(axes, lines, title, percent=True)
    axes.set_ylim(0, 1.02)


def _scores(runs: Sequence[RunData]) -> Iterator[Chart]:
    """ADPO's Fig. 8: score distributions; runs side by side, before and after."""
    for run in runs:
        for stage in STAGES:
            right, wrong = run.scores(stage)
            if len(right) + len(wrong):
                title = _title(runs, run, stage_title(run, stage))
                yield _chart(
                    partial(figures.draw_histogram, right=right, wrong=wrong, title=title),
                    f"Scores of right and wrong answers, {run.name}, {stage} training",
                )  # fmt: skip
            elif run.samples.get(stage):
                run.leave_out("scores", f"The samples {stage} training carry no soft scores.")


def _breakdown(run: RunData) -> dict[str, Any] | None:
    """The task's own figures and categories of the later stage, as text."""
    stage = next((stage for stage in reversed(STAGES) if tabulate(run.summaries.get(stage, {}))), None)
    if stage is None:
        return None
    total = run.summaries[stage]["samples_per_problem"]
    rows = [
        {**row, **{rule: "–" if row[rule] is None else f"{row[rule]:.3f}" for rule in SHOWN}}
        for row in tabulate(run.summaries[stage])
    ]
    return {"stage": stage_title(run, stage), "n": total, "rows": rows}


def _title(runs: Sequence[RunData], run: RunData, text: str) -> str:
    return text if len(runs) == 1 else f"{run.name}: {text[0].lower()}{text[1:]}"


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
