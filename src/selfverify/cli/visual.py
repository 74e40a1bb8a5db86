"""The commands about looking again: `selfverify visual ...`. Without one, it lists the tools.

`collect`, `branch`, `judge`, `sets` and `leaks` make data, `serve` serves the tools, and `calibrate` and
`compare` say when a verifier ends looking.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field, model_validator

from selfverify.cli.options import (
    Json,
    Overrides,
    announced,
    bar,
    figure,
    print_json,
    print_outcome,
    print_table,
    resolve_target,
    say,
    settings_as_options,
)
from selfverify.core.config import Config
from selfverify.experiments.command_config import ListenerConfig, TeacherConfig
from selfverify.visual.config import ToolModelsConfig


class ToolServerConfig(Config):
    """Which visual tools are served, where, and to whom."""

    models: ToolModelsConfig
    tools: list[str] = Field([], json_schema_extra={"option": "tool"})
    """A tool that is served; repeat the option. By default all that are available."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Any but this machine's own needs keys."""

    port: int = Field(8300, ge=0, le=65535)
    """The port; 0 takes a free one."""

    sessions: int = Field(64, ge=1)
    """The most calls at once."""

    keys: Path | None = None
    """A file with the keys of those who may ask, one a line; or set $SELFVERIFY_ENVIRONMENT_KEYS."""


@settings_as_options
def serve(settings: ToolServerConfig) -> None:
    """Serve visual tools to several processes: OpenEnv's wire (/ws), the Model Context Protocol (/mcp).

    Their models are loaded once, and calls that come together go in together. `--tool-server URL` of
    `selfverify solve`, `serve` and recipes (`look.tool_server`) lets them do the work.

    Example: `selfverify visual serve --depth-model FOLDER --similarity-model FOLDER --port 8300`
    """
    import asyncio

    from selfverify.connectors.pool import EnvironmentServerConfig
    from selfverify.connectors.server import serve_until_told
    from selfverify.visual.config import VisualConfig
    from selfverify.visual.task import make_toolbox
    from selfverify.visual.tools.server import LIMITS, ToolSession

    config = VisualConfig(**settings.models.model_dump(), tools=settings.tools, terminate="refuse")
    toolbox = make_toolbox(config)
    where = settings.model_dump(include={"host", "port", "sessions", "keys"})
    busy = config.tool_seconds + 30
    serving = EnvironmentServerConfig(environments=["looking"], busy=busy, **where)
    say = announced(settings.host, ", ".join(tool["function"]["name"] for tool in toolbox.schemas()))
    asyncio.run(serve_until_told(serving, say, {"looking": lambda: ToolSession(toolbox)}, content=LIMITS))


Target = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE_OR_MODEL", help="A recipe with the task, a run's folder or a model's folder."
    ),
]
WIDEST = 40
"""Characters of a histogram's longest bar."""


class StopTargetConfig(ListenerConfig):
    """The aim that ε is chosen for."""

    rule: Literal["absolute", "signed"] = "signed"
    """Whether looking ends where Δr < ε (`signed`, the paper's Algorithm 1) or where |Δr| < ε (`absolute`,
    its §3.4 and Lemma 3.1)."""

    steps: float | None = Field(None, gt=0)
    """The mean number of steps that may not be exceeded."""

    accuracy: float | None = Field(None, ge=0, le=1)
    """The accuracy that has to be reached, with the fewest steps."""

    within: float | None = Field(None, ge=0, le=1)
    """How far below the best accuracy of all ε it may be, with the fewest steps."""

    @model_validator(mode="after")
    def _one_target(self) -> StopTargetConfig:
        if sum(value is not None for value in (self.steps, self.accuracy, self.within)) != 1:
            raise ValueError(
                "give one target: --steps, the most on average; --accuracy, the least; or --within, how far "
                "it may be below the best"
            )
        return self


