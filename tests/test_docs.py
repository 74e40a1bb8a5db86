"""docs/python.md runs as it is written, from top to bottom."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

from selfverify.policy import loading

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.fixture
def builtin_digits(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``builtin:digits`` is there: the shipped policy, or else a tiny one of the same kind."""
    if not (loading.BUILTIN / "digits" / "config.json").is_file():
        shutil.copytree(tiny_folder, tmp_path / "builtin" / "digits")
        monkeypatch.setattr(loading, "BUILTIN", tmp_path / "builtin")


@pytest.mark.usefixtures("builtin_digits")
def test_python_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks together are one program; it leaves the run folders that the page speaks of."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert blocks
    program = tmp_path / "page.py"
    program.write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(program))
    assert names["figures"]["problems"] == 4
    for run in ("by-hand", "near-sum", "recipe"):
        assert (tmp_path / "runs" / run / "metrics.jsonl").is_file()
    assert (tmp_path / "runs" / "recipe" / "metrics.json").is_file()
