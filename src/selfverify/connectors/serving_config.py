"""Config of a server of environments, which becomes options of a command."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from selfverify.core.config import CommandConfig

KEYS_VARIABLE = "SELFVERIFY_ENVIRONMENT_KEYS"
"""Environment variable with the keys of those who may ask, apart by commas."""


class EnvironmentServing(CommandConfig):
    """Which environments are served, where, and to whom."""

    environments: list[str] = Field(
        description="An environment: a name that is known here, or name=package.module:factory.",
        json_schema_extra={"argument": True},
    )

    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on. Any but this machine's own needs keys."""

    port: int = Field(8000, ge=0, le=65535)
    """The port; 0 takes a free one."""

    sessions: int = Field(64, ge=1)
    """The most sessions of each environment."""

    idle: float = Field(600.0, ge=0.1)
    """Seconds without a request after which a session is closed."""

    busy: float = Field(600.0, ge=0.1)
    """Seconds that one request may take; then its session is lost."""

    keys: Path | None = Field(
        None, description=f"A file with the keys of those who may ask, one a line; or set ${KEYS_VARIABLE}."
    )
