"""One run with vLLM in its process: ``colocated.py OUTPUT WHAT TRAIN_VISION``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.policy_config import AdapterConfig, PolicyConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import evaluate_recipe, learn, train
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine

SAMPLING = SamplingConfig(group_size=4, top_p=1.0, max_new_tokens=32, engine="vllm",
                          vllm=VLLMConfig(max_model_length=512))  # fmt: skip
CONFIG = TrainerConfig(steps=4, groups_per_step=2, learning_rate=2e-4, drop_zero_advantage=False)
TASK = make_task("digits-pick")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "adpo": ("adpo", {"verification_credit": "expected"}),
    "adapo": ("adapo", {"second_turn": "Check the answer.", "zero_advantage": "adaptive"}),
    "lora": ("adpo", {}),
}


def farthest(policy: Policy) -> float:
    """The largest difference of a sampled token's log-probability, on always the same images."""
    prompts = policy.encode([TASK.problem("train", 0, index) for index in range(4)])
    groups = policy.sample(prompts, SAMPLING, seeds=[0] * 4)
    ours = policy.logprobs(prompts, [[sample.tokens for sample in group] for group in groups])
    return max(
        (row[: len(sample.tokens)] - torch.tensor(sample.logprobs)).abs().max().item()
        for rows, group in zip(ours.detach(), groups, strict=True)
        for row, sample in zip(rows, group, strict=True)
    )


def moved_towers(policy: Policy) -> list[float]:
    """`farthest` of the policy, after a change of its tower, and after one that vLLM is not told of."""
    policy.engine = engine = VLLMEngine(policy, Accelerator(cpu=True), SAMPLING)
    found = []
    for told in (True, True, False):
        engine.stale, engine._knows_images = True, told
        found.append(farthest(policy))
        with torch.no_grad():
            for parameter in policy.loaded.family.vision_parameters(policy.model):
                parameter *= 1.02
    return found


def trained(folder: Path, method: str, train_vision: bool) -> None:
    """Four steps on digits, with an adapter of all layers where that is asked for."""
    lora = AdapterConfig(rank=8, alpha=16) if method == "lora" else None
    config = PolicyConfig(path="builtin:digits", device="cpu", train_vision=train_vision, lora=lora)
    name, options = METHODS[method]
    # Whatever an adapter has not learnt cannot be lost on its way.
    learner = CONFIG.model_copy(update={"learning_rate": 3e-3}) if lora else CONFIG
    learn(Policy.load(config), TASK, make_method(name, **options), learner, SAMPLING, output=folder)


def agent(folder: Path) -> None:
    """Three steps of an agent on the phone, as its recipe says, but small."""
    small = {
        "sampling.engine": "vllm", "sampling.vllm.max_model_length": 2048, "sampling.group_size": 4,
        "learner.steps": 3, "learner.groups_per_step": 4, "learner.checkpoint_every": 0,
        "evaluation.problems": 4, "evaluation.samples": 1, "output": folder,
    }  # fmt: skip
    train(load_recipe("smartsnap-phone", [f"{key}={value}" for key, value in small.items()]))


def evaluated(folder: Path) -> dict[str, Any]:
    """The figures of an evaluation whose samples vLLM draws."""
    small = {
        "sampling.engine": "vllm", "sampling.vllm.max_model_length": 512, "policy.device": "cpu",
        "evaluation.problems": 32, "evaluation.samples": 4, "evaluation.batch_problems": 16,
    }  # fmt: skip
    recipe = load_recipe("adpo-digits", [f"{key}={value}" for key, value in small.items()])
    return evaluate_recipe(recipe, output=folder)


def main(output: Path, what: str, train_vision: bool) -> None:
    """Write what was found to ``output``: the rows of a run's metrics, or the differences."""
    folder = output.with_suffix("")
    if what == "towers":
        policy = Policy.load("builtin:digits", device="cpu", train_vision=train_vision)
        output.write_text(json.dumps(moved_towers(policy)))
        return
    if what == "eval":
        output.write_text(json.dumps(evaluated(folder)))
        return
    if what == "smartsnap":
        agent(folder)
    else:
        trained(folder, what, train_vision)
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    output.write_text(json.dumps([json.loads(row) for row in rows]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True")
