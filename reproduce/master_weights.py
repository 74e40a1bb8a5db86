"""How far weights move by the same recorded gradients: in float32, through float32 masters, and without.

    python -m reproduce.master_weights [--steps 300] [--rate 1e-6]

The gradients are those of fine-tuning the built-in model on demonstrations, one batch after another, at its
starting weights. All three optimizers get them rounded to bfloat16, and start from the same bfloat16 weights.
The last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from selfverify import Policy, TrainerConfig, make_method, make_task
from selfverify.core.config import SamplingConfig
from selfverify.core.trajectory import valid_trajectories
from selfverify.trainer.batch import select
from selfverify.trainer.loss import LossComputer, UpdateMetrics, micro_batches
from selfverify.trainer.optim import make_optimizer
from selfverify.trainer.parallel import Parallel, make_accelerator

GROUPS = 4


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=1e-6)
    given = parser.parse_args()

    policy = Policy.load("builtin:digits", device="cpu")
    task, method = make_task("digits-pick"), make_method("sft")
    trained = [(name, p) for name, p in policy.model.named_parameters() if p.requires_grad]
    config = TrainerConfig(steps=given.steps, learning_rate=given.rate)
    idle = torch.optim.AdamW([p for _, p in trained])
    updater = LossComputer(
        Parallel(make_accelerator(policy), policy, None, idle, config.max_grad_norm), config, method.objective
    )

    start = [p.detach().bfloat16() for _, p in trained]
    ways = {
        "float32": (torch.float32, True),
        "masters": (torch.bfloat16, True),
        "bare": (torch.bfloat16, False),
    }
    runs = {}
    for name, (dtype, masters) in ways.items():
        weights = [nn.Parameter(value.to(dtype, copy=True)) for value in start]
        named = [(key, weight) for (key, _), weight in zip(trained, weights, strict=True)]
        runs[name] = weights, make_optimizer(config, named, masters)

    for step in range(given.steps):
        problems = [task.problem("train", 0, step * GROUPS + i) for i in range(GROUPS)]
        rollout = method.rollout(policy, task, problems, range(GROUPS), SamplingConfig())
        credits = [method.credit(group, valid_trajectories(group, False)) for group in rollout.groups]
        groups, _ = select(rollout, credits, False)
        policy.model.zero_grad()
        updater.gradient(groups, micro_batches(groups, GROUPS), UpdateMetrics())
        for weights, optimizer in runs.values():
            for weight, (_, parameter) in zip(weights, trained, strict=True):
                assert parameter.grad is not None
                weight.grad = parameter.grad.bfloat16().to(weight.dtype)
            optimizer.step()

    origin = flat(start)
    weights, optimizer = runs["masters"]
    moved = {name: flat(made) - origin for name, (made, _) in runs.items()}
    moved["rounded masters"] = moved["masters"]
    moved["masters"] = flat([optimizer.state[weight]["master"] for weight in weights]) - origin
    exact = moved["float32"]
    result = {
        name: {
            "distance": float(change.norm() / exact.norm()),
            "cosine": float(torch.cosine_similarity(change, exact, dim=0)),
            "moved": float((change != 0).double().mean()),
        }
        for name, change in moved.items()
    }
    for name, figures in result.items():
        print(f"{name:16} " + "  ".join(f"{key} {value:.4f}" for key, value in figures.items()))
    print(json.dumps({"steps": given.steps, "rate": given.rate, **result}))


if __name__ == "__main__":
    main()
