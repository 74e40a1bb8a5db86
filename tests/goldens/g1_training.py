"""g1: metrics and weights after three steps of every method, on one thread.

The variable GOLDENS_RUNS names some of the runs, with spaces between them; by default all are made.
"""

from __future__ import annotations

import os
from pathlib import Path

from goldens.tree import CASES, Tree, words_of


def run(tree: Tree) -> None:
    """Train every run, one after another in this process."""
    runs = CASES["runs"]
    for name in os.environ.get("GOLDENS_RUNS", "").split() or runs:
        folder = tree.scratch / name
        tree.inline("train", *words_of(runs[name]), f"output={folder}")
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
