"""The command line. It only reads arguments and prints; the work is done by what it imports, late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from selfverify import __version__, cli_data
from selfverify.cli_plan import plan
from selfverify.cli_select import calibrate, matrix
from selfverify.cli_serve import serve
from selfverify.cli_solve import solve
from selfverify.errors import ConfigError, SelfVerifyError

# The heavy imports (torch, transformers) stand inside the commands, so that `--help` answers at once.


class _Commands(TyperGroup):
    """Commands whose failures end in one readable message, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SelfVerifyError as error:
            _say(str(error), "bold red", "error: ")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            _say("interrupted; `--resume` goes on from the last checkpoint", "yellow")
            raise typer.Exit(130) from None


app = typer.Typer(
    name="selfverify",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Train and run vision-language models that answer **and** verify their own answers.\n\n"
    "Start with `selfverify quickstart`: it trains a small model on this machine and shows what it learnt. "
    "Then `selfverify recipes` lists experiments, `selfverify train RECIPE` runs one, `selfverify eval` "
    "measures a model and `selfverify report` compares runs.",
)

app.add_typer(cli_data.app, name="data")


def main() -> None:
    """Entry point of the ``selfverify`` command."""
    app()


def _say(text: str, style: str = "", prefix: str = "") -> None:
    """Print to stderr. ``text`` is no markup: it may hold a path with brackets or a model's words."""
    Console(stderr=True).print(Text(prefix, style).append(text, ""), soft_wrap=True, highlight=False)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as `learner.steps=100`."),
]


@app.command()
def quickstart(
    fast: Annotated[
        bool, typer.Option("--fast", help="A minute instead of minutes: shows that it runs.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder of the run and its report.")] = Path("runs/quickstart"),
) -> None:
    """Train a small model here and now, and write a report of what it learnt.

    Needs no GPU, no download and no account: the model and its data ship with the package.

    Examples:

    - `selfverify quickstart`

    - `selfverify quickstart --fast --output /tmp/look`
    """
    from selfverify.quickstart import quickstart as run_quickstart

    typer.echo(f"report: {run_quickstart(output, seed, fast)}")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe's name, a YAML file, or a run's folder.")],
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest complete checkpoint.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run that the folder already holds.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe, print it with all defaults, train nothing.")
    ] = False,
) -> None:
    """Train a model by a recipe.

    The recipe is checked before anything is loaded; a wrong key is named together with the nearest right one.
    Ctrl-C writes a checkpoint. A run that was killed loses at most the steps since its last checkpoint.

    Examples:

    - `selfverify train quickstart`

    - `selfverify train quickstart learner.learning_rate=5e-5 method.kl=0 name=no-kl`

    - `selfverify train my.yaml --dry-run > resolved.yaml`

    - `selfverify train runs/no-kl --resume`
    """
    from selfverify.cli_runs import dry_run_lines, holds_a_run
    from selfverify.recipe import load_recipe, to_yaml

    loaded = load_recipe(recipe, overrides or [])
    if dry_run:
        for line in dry_run_lines(loaded, resume):
            typer.echo(f"# {line}")  # comments, so that what is printed is itself a recipe
        typer.echo(to_yaml(loaded), nl=False)
        return
    from selfverify import ranks
    from selfverify.events import EVENTS_FILE, read_events, story
    from selfverify.learner.progress import TrainingProgress
    from selfverify.run import start_processes
    from selfverify.run import train as run_train

    def refuse_to_overwrite() -> None:
        if not resume and not overwrite and holds_a_run(loaded.folder):
            raise ConfigError(
                f"{loaded.output} already holds a run: --resume goes on with it, --overwrite deletes it, and "
                "name=OTHER writes elsewhere"
            )

    start_processes(loaded)
    ranks.on_first(refuse_to_overwrite)
    with TrainingProgress(loaded.learner.steps) as shown:
        run = run_train(loaded, resume=resume, on_step=shown.on_step, on_phase=shown.on_phase)
    if ranks.index() == 0:
        if happened := story(read_events(run / EVENTS_FILE)):
            _say("\n  ".join(["what happened:", *happened]))
        typer.echo(f"run: {run}")
    ranks.stop()


app.command()(plan)
app.command()(solve)
app.command()(serve)
app.command()(calibrate)
app.command()(matrix)


