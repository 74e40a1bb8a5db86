"""g2: stores of samples and metrics of evaluations: eight answers, agents on the phone, looks with undo.

Probes are in g14, where the conversations are held that epsilon is fitted on."""

from __future__ import annotations

from pathlib import Path

from goldens.tree import Tree

EVALUATIONS: dict[str, list[str]] = {
    "digits": ["adpo-digits", "evaluation.problems=10", "evaluation.samples=8"],
    "digits two turns": [
        "adapo-digits", "evaluation.problems=6", "evaluation.samples=4",
        "evaluation.second_turn=Check the answer.",
    ],
    "digits at other temperatures": [
        "adpo-digits", "evaluation.problems=6", "evaluation.samples=4", "evaluation.temperature=0.5",
        "evaluation.top_p=0.9", "evaluation.score=sampled", "evaluation.batch_problems=4",
    ],
    "phone": ["smartsnap-phone", "evaluation.problems=8", "evaluation.samples=2"],
    "phone two at once": [
        "smartsnap-phone", "evaluation.problems=3", "evaluation.samples=2", "episode.at_once=2",
        "episode.reply_threads=2",
    ],
    "far": ["grpo-digits-far", "evaluation.problems=8", "evaluation.samples=2", "evaluation.temperature=1"],
    "far with undo": [
        "grpo-digits-far", "task.stop=after:1", "task.on_stop=skip", "evaluation.problems=6",
        "evaluation.samples=2", "evaluation.temperature=1",
    ],
}  # fmt: skip
"""By name: a recipe and its settings."""


def run(tree: Tree) -> None:
    """Evaluate the model that each recipe begins with."""
    for name, words in EVALUATIONS.items():
        folder = tree.scratch / name.replace(" ", "-")
        tree.inline("eval", *words, "--output", str(folder))
        store_evaluation(tree, name, folder)


def store_evaluation(tree: Tree, name: str, folder: Path) -> None:
    """Store the samples, the metrics and the digests of images that an evaluation has left."""
    patterns = ("samples*.jsonl", "*.json", "images*/*")
    tree.files(name, folder, [path for pattern in patterns for path in folder.glob(pattern)])
