"""Settings as options and as a file: typed values win over the file, it over defaults; faults say where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import typer
from pydantic import BaseModel, ConfigDict, Field, model_validator
from typer.testing import CliRunner, Result

from selfverify.cli.main import app
from selfverify.cli.options import settings_as_options
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe_yaml import read_document
from tables import yaml_cases

FILE = Path(__file__).with_name("gateway.yaml").read_text("utf-8")


def serve(tmp_path: Path, text: str | None, words: Sequence[str]) -> Result:
    """What `serve` says of a file and typed options."""
    given: list[str] = []
    if text is not None:
        (tmp_path / "gateway.yaml").write_text(text, encoding="utf-8")
        given = ["--config", str(tmp_path / "gateway.yaml")]
    return CliRunner().invoke(app, ["serve", *given, "--show-config", *words])


def shown(tmp_path: Path, text: str | None, *words: str) -> dict[str, Any]:
    """The settings in force after a file and typed options."""
    result = serve(tmp_path, text, words)
    assert result.exit_code == 0, result.output
    (tmp_path / "shown.yaml").write_text(result.stdout, encoding="utf-8")
    return read_document(tmp_path / "shown.yaml").data


def test_the_file_wins_over_defaults(tmp_path: Path) -> None:
    found = shown(tmp_path, FILE)
    best_of = found["gateway"]["best_of"]
    assert (best_of["n"], best_of["content"], best_of["instruction"]) == (4, "answer", False)
    assert (best_of["strategy"], found["gateway"]["timeout"]) == ("weighted", 120.0)
    assert found["gateway"]["max_n"] == 9 and found["listening"]["port"] == 9000
    assert found["looking"]["stop"] == "after:2"


def test_what_is_typed_wins_over_the_file_also_at_its_default(tmp_path: Path) -> None:
    words = "-n 8 --instruction --port 8080 --max-n 10 --timeout 7"
    found = shown(tmp_path, FILE, *words.split())
    best_of = found["gateway"]["best_of"]
    assert (best_of["n"], best_of["content"], best_of["instruction"]) == (8, "answer", True)
    assert found["listening"]["port"] == 8080
    assert found["gateway"]["max_n"] == 10 and found["gateway"]["timeout"] == 7


def test_what_is_shown_is_a_file_that_means_the_same(tmp_path: Path) -> None:
    first = shown(tmp_path, None, "--upstream", "http://h/v1", "--abstain-below", "0.5", "--no-instruction")
    assert first["gateway"]["best_of"]["abstain_below"] == 0.5 and "config" not in first
    assert shown(tmp_path, (tmp_path / "shown.yaml").read_text(encoding="utf-8")) == first


@yaml_cases
def test_faults_say_where_and_what(tmp_path: Path, text: str, words: list[str], faults: list[str]) -> None:
    result = serve(tmp_path, text, words)
    assert result.exit_code == 2
    for fault in faults:
        assert (f"gateway.yaml{fault}" if fault[0] == ":" else fault) in result.output


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2 and "none.yaml: No such file" in result.output


# --- options that come from settings models -----------------------------------------------------------------


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
            raise ValueError("`separate` needs `n` above 1")
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
    inner = Inner(share=0.5, images=[Path("a"), Path("b")])
    given = Outer(question="why", n=3, max_tokens=9, stop="beta", separate=True, inner=inner)
    assert run(*words.split())[1] == [(Path("here"), given, True)]
    assert run("here")[1] == [(Path("here"), Outer(), False)]


@yaml_cases
def test_what_is_refused(words: list[str], text: str) -> None:
    """By the command line, or by the model behind it."""
    result, got = run("here", *words)
    said = result.output if result.exit_code == 2 else str(result.exception)
    assert text in said and not got and isinstance(result.exception, (SystemExit, ConfigError))


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
