"""The commands ``selfverify calibrate`` and ``selfverify matrix``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfverify.errors import ConfigError


def calibrate(
    samples: Annotated[Path, typer.Argument(help="Stored samples to fit on, of problems held out.")],
    output: Annotated[Path, typer.Option(help="The file to write; a model's folder: into it.")],
    verifier: Annotated[str, typer.Option(help="Whose scores.")] = "soft",
    strategy: Annotated[str, typer.Option(help="What chooses.")] = "weighted",
    kind: Annotated[Literal["isotonic", "temperature"], typer.Option(help="What is fitted.")] = "isotonic",
    target_risk: Annotated[
        float | None, typer.Option(help="Abstain so that at most this share of the answers is wrong.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Stored samples to report on. Without: half the problems are set aside to report."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit what a chosen answer's confidence means, for `selfverify solve` to report and to abstain by.

    Examples:

    - `selfverify calibrate runs/mine/eval/samples.jsonl --output runs/mine/model --target-risk 0.1`

    - `selfverify calibrate validation.jsonl --test test.jsonl --strategy best --output calibration.json`
    """
    from selfverify.evaluation.calibrate import calibrate as fit
    from selfverify.evaluation.store import read_samples
    from selfverify.selection.calibration import CALIBRATION_FILE

    for path in (samples, test):
        if path is not None and not path.is_file():
            raise ConfigError(f"there is no file {path}; `selfverify eval` writes samples.jsonl")
    settings, stored = read_samples(samples)
    held_out = read_samples(test)[1] if test else None
    about = {name: value for name, value in settings.items() if name in ("task", "weights", "split")}
    fitted = fit(stored, verifier, strategy, kind, target_risk, held_out, describe=about)
    file = output / CALIBRATION_FILE if output.is_dir() else output
    file.parent.mkdir(parents=True, exist_ok=True)
    fitted.calibration.save(file)
    if as_json:
        typer.echo(json.dumps(asdict(fitted)))
        return
    table = Table("figure", "raw confidence", "calibrated")
    for name, before in fitted.before.items():
        table.add_row(name, *("–" if v is None else f"{v:.4f}" for v in (before, fitted.after[name])))
    console = Console()
    console.print(table)
    if fitted.coverage is not None:
        risk = "–" if fitted.risk is None else f"{fitted.risk:.3f}"
        console.print(Text(f"answers {fitted.coverage:.1%} of the problems, {risk} of the answers wrong"))
    typer.echo(f"calibration: {file}")


def matrix(
    models: Annotated[list[str], typer.Argument(metavar="NAME=MODEL...", help="The models, by name.")],
    recipe: Annotated[str, typer.Option(help="Task, evaluation and length of answers.")] = "quickstart",
    override: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe.")
    ] = None,
    sizes: Annotated[str, typer.Option(help="Candidates per problem.")] = "1,4,8,12",
    strategy: Annotated[str, typer.Option(help="What uses the scores.")] = "best",
    ask: Annotated[
        bool, typer.Option("--ask", help="Judges are asked in a turn of their own, not made to go on.")
    ] = False,
    output: Annotated[Path, typer.Option(help="Folder of samples, scores and the table.")] = Path(
        "runs/matrix"
    ),
) -> None:
    """Every model as generator with every model as verifier, in one table with intervals.

    Example: `selfverify matrix base=builtin:digits adpo=runs/quickstart/model --set evaluation.samples=12`
    """
    from selfverify.selection.strategies import find_strategy

    find_strategy(strategy)
    named = dict(part.partition("=")[::2] for part in models)
    if len(named) != len(models) or not all(
        path and name.replace("-", "").replace("_", "").isalnum() for name, path in named.items()
    ):
        raise ConfigError(f"models are given as NAME=MODEL, each name once, not {' '.join(models)}")
    if {"majority", "none"} & named.keys():
        raise ConfigError("a model cannot be called majority or none: those are rows of the table")
    try:
        counts = [int(size) for size in sizes.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ConfigError(f"--sizes {sizes}: whole numbers above 0, with commas between them")
    from selfverify.recipe import load_recipe

    loaded = load_recipe(recipe, override or [])
    from selfverify.matrix import run_matrix

    run_matrix(
        named,
        loaded,
        output,
        sizes=counts,
        strategy=strategy,
        form="ask" if ask else "continue",
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo((output / "matrix.md").read_text(encoding="utf-8"))
