"""Which servers stand behind a gateway, as they are typed or written in a settings file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import Field, field_validator

from selfverify.core.errors import ConfigError
from selfverify.core.server_address import checked_address
from selfverify.core.settings import Settings

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"

_NAMED = re.compile(rf"({_NAME})=(https?://.*)")


class UpstreamSettings(Settings):
    """A server behind the gateway."""

    name: str = Field(pattern=rf"^{_NAME}$")
    """What it is called in logs, figures and `/ready`."""

    url: str = Field(min_length=1)
    """Its address; one without a path gets `/v1`."""

    models: list[str] | None = Field(None, min_length=1)
    """The models that it is asked for; by default those that it lists."""

    key_variable: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """The environment variable with its key; by default the key is that of all servers."""

    @field_validator("url")
    @classmethod
    def _is_address(cls, url: str) -> str:
        return _checked(url)

    @field_validator("models")
    @classmethod
    def _no_empty_names(cls, models: list[str] | None) -> list[str] | None:
        if models is not None and not all(models):
            raise ValueError("a model's name is empty")
        return models


def typed_upstreams(typed: Sequence[str]) -> list[UpstreamSettings]:
    """Return the servers that ``URL`` and ``NAME=URL`` say; those without a name are numbered.

    Raises:
        ValueError: A name comes twice, or an address is none.
    """
    found = []
    for number, text in enumerate(typed, 1):
        named = _NAMED.fullmatch(text)
        name, url = named.groups() if named else (f"upstream-{number}", text)
        found.append(UpstreamSettings(name=name, url=_checked(url)))  # its own error would quote the address
    return check_names(found)


def _checked(url: str) -> str:
    try:
        checked_address(url, "http://127.0.0.1:8000/v1", "in an environment variable, see `key_variable`")
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return url


def check_names(upstreams: list[UpstreamSettings]) -> list[UpstreamSettings]:
    """Return servers, of which no two may have one name.

    Raises:
        ValueError: There are such.
    """
    names = [upstream.name for upstream in upstreams]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two servers are called {name!r}; give each a name of its own")
    return upstreams
