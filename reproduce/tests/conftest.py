"""A small grid that tests share (two tasks, three variants), and the tiny policies of `tests/`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import load_policy, policy, servers, text_folders, tiny_folder

__all__ = ["load_policy", "policy", "servers", "text_folders", "tiny_folder"]

RECIPE = """\
name: base
task: digits-pick
method: {name: adpo, kl: 0.5}
learner: {steps: 3}
evaluation: {problems: 4, samples: 2}
"""
STUDY = Path(__file__).with_name("small_study.yaml").read_text("utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(RECIPE)
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path
