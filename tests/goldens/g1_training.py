"""g1: metrics and weights after three steps of every method, on one thread.

The variable GOLDENS_RUNS names some of the runs, with spaces between them; by default all are made.
"""

from __future__ import annotations

import os
from pathlib import Path

from goldens.tree import Tree

SMALL = [
    "learner.steps=3", "learner.warmup_steps=1", "learner.groups_per_step=3", "learner.micro_batch_groups=2",
    "evaluation.problems=4", "evaluation.samples=2", "seed=5",
]  # fmt: skip
BLIND = ["quickstart", "policy.path=builtin:digits-blind"]
PICK = ["sampling.group_size=4", *SMALL]
TURNS = ["method.second_turn=Check the answer.", *PICK]
FIRST_TWO = ["policy.path=builtin:digits", *SMALL]
PHONE = ["sampling.group_size=4", "sampling.max_new_tokens=30", *SMALL]

RUNS: dict[str, list[str]] = {
    "grpo": [*BLIND, "method.name=grpo", "method.kl=0.2", "learner.channels=joint", *PICK],
    "adpo": [*BLIND, *PICK],
    "adpo-paper": [*BLIND, "method.name=adpo", "learner.channels=joint", *PICK],
    "adapo": ["adapo-digits", *PICK],
    "adapo-adpo": ["adapo-digits", "method.name=adapo-adpo", *TURNS],
    "score": ["adapo-digits", "method.name=score", "method.first_stage=2", *TURNS],
    "star": ["adapo-digits", "method.name=star", "method.problems=24", *TURNS],
    "sft": ["cold-start-digits", *FIRST_TWO],
    "turns-sft": ["cold-start-digits-two-turns", *SMALL],
    "conversations-sft": ["cold-start-digits-far", *FIRST_TWO],
    "conversations-sft-phone": ["cold-start-phone", "policy.path=builtin:phone", *SMALL],
    "dpo": ["looking-digits", "stopping.problems=24", "stopping.samples=2", *SMALL],
    "smartsnap": ["smartsnap-phone", *PHONE],
    "self-imitation": ["smartsnap-phone", "method.name=self-imitation", *PHONE],
    "words": ["smollm2-cold-start", "policy.path=builtin:phone", "policy.lora=null", *SMALL],
    "lora": ["adpo-digits", "policy.lora={rank: 4, alpha: 8, dropout: 0.0}", *PICK],
}  # fmt: skip
"""Each run's recipe and settings."""


def run(tree: Tree) -> None:
    """Train every run of `RUNS`, one after another in this process."""
    wanted = os.environ.get("GOLDENS_RUNS", "").split() or RUNS
    for name in wanted:
        words, folder = RUNS[name], tree.scratch / name
        tree.inline("train", *words, f"output={folder}")
        store_run(tree, name, folder)


def store_run(tree: Tree, name: str, folder: Path) -> None:
    """Store the metrics and the weights that a run has left, those of its stages and checkpoints included.

    Raises:
        RuntimeError: It has left none.
    """
    metrics, every = [*folder.rglob("metrics.jsonl")], folder.rglob("*.safetensors")
    weights = [path for path in every if "model" in path.parts[-2] or "model" in path.name]
    if not metrics or not weights:
        raise RuntimeError(f"{name} has left {len(metrics)} files of metrics, {len(weights)} of weights")
    tree.files(name, folder, [*metrics, *weights])