@settings_as_options
def calibrate(
    target: Target, settings: StopTargetConfig, overrides: Overrides = None, as_json: Json = False
) -> None:
    """Choose the ε with which a verifier ends looking, on validation problems, and store it beside it.

    The model looks to the cap and is asked for an answer after every step; called again, the command goes on
    where it was stopped, and another target needs no more conversations. The conditions of Theorem 3.2 are
    printed for each step, with the histogram of Δr and the share of conversations that reach the cap.

    Examples:

    - `selfverify visual calibrate my-looks.yaml --verifier runs/dpo/model --accuracy 0.9`

    - `selfverify visual calibrate my-looks.yaml --verifier runs/dpo/model --steps 3
      evaluation.problems=256 evaluation.samples=1`
    """
    from selfverify.experiments.train_stopping import calibrate_stopping

    given: dict[Any, float] = settings.model_dump(include={"steps", "accuracy", "within"}, exclude_none=True)
    [(name, wanted)] = given.items()
    with bar("problems", hidden=as_json) as progress:
        found = calibrate_stopping(_looks(target, settings, overrides), settings.rule, name, wanted, progress)
    if as_json:
        print_json(found.plain())
        return
    means, shares = found.means, found.figures.stopped_at
    rows = [
        (
            str(step),
            str(means.conversations[n]),
            _with_error(means.plan[n], means.plan_error[n]),
            _with_error(means.action[n], means.action_error[n]),
            f"{means.positive[n]:.3f}",
            f"{shares[step - 1]:.1%}",
        )
        for n, step in enumerate(found.steps)
    ]
    columns = ("step", "conversations", "log-ratio of plans", "of actions", "positive part of r", "stopped")
    print_table(columns, rows, "Theorem A.6 wants plans of at least 0, and a bounded positive part; nats")
    counts, edges = found.figures.counts, found.figures.edges
    bars = [
        (f"{low:.3g} to {high:.3g}", str(count), "█" * round(WIDEST * count / max(counts.max(), 1)))
        for low, high, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    ]
    print_table(("Δr", "steps", ""), bars)
    fitted = found.calibration
    known = "" if fitted.accuracy is None else f", {fitted.accuracy:.1%} of the answers right"
    typer.echo(
        f"{fitted.rule}: ε = {fitted.epsilon:.6g} nats; {fitted.steps:.2f} steps on average{known}; "
        f"{found.figures.cap:.1%} of {found.conversations} conversations reach the cap"
    )
    if found.left_out:
        typer.echo(f"{found.left_out} conversations failed, had no verdict or no step, and are left out")
    typer.echo(f"calibration: {found.path}")


class CompareStopConfig(ListenerConfig):
    """Which rules are compared."""

    absolute: float | None = Field(None, gt=0)
    """ε of the rule |Δr| < ε. Without --absolute and --signed that of the verifier's calibration is taken."""

    signed: float | None = None
    """ε of the rule Δr < ε."""


@settings_as_options
def compare(
    target: Target, settings: CompareStopConfig, overrides: Overrides = None, as_json: Json = False
) -> None:
    """Compare what ends looking, on the same conversations about test problems.

    The rows: after N steps, where the model wants to end, the verifier's rules (with the step that ends
    looking dropped, and where the model may end before), its stopping times given to other conversations,
    and where the task knows it the first step after which everything needed has been shown.

    Example: `selfverify visual compare my-looks.yaml --verifier runs/dpo/model evaluation.problems=2048`
    """
    from selfverify.experiments.train_stopping import compare_stopping

    epsilons: dict[Any, float] = settings.model_dump(include={"absolute", "signed"}, exclude_none=True)
    with bar("problems", hidden=as_json) as progress:
        found = compare_stopping(_looks(target, settings, overrides), epsilons, progress)
    if as_json:
        print_json(found)
        return
    names = ("accuracy", "interval", "steps", "visual_tokens", "crop_hit", "too_early", "too_late")
    cells = []
    for rule, figures in found["rules"].items():
        ends = figures["interval"]
        shown = {**figures, "interval": f"{ends[0]:.3f} to {ends[1]:.3f}" if ends else None}
        cells.append([rule, *(figure(shown.get(name), ".3f") for name in names)])
    titles = ("looking ends", *(name.replace("_", " ") for name in names))
    print_table(titles, cells, no_wrap=titles[:1])
    for rule, against in found["verifier"].items():
        gap, over = against["gap_to_smallest_n"], against["over_random"]
        typer.echo(
            f"{rule}, ε = {against['epsilon']:.6g}: {_points(gap)} against {against['smallest_n']} steps "
            f"(the best is {against['best_n']}), at {against['steps_share']:.0%} of the steps; "
            f"{_points(over)} against random stopping"
        )


