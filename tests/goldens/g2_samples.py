"""g2: stores of samples and metrics of evaluations: eight answers, agents on the phone, looks with undo.

Probes are in g14, where the conversations are held that epsilon is fitted on."""

from __future__ import annotations

from pathlib import Path

from goldens.tree import CASES, Tree, words_of


def run(tree: Tree) -> None:
    """Evaluate the model that each recipe begins with."""
    for name, parts in CASES["evaluations"].items():
        folder = tree.scratch / name.replace(" ", "-")
        tree.inline("eval", *words_of(parts), "--output", str(folder))
        store_evaluation(tree, name, folder)


def store_evaluation(tree: Tree, name: str, folder: Path) -> None:
    """Store the samples, the metrics and the digests of images that an evaluation has left."""
    patterns = ("samples*.jsonl", "*.json", "images*/*")
    tree.files(name, folder, [path for pattern in patterns for path in folder.glob(pattern)])
