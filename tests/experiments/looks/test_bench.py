"""`selfverify looking bench`: with and without looking, by one command."""

from __future__ import annotations

import json
from pathlib import Path

from tests.data.test_vstar import write
from typer.testing import CliRunner

from selfverify.cli.main import app


def test_a_benchmark_with_and_without(tmp_path: Path, tiny_folder: Path) -> None:
    """Both rows have every task; what the boxes say is in the row with looks only."""
    for number in range(2):
        write(tmp_path / "vstar" / "direct_attributes", f"sa_{number}")
        write(tmp_path / "vstar" / "relative_position", f"sb_{number}")
    words = [
        "looking", "bench", str(tmp_path / "vstar"), "--model", str(tiny_folder), "--output",
        str(tmp_path / "out"), "--max-tokens", "6", "--dtype", "float32", "--max-steps", "2",
        "--tools", "crop",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    without, looking = json.loads(result.stdout)
    assert without["name"] == "without looking" and looking["name"] == "looking"
    for row in (without, looking):
        assert row["problems"] == 4 and set(row["tasks"]) == {"direct_attributes", "relative_position"}
    assert without["steps"] is None and without["crop_hit"] is None
    assert looking["steps"] is not None and looking["crop_hit"] == 0
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == [without, looking]
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0 and "mean of tasks" in again.output, again.output