def _looks(target: str, settings: ListenerConfig, overrides: list[str] | None) -> Any:
    from selfverify.experiments.recipe import load_recipe, refuse_hidden
    from selfverify.experiments.train_stopping import CappedLooks

    source, found = resolve_target(target, settings.recipe)
    recipe = load_recipe(source, overrides or [])
    refuse_hidden(recipe, overrides or [])
    return CappedLooks(recipe, settings.model_copy(update={"model": settings.model or found}))


def _with_error(mean: float, error: float) -> str:
    return f"{mean:+.4f} ± {error:.4f}"


def _points(difference: dict[str, Any]) -> str:
    ends = " to ".join(f"{100 * value:+.1f}" for value in difference["interval"] or ())
    return f"{100 * difference['mean']:+.1f} points ({ends or 'nothing varies'})"


app = typer.Typer(help="List visual tools; make data for looking again; say when a verifier ends it.")
Folder = Annotated[Path, typer.Argument(help="The folder in which the data are made.")]
RecipeFor = Annotated[
    str, typer.Argument(help="A recipe, of which the task, the episode, the seed and the policy are used.")
]


@app.callback(invoke_without_command=True)
@settings_as_options
def list_tools(ctx: typer.Context, models: ToolModelsConfig) -> None:
    """List the tools with which a model can look at images again, and whether they are available here.

    Examples:

    - `selfverify visual`

    - `selfverify visual --depth-model FOLDER`
    """
    if ctx.invoked_subcommand is not None:
        return
    from selfverify.visual.task import all_tools

    found = all_tools(models)
    rows = [(tool.name, tool.missing() or "yes", tool.schema["function"]["description"]) for tool in found]
    print_table(("tool", "available here", "what it does"), rows)


class CollectLooksConfig(Config):
    """The model that looks, how often, and with which examples."""

    teacher: TeacherConfig
    output: Path = Path("looks")
    """The folder in which the data are made."""

    problems: int = Field(100, ge=1)
    """The number of training problems, at most those that the task has."""

    samples: int = Field(1, ge=1)
    """Conversations about each."""

    shots: str | None = None
    """A file of traces (`sft.jsonl`) of which two are put before each question as examples, in words; or
    `builtin`, the package's own examples."""


@app.command()
@settings_as_options
def collect(
    recipe: RecipeFor, settings: CollectLooksConfig, overrides: Overrides = None, as_json: Json = False
) -> None:
    """Let a model look at the images of a task's training problems, and keep every conversation.

    Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify visual collect my-looks.yaml --server http://127.0.0.1:8000
      --model Qwen/Qwen2.5-VL-72B-Instruct --problems 10000 --samples 2 --output looks`

    - `selfverify visual collect my-looks.yaml --own --samples 8 --output looks`
    """
    from selfverify.experiments.recipe import load_recipe
    from selfverify.experiments.visual_data import collect_looks

    loaded, amount = load_recipe(recipe, overrides or []), (settings.problems, settings.samples)
    with bar("problems", hidden=as_json) as progress:
        how = settings.teacher, settings.output, *amount, settings.shots
        done = collect_looks(loaded, *how, progress=progress)
    _tell_collected(done, settings.output, as_json)


