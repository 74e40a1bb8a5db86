"""The charts of a report: which figures of its runs are drawn, and under which titles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from selfverify.reports import plots
from selfverify.reports.run_data import STAGES, RunData, words

MANY_POINTS = 40
"""A curve of more points than this is drawn with its running mean."""

ENDING_CURVES = {
    "conversation/stop": ("by itself", "best"),
    "conversation/length": ("at a limit", "majority"),
    "conversation/error": ("lost", "wrong"),
}
"""Logged metrics that show how conversations end: label and colour."""
TIME_CURVES = {
    "time/say_s": ("policy speaks", "best"),
    "time/reply_s": ("episodes reply", "wrong"),
    "time/hear_s": ("policy reads", "majority"),
}
"""Logged timings that show what the time of conversations goes into: label and colour."""

SIGNAL_CURVES = {
    "verification/correct_given_reward1": ("right, given reward 1", "right"),
    "verification/score_is_1": ("score is 1", "wrong"),
}
"""Logged metrics that show what the verification reward pays for: label and colour."""


Chart = dict[str, Any]
"""A chart as ``svg``, and ``note``, a sentence below it."""


def _chart(
    draw: Callable[..., None],
    label: str,
    note: str = "",
    size: tuple[float, float] = (4.8, 3.0),
    **drawn: Any,
) -> Chart:
    """Return one chart; ``drawn`` is passed on to ``draw``."""
    return {"svg": plots.svg(partial(draw, **drawn), label, size), "note": note}


def accuracy(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw accuracy against N, one chart per run and stage, all with the same limits."""
    found = [
        (run, stage, run.summaries[stage]["curves"])
        for run in runs
        for stage in STAGES
        # A single sample is a point, and the table has it.
        if any(len(curve or ()) > 1 for curve in (run.summaries.get(stage, {}).get("curves") or {}).values())
    ]
    limits = plots.accuracy_limits([curves for _, _, curves in found])
    for run, stage, curves in found:
        yield _chart(
            plots.draw_accuracy,
            f"Accuracy by samples per problem, {run.name}, {stage} training",
            curves=curves,
            title=_title(runs, run, run.stage_title(stage)),
            limits=limits,
        )


def turns(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw AdaPO's Fig. 4, all runs in one chart, and its Fig. 2, a chart per run."""
    points = []
    for run in runs:
        for stage in STAGES:
            if found := run.summaries.get(stage, {}).get("turns"):
                last = stage == "after" or "turns" not in run.summaries.get("after", {})
                name = stage if len(runs) == 1 else f"{run.name}, {stage}"
                shade = plots.PALETTE[run.colour if last else "pass"]
                points.append(plots.Bubble(name, shade, found["1->0"], found["0->1"]))
    if points:
        yield _chart(
            plots.draw_bubbles,
            "Shares of answers that second turns corrected and spoiled",
            "As many are corrected as are spoiled on the dotted line. A bubble is as large as the change in "
            "accuracy, and hollow where it is a loss (AdaPO's Fig. 4).",
            size=(4.8, 4.2),
            points=points,
            title="Corrected and spoiled",
        )
    for run in runs:
        found = ((f"turn {t}", colour, *run.turn_accuracy(t)) for t, colour in (("1", "pass"), ("2", "best")))
        if lines := [line for line in found if len(line[2])]:
            yield _chart(
                plots.draw_lines,
                f"Accuracy of both turns over training, {run.name}",
                "Of validation problems where measured often, else of training's (AdaPO's Fig. 2).",
                lines=lines,
                title=_title(runs, run, "Both turns over training"),
                percent=True,
                smoothed=len(lines[0][2]) > MANY_POINTS,
            )


STOPS = {
    "{rule}": ("the verifier", "best"),
    "self-stop": ("the model itself", "majority"),
    "{rule}, random": ("verifier's times, shuffled", "wrong"),
    "oracle": ("all needed was shown", "oracle"),
}
"""The rules that end looking, by the names of `visual_metrics.outcomes`: label and colour."""


def stopping(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw how often answers are right against the number of looks, by what ends looking."""
    for run in runs:
        rules = (run.stopping or {}).get("rules", {})
        for rule in (run.stopping or {}).get("verifier", {}):
            named = {name.format(rule=rule): how for name, how in STOPS.items()}
            yield _chart(
                plots.draw_stops,
                f"Right answers by the number of looks, {run.name}, {rule}",
                "The line: after a fixed number of looks.",
                size=(6.4, 3.6),
                fixed=[(r["steps"], r["accuracy"]) for name, r in rules.items() if name.startswith("always")],
                points=[
                    (label, colour, rules[name]["steps"], rules[name]["accuracy"])
                    for name, (label, colour) in named.items()
                    if name in rules
                ],
                title=_title(runs, run, "What ends looking"),
            )


def training(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw a chart per logged metric, with one line per run."""
    for name, curve in words("curves").items():
        own = [run.lines({name: (run.name if len(runs) > 1 else "", run.colour)}) for run in runs]
        if any(own):
            yield _chart(
                plots.draw_lines,
                f"{curve.title} over training steps",
                curve.meaning,
                size=(4.0, 2.5) if len(runs) == 1 else (4.8, 2.7),
                lines=[line for lines in own for line in lines],
                title=curve.title,
                percent=curve.percent,
            )


def conversations(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw how a step's conversations ended and what their time went into, two charts per run."""
    note = "Shares of a step's conversations. Those that are lost take no part in training."
    yield from _lines(runs, ENDING_CURVES, "How conversations end", note)
    yield from _lines(runs, TIME_CURVES, "Seconds of a rollout", "Seconds of a step's rollout.", shares=False)


def signal(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw ADPO's Fig. 2 and 7: what a verification reward of 1 is paid for, and whether scores become 1."""
    yield from _lines(runs, SIGNAL_CURVES, "Reward signal")


def _lines(
    runs: Sequence[RunData],
    curves: Mapping[str, tuple[str, str]],
    title: str,
    note: str = "",
    shares: bool = True,
) -> Iterator[Chart]:
    """Draw logged metrics, a chart per run."""
    for run in runs:
        if lines := run.lines(curves):
            yield _chart(
                plots.draw_lines,
                f"{title} over training, {run.name}",
                note,
                lines=lines,
                title=_title(runs, run, title),
                percent=shares,
                limits=(0, 1.02) if shares else None,
            )


def scores(runs: Sequence[RunData]) -> Iterator[Chart]:
    """Draw ADPO's Fig. 8: distributions of scores, a chart per run and stage."""
    for run in runs:
        for stage in STAGES:
            right, wrong = run.scores(stage)
            if len(right) + len(wrong):
                yield _chart(
                    plots.draw_histogram,
                    f"Scores of right and wrong answers, {run.name}, {stage} training",
                    right=right,
                    wrong=wrong,
                    title=_title(runs, run, run.stage_title(stage)),
                )
            elif run.samples.get(stage):
                run.leave_out("scores", f"The samples {stage} training carry no soft scores.")


def _title(runs: Sequence[RunData], run: RunData, text: str) -> str:
    """Return a chart's title; with several runs it begins with the run's name."""
    return text if len(runs) == 1 else f"{run.name}: {text[0].lower()}{text[1:]}"
