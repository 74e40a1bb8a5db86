"""The commands about agents and their environments: `selfverify agent ...`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import typer

from selfverify.cli.options import settings_as_options
from selfverify.cli.teach_commands import collect, reanswer
from selfverify.connectors.server import EnvironmentServing
from selfverify.experiments.agent_session import AgentSessionConfig

if TYPE_CHECKING:
    from selfverify.agents.task import AgentTask
    from selfverify.connectors.server import Factory

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
    from selfverify.cli.agent_watching import told, watch_begin, watch_turn
    from selfverify.core.errors import ConfigError

    try:
        from selfverify.experiments.agent_session import run_agent
    except ImportError as error:
        raise ConfigError(f"this needs more: pip install 'selfverify[serve]' ({error})") from None
    task = _task(settings.task.environment, settings.options())
    session = run_agent(task, settings, watch_begin, watch_turn)
    told(session)
    if session.error is not None:
        raise session.error


@app.command()
@settings_as_options
def serve(settings: EnvironmentServing) -> None:
    """Serve environments over OpenEnv's wire (WebSocket at /ws) and the Model Context Protocol (/mcp).

    Each session has an environment of its own. Several environments stand below their names, such as
    /phone/ws.

    Examples:

    - `selfverify agent serve phone`

    - `selfverify agent serve shop=my_package.shop:Shop --port 8001 --sessions 16`
    """
    import asyncio
    import logging

    from selfverify.connectors.server import address_of, serve_until_told

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def say(port: int) -> None:
        names = ", ".join(spec.partition("=")[0] for spec in settings.environments)
        typer.echo(f"{address_of(settings.host, port)} serves {names}; Ctrl-C stops it", err=True)

    asyncio.run(serve_until_told(settings, say, _known(settings.environments)))


def _known(asked: Collection[str]) -> dict[str, Factory]:
    """The environments of the tasks of agents by name; those that are asked for are made at once."""
    from selfverify.agents.task import AgentTask
    from selfverify.experiments.registry import TASKS

    def later(name: str) -> Factory:
        return lambda: _task(name, {}).environment()

    names = [name for name, task in TASKS.items() if issubclass(task, AgentTask)]
    return {name: _task(name, {}).environment if name in asked else later(name) for name in names}


def _task(name: str, options: Mapping[str, Any]) -> AgentTask:
    """A task of agents.

    Raises:
        ConfigError: There is no such task, or it has no environment.
    """
    from selfverify.agents.task import AgentTask
    from selfverify.core.errors import ConfigError
    from selfverify.experiments.registry import make_task

    task = make_task(name, **options)
    if not isinstance(task, AgentTask):
        raise ConfigError(f"task {name} has no environment in which an agent works")
    return task