class BranchConfig(Config):
    """The model that goes on, and how."""

    teacher: TeacherConfig
    way: Literal["branched", "induced", "hurried"] = "branched"
    """In earnest, asked to go on wrongly (the paper's error induction), or told to answer at once."""

    samples: int = Field(1, ge=1)
    """Conversations from each trace."""

    most: int | None = Field(None, ge=1)
    """From so many right traces only, the first ones."""


@app.command()
@settings_as_options
def branch(
    recipe: RecipeFor,
    folder: Folder,
    settings: BranchConfig,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Let a model go on from an intermediate step of each right trace; what ends wrong becomes a negative.

    Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify visual branch my-looks.yaml looks --own --samples 4`

    - `selfverify visual branch my-looks.yaml looks --way induced --server http://127.0.0.1:8000
      --model Qwen/Qwen2.5-VL-72B-Instruct`
    """
    from selfverify.experiments.recipe import load_recipe
    from selfverify.experiments.visual_data import branch_looks

    loaded, how = load_recipe(recipe, overrides or []), (settings.way, settings.samples, settings.most)
    with bar("traces", hidden=as_json) as progress:
        done = branch_looks(loaded, settings.teacher, folder, *how, progress)
    _tell_collected(done, folder, as_json)


@app.command()
@settings_as_options
def judge(
    folder: Folder,
    settings: TeacherConfig,
    votes: Annotated[int, typer.Option(min=1, help="Votes on each answer; more than half decide.")] = 1,
    as_json: Json = False,
) -> None:
    """Ask a model about answers in free words, right and wrong ones (`visual sets --judged`).

    Rules say it of numbers, choices and single words. Equal answers to one question are judged once; called
    again, the command goes on where it was stopped.

    Example: `selfverify visual judge looks --server http://127.0.0.1:8000
    --model Qwen/Qwen2.5-VL-72B-Instruct --votes 3`
    """
    from selfverify.experiments.visual_sets import judge_looks

    with bar("conversations", hidden=as_json) as progress:
        done = judge_looks(folder, settings, votes, progress)
    judged = f"{done.right} right, {done.wrong} wrong, {done.neither} without a verdict"
    unasked = f"{done.unasked} could not be judged; the first: {done.reason}" if done.unasked else ""
    print_outcome(done, as_json, f"{judged}; rules settle {done.by_rules}", unasked)


class SetsConfig(Config):
    """The demands on traces, and the way they are paired."""

    pairs: Literal["wrong", "wrong+wasteful"] = "wrong"
    """Whether two right traces make a pair, too, of which the one with fewer looks is preferred (ours)."""

    most_tokens: int = Field(20_000, ge=1)
    """Longer traces are dropped; text counts a token for four bytes, an image one for 28 x 28 pixels."""

    any_length: bool = False
    """Make pairs whatever their lengths: else neither side may be more than four times as long as the other,
    and the chosen one is longer as often as the rejected one."""

    judged: bool = False
    """Answers in free words, right and wrong ones, are as the model of `visual judge` has said."""


@app.command()
@settings_as_options
def sets(folder: Folder, settings: SetsConfig, as_json: Json = False) -> None:
    """Make `sft.jsonl` and `pairs.jsonl` of the traces in a folder; say what was dropped, and why.

    Example: `selfverify visual sets looks --pairs wrong+wasteful`
    """
    from selfverify.experiments.visual_sets import make_sets
    from selfverify.visual.pairs import Pairing

    pairing = Pairing(settings.pairs == "wrong+wasteful", not settings.any_length)
    done = make_sets(folder, pairing, settings.most_tokens, settings.judged)
    if as_json:
        print_json(asdict(done), indent=None)
        return
    _tell_sets(asdict(done), folder)


@app.command()
def data(
    recipe: RecipeFor,
    data_only: Annotated[bool, typer.Option("--data-only", help="End when the pairs are made.")] = False,
    overrides: Overrides = None,
) -> None:
    """Make the data of a recipe with a section `stopping`, and train the verifier: all in one command.

    A teacher or the recipe's own policy looks, a judge says which answers in free words are right, traces
    are branched, induced and hurried as the section says, `sft.jsonl` and `pairs.jsonl` are made, words are
    tested, and the verifier learns. Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify visual data looking-digits`

    - `selfverify visual data vts-v-data --data-only stopping.teacher=URL#MODEL stopping.judge=URL#MODEL`
    """
    import json

    from selfverify.core.files import read_regular
    from selfverify.experiments.recipe import load_recipe
    from selfverify.experiments.run import start_processes
    from selfverify.experiments.train_stopping import LEAKS, LOOKS, VERIFIER, train_stopping
    from selfverify.experiments.visual_sets import ABOUT
    from selfverify.trainer.logging import TrainingProgress

    loaded = load_recipe(recipe, overrides or [])
    start_processes(loaded)
    with TrainingProgress() as shown:
        run = train_stopping(loaded, True, shown.on_step, shown.on_phase, data_only)
    _tell_sets(json.loads(read_regular(run / LOOKS / ABOUT)), run / LOOKS)
    if (run / LEAKS).is_file():
        found = json.loads(read_regular(run / LEAKS))
        typer.echo(f"{found['accuracy']:.1%} of the sides guessed by their words")
    if not data_only:
        typer.echo(f"verifier: {run / VERIFIER / 'model'}")


@app.command()
def leaks(
    pairs: Annotated[Path, typer.Argument(help="A `pairs.jsonl`, or the folder that has one.")],
    words: Annotated[int, typer.Option(min=1, help="How many words are named for each side.")] = 10,
    as_json: Json = False,
) -> None:
    """Let a bag-of-words classifier guess which side of a pair is the chosen one, and name the words.

    Numbers are masked, and all pairs of a problem are in one of five folds. The command ends with status 1
    where the classifier is right in more than 60 % of the cases: a verifier could learn the words, too.

    Example: `selfverify visual leaks looks`
    """
    from selfverify.experiments.visual_sets import read_pairs
    from selfverify.visual.pairs import MOST, leak_test

    found = leak_test(read_pairs(pairs), words)
    if as_json:
        print_json(asdict(found) | {"passes": found.passes}, indent=None)
    else:
        said = f"{found.accuracy:.1%} of {2 * found.pairs} sides guessed by their words"
        typer.echo(f"{said}; {MOST:.0%} may be")
        rows = [
            (side, word, f"{weight:+.3f}")
            for side, named in (("chosen", found.chosen), ("rejected", found.rejected))
            for word, weight in named
        ]
        print_table(("speaks for", "word", "weight"), rows)
    if not found.passes:
        raise typer.Exit(1)


app.command()(serve)
app.command()(calibrate)
app.command()(compare)


def _tell_collected(done: Any, folder: Path, as_json: bool) -> None:
    lost = f"{done.lost} broke off, {done.unusable} problems could not be made"
    lost = f"{lost}; the first reason: {done.reason}" if done.reason else ""
    print_outcome(done, as_json, f"{done.traces} traces, {done.correct} of them right: {folder}", lost)


def _tell_sets(done: dict[str, Any], folder: Path) -> None:
    typer.echo(f"{done['sft']} of {done['traces']} traces: {folder / 'sft.jsonl'}")
    _tell_dropped(done["sft_dropped"], done["named"])
    kinds = ", ".join(f"{count} {kind}" for kind, count in done["kinds"].items())
    by = ", ".join(f"{count} by {who}" for who, count in done["decided"].items())
    pairs = f"{done['pairs']} pairs ({kinds}; decided: {by})" if done["pairs"] else "0 pairs"
    typer.echo(f"{pairs}: {folder / 'pairs.jsonl'}")
    others = {why: count for why, count in done["pairs_dropped"].items() if why not in done["sft_dropped"]}
    _tell_dropped(others, done["named"])


def _tell_dropped(dropped: dict[str, int], named: dict[str, str]) -> None:
    for reason, count in dropped.items():
        first = f", such as {named[reason]}" if reason in named else ""
        say(f"{count} left out: {reason}{first}", "yellow")
