"""g9: LoRA with dropout, and two processes of gloo that share the weights (DDP) or their parts (FSDP2)."""

from __future__ import annotations

import json

from goldens.g1_training import store_run
from goldens.tree import CASES, Tree, words_of

ADAPTER = "policy.lora={rank: 4, alpha: 8, dropout: 0.2}"
WAYS = {"ddp": ["steps=2", "lora=1"], "fsdp": ["steps=2"]}
"""Settings of the program with which the tests train in several processes."""


def run(tree: Tree) -> None:
    """Train an adapter twice, in one process and in two; then as the tests do in two."""
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = [*words_of(CASES["adapter"]), ADAPTER, "learner.steps=2"]
    alone, both = tree.scratch / "alone", tree.scratch / "both"
    tree.python(*tree.words("train", *words, f"output={alone}"))
    store_run(tree, "alone", alone)
    tree.python(*two, *tree.words("train", *words, f"output={both}"))
    store_run(tree, "two processes", both)
    [program] = (tree.root / "tests").rglob("several.py")
    for way, settings in WAYS.items():
        folder = tree.scratch / way
        tree.python(*two, str(program), way, str(folder), *settings)
        tree.row(f"{way} way", **json.loads((folder / "way.json").read_text()))
        store_run(tree, way, folder)
