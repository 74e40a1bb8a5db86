"""g13: metrics, calibrations, fusions and ε, recomputed from samples that are made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from goldens.tree import Tree

SETTINGS = {"task": "digits-pick", "weights": "w", "split": "validation"}


def samples(tree: Tree, seed: int, problems: int = 40, each: int = 6) -> list[Any]:
    """Return stored samples with scores that know something, some of them missing."""
    rng, made = np.random.default_rng(seed), tree.get("selfverify.evaluation.store:StoredSample")
    stored = []
    for problem in range(problems):
        ease = rng.random()
        for number in range(each):
            right = bool(rng.random() < ease)
            answer = "right" if right else f"wrong {rng.integers(3)}"
            readable = bool(rng.random() < 0.9)
            score = round(float(np.clip(0.3 + 0.3 * right + 0.3 * rng.normal(), 0, 1)), 2)
            soft = score if rng.random() < 0.9 else None
            stored.append(
                made(
                    problem=f"p{problem}", sample=number, text=answer, answer=answer if readable else None,
                    key=answer if readable else None, correct=right and readable,
                    rewards={"answer": float(right and readable), "format": float(readable),
                             "correct_1": float(rng.random() < ease)},
                    scores={"soft": soft, "greedy": soft, "sampled": round(score, 1)},
                    tokens=int(rng.integers(3, 30)), logprob=float(-rng.random() - 0.5 * (not right)),
                    finish="stop" if readable else "length", seed=seed,
                )
            )  # fmt: skip
    return stored


def run(tree: Tree) -> None:
    """Summarise, calibrate and fit."""
    write = tree.get("samples:write_samples")
    summarise = tree.get("selfverify.evaluation.metrics:summarise")
    folders = []
    for seed in range(2):
        folder = tree.scratch / f"samples-{seed}"
        folder.mkdir()
        stored = samples(tree, seed)
        write(folder / "samples.jsonl", SETTINGS, stored)
        folders.append(folder)
        for headline in ("soft", "greedy", "sampled"):
            tree.row(f"metrics {seed} {headline}", found=summarise(stored, headline=headline))
    for verifier in ("soft", "sampled", "fused"):
        for strategy in ("weighted", "best", "majority", "best-of-majority"):
            for kind in ("isotonic", "temperature"):
                fit(tree, folders, verifier, strategy, kind)
    epsilons(tree)


def fit(tree: Tree, folders: list[Path], verifier: str, strategy: str, kind: str) -> None:
    """Store a calibration and what it reports."""
    file = tree.scratch / f"{verifier}-{strategy}-{kind}.json"
    options = ["--verifier", verifier, "--strategy", strategy, "--kind", kind, "--target-risk", "0.2"]
    for test in ([], ["--test", str(folders[1])]):
        words = [str(folders[0]), "--output", str(file), "--json", *options, *test]
        row = f"calibration {verifier} {strategy} {kind}{' tested' * bool(test)}"
        try:
            shown = json.loads(tree.inline("calibrate", *words))
        except RuntimeError:
            tree.row(row, refused=True)
            continue
        tree.row(row, shown=shown, file=json.loads(file.read_text()))


def epsilons(tree: Tree) -> None:
    """Fit ε for both rules and all targets, on conversations of ragged lengths."""
    rng, fitted = np.random.default_rng(5), tree.get("selfverify.looking.stop_calibration:fit_epsilon")
    delta, right = rng.normal(0.5, 1.0, (60, 5)), (rng.random((60, 5)) < 0.6).astype(float)
    lengths = rng.integers(1, 6, 60)
    behind = np.arange(5)[None] >= lengths[:, None]
    delta[behind], right[behind] = np.nan, np.nan
    for rule in ("absolute", "signed"):
        for target, wanted in (("steps", 2.0), ("accuracy", 0.5), ("within", 0.02)):
            tree.row(f"ε {rule} {target}", found=fitted(delta, right, rule, target, wanted, {"task": "t"}))
        stops = tree.get("selfverify.looking.stop_calibration:stop_steps")
        tree.row(f"stops {rule}", steps=[stops(delta, rule, epsilon) for epsilon in (0.1, 0.5, 1.0)])
