"""A small training run as a program, for tests that kill it.

Usage: resume_run.py MODEL OUTPUT [resume] [dropout]
"""

import sys
from pathlib import Path

import torch

from killed_runs import train
from selfverify.core.config import SamplingConfig
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.policy import Policy


def main() -> None:
    model, output, *words = sys.argv[1:]
    torch.set_num_threads(1)
    drops = "dropout" in words
    config = TrainerConfig(
        steps=2 if drops else 8,
        groups_per_step=3,
        updates_per_rollout=2,
        micro_batch_groups=2,
        learning_rate=1e-3,
        schedule="cosine",
        warmup_steps=2,
        checkpoint_every=1,
        keep_last=2,
        drop_zero_advantage=False,
    )
    policy = Policy.load(model, lora=AdapterConfig(rank=2, dropout=0.3) if drops else None)
    # Random weights earn nothing, of which an adapter would learn nothing.
    method = make_method("sft" if drops else "adpo")
    sampling = SamplingConfig(group_size=4, max_new_tokens=8)
    train(policy, make_task("digits-pick"), method, config, sampling, Path(output), "resume" in words)


if __name__ == "__main__":
    main()
