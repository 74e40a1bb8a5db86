"""Runs measure the weights they have, also when they are taken up again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from selfverify import EvaluationConfig, Policy, evaluate, make_task
from selfverify.errors import ConfigError
from selfverify.recipe import Recipe, load_recipe
from selfverify.run import train

SMALL = EvaluationConfig(problems=2, samples=2)


def recipe(output: Path, steps: int) -> Recipe:
    return load_recipe(
        "quickstart",
        [
            f"output={output}",
            f"learner.steps={steps}",
            "learner.warmup_steps=0",
            "learner.groups_per_step=4",
            "evaluation.problems=2",
            "evaluation.samples=2",
            "sampling.group_size=4",
        ],
    )


def header(path: Path) -> dict[str, object]:
    settings: dict[str, object] = json.loads(path.read_text().splitlines()[0])["settings"]
    return settings


def test_a_store_is_not_reused_for_other_weights_or_options(tiny_folder: Path, tmp_path: Path) -> None:
    policy, task, store = Policy.load(str(tiny_folder)), make_task("digits-pick"), tmp_path / "s.jsonl"
    first = evaluate(policy, task, SMALL, store, max_new_tokens=6)
    assert evaluate(policy, task, SMALL, store, max_new_tokens=6) == first
    with pytest.raises(ConfigError, match="max_new_tokens"):
        evaluate(policy, task, SMALL, store, max_new_tokens=7)
    with pytest.raises(ConfigError, match="task_options"):
        evaluate(policy, make_task("digits-pick", count=5), SMALL, store, max_new_tokens=6)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight += 0.01
    with pytest.raises(ConfigError, match="weights"):
        evaluate(policy, task, SMALL, store, max_new_tokens=6)


def test_a_run_that_goes_on_is_measured_again(tmp_path: Path) -> None:
    train(recipe(tmp_path, steps=1))
    before = header(tmp_path / "samples-after.jsonl")
    train(recipe(tmp_path, steps=2), resume=True)
    after = header(tmp_path / "samples-after.jsonl")
    assert before["weights"] != after["weights"]
    trained = Policy.load(str(tmp_path / "model"))
    assert after["weights"] == trained.fingerprint()
