"""g3: a run that is killed at a random moment and resumed, and one that replays a log, end the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from goldens.compare import first_difference
from goldens.g1_training import store_run
from goldens.tree import CASES, Tree, words_of

KEPT = "learner.rollout_log=all"


def run(tree: Tree) -> None:
    """Train without a break, with one, and from the log of the first; GOLDENS_RUNS as in g1.

    Raises:
        RuntimeError: A run differs from the one without a break.
    """
    rng = random.Random(time.time_ns())
    for name in os.environ.get("GOLDENS_RUNS", "").split() or CASES["killed"]:
        words = words_of(CASES["killed"][name])
        whole, broken, again = (tree.scratch / f"{name}-{way}" for way in ("whole", "broken", "again"))
        tree.python(*tree.words("train", *words, KEPT, f"output={whole}"))
        kill(tree, broken, rng, *words, KEPT, f"output={broken}")
        tree.python(*tree.words("train", str(broken), "--resume"))
        tree.python(*tree.words("train", str(whole), "--replay", str(whole), f"output={again}"))
        stores = []
        for folder in (whole, broken, again):
            store = Tree(tree.side, tree.root, tree.scratch / f"store-{folder.name}")
            store_run(store, name, folder)
            store.write()
            stores.append(store.folder)
        for other in stores[1:]:
            if found := first_difference(name, stores[0], other, {}):
                raise RuntimeError(f"{name}: {other.name} differs from the run without a break: {found}")
        store_run(tree, name, whole)
        for path in sorted(whole.glob("rollouts/*.jsonl")):
            tree.jsonl(f"{name} {path.stem.partition('.')[0]} log", path)


def kill(tree: Tree, folder: Path, rng: random.Random, *words: str) -> None:
    """Start a run, and kill it some time after its first checkpoint."""
    call = [sys.executable, *tree.words("train", *words)]
    process = subprocess.Popen(
        call, cwd=tree.root, env=os.environ.copy(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    checkpoints, deadline = folder / "checkpoints", time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline:
        if any("partial" not in path.name for path in checkpoints.glob("checkpoint-*")):
            time.sleep(rng.uniform(0.0, 1.0))
            break
        time.sleep(0.005)
    process.kill()
    process.wait()
