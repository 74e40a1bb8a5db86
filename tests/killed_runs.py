"""Training runs as programs, for tests that kill them and let them go on."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

from safetensors.torch import load_file

from selfverify.core.config import SamplingConfig
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.run import learn
from selfverify.methods.base import Method
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Task

TESTS = Path(__file__).parent
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["selfverify.experiments.run", "transformers.models.qwen2_5_vl.modeling_qwen2_5_vl"]
)


def train(
    policy: Policy,
    task: Task,
    method: Method,
    config: TrainerConfig,
    sampling: SamplingConfig,
    output: Path,
    resume: bool,
    seed: int = 3,
) -> None:
    """What such a program does: say each step that is done on stdout, and save the model at the end."""
    learn(
        policy, task, method, config, sampling,
        output=output, seed=seed, resume=resume,
        on_step=lambda step, steps, metrics, timing: print("step", step, flush=True),
    )  # fmt: skip
    policy.save(output / "model")


def begin(run: Callable[..., None], *arguments: object) -> tuple[BaseProcess, TextIO]:
    """Run a function in a process of its own; returns this, and what it prints.

    It is forked from a process that has imported the library and done nothing else, which takes no time.
    """
    heard, told = FORKS.Pipe(duplex=False)
    process = FORKS.Process(target=_printing, args=(told, run, *arguments))
    process.start()
    told.close()
    return process, open(os.dup(heard.fileno()))


def _printing(told: Connection, run: Callable[..., None], *arguments: object) -> None:
    os.dup2(told.fileno(), 1)
    os.dup2(told.fileno(), 2)
    run(*arguments)


def start(script: Path, *words: object) -> subprocess.Popen[str]:
    """A program on its way, which finds what tests find."""
    paths = os.pathsep.join(str(path) for path in (TESTS.parent / "src", TESTS, TESTS.parent))
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float = 280) -> None:
    """Wait for its end, which has to be a good one."""
    _, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors[-3000:]


def finish_killed(
    run: Callable[..., None], steps: int, kills: int, *arguments: object, pause_s: float
) -> int:
    """Kill a run of ``steps`` steps inside each of ``kills`` equal parts, then let it end.

    A kill comes up to ``pause_s`` behind a step. Returns how many of them hit a live run.
    """
    rng, hit = random.Random(kills), 0
    for kill in range(kills):
        process, said = begin(run, steps, *arguments)
        last = rng.randint(steps * kill // kills + 1, max(steps * (kill + 1) // kills - 1, 1))
        for line in said:
            if line.startswith("step") and int(line.split()[1]) >= last:
                break
        time.sleep(rng.uniform(0.0, pause_s))
        process.kill()
        process.join()
        hit += process.exitcode < 0
    process, said = begin(run, steps, *arguments)
    printed = said.read()
    process.join()
    assert process.exitcode == 0, printed[-3000:]
    return hit


def rows(folder: Path) -> list[dict[str, Any]]:
    """What a run has logged, step by step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def same_weights(one: Path, other: Path) -> bool:
    """Whether two runs have ended with the same bits."""
    left, right = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    return left.keys() == right.keys() and all(bool((left[n] == right[n]).all()) for n in left)


def same_figures(one: Path, other: Path) -> bool:
    """Whether two runs have logged the same, byte for byte."""
    return (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
