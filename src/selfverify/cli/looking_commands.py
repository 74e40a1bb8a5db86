"""The commands about looking again: `selfverify visual ...`. Without one, it lists the tools."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import Field

from selfverify.cli.look_page_command import page
from selfverify.cli.look_server_command import serve
from selfverify.cli.options import Json, Overrides, settings_as_options
from selfverify.cli.printing import bar, print_json, print_table, say
from selfverify.cli.stopping_commands import calibrate, compare
from selfverify.core.config import CommandConfig
from selfverify.experiments.teaching import TeacherConfig
from selfverify.visual.config import ToolModels

app = typer.Typer(help="List visual tools; make data for looking again; say when a verifier ends it.")
Folder = Annotated[Path, typer.Argument(help="The folder in which the data are made.")]
RecipeFor = Annotated[
    str, typer.Argument(help="A recipe, of which the task, the episode, the seed and the policy are used.")
]


@app.callback(invoke_without_command=True)
@settings_as_options
def list_tools(ctx: typer.Context, models: ToolModels) -> None:
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


class CollectLooksConfig(CommandConfig):
    """Who looks, how often, and with which examples."""

    teacher: TeacherConfig
    output: Path = Path("looks")
    """The folder in which the data are made."""

    problems: int = Field(100, ge=1)
    """The number of training problems, at most those that the task has."""

    samples: int = Field(1, ge=1)
    """Conversations about each."""

    shots: Path | None = None
    """A file of traces (`sft.jsonl`) from which examples are put before each question, in words."""

    shot_count: int = Field(2, ge=1)
    """With --shots: how many examples."""


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

    with bar("problems", hidden=as_json) as progress:
        done = collect_looks(
            load_recipe(recipe, overrides or []),
            settings.teacher,
            settings.output,
            settings.problems,
            settings.samples,
            settings.shots,
            settings.shot_count,
            progress,
        )
    _tell_collected(done, settings.output, as_json)


class BranchConfig(CommandConfig):
    """Who goes on, and how."""

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

    with bar("traces", hidden=as_json) as progress:
        done = branch_looks(
            load_recipe(recipe, overrides or []),
            settings.teacher,
            folder,
            settings.way,
            settings.samples,
            settings.most,
            progress,
        )
    _tell_collected(done, folder, as_json)


@app.command()
@settings_as_options
def judge(folder: Folder, settings: TeacherConfig, as_json: Json = False) -> None:
    """Ask a model about the answer of each trace that the task found right (`visual sets --judged`).

    Called again, the command goes on where it was stopped.

    Example: `selfverify visual judge looks --server http://127.0.0.1:8000
    --model Qwen/Qwen2.5-VL-72B-Instruct`
    """
    from selfverify.experiments.visual_data import judge_looks

    with bar("answers", hidden=as_json) as progress:
        right, wrong, neither = judge_looks(folder, settings, progress)
    if as_json:
        print_json({"right": right, "wrong": wrong, "neither": neither}, indent=None)
        return
    typer.echo(f"{right} right, {wrong} wrong, {neither} without a verdict")


class SetsConfig(CommandConfig):
    """What traces have to be, and how they are paired."""

    pairs: Literal["wrong", "wrong+wasteful"] = "wrong"
    """Whether two right traces make a pair, too, of which the one with fewer looks is preferred (ours)."""

    most_tokens: int = Field(20_000, ge=1)
    """Longer traces are dropped; text counts a token for four bytes, an image one for 28 x 28 pixels."""

    least_calls: int = Field(1, ge=0)
    """Calls of tools that a trace has to have."""

    whole_calls: bool = False
    """Drop traces in which a call failed."""

    most: int = Field(4, ge=1)
    """Pairs of one problem and kind, at most."""

    longest_ratio: float = Field(4.0, ge=1.0)
    """How many times longer one side of a pair may be."""

    any_length: bool = False
    """Do not see to it that the chosen side is longer as often as the rejected one."""

    judged: bool = False
    """Right traces have to be right for the model of `visual judge`, too."""


@app.command()
@settings_as_options
def sets(folder: Folder, settings: SetsConfig, as_json: Json = False) -> None:
    """Make `sft.jsonl` and `pairs.jsonl` of the traces in a folder; say what was dropped, and why.

    Example: `selfverify visual sets looks --pairs wrong+wasteful`
    """
    from selfverify.experiments.visual_data import make_sets
    from selfverify.visual.traces import Demands, Pairing

    demands = Demands(settings.most_tokens, settings.least_calls, not settings.whole_calls)
    pairing = Pairing(
        settings.pairs == "wrong+wasteful", settings.most, settings.longest_ratio, not settings.any_length
    )
    done = make_sets(folder, demands, pairing, settings.judged)
    if as_json:
        print_json(asdict(done), indent=None)
        return
    typer.echo(f"{done.sft} of {done.traces} traces: {folder / 'sft.jsonl'}")
    _tell_dropped(done.sft_dropped)
    kinds = ", ".join(f"{count} {kind}" for kind, count in done.kinds.items())
    typer.echo(f"{done.pairs} pairs{f' ({kinds})' if kinds else ''}: {folder / 'pairs.jsonl'}")
    _tell_dropped(done.pairs_dropped)


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
    from selfverify.experiments.visual_data import read_pairs
    from selfverify.visual.traces import MOST, leak_test

    found = leak_test(read_pairs(pairs), words)
    if as_json:
        print_json(asdict(found) | {"passes": found.passes}, indent=None)
    else:
        typer.echo(
            f"{found.accuracy:.1%} of {2 * found.pairs} sides guessed by their words; {MOST:.0%} may be"
        )
        rows = [
            (side, word, f"{weight:+.3f}")
            for side, named in (("chosen", found.chosen), ("rejected", found.rejected))
            for word, weight in named
        ]
        print_table(("speaks for", "word", "weight"), rows)
    if not found.passes:
        raise typer.Exit(1)


app.command()(page)
app.command()(serve)
app.command()(calibrate)
app.command()(compare)


def _tell_collected(done: Any, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(asdict(done), indent=None)
        return
    typer.echo(f"{done.traces} traces, {done.correct} of them right: {folder}")
    if done.lost or done.reason:
        say(f"{done.lost} were lost; the first reason: {done.reason}", "yellow")


def _tell_dropped(dropped: dict[str, int]) -> None:
    for reason, count in dropped.items():
        say(f"{count} left out: {reason}", "yellow")
