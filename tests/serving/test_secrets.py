"""Keys and passwords that somebody wrote into settings: errors say where, and never quote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from selfverify.cli.options import file_text, with_file
from selfverify.clients.openai_client import ServerConfig, server_url
from selfverify.connectors.openenv import base_url
from selfverify.core.errors import ConfigError
from selfverify.serving.config import BackendConfig, ServeConfig

SECRET = "sk-7f3a9c-very+secret"


def refused(tmp_path: Path, text: str, typed: dict[str, Any] | None = None) -> str:
    """The error of a settings file."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    backend = {"backend": {"upstream": "http://127.0.0.1:9"}} if typed is None else typed
    with pytest.raises(ConfigError) as error:
        with_file(ServeConfig, file, backend, str)
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "line", "place"),
    [
        (f"[{SECRET}]", 2, "gateway.api_key"),
        (f"{{alice: {SECRET}}}", 2, "gateway.api_key"),
        (f"!!binary {SECRET}", 2, ""),
        (f"!!int {SECRET}", 2, "this is no int"),
        (f"*{SECRET}", 2, "an alias of nothing"),
        (f'"{SECRET}\\0"', 2, "null character"),
    ],
)
def test_the_key_is_not_quoted(tmp_path: Path, key: str, line: int, place: str) -> None:
    said = refused(tmp_path, f"gateway:\n  api_key: {key}\n")
    assert "sk-" not in said and "secret" not in said.replace(str(tmp_path), "")
    assert f"gateway.yaml:{line}" in said and place in said


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"gateway:\n  api_key: {SECRET}\n")
    settings = with_file(ServeConfig, file, {"backend": {"upstream": "http://127.0.0.1:9"}}, str)
    assert SECRET not in file_text(settings) and SECRET not in repr(settings)
    assert "timeout" in file_text(settings)


@pytest.mark.parametrize(
    "url",
    [
        *("http://me:pw-1@h:1/v1", "https://me@h/", "http://h/v1?key=pw-1", "http://h/#pw-1", "me:pw-1@h"),
        *("http://me:pw-1@[::1", "ftp://me:pw-1@h", "http://me:pw-1@"),
    ],
)
def test_no_address_holds_a_password(url: str) -> None:
    """Of model servers, of environments and of upstreams; and no message says it."""
    for read in (server_url, base_url, lambda url: BackendConfig(upstream=url)):
        with pytest.raises((ConfigError, ValidationError)) as refused:
            read(url)
        error = refused.value
        lines = [str(error)]
        if isinstance(error, ValidationError):
            lines = [str(fault["ctx"]["error"]) for fault in error.errors()]
        assert not [line for line in lines if "pw-1" in line or "me@" in line], lines


def test_an_upstreams_password_is_not_quoted(tmp_path: Path) -> None:
    said = refused(tmp_path, "backend:\n  upstream: http://me:pw-1@h:1/v1\n", {})
    assert "pw-1" not in said and "gateway.yaml:2: backend.upstream" in said


def test_settings_do_not_print_keys() -> None:
    assert "sk-1" not in repr(ServerConfig("http://127.0.0.1:9", "sk-1"))
