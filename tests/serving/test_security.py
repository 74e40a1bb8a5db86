"""What is meant to do harm, or must not be told: images, and keys and passwords in settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from selfverify.cli.options import with_file
from selfverify.clients.openai_client import ServerConfig, server_url
from selfverify.connectors.openenv import base_url
from selfverify.core.errors import ConfigError
from selfverify.serving.config import BackendConfig, ServeConfig
from selfverify.serving.schemas import ApiError, Picture, take_images
from serving_servers import data_url, png
from tables import yaml_cases


def take(url: Any, most_pixels: int = 20_000_000, count: int = 1) -> list[Picture]:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [part] * count}]
    return asyncio.run(take_images(messages, most_pixels))


def test_an_image_is_taken() -> None:
    [picture] = take(data_url(png((4, 3), "RGBA")))
    assert picture.format == "PNG" and picture.decode().size == (4, 3) and picture.decode().mode == "RGB"
    [large] = take("data:image/bmp;base64," + data_url(png((900, 900))).partition(",")[2])
    assert large.format == "PNG"
    for head in ("DATA:IMAGE/PNG;BASE64,", "data:image/png;Base64,", "data:image/png;charset=utf-8;base64,"):
        assert take(head + data_url(png()).partition(",")[2]) == take(data_url(png()))


@yaml_cases
def test_images_that_are_refused(url: Any, code: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        take(url)
    assert (caught.value.code, caught.value.status) == (code, status)


def test_a_requests_pixels_are_counted_together() -> None:
    url = data_url(png((32, 32)))
    assert len(take(url, 3000, count=2)) == 2
    with pytest.raises(ApiError, match="3,072 pixels together") as caught:
        take(url, 3000, count=3)
    assert (caught.value.code, caught.value.status) == ("image_too_large", 413)


def test_too_many_images() -> None:
    with pytest.raises(ApiError, match="17 images"):
        take(data_url(png()), count=17)


# --- passwords ----------------------------------------------------------------------------------------------


def refused(tmp_path: Path, text: str, typed: dict[str, Any] | None = None) -> str:
    """The error of a settings file."""
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    backend = {"backend": {"upstream": "http://127.0.0.1:9"}} if typed is None else typed
    with pytest.raises(ConfigError) as error:
        with_file(ServeConfig, file, backend)
    return str(error.value)


@yaml_cases
def test_a_broken_file_is_not_quoted(tmp_path: Path, value: str, place: str) -> None:
    said = refused(tmp_path, f"gateway:\n  api_key_file: {value}\n")
    assert "sk-" not in said and "secret" not in said.replace(str(tmp_path), "")
    assert "gateway.yaml" in said and place in said


@yaml_cases
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
