"""Where the sessions of a pool come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pydantic import Field

from selfverify.core.config import Config
from selfverify.core.episode import Environment
from selfverify.core.errors import ConfigError
from selfverify.remote.environments.sessions import Factory


class Source(ABC):
    """Makes sessions.

    Args:
        name: What messages call it.
        sessions: The most sessions at once.
    """

    def __init__(self, name: str, sessions: int) -> None:
        if sessions < 1:
            raise ConfigError(f"{name}: sessions={sessions}, at least one is needed")
        self.name, self.sessions = name, sessions

    async def start(self) -> None:
        """Do what comes before the first session.

        Raises:
            ConfigError: It can never work.
        """

    @abstractmethod
    async def open(self) -> Environment:
        """Return a new session, which is not reset yet. What was opened in vain is closed.

        Raises:
            EnvironmentLost: There is none to be had now.
        """

    async def healthy(self) -> bool:
        """Return whether sessions can be had, in a time that the source itself bounds.

        A source that can repair itself does so here. A check that raises is one that has failed.
        """
        return True

    async def close(self) -> None:
        """Give everything back, after the last session."""


class SourceConfig(Config):
    """A source as recipes write it. Each kind has a class; distributions give theirs in ``SOURCES``."""

    kind: str
    sessions: int = Field(8, ge=1, description="Sessions at the same time.")

    def make(self) -> Source:
        """Return the source.

        Raises:
            ConfigError: An address is none, or a package is not installed.
        """
        raise NotImplementedError


class LocalSource(Source):
    """Environments in this process.

    Args:
        factory: Makes an environment.
        sessions: The most at once.
    """

    def __init__(self, factory: Factory, sessions: int, name: str = "this process") -> None:
        super().__init__(name, sessions)
        self.factory = factory

    async def open(self) -> Environment:
        """See `Source`."""
        return self.factory()
