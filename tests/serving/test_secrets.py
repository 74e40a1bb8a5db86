"""Keys and passwords that somebody wrote into settings: errors say where, and never quote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from selfverify.cli.settings_file import with_file
from selfverify.core.errors import ConfigError
from selfverify.core.settings import secret_places
from selfverify.remote.connection import ServerSettings, server_url
from selfverify.remote.environments.remote_environment import base_url
from selfverify.serving.serve_settings import BackendSettings, ServeSettings
from selfverify.serving.upstream_settings import UpstreamSettings

SECRET = "sk-7f3a9c-very+secret"


def refused(tmp_path: Path, text: str, typed: dict[str, Any] | None = None) -> str:
    """The error of a settings file."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    backend = {"backend": {"upstream": ["http://127.0.0.1:9"]}} if typed is None else typed
    with pytest.raises(ConfigError) as error:
        with_file(ServeSettings, file, backend, str)
    return str(error.value)


@pytest.mark.parametrize(
    ("keys", "line", "place"),
    [
        (f"[{SECRET}]", 2, "gateway.keys.0"),
        (f"{{alice: {SECRET}}}", 2, "gateway.keys"),
        (SECRET, 2, "gateway.keys"),
        (f"[[{SECRET}]]", 2, "gateway.keys.0"),
        (f"[{{name: alice, sha256: {SECRET}}}]", 2, "gateway.keys.0.sha256"),
        (f"[{{name: alice, sha256: [{SECRET}]}}]", 2, "gateway.keys.0.sha256"),
        (f"[{{name: alice, variable: [{SECRET}]}}]", 2, "gateway.keys.0.variable"),
        (f"[{{name: {SECRET}, variable: A}}]", 2, "gateway.keys.0.name"),
        (f"[{{name: [{SECRET}], variable: A}}]", 2, "gateway.keys.0.name"),
        (f"[{{name: alice, key: {SECRET}}}]", 2, "gateway.keys.0"),
        (f"[{{{SECRET}: alice}}]", 2, "gateway.keys.0"),
        (f"[{{name: a, variable: A, {SECRET}: 1}}]", 2, "gateway.keys.0"),
        (f"[{{name: a, variable: A, tokens_per_minute: {SECRET}}}]", 2, "gateway.keys.0.tokens_per_minute"),
        (f"[{{name: a, {SECRET}: 1, {SECRET}: 2}}]", 2, "gateway.keys.0"),
        (f"\n  - !!binary {SECRET}: 1", 3, ""),
        (f"\n  - !!int {SECRET}", 3, "this is no int"),
        (f"\n  - *{SECRET}", 3, "an alias of nothing"),
        (f'\n  - "{SECRET}\\0"', 3, "null character"),
    ],
)
def test_nothing_below_keys_is_quoted(tmp_path: Path, keys: str, line: int, place: str) -> None:
    said = refused(tmp_path, f"gateway:\n  keys: {keys}\n")
    assert "sk-" not in said and "secret" not in said.replace(str(tmp_path), "")
    assert f"gateway.yaml:{line}" in said and place in said


def test_what_is_secret() -> None:
    assert secret_places(ServeSettings) == [("gateway", "keys")]


def test_other_values_are_quoted(tmp_path: Path) -> None:
    assert "but is 'soon'" in refused(tmp_path, "gateway:\n  timeout: soon\n")


@pytest.mark.parametrize(
    "url",
    [
        "http://me:pw-1@h:1/v1",
        "https://me@h/",
        "http://h/v1?key=pw-1",
        "http://h/#pw-1",
        "me:pw-1@h",
        "http://me:pw-1@[::1",
        "ftp://me:pw-1@h",
        "http://me:pw-1@",
    ],
)
def test_no_address_holds_a_password(url: str) -> None:
    """Of model servers, of environments and of upstreams; and no message says it."""
    for read in (
        server_url,
        base_url,
        lambda url: UpstreamSettings(name="a", url=url),
        lambda url: BackendSettings(upstream=[url]),
        lambda url: BackendSettings(upstream=[f"big={url}"]),
    ):
        with pytest.raises((ConfigError, ValidationError)) as refused:
            read(url)
        error = refused.value
        lines = [str(error)]
        if isinstance(error, ValidationError):
            lines = [str(fault["ctx"]["error"]) for fault in error.errors()]
        assert not [line for line in lines if "pw-1" in line or "me@" in line], lines


@pytest.mark.parametrize(
    "upstream", ["upstream: URL", "upstreams: [{name: a, url: URL}]", "upstreams: [{url: [URL]}]"]
)
def test_an_upstreams_password_is_not_quoted(tmp_path: Path, upstream: str) -> None:
    written = upstream.replace("URL", "http://me:pw-1@h:1/v1")
    said = refused(tmp_path, f"backend:\n  {written}\n", {})
    assert "pw-1" not in said and "gateway.yaml:2: backend.upstream" in said


def test_settings_do_not_print_keys() -> None:
    assert "sk-1" not in repr(ServerSettings("http://127.0.0.1:9", "sk-1"))
