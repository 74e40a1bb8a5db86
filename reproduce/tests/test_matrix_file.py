"""Several matrices of one file, and their table in the layout of ADPO's Table 5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from reproduce.matrix import app
from reproduce.matrix_file import joint_table, load_matrix_file, run_matrix_file
from reproduce.pairs import Cell
from selfverify.core.errors import ConfigError

TEXT = """
name: small
sizes: [1, 2]
benchmarks:
  Pick:
    recipe: adpo-digits
    overrides: [evaluation.problems=2, evaluation.samples=2, sampling.max_new_tokens=4]
    models: {base: MODEL}
  Sum:
    recipe: adpo-digits
    overrides: [task.name=digits-sum, evaluation.problems=2, evaluation.samples=2, sampling.max_new_tokens=4]
    models: {base: MODEL}
"""


def test_one_command_makes_the_table(tiny_folder: Path, tmp_path: Path) -> None:
    """A folder per benchmark, and a table with a block of columns for each."""
    (tmp_path / "t.yaml").write_text(TEXT.replace("MODEL", str(tiny_folder)))
    words = [str(tmp_path / "t.yaml"), "--output", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    text = (tmp_path / "out" / "table.md").read_text()
    assert "# small" in text and "| N | generator | Pick acc: none | Pick acc: majority |" in text
    assert "| Sum acc: none | Sum acc: majority |" in text and "| 2 | base |" in text
    record = json.loads((tmp_path / "out" / "table.json").read_text())
    own = json.loads((tmp_path / "out" / "Sum" / "matrix.json").read_text())
    assert record["cells"]["Sum"] == [cell for cell in own["cells"] if cell["category"] == "all"]
    shown = CliRunner().invoke(app, [*words, "--sizes", "1"])
    assert shown.exit_code == 2 and "--sizes" in shown.output


def test_the_layout_by_hand() -> None:
    """Rows are generators; the best of a benchmark and N is bold; what was not measured is a dash."""

    def cell(generator: str, verifier: str, n: int, value: float, figure: str = "accuracy") -> Cell:
        return Cell(generator, verifier, n, "all", figure, value, None, 8)

    pick = [cell("base", "none", 1, 0.4), cell("base", "majority", 4, 0.5), cell("base", "base", 4, 0.55)]
    step = [cell("base", "base", 4, 0.6, "step_success"), cell("adpo", "base", 4, 0.7, "step_success")]
    lines = joint_table(
        {"Pick": pick, "Phone": step}, {"Pick": "accuracy", "Phone": "step_success"}
    ).splitlines()
    assert (
        lines[0]
        == "| N | generator | Pick acc: none | Pick acc: majority | Pick acc: base | Phone SR: base |"
    )
    assert lines[2:5] == [
        "| 1 | base | **40.0** | – | – | – |",
        "| 4 | base | – | 50.0 | **55.0** | 60.0 |",
        "| 4 | adpo | – | – | – | **70.0** |",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("sizes: [1, 2]", "size: [1]", "size"),
        ("name: small", "name: small\nstrategy: bst", "there is no strategy 'bst'"),
        ("models: {base: MODEL}", "models: {none: MODEL}", "not majority or none"),
        (
            "models: {base: MODEL}",
            "models: {base: MODEL}\n    reward_models: {base: rm}",
            "two verifiers are called base",
        ),
    ],
)
def test_files_that_cannot_be_right(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "t.yaml").write_text(TEXT.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        load_matrix_file(tmp_path / "t.yaml")


def test_recipes_and_figures_are_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is answered, also of the last benchmark."""

    def run(**changes: Any) -> None:
        (tmp_path / "t.yaml").write_text(TEXT)
        file = load_matrix_file(tmp_path / "t.yaml")
        file.benchmarks["Sum"] = file.benchmarks["Sum"].model_copy(update=changes)
        run_matrix_file(file, tmp_path / "out", say=pytest.fail)

    with pytest.raises(ConfigError, match=r"benchmarks\.Sum\.figure: name one of accuracy"):
        run(figure="gIoU")
    with pytest.raises(
        ConfigError, match=r"benchmarks\.Sum\.figure: name one of type_accuracy, .*step_success"
    ):
        run(recipe="adpo-mobile", overrides=[])
    with pytest.raises(ConfigError, match=r"benchmarks\.Sum: .*task\.nme"):
        run(overrides=["task.nme=x"])
