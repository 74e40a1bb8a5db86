"""Options that come from settings models: how they look, what arrives, and how a fault names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typer.testing import CliRunner

from selfverify.cli.options import settings_as_options
from selfverify.core.errors import ConfigError


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    share: float = Field(0.25, gt=0, le=1, description="The share.")
    images: list[Path] = Field(default_factory=list, description="An image.")


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    question: str | None = Field(None, description="What to ask.", json_schema_extra={"argument": True})
    n: int = Field(8, ge=1, le=16, description="How many.")
    max_tokens: int | None = Field(None, ge=1, description="How long.")
    stop: Literal["never", "beta"] = Field("never", description="When to stop.")
    separate: bool = Field(False, description="One by one.")
    inner: Inner = Inner()

    @model_validator(mode="after")
    def _together(self) -> Outer:
        if self.separate and self.n == 1:
            raise ValueError("--separate needs -n above 1")
        return self


def run(*words: str) -> tuple[Any, list[Any]]:
    """The result of a command with these words, and what it was called with."""
    app, got = typer.Typer(rich_markup_mode=None), []

    @app.command()
    @settings_as_options
    def command(path: Path, settings: Outer, quiet: bool = False) -> None:
        """Do it."""
        got.append((path, settings, quiet))

    return CliRunner().invoke(app, list(words)), got


def test_every_field_is_an_option() -> None:
    words = "here why -n 3 --max-tokens 9 --stop beta --separate --share 0.5 --images a --images b --quiet"
    assert run(*words.split())[1] == [
        (
            Path("here"),
            Outer(
                question="why", n=3, max_tokens=9, stop="beta", separate=True,
                inner=Inner(share=0.5, images=[Path("a"), Path("b")]),
            ),
            True,
        )
    ]  # fmt: skip
    assert run("here")[1] == [(Path("here"), Outer(), False)]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-n", "17"], "-n"),
        (["-n", "many"], "-n"),
        (["--stop", "soon"], "--stop"),
        (["--max-tokens", "0"], "--max-tokens"),
    ],
)
def test_what_the_command_line_refuses(words: list[str], text: str) -> None:
    result, got = run("here", *words)
    assert result.exit_code == 2 and text in result.output and not got


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--share", "0"], "--share: should be greater than 0, but is 0.0"),
        (["--separate", "-n", "1"], "--separate needs -n above 1"),
    ],
)
def test_what_the_model_refuses(words: list[str], text: str) -> None:
    result, got = run("here", *words)
    assert isinstance(result.exception, ConfigError) and str(result.exception) == text and not got


class Needed(BaseModel):
    verifier: str = Field(description="The verifier.")


def test_a_field_without_a_default_must_be_typed() -> None:
    app, got = typer.Typer(rich_markup_mode=None), []

    @app.command()
    @settings_as_options
    def command(settings: Needed) -> None:
        got.append(settings.verifier)

    result = CliRunner().invoke(app, [])
    assert (result.exit_code, got) == (2, []) and "Missing option '--verifier'" in result.output
    assert "PydanticUndefined" not in CliRunner().invoke(app, ["--help"]).output
    assert CliRunner().invoke(app, ["--verifier", "mine"]).exit_code == 0 and got == ["mine"]
