"""VTS-V's recipes, run for two steps with a tiny policy on traces made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.experiments.looks.looks_files import write_looks

from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import train

TINY = [
    "policy.dtype=float32", "policy.gradient_checkpointing=false", "policy.device=cpu", "learner.steps=2",
    "learner.groups_per_step=2", "learner.warmup_steps=0",
]  # fmt: skip


@pytest.mark.parametrize("name", ["vts-v-sft-qwen2.5-vl-7b", "vts-v-verifier-qwen2.5-vl-7b"])
def test_the_papers_recipes(name: str, tmp_path: Path, tiny_folder: Path) -> None:
    """Two steps on an adapter, at the paper's or the release's rates."""
    pytest.importorskip("peft")
    looks = write_looks(tmp_path / "looks", problems=3)
    verifier = "verifier" in name
    data = looks / ("pairs.jsonl" if verifier else "sft.jsonl")
    more = [f"policy.path={tiny_folder}", f"task.train={data}", f"output={tmp_path}/run"]
    train(load_recipe(name, [*TINY, *more]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    if verifier:
        assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3) and "pairs/accuracy" in lines[0]
    else:
        assert lines[0]["loss"] > 1  # a sum over tokens, by 1/(H+1)


@pytest.mark.slow
def test_grpo_on_looks(tmp_path: Path) -> None:
    """Whole conversations are sampled and learnt from, whatever they come to."""
    more = ["policy.path=builtin:digits", f"output={tmp_path}/run", "evaluation.problems=1"]
    small = ["learner.steps=1", "learner.groups_per_step=1", "sampling.group_size=2"]
    recipe = load_recipe("grpo-digits-far", [*more, *small, "sampling.max_new_tokens=6", "task.max_steps=2"])
    train(recipe)
    [line] = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["tokens/response"] >= 1
