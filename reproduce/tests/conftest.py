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
STUDY = """\
name: small
recipe: base.yaml
seeds: [0, 1]
baseline: adpo
tasks:
  pick: []
  locate: [task.name=digits-locate, method.gamma=0.1]
variants:
  grpo: {overrides: [method.name=grpo]}
  adpo: {overrides: [method.name=adpo]}
  wide: {overrides: [method.name=adpo, method.gamma=0.25], tasks: [locate]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(RECIPE)
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path
