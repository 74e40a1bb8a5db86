"""`selfverify serve --config`: typed options win over the file, the file over defaults; faults say where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from selfverify.cli.main import app
from selfverify.experiments.recipe_yaml import read_document

FILE = """\
backend:
  upstream: http://127.0.0.1:8000/v1
  separate: true
listening:
  port: 9000
gateway:
  best_of:
    n: 4
    content: answer
    instruction: false
  allowed_host: [a.example, b.example]
looking: {look: true, stop: "after:2"}
"""


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
    assert found["backend"]["separate"] is True and found["listening"]["port"] == 9000
    assert found["looking"]["stop"] == "after:2"


def test_what_is_typed_wins_over_the_file_also_at_its_default(tmp_path: Path) -> None:
    words = "-n 8 --no-separate --instruction --port 8080 --allowed-host c.example --timeout 7"
    found = shown(tmp_path, FILE, *words.split())
    best_of = found["gateway"]["best_of"]
    assert (best_of["n"], best_of["content"], best_of["instruction"]) == (8, "answer", True)
    assert found["backend"]["separate"] is False and found["listening"]["port"] == 8080
    assert found["gateway"]["allowed_host"] == ["c.example"] and found["gateway"]["timeout"] == 7


def test_what_is_shown_is_a_file_that_means_the_same(tmp_path: Path) -> None:
    first = shown(tmp_path, None, "--upstream", "http://h/v1", "--abstain-below", "0.5", "--no-instruction")
    assert first["gateway"]["best_of"]["abstain_below"] == 0.5 and "config" not in first
    assert shown(tmp_path, (tmp_path / "shown.yaml").read_text(encoding="utf-8")) == first


MODEL = ["--model", "m"]


@pytest.mark.parametrize(
    ("text", "words", "faults"),
    [
        ("gateway:\n  timeout: soon\n", MODEL, [":2: gateway.timeout: should be a number, but is 'soon'"]),
        ("gateway:\n  best_of:\n    n: 0\n", MODEL, [":3: gateway.best_of.n: should be greater"]),
        (
            "gateway:\n  best_of: {strategy: oracle}\n",
            MODEL,
            [":2: gateway.best_of.strategy: ", "analysis only"],
        ),
        ("gateway:\n  tmieout: 3\n", MODEL, [":2: gateway.tmieout: ", "; did you mean gateway.timeout?"]),
        ("n: 3\n", MODEL, [":1: n: there is no such key; did you mean gateway.best_of.n?"]),
        ("backend:\n", MODEL, [":1: backend: should be a section of keys and values"]),
        ("backend: {model: m, upstream: http://h/v1}\n", [], [":1: backend: give either --model"]),
        ("listening: {port: 1}\n", [], ["gateway.yaml: backend: give either --model"]),
        ("a: 1\na: 2\n", [], [":2: broken YAML: a stands twice (first in line 1)"]),
        ("- a\n", [], [": a settings file is a mapping of keys to values, this is a list"]),
        ("config: x\n", [], [":1: config: a settings file names no other"]),
        ("backend: !!python/object/apply:os.system [ls]\n", [], [":1: broken YAML"]),
        ("gateway: {best_of: {confidence: .nan}}\n", MODEL, [":1: gateway.best_of.confidence: "]),
        # Typed values are named as they were typed, those of the file beside them with their line.
        (
            "gateway:\n  timeout: 0\n",
            [*MODEL, "--strategy", "oracle"],
            ["--strategy: ", "analysis only", "gateway.yaml:2: gateway.timeout: "],
        ),
    ],
)
def test_faults_say_where_and_what(tmp_path: Path, text: str, words: list[str], faults: list[str]) -> None:
    result = serve(tmp_path, text, words)
    assert result.exit_code == 2
    for fault in faults:
        assert (f"gateway.yaml{fault}" if fault[0] == ":" else fault) in result.output


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--config", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2 and "none.yaml: cannot read this settings file" in result.output
