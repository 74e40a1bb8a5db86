"""g16: a saved model's folder, an adapter that is merged, and samples and rollouts that are exported."""

from __future__ import annotations

import json
from pathlib import Path

from goldens.tree import CASES, Tree, words_of

ADAPTER = "policy.lora={rank: 4, alpha: 8, dropout: 0.0}"


def run(tree: Tree) -> None:
    """Save, train and merge an adapter, evaluate a few agents, and export what came of them."""
    policy = tree.get("selfverify.policy.policy:Policy.load")("builtin:digits", device="cpu")
    policy.save(tree.scratch / "saved")
    store(tree, "saved", tree.scratch / "saved")
    adapted, merged = tree.scratch / "adapted", tree.scratch / "merged"
    words = [*words_of(CASES["adapter"]), ADAPTER, "learner.steps=1", f"output={adapted}"]
    tree.inline("train", *words)
    store(tree, "adapter", adapted / "model")
    tree.inline("merge", str(adapted), str(merged))
    store(tree, "merged", merged)
    samples = tree.scratch / "samples"
    small = ["evaluation.problems=2", "evaluation.samples=2"]
    tree.inline("eval", "smartsnap-phone", *small, "--output", str(samples))
    exported = tree.scratch / "exported"
    tree.inline("data export", str(samples), "--output", str(exported))
    for path in sorted(exported.rglob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        told.pop("session_id", None)  # a digest of all settings, those that are gone among them
        tree.row(f"atif {path.relative_to(exported)}", content=told)
    verl = tree.scratch / "verl.jsonl"
    tree.inline("data export", str(samples), "--format", "verl", "--output", str(verl))
    tree.jsonl("verl", verl)


def store(tree: Tree, row: str, folder: Path) -> None:
    """Store the files of a folder: tensors as they are, texts line by line, others as digests."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = f"{row} {path.relative_to(folder)}"
        if path.suffix == ".safetensors":
            tree.files(row, folder, [path])
        elif path.suffix in (".json", ".jsonl", ".md", ".jinja", ".txt") and path.stat().st_size < 200_000:
            tree.row(name, lines=path.read_text(encoding="utf-8").split("\n"))
        else:
            tree.row(name, bytes=path.read_bytes())