@app.command(name="eval")
def evaluate(
    target: Annotated[
        str,
        typer.Argument(metavar="RECIPE_OR_MODEL", help="A recipe, a run's folder or a saved model's folder."),
    ],
    overrides: Overrides = None,
    model: Annotated[str | None, typer.Option(help="Measure this model instead of the recipe's.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe to measure a model by, where its folder belongs to no run.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for samples and metrics.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Measure a model: accuracy, majority vote, best-of-N by its own scores, quality of the scores.

    Of a run's folder the trained model is measured (the best checkpoint, else the last state). Of a
    recipe, the model that it starts from.

    Examples:

    - `selfverify eval runs/no-kl`

    - `selfverify eval quickstart evaluation.samples=12 evaluation.temperature=0.2`

    - `selfverify eval runs/no-kl/checkpoints/checkpoint-000100/model --json`

    - `selfverify eval ./my-model --recipe quickstart`
    """
    from selfverify.cli_runs import flat, resolve_target
    from selfverify.recipe import load_recipe

    source, found = resolve_target(target, recipe)
    loaded = load_recipe(source, overrides or [])
    from selfverify import ranks
    from selfverify.run import evaluate_recipe

    metrics = evaluate_recipe(loaded, model=model or found, output=output)
    first = ranks.index() == 0
    ranks.stop()
    if not first:
        return
    if as_json:
        typer.echo(json.dumps(metrics, indent=2, default=str))
        return
    from selfverify.evaluation.breakdown import SHOWN, tabulate

    table = Table("metric", "value", title=Text(f"{loaded.name}: {model or found or loaded.policy.path}"))
    for name, value in flat({k: v for k, v in metrics.items() if k not in ("metrics", "categories")}):
        table.add_row(Text(name), Text(_figure(value)))
    Console().print(table)
    if rows := tabulate(metrics):
        total = metrics["samples_per_problem"]
        names = ["part", "problems", "figure", *(r if "@" in r else f"{r}@{total}" for r in SHOWN)]
        table = Table(title=Text("the task's figures, and by category; --json has every N"))
        for name in names:
            table.add_column(name, no_wrap=name in ("part", "figure"))
        before = None
        for row in rows:
            again = {"part": "", "problems": ""} if row["part"] == before else {}
            table.add_row(*(Text(_figure(value)) for value in (row | again).values()))
            before = row["part"]
        Console().print(table)


def _figure(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of the runs to compare.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page that compares runs: curves, tables, samples.

    Examples:

    - `selfverify report runs/no-kl`

    - `selfverify report runs/grpo runs/adpo --out grpo-against-adpo.html`
    """
    missing = [str(run) for run in runs if not run.is_dir()]
    if missing:
        raise ConfigError(f"there is no run in {', '.join(missing)}")
    from selfverify.evaluation.report import write_report

    typer.echo(f"report: {write_report(runs, out)}")


@app.command()
def study(
    file: Annotated[str, typer.Argument(help="A study's YAML file, or a built-in study's name.")],
    output: Annotated[Path | None, typer.Option(help="Folder of the study; default `runs/NAME`.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Instead of the file's, as `0,1,2`.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once; they share the cores.")] = 1,
    only: Annotated[list[str] | None, typer.Option(metavar="VARIANT", help="Run only this one.")] = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Only write the tables.")] = False,
) -> None:
    """Compare variants of a recipe, on several tasks and seeds, in tables and figures.

    Called again, it goes on where it was stopped: finished runs are skipped, unfinished ones resumed.

    Examples:

    - `selfverify study study-adpo-digits --jobs 2`

    - `selfverify study my-study.yaml --only grpo --only adpo --seeds 0`
    """
    from selfverify.study import load_study, run_study

    done = run_study(load_study(file, seeds), output, jobs, only or [], report_only, typer.echo)
    for failure in done.failures:
        _say(f"{failure.label}: {failure.reason}, see {failure.log}", "bold red", "failed: ")
    if done.results:
        typer.echo(f"results: {done.results}, tables: {done.folder / 'table.md'}")
    if done.failures or not done.results:
        raise typer.Exit(1)


@app.command()
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's options.")] = None,
) -> None:
    """List the training methods, or one method's options.

    Examples:

    - `selfverify methods`

    - `selfverify methods adpo`
    """
    from selfverify.methods import METHODS

    if name is None:
        table = Table("method", "what it does")
        for key, entry in METHODS.items():
            table.add_row(Text(key), Text(entry.summary))
    elif name in METHODS:
        table = Table("option", "default", "meaning", title=Text(f"{name}: {METHODS[name].summary}"))
        for key, field in METHODS[name].config.model_fields.items():
            default = (
                "(required)" if field.is_required() else str(field.get_default(call_default_factory=True))
            )
            table.add_row(Text(f"method.{key}"), Text(default), Text(field.description or ""))
    else:
        raise ConfigError(f"there is no method {name!r}; methods: {', '.join(METHODS)}")
    Console().print(table)


@app.command()
def recipes() -> None:
    """List the recipes that ship with the package.

    Example: `selfverify recipes`, then `selfverify train NAME --dry-run` to read one.
    """
    from selfverify.recipe import builtin_recipes, recipe_summary

    table = Table("recipe", "what it is for")
    for name, path in builtin_recipes().items():
        table.add_row(Text(name), Text(recipe_summary(path)))
    Console().print(table)


@app.command()
def merge(
    target: Annotated[
        str, typer.Argument(metavar="RUN_OR_MODEL", help="A run with `policy.lora`, or its model.")
    ],
    output: Annotated[Path, typer.Argument(help="Where the whole model goes.")],
) -> None:
    """Write an adapter and the model below it as one whole model, for servers and other libraries.

    Example: `selfverify merge runs/mine ./my-model`
    """
    from selfverify.cli_runs import saved_model
    from selfverify.policy.config import PolicyConfig
    from selfverify.recipe import RECIPE_FILE, load_recipe

    if output.exists() and any(output.iterdir()):
        raise ConfigError(f"{output} is not empty; choose another folder")
    source = saved_model(target)
    trained = (Path(target).expanduser() / RECIPE_FILE).is_file()
    settings = load_recipe(target, []).policy if trained else PolicyConfig(dtype="auto")
    from selfverify.policy.policy import Policy

    settings = settings.for_model(source).model_copy(update={"device": "cpu"})
    Policy.load(settings).merged().save(output)
    typer.echo(f"model: {output}")
