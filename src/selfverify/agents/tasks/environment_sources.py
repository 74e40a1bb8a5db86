"""Where a recipe's environments come from: servers by their addresses, or processes that are started here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from selfverify.connectors.pool import LocalSource, Source, SourceConfig
from selfverify.core.distributions import distributions
from selfverify.core.episode import Environment

# Clients are imported late, because a core installation lacks what they need; the first names what that is.


class ServerOf(SourceConfig):
    """A server that speaks OpenEnv's wire: `selfverify agent serve`, or anybody's. It is sent the key."""

    url: str = Field(description="Its address, such as http://127.0.0.1:8000/phone.")
    actions: Literal["tools", "plain"] = Field(
        "tools", description="Whether its actions are calls of tools, or of one kind (`RemoteConfig`)."
    )

    def make(self) -> Source:
        """See `SourceConfig`."""
        from selfverify.connectors.openenv import RemoteConfig
        from selfverify.connectors.pool import ServerSource

        return ServerSource(RemoteConfig(self.url, key=_key(), actions=self.actions), self.sessions)


class McpOf(SourceConfig):
    """A server of the Model Context Protocol, by its address or the command that starts it."""

    url: str | None = Field(None, description="Its address, such as http://127.0.0.1:8000/mcp.")
    command: list[str] = Field([], description="Or the command that starts one, with its arguments.")
    begin: str | None = Field(None, description="The tool that begins a task, on our servers `begin`.")

    @model_validator(mode="after")
    def _one(self) -> McpOf:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server of MCP has either a url or a command")
        return self

    def make(self) -> Source:
        """See `SourceConfig`."""
        from selfverify.connectors.mcp import McpConfig, McpToolset

        settings = McpConfig(self.command, self.url, key=_key(), begin=self.begin)

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

        return Toolsets(lambda: McpToolset(settings), self.sessions, McpToolset(settings).name)


class ProcessOf(SourceConfig):
    """A process of our own with an environment in it, such as a Gymnasium one."""

    factory: str = Field(description="What makes an environment, as package.module:name.")

    def make(self) -> Source:
        """See `SourceConfig`."""
        from selfverify.connectors.process import ProcessSource

        return ProcessSource(self.factory, self.sessions)


def _key() -> str | None:
    from selfverify.connectors.openenv import KEY_VARIABLE

    return os.environ.get(KEY_VARIABLE)


def source_kinds() -> dict[str, type[SourceConfig]]:
    """Return the kinds of sources, those of installed distributions included."""
    found: dict[str, type[SourceConfig]] = {"server": ServerOf, "mcp": McpOf, "process": ProcessOf}
    for module in distributions().values():
        found.update(vars(module).get("SOURCES", {}))
    return found


def _by_kind(given: Any) -> Any:
    if not isinstance(given, Mapping) or "kind" not in given:
        return given
    kinds, kind = source_kinds(), given["kind"]
    if kind not in kinds:
        raise ValueError(
            f"there is no kind {str(kind)[:40]!r} of sources; kinds: {', '.join(kinds)}. Distributions bring "
            "more: android-world comes with selfverify-android-world (in a checkout: pip install "
            "./environments/android_world)"
        )
    return kinds[kind].model_validate(given)


SourceOf = Annotated[SerializeAsAny[SourceConfig], BeforeValidator(_by_kind)]
"""A source of any kind that is installed."""
