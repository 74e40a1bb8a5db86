"""Servers of AndroidWorld in a pool, and how recipes name them."""

from __future__ import annotations

from pydantic import Field

from selfverify.connectors.openenv import base_url
from selfverify.connectors.pool import Source, SourceConfig
from selfverify.connectors.sources import answers
from selfverify.core.episode import Environment
from selfverify_android_world.environment import AndroidWorld, AndroidWorldConfig


class AndroidWorldSource(Source):
    """A server of AndroidWorld in a pool: one session at a time."""

    def __init__(self, settings: AndroidWorldConfig) -> None:
        super().__init__(str(base_url(settings.url)), sessions=1)
        self.settings = settings

    async def open(self) -> Environment:
        """See `Source`."""
        return AndroidWorld(self.settings)

    async def healthy(self) -> bool:
        """See `Source`."""
        return await answers(base_url(self.settings.url), self.settings.health_s)


class AndroidWorldSourceConfig(SourceConfig):
    """AndroidWorld's server, which has one device, and so one session."""

    url: str
    """Its address, such as http://127.0.0.1:5000."""

    sessions: int = Field(1, ge=1, le=1)
    """Sessions at the same time."""

    def make(self) -> Source:
        """See `SourceConfig`."""
        return AndroidWorldSource(AndroidWorldConfig(self.url))
