"""The pages on data files: programs run, the command prints what stands there, example rows are read."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_files import base64_png, png, write_jsonl
from selfverify.cli.main import app
from selfverify.data.rows import FORMATS, open_rows

DOCS = Path(__file__).parents[1] / "docs"
PAGE = "".join((DOCS / f"{name}.md").read_text("utf-8") for name in ("data", "data-formats"))


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def test_the_programs_run_and_the_command_prints_what_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, program in enumerate(blocks("python")):
        (tmp_path / f"{number}.py").write_text(program, encoding="utf-8")
        runpy.run_path(str(tmp_path / f"{number}.py"))
    [command] = blocks("sh")
    result = CliRunner().invoke(app, command.split()[1:])
    assert result.exit_code == 1
    assert result.stdout.rstrip() == blocks("")[0].rstrip()


def test_every_format_is_explained() -> None:
    assert set(FORMATS) == set(re.findall(r"`([a-z0-9-]+)`", "".join(re.findall(r"^## .*$", PAGE, re.M))))


def test_the_example_rows_are_read(tmp_path: Path) -> None:
    """Those that stand in files as they stand on the page."""
    rows: list[dict[str, Any]] = [json.loads(line) for block in blocks("json") for line in block.splitlines()]
    plain = [row for row in rows if "steps" not in row and "shapes" not in row]
    for row in plain:
        if isinstance(row.get("image"), str):
            (tmp_path / row["image"]).parent.mkdir(exist_ok=True)
            (tmp_path / row["image"]).write_bytes(png(640, 480))
    found = open_rows(write_jsonl(tmp_path / "all.jsonl", plain))
    assert len(found) == len(plain) == 10 and not found.bad
    [episode] = [row for row in rows if "steps" in row]
    (tmp_path / "0001.json").write_text(json.dumps(episode))
    assert open_rows(tmp_path / "0001.json")[0]["action"] == {"action": "click", "coordinate": [540, 600]}
    [shape] = [row for row in rows if "shapes" in row]
    (tmp_path / "r.json").write_text(json.dumps(shape))
    (tmp_path / "r.jpg").write_bytes(png(100, 80))
    assert open_rows(tmp_path / "r.json")[0]["box"] == [10, 10, 60, 50]


def test_the_table_is_read(tmp_path: Path) -> None:
    [_, table] = blocks("")
    (tmp_path / "a.tsv").write_text(table.replace("iVBORw0KGgo...", base64_png()), encoding="utf-8")
    rows = open_rows(tmp_path / "a.tsv")
    assert [(row["answer"], row["options"]["B"]) for row in rows] == [("A", "blue"), ("B", "2")]
