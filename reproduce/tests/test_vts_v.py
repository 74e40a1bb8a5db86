"""`reproduce.vts_v`: with and without looking, by one command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.data.test_vstar import write
from typer.testing import CliRunner

from commands import command
from reproduce import vts_v
from reproduce.tables import published
from reproduce.vts_v import app, look_tables
from selfverify.core.errors import ConfigError, DataError
from selfverify.experiments.recipe import Recipe


def test_a_benchmark_with_and_without(tmp_path: Path, tiny_folder: Path) -> None:
    """Both rows have every task; what the boxes say is in the row with looks only."""
    for number in range(2):
        write(tmp_path / "vstar" / "direct_attributes", f"sa_{number}")
        write(tmp_path / "vstar" / "relative_position", f"sb_{number}")
    words = [
        "bench", str(tmp_path / "vstar"), "--model", str(tiny_folder), "--output",
        str(tmp_path / "out"), "--set", "sampling.max_new_tokens=6", "--set", "policy.dtype=float32",
        "--max-steps", "2", "--tool", "crop",
    ]  # fmt: skip

    result = command(*words, "--marks", of=app)
    assert "mean of tasks" in result.output, result.output
    rows = json.loads((tmp_path / "out" / "bench.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["zero-shot", "without looking", "set of mark", "looking"]
    for row in rows:
        assert row["problems"] == 4 and set(row["tasks"]) == {"direct_attributes", "relative_position"}
    assert [row["crop_hit"] for row in rows] == [None, None, None, 0]
    assert [row["steps"] is None for row in rows] == [True, True, True, False]
    shown = command("tables", f"tiny={tmp_path / 'out'}", of=app)
    assert "| tiny + SoM | 0.00 | – | – |" in shown.output, shown.output


def test_a_model_that_takes_no_images_in_later_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Llama 3.2 Vision: at first sight it has figures, and the row with tools says why it has none."""

    def evaluated(recipe: Recipe, output: Path) -> dict[str, Any]:
        output.mkdir(parents=True, exist_ok=True)
        if recipe.task.name == "look":
            raise ConfigError("problem 1, turn 1: a 'mllama' shows no image in the middle")
        return {"problems": 1, "samples": 1, "pass@1": 0.5}

    monkeypatch.setattr(vts_v, "evaluate_recipe", evaluated)
    write(tmp_path / "vstar" / "direct_attributes", "sa_0")
    words = ["bench", str(tmp_path / "vstar"), "--output", str(tmp_path / "out"), "--tool", "crop"]
    result = command(*words, of=app)
    assert "| looking | – | – | – | – | – |" in result.output, result.output
    assert "builtin:digits + VTS-V: problem 1, turn 1: a 'mllama' shows no image" in result.output


def test_questions_without_images(tmp_path: Path) -> None:
    """Before anything is loaded: they would be answered from their words, and count as looked at."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = [
        {"id": "seen", "image": "a.png", "question": "Which? A. one B. two", "answer": "A"},
        {"id": "blind", "question": "Which? A. one B. two", "answer": "A"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["bench", str(tmp_path / "rows.jsonl"), "--model", "nowhere", "--output", str(tmp_path / "o")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code and "1 of its questions have no image, such as math/test/rows/blind" in " ".join(
        result.output.split()
    )


def test_tables(tmp_path: Path) -> None:
    """Ours above the paper's; BLINK is known by its tasks, the others by their paths."""

    def benched(name: str, data: str, tasks: dict[str, float]) -> Path:
        kinds, figures = ("zero-shot", "looking"), {"accuracy": 0.25, "mean": 0.5, "tasks": tasks}
        rows = [{"name": kind, **figures} for kind in kinds]
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_text(json.dumps({"data": data, "model": "m", "rows": rows}))
        return tmp_path / name

    blink = benched("a", "data/b", {"Counting": 0.75, "IQ_Test": 0.1, "Visual_Correspondence": 0.5})
    star = benched("b", "data/MMStar.parquet", {})
    text = look_tables([("mine", blink), ("mine", star)], paper=True)
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("| model | Depth"))
    row = next(line for line in lines if line.startswith("| mine |"))
    assert [cell.strip() for cell in row.split("|")][8] == "75.00" and row.count("–") == 11
    assert [cell.strip() for cell in head.split("|")][8] == "Count (%)" and row.endswith("| 50.00 |")
    assert "| mine + VTS-V | – | 25.00 | – |" in lines
    # No verifier ended these conversations.
    third = lines[lines.index(next(line for line in lines if line.startswith("## Table 3"))) :]
    assert third[4:6] == [
        "| mine | – | 50.00 | 50.00 |",
        "| Qwen2.5VL [Bai et al. 2025] | 54.44 | 47.09 | 40.70 |",
    ]
    tables = published("vts_v")["tables"].values()
    assert text.count("[Bai et al. 2025]") == sum(len(table["rows"]) for table in tables)
    other = benched("c", "data/other.jsonl", {})
    with pytest.raises(ConfigError, match=r"other\.jsonl is none of the paper's benchmarks"):
        look_tables([("mine", other)])
    (other / "bench.json").write_text('{"data": 3}')
    with pytest.raises(DataError, match=r"bench\.json is not what"):
        look_tables([("mine", other)])
    with pytest.raises(ConfigError, match=r"has no bench\.json"):
        look_tables([("mine", tmp_path)])
    command("tables", code=2, of=app)
