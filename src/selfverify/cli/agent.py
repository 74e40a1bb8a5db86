"""The commands about agents: `selfverify agent run`, `collect`, `reanswer` and `serve`.

`collect` and `reanswer` make data for fine-tuning agents, `serve` serves environments. `run` shows a session
in the terminal: each turn as it comes, and what was made of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.text import Text

from selfverify.cli.options import (
    Json,
    Overrides,
    announced,
    bar,
    harmless,
    print_outcome,
    settings_as_options,
)
from selfverify.connectors.pool import EnvironmentServerConfig
from selfverify.core.config import Config, Seed
from selfverify.core.errors import ConfigError, needs
from selfverify.experiments.command_config import AgentSessionConfig, TeacherConfig

if TYPE_CHECKING:
    from selfverify.agents.reward import AgentRecord
    from selfverify.agents.task import AgentTask
    from selfverify.connectors.pool import Factory
    from selfverify.experiments.agent_session import AgentRun


class CollectConfig(Config):
    """The teacher, the number of conversations, and the output."""

    recipe: str = Field(json_schema_extra={"argument": True})
    """A recipe, of which the task, the episode and the seed are used."""

    teacher: TeacherConfig
    output: Path = Path("conversations.parquet")
    """The file, .parquet or .jsonl; OUTPUT.journal beside it keeps all conversations."""

    problems: int = Field(100, ge=1)
    """The number of training problems, at most those that the task has."""

    samples: int = Field(1, ge=1)
    """Conversations about each."""

    keep: Literal["all", "correct", "judged"] = "correct"
    """Which are written: all, right ones, or those that the task's judges found a success."""


@settings_as_options
def collect(settings: CollectConfig, overrides: Overrides = None, as_json: Json = False) -> None:
    """Let a teacher do a task's training problems, and write its conversations for fine-tuning.

    Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify agent collect smartsnap-phone-qwen3 --expert --problems 1000 --output expert.parquet`

    - `selfverify agent collect smartsnap-qwen3-8b --server http://127.0.0.1:8000
      --model deepseek-ai/DeepSeek-V3.1 --problems 726 --samples 8 --keep judged`
    """
    from selfverify.experiments.recipe import load_recipe
    from selfverify.experiments.teaching import collect as run

    loaded = load_recipe(settings.recipe, overrides or [])
    with bar("problems", hidden=as_json) as progress:
        amount = (settings.problems, settings.samples)
        done = run(loaded, settings.teacher, settings.output, *amount, settings.keep, progress)
    held = f"{done.conversations} conversations, {done.correct} of them right"
    lost = f"{done.lost} were lost; the first one: {done.reason}" if done.lost else ""
    print_outcome(done, as_json, f"{held}; {done.written} written: {settings.output}", lost)


class ReanswerConfig(Config):
    """The model that answers, the number of turns, and the output."""

    source: Path = Field(json_schema_extra={"argument": True})
    """A file or folder of conversations."""

    teacher: TeacherConfig
    output: Path = Path("reanswered.parquet")
    """The file, .parquet or .jsonl; OUTPUT.journal beside it keeps all answers."""

    sample: int | None = Field(None, ge=1)
    """So many turns only, drawn by the seed. By default all."""

    seed: Seed = 0
    """Decides which turns are drawn, and is sent to the server."""


@settings_as_options
def reanswer(settings: ReanswerConfig, as_json: Json = False) -> None:
    """Ask a teacher anew for each turn of existing conversations, and write its answers for fine-tuning.

    Called again, the command goes on where it was stopped.

    Examples:

    - `selfverify agent reanswer android-instruct.parquet --server http://127.0.0.1:8000
      --model Qwen/Qwen3-235B-A22B --sample 100000 --output reanswered.parquet`
    """
    from selfverify.experiments.teaching import reanswer as run

    with bar("turns", hidden=as_json) as progress:
        amount = settings.output, settings.sample, settings.seed
        written, lost, reason = run(settings.source, settings.teacher, *amount, progress)
    done = {"written": written, "lost": lost, "reason": reason}
    without = f"{lost} turns have no answer; the first one: {reason}" if lost else ""
    print_outcome(done, as_json, f"{written} turns: {settings.output}", without)


app = typer.Typer(
    no_args_is_help=True,
    help="Let an agent act and watch it, collect what teachers do, serve environments.",
)
app.command()(collect)
app.command()(reanswer)


@app.command()
@settings_as_options
def run(settings: AgentSessionConfig) -> None:
    """Let an agent do something in an environment of its own, watch it, and write a page about it.

    Ctrl-C ends the session; the page then shows what was done so far.

    Examples:

    - `selfverify agent run --template clock-add --expert`

    - `selfverify agent run "Set an alarm for 7:30" --model runs/mine/model --text terse`

    - `selfverify agent run "Set an alarm for 7:30" --server http://127.0.0.1:8000 --model Qwen/Qwen3-8B`
    """
    with needs("`agent run` needs", "serve"):
        from selfverify.experiments.agent_session import run_agent
    task = _task(settings.task.environment, settings.options())
    asked = Text("asked: ", "bold")
    session = run_agent(task, settings, lambda problem: _print(asked, problem.meta["question"]), watch_turn)
    told(session)
    if session.error is not None:
        raise session.error


