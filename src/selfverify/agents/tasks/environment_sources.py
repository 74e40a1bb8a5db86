"""Where a recipe's environments come from: servers by their addresses, or processes that are started here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from selfverify.core.environment import Environment
from selfverify.core.settings import StrictModel

if TYPE_CHECKING:
    from selfverify.remote.environments.sources import Source


class ServerOf(StrictModel):
    """A server that speaks OpenEnv's wire: `selfverify agent serve`, or anybody's."""

    kind: Literal["server"]
    url: str = Field(description="Its address, such as http://127.0.0.1:8000/phone.")
    sessions: int = Field(8, ge=1, description="Sessions that are opened there at the same time.")
    actions: Literal["tools", "plain"] = Field(
        "tools", description="Whether its actions are calls of tools, or of one kind (`RemoteSettings`)."
    )


class AndroidWorldOf(StrictModel):
    """AndroidWorld's server, which has one device."""

    kind: Literal["android-world"]
    url: str = Field(description="Its address, such as http://127.0.0.1:5000.")

    @property
    def sessions(self) -> int:
        """One device, one session."""
        return 1


class McpOf(StrictModel):
    """A server of the Model Context Protocol, by its address or the command that starts it."""

    kind: Literal["mcp"]
    url: str | None = Field(None, description="Its address, such as http://127.0.0.1:8000/mcp.")
    command: list[str] = Field([], description="Or the command that starts one, with its arguments.")
    begin: str | None = Field(None, description="The tool that begins a task, on our servers `begin`.")
    sessions: int = Field(8, ge=1, description="Sessions at the same time.")

    @model_validator(mode="after")
    def _one(self) -> McpOf:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server of MCP has either a url or a command")
        return self


class ProcessOf(StrictModel):
    """A process of our own with an environment in it, such as a Gymnasium one."""

    kind: Literal["process"]
    factory: str = Field(description="What makes an environment, as package.module:name.")
    sessions: int = Field(8, ge=1, description="Sessions at the same time.")


SourceOf = Annotated[ServerOf | AndroidWorldOf | McpOf | ProcessOf, Field(discriminator="kind")]


def make_sources(given: Sequence[ServerOf | AndroidWorldOf | McpOf | ProcessOf]) -> list[Source]:
    """The sources of a pool. Servers are sent the key in the environment variable `KEY_VARIABLE`.

    Raises:
        ConfigError: An address is none, or a package is not installed.
    """
    return [_source(one) for one in given]


def _source(given: ServerOf | AndroidWorldOf | McpOf | ProcessOf) -> Source:
    # Late, because a core installation lacks what they need; the first names what that is.
    from selfverify.remote.environments.remote_environment import KEY_VARIABLE, RemoteSettings
    from selfverify.remote.environments.server_source import ServerSource
    from selfverify.remote.environments.sources import LocalSource

    key = os.environ.get(KEY_VARIABLE)
    match given:
        case ServerOf():
            return ServerSource(RemoteSettings(given.url, key=key, actions=given.actions), given.sessions)
        case AndroidWorldOf():
            from selfverify.remote.environments.android_world import AndroidWorldSettings, AndroidWorldSource

            return AndroidWorldSource(AndroidWorldSettings(given.url))
        case ProcessOf():
            from selfverify.remote.environments.process_source import ProcessSource

            return ProcessSource(given.factory, given.sessions)
    from selfverify.remote.environments.mcp_toolset import McpSettings, McpToolset

    settings = McpSettings(given.command, given.url, key=key, begin=given.begin)

    class Toolsets(LocalSource):
        """Opens a toolset at once, so that its tools are known."""

        async def open(self) -> Environment:
            made = McpToolset(settings)
            try:
                await made.open()
            except BaseException:
                await made.close()
                raise
            return made

    return Toolsets(lambda: McpToolset(settings), given.sessions, McpToolset(settings).name)
