"""The command `selfverify visual serve`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from selfverify.cli.options import settings_as_options
from selfverify.core.config import CommandConfig
from selfverify.visual.config import ToolModels


class ToolServing(CommandConfig):
    """Which visual tools are served, where, and to whom."""

    models: ToolModels
    tools: list[str] = Field([], json_schema_extra={"option": "tool"})
    """A tool that is served; repeat the option. By default all that are available."""

    tool_seconds: float = Field(60.0, gt=0)
    """How long a call may take."""

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Any but this machine's own needs keys."""

    port: int = Field(8300, ge=0, le=65535)
    """The port; 0 takes a free one."""

    sessions: int = Field(64, ge=1)
    """The most calls at once."""

    keys: Path | None = None
    """A file with the keys of those who may ask, one a line; or set $SELFVERIFY_ENVIRONMENT_KEYS."""


@settings_as_options
def serve(settings: ToolServing) -> None:
    """Serve visual tools to several processes: OpenEnv's wire (/ws), the Model Context Protocol (/mcp).

    Their models are loaded once, and calls that come together go in together. `--tool-server URL` of
    `selfverify solve`, `serve` and recipes (`look.tool_server`) lets them do the work.

    Example: `selfverify visual serve --depth-model FOLDER --similarity-model FOLDER --port 8300`
    """
    import asyncio
    import logging

    import typer

    from selfverify.connectors.server import EnvironmentServing, address_of, serve_until_told
    from selfverify.visual.config import VisualConfig
    from selfverify.visual.task import make_toolbox
    from selfverify.visual.tools.server import LIMITS, ToolSession

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    named = {"tools": settings.tools, "tool_seconds": settings.tool_seconds, "terminate": "refuse"}
    toolbox = make_toolbox(VisualConfig(**{**settings.models.model_dump(), **named}))
    serving = EnvironmentServing(
        environments=["looking"],
        host=settings.host,
        port=settings.port,
        sessions=settings.sessions,
        busy=settings.tool_seconds + 30,
        keys=settings.keys,
    )

    def say(port: int) -> None:
        names = ", ".join(tool["function"]["name"] for tool in toolbox.schemas())
        typer.echo(f"{address_of(settings.host, port)} serves {names}; Ctrl-C stops it", err=True)

    asyncio.run(serve_until_told(serving, say, {"looking": lambda: ToolSession(toolbox)}, content=LIMITS))