@app.command()
@settings_as_options
def serve(settings: EnvironmentServerConfig) -> None:
    """Serve environments over OpenEnv's wire (WebSocket at /ws) and the Model Context Protocol (/mcp).

    Each session has an environment of its own. Several environments stand below their names, such as
    /phone/ws.

    Examples:

    - `selfverify agent serve phone`

    - `selfverify agent serve shop=my_package.shop:Shop --port 8001 --sessions 16`

    - `selfverify agent serve android --options devices.yaml --sessions 4`
    """
    import asyncio

    from selfverify.connectors.server import serve_until_told

    say = announced(settings.host, ", ".join(spec.partition("=")[0] for spec in settings.environments))
    asyncio.run(serve_until_told(settings, say, _known(settings)))


def _known(settings: EnvironmentServerConfig) -> dict[str, Factory]:
    """Return the environments of agents' tasks by name; the requested ones are made at once."""
    from selfverify.agents.task import AgentTask
    from selfverify.experiments.recipe_yaml import read_document
    from selfverify.experiments.registry import TASKS

    options, asked = {}, settings.environments
    if settings.options is not None:
        read = read_document(settings.options, "file of options").data
        options = {"judge": {"kind": "own"}, **read}  # whoever judges does so elsewhere

    def later(name: str) -> Factory:
        return lambda: _task(name, options).environment()

    names = [name for name, task in TASKS.items() if issubclass(task, AgentTask)]
    return {name: _task(name, options).environment if name in asked else later(name) for name in names}


def _task(name: str, options: Mapping[str, Any]) -> AgentTask:
    """A task of agents.

    Raises:
        ConfigError: There is no such task, or it has no environment.
    """
    from selfverify.agents.task import AgentTask
    from selfverify.experiments.registry import make_task

    task = make_task(name, **options)
    if not isinstance(task, AgentTask):
        raise ConfigError(f"task {name} has no environment in which an agent works")
    return task


MOST_LINES = 6
"""Lines of a screen that are shown."""
WIDEST = 300
"""Characters of a line that are shown."""


def watch_turn(turn: int, worked: AgentRecord, said: str, reply: str) -> None:
    """Show a turn: what was called and why, and the beginning of the screen after it."""
    record = worked.turns.get(turn, {})
    call = record.get("call")
    number = f"round {record['round']}" if "round" in record else f"turn {turn + 1}"
    words = said.partition("<tool_call>")[0].strip()
    if call is not None and words.startswith("{"):
        words = ""
    if words:
        _print(Text(f"{number:>9}  ", "bold cyan"), words)
    if call is not None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in call["arguments"].items())
        _print(Text(f"{'' if words else number:>9}  ", "bold cyan"), f"{call['name']}({arguments})", "green")
    if record.get("error"):
        _print(Text(" " * 11), f"refused: {record['error']}", "red")
    lines = [line for line in reply.splitlines() if line.strip() and not line.startswith("## Round")]
    for line in lines[:MOST_LINES]:
        _print(Text(" " * 11), line, "dim")
    if len(lines) > MOST_LINES:
        _print(Text(" " * 11), f"... {len(lines) - MOST_LINES} more lines", "dim")


def told(session: AgentRun) -> None:
    """Print the submission, the judges' verdict and the place of the page."""
    worked, judgement = session.worked, session.worked.judgement
    if worked.message:
        rounds = ", ".join(str(exhibit.seen.round) for exhibit in worked.chosen)
        _print(Text("handed in: ", "bold"), f"{worked.message} (evidence: rounds {rounds or 'none'})")
    for ballot in judgement.ballots if judgement is not None else ():
        vote = ballot.vote
        if vote is None:
            _print(Text(f"vote {ballot.number + 1} is missing: ", "bold yellow"), ballot.missing)
        else:
            style, verdict = ("bold green", "success") if vote.success else ("bold red", "failure")
            _print(Text(f"vote {ballot.number + 1}: {verdict}: ", style), vote.words)
    if worked.truth is not None:
        done = worked.truth.complete
        _print(Text("ground truth: ", "bold"), "done" if done else "not done", "green" if done else "red")
    if session.ending is not None and session.ending.parsed is not None:
        judged = session.ending.parsed
        what = f"none ({judged.unjudged})" if judged.unjudged else f"{judged.reward:.2f}"
        _print(Text("reward: ", "bold"), what)
    if session.page is not None:
        _print(Text("page: ", "bold"), str(session.page))


def _print(head: Text, words: str, style: str = "") -> None:
    clean = harmless(words)
    shown = clean if len(clean) <= WIDEST else f"{clean[:WIDEST]} ..."
    Console(highlight=False).print(head.append(shown, style), soft_wrap=True)
