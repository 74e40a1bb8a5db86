"""Addresses of servers."""

from __future__ import annotations

import pytest

from selfverify.core.errors import ConfigError
from selfverify.core.server_address import checked_address


def check(url: str) -> str:
    return checked_address(url, "http://127.0.0.1:8000", "apart")


@pytest.mark.parametrize(
    "url", ["http://h", "https://h:1/v1", "http://[::1]:80", "http://h/a@b", "http://127.0.0.1:8000/v1"]
)
def test_what_is_an_address(url: str) -> None:
    assert check(url) == check(url + "/") == url


@pytest.mark.parametrize(
    "url",
    [
        "", "h", "h:1", "ftp://h", "http://", "http://:1", "http://h:port", "http://h:99999", "http://[::1",
        "http://::1:8000", "http://h h", "http://h\n",
    ],
)  # fmt: skip
def test_what_is_none(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is no address of a server; one looks like http://127\.0\.0\.1:8000"
    ):
        check(url)


@pytest.mark.parametrize(
    "url", ["http://me:pw-1@h:1/v1", "http://me@h", "http://h?key=pw-1", "http://h/#pw-1"]
)
def test_no_secret_belongs_into_one(url: str) -> None:
    with pytest.raises(ConfigError, match="http://h: a key or a password does not belong") as refused:
        check(url)
    assert "pw-1" not in str(refused.value) and "me@" not in str(refused.value)
