"""Metrics and weights after three steps of every method, of two checkouts, compared bit for bit.

    python tests/goldens/training.py run CHECKOUT FOLDER    # train with that checkout's code, on one thread
    python tests/goldens/training.py compare BEFORE AFTER   # print the first difference of each run

Both folders have to be made on one machine. A change that moves code, or that must not touch what is learnt,
shows no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

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


def run(checkout: Path, folder: Path, only: list[str]) -> int:
    """Train every run of `RUNS` with the code of ``checkout``; return how many of them failed."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    failed = 0
    for name, words in RUNS.items():
        if only and name not in only:
            continue
        command = [
            sys.executable,
            "-m",
            "selfverify",
            "train",
            *words,
            f"output={folder / name}",
            "--overwrite",
        ]
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        failed += done.returncode != 0
        print(f"{name}: {'trained' if done.returncode == 0 else done.stderr[-2000:]}", flush=True)
    return failed


def difference(before: Path, after: Path) -> str:
    """Say how two runs differ, with the first value that does; empty if they have the same bits."""
    metrics = [sorted(p.relative_to(run) for p in run.rglob("metrics.jsonl")) for run in (before, after)]
    if metrics[0] != metrics[1] or not metrics[0]:
        return f"files of metrics: {metrics[0]} and {metrics[1]}"
    for name in metrics[0]:
        rows = [
            [json.loads(line) for line in (run / name).read_text().splitlines()] for run in (before, after)
        ]
        if len(rows[0]) != len(rows[1]):
            return f"{name}: {len(rows[0])} and {len(rows[1])} rows"
        for number, (one, other) in enumerate(zip(*rows, strict=True)):
            for key in [*one, *(other.keys() - one.keys())]:
                if str(one.get(key)) != str(other.get(key)):
                    return f"{name}, row {number}, {key}: {one.get(key)} and {other.get(key)}"
    weights = [sorted(p.relative_to(run) for p in run.rglob("*.safetensors")) for run in (before, after)]
    weights = [[p for p in paths if "model" in p.parts[-2] or "model" in p.name] for paths in weights]
    if weights[0] != weights[1] or not weights[0]:
        return f"files of weights: {weights[0]} and {weights[1]}"
    for name in weights[0]:
        one, other = load_file(before / name), load_file(after / name)
        if one.keys() != other.keys():
            return f"{name}: other tensors: {sorted(one.keys() ^ other.keys())[:5]}"
        for key, tensor in one.items():
            if not torch.equal(tensor, other[key]):
                gap = (tensor.double() - other[key].double()).abs().max()
                return f"{name}, {key}: differ by up to {gap:.3g}"
    return ""


def compare(before: Path, after: Path) -> int:
    """Print how each run differs, and return how many do."""
    wrong = 0
    for name in RUNS:
        if not (before / name).exists() and not (after / name).exists():
            continue
        found = difference(before / name, after / name)
        wrong += bool(found)
        print(f"{name}: {found or 'same bits'}")
    return wrong


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["run", "compare"])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--only", action="append", default=[], choices=list(RUNS))
    asked = parser.parse_args()
    first, second = asked.first.resolve(), asked.second.resolve()
    return run(first, second, asked.only) if asked.what == "run" else compare(first, second)


if __name__ == "__main__":
    sys.exit(main())
