"""The commands that measure models: ``selfverify eval``, which also fits calibrations, and ``report``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import Field

from selfverify.cli.options import (
    Json,
    Overrides,
    figure,
    print_headline,
    print_json,
    print_table,
    resolve_target,
    settings_as_options,
)
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError
from selfverify.core.files import make_folder
from selfverify.selection.calibration import Fusion


class CalibrationConfig(Config):
    """The samples of a calibration, and the way of fitting."""

    calibrate: bool = False
    """Measure nothing: learn from held-out samples, given in place of the model (a `samples.jsonl` or its
    folder), how likely an answer of some confidence is to be right. `selfverify solve` reports that
    probability, and abstains where it is too low. --output is the file to write, or the model's folder."""

    verifier: str = "soft"
    """With --calibrate: the verifier whose scores are used. `fused` (soft + a·log-prob) is fitted, too."""

    strategy: str = "weighted"
    """With --calibrate: the strategy that chooses the answer."""

    kind: Literal["isotonic", "temperature"] = "isotonic"
    """With --calibrate: the kind of curve: any rising one (`isotonic`), or one number, if problems are few
    (`temperature`)."""

    target_risk: float | None = Field(None, ge=0, le=1)
    """With --calibrate: withhold unsure answers, so that at most this share of the others is wrong."""

    test: Path | None = None
    """With --calibrate: a `samples.jsonl`, or its folder, to report on. By default half of the problems
    are set aside."""


class EvaluateConfig(Config):
    """Which model is measured, by what, and where the figures go."""

    target: str = Field(json_schema_extra={"argument": "RECIPE_OR_MODEL"})
    """A recipe, a run's folder, a saved model's folder, or URL#MODEL behind a server; with --calibrate a
    `samples.jsonl` or its folder."""

    model: str | None = None
    """The model to measure instead of the recipe's."""

    recipe: str | None = None
    """The recipe with the task and the evaluation's settings. A model in a run's folder needs none."""

    output: Path | None = None
    """The folder for samples and metrics. By default `eval` in the run's folder."""

    calibration: Path | None = None
    """A file of `selfverify eval --calibrate --verifier fused`, fitted on other problems: tell also what
    fused scores (soft + a·log-prob) reach."""

    fitted: CalibrationConfig


@settings_as_options
def evaluate(settings: EvaluateConfig, overrides: Overrides = None, as_json: Json = False) -> None:
    """Measure a model: accuracy, majority vote, best-of-N by its own scores, quality of the scores.

    Given a run's folder, it measures the trained model: the best checkpoint, else the last state. Given a
    recipe, it measures the model that the recipe starts from. Called again, it goes on where it was stopped.
    The most important figures are printed; all of them stand in `metrics.json`, and `--json` prints these.

    A model behind an OpenAI-compatible server is `URL#MODEL`; `policy.server.concurrent=64` and the like say
    how it is asked. Before this library's own gateway it is `URL#NAME@plain`, so that nothing is chosen.

    Examples:

    - `selfverify eval runs/no-kl`

    - `selfverify eval adpo-digits evaluation.samples=12 evaluation.temperature=0.2`

    - `selfverify eval runs/no-kl/checkpoints/checkpoint-000100/model --json`

    - `selfverify eval ./my-model --recipe adpo-digits`

    - `selfverify eval http://127.0.0.1:8000#MODEL --recipe adpo-math task.test=MathVista.tsv`

    - `selfverify eval --calibrate runs/mine/eval/samples.jsonl --output runs/mine/model --target-risk 0.1`

    - `selfverify eval --calibrate validation.jsonl --test test.jsonl --output calibration.json`
    """
    if settings.fitted.calibrate:
        _calibrate(Path(settings.target), settings, as_json)
        return
    from selfverify.experiments.recipe import load_recipe, refuse_hidden

    source, found = resolve_target(settings.target, settings.recipe)
    loaded, model = load_recipe(source, overrides or []), settings.model or found
    refuse_hidden(loaded, overrides or [])
    from selfverify.core import ranks
    from selfverify.evaluation.headline import headline
    from selfverify.experiments.run import evaluate_recipe

    fusion = None if settings.calibration is None else fitted_fusion(settings.calibration)
    metrics = evaluate_recipe(loaded, model=model, output=settings.output, fusion=fusion)
    if not ranks.stop():
        return
    if as_json:
        print_json(metrics)
        return
    folder = settings.output or loaded.folder / "eval"
    counts = f"{metrics.get('problems')} problems x {metrics.get('samples_per_problem')}"
    print_headline(headline(metrics), f"{loaded.name}: {model or loaded.policy.path}, {counts}")
    typer.echo(f"all figures: {folder / 'metrics.json'}")


def _calibrate(samples: Path, settings: EvaluateConfig, as_json: bool) -> None:
    """Fit a calibration to the samples of an evaluation, and store it."""
    how, output = settings.fitted, settings.output
    if output is None:
        raise ConfigError("--calibrate: say with --output FILE where the calibration is written")
    from selfverify.evaluation.calibrate import calibrate as fit
    from selfverify.evaluation.samples import find_store, read_samples
    from selfverify.selection.calibration import CALIBRATION_FILE

    sampled, stored = read_samples(find_store(samples))
    held_out = read_samples(find_store(how.test))[1] if how.test else None
    about = {name: value for name, value in sampled.items() if name in ("task", "weights", "split")}
    chosen = (how.verifier, how.strategy, how.kind, how.target_risk)
    fitted = fit(stored, *chosen, held_out, describe=about)
    file = output / CALIBRATION_FILE if output.is_dir() else output
    make_folder(file.parent)
    fitted.calibration.save(file)
    if as_json:
        print_json(asdict(fitted), indent=None)
        return
    rows = [
        (name, figure(before, ".4f"), figure(fitted.after[name], ".4f"))
        for name, before in fitted.before.items()
    ]
    print_table(("figure", "raw confidence", "calibrated"), rows)
    if fitted.coverage is not None:
        risk = figure(fitted.risk, ".3f")
        typer.echo(f"answers {fitted.coverage:.1%} of the problems, {risk} of the answers wrong")
    if fitted.calibration.fusion is not None:
        typer.echo(f"fused: soft + {fitted.calibration.fusion.weight:g} log-prob")
    typer.echo(f"calibration: {file}")


def fitted_fusion(path: Path) -> Fusion:
    """Return the fusion in a calibration.

    Raises:
        ConfigError: It was fitted for another verifier than ``fused``.
        DataError: It cannot be read.
    """
    from selfverify.selection.calibration import Calibration

    found = Calibration.load(path)
    if found.fusion is None:
        fitted = (found.fitted_on or {}).get("verifier")
        raise ConfigError(
            f"{path} was fitted for the verifier {fitted!r}; `selfverify eval --calibrate SAMPLES --verifier "
            "fused --output FILE` fits what a log-probability weighs"
        )
    return found.fusion


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folders of the runs to compare.")],
    output: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page that compares runs: curves, tables, samples.

    Examples:

    - `selfverify report runs/no-kl`

    - `selfverify report runs/grpo runs/adpo --output grpo-against-adpo.html`
    """
    missing = [str(run) for run in runs if not run.is_dir()]
    if missing:
        raise ConfigError(f"there is no run in {', '.join(missing)}")
    from selfverify.experiments.registry import TASKS
    from selfverify.reports.report import write_report

    typer.echo(f"report: {write_report(runs, output, TASKS)}")
