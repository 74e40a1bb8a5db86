"""A run whose judge hangs, whose images vanish and which is killed ends like one that nothing happened to."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from killed_runs import finish_killed, same_figures, same_weights, train
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.events import read_events
from selfverify.core.problem import Problem
from selfverify.core.process_pool import WorkerPool
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.data.images import read_image
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy
from selfverify.reports.run_data import RunData, story
from selfverify.tasks.base import Verdict
from selfverify.tasks.digits import DigitsSum, DigitsSumConfig
from worker_functions import judge_sum

FILES = 12
GONE, UNUSABLE, UNJUDGED = 3, 5, 8
"""Problems that are bad for good: the image file is gone, the image is missing, the reference is missing."""


class FiledSum(DigitsSum):
    """`digits-sum` with images from files, judged in a process that can be killed."""

    name = "filed-sum"

    def __init__(self, images: Path, faults: Path | None) -> None:
        super().__init__(DigitsSumConfig(count=2, noise=(0.0, 0.2)))
        self.folder, self.faults = images, faults
        self.pool = WorkerPool(judge_sum, timeout_s=1.0)

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        number = index % FILES
        made = replace(super().problem(split, 0, number), id=f"filed-sum/{index}", images=[])
        if index == UNUSABLE:
            return made
        if self.faults is not None:
            (self.faults / "reading").touch()
        name = "gone" if index == GONE else str(number)
        made.images.append(read_image(self.folder / f"{name}.png", wait_s=0.05))
        return made

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        if problem.id == f"filed-sum/{UNJUDGED}":
            raise DataError(f"{problem.id}: its reference answer cannot be read")
        answer = tagged.fields.get("answer", "")
        outcome = self.pool.call(answer, problem.target, None if self.faults is None else str(self.faults))
        if not outcome.done:
            return Verdict(0.0, False, unjudged=outcome.reason)
        right = bool(outcome.value["right"])
        return Verdict(float(right), right, outcome.value["read"], outcome.value["read"])

    def counters(self) -> dict[str, float]:
        return self.pool.counters()


def write_images(folder: Path) -> None:
    task = DigitsSum(DigitsSumConfig(count=2, noise=(0.0, 0.2)))
    for number in range(FILES):
        task.problem("train", 0, number).images[0].save(folder / f"{number}.png")


def run(steps: int, output: Path, images: Path, faults: Path | None) -> None:
    config = TrainerConfig(
        steps=steps,
        groups_per_step=2,
        optim={"learning_rate": 1e-4},
        loss={"drop_zero_advantage": False},
        batch={"micro_batch_groups": 2},
        checkpoint={"every": 4},
    )
    policy, task = Policy.load("builtin:digits"), FiledSum(images, faults)
    sampling = SamplingConfig(group_size=4, max_new_tokens=32)
    train(policy, task, make_method("adpo"), config, sampling, output, resume=True, seed=5)


def vanish(images: Path, faults: Path, until: threading.Event, rng: random.Random) -> None:
    """Take one image file after the other away for a moment, shorter than the reader's patience of 1.5 s.

    The first is gone before the run reads it for the first time.
    """
    number = 0
    while True:
        file = images / f"{number}.png"
        hidden = file.with_suffix(".away")
        os.replace(file, hidden)
        while number == 0 and not (faults / "reading").exists() and not until.is_set():
            time.sleep(0.01)
        time.sleep(rng.uniform(0.1, 0.4))
        os.replace(hidden, file)
        if until.wait(rng.uniform(0.0, 0.3)):
            return
        number = rng.randrange(1, FILES)


def disturbed(steps: int, kills: int, output: Path, images: Path, faults: Path) -> int:
    """Train with all faults at once and ``kills`` SIGKILLs at random; how many of them hit a live run."""
    calm = threading.Event()
    mover = threading.Thread(target=vanish, args=(images, faults, calm, random.Random(1)))
    mover.start()
    try:
        return finish_killed(run, steps, kills, output, images, faults, pause_s=0.3)
    finally:
        calm.set()
        mover.join()


def check(steps: int, kills: int, folder: Path) -> list[str]:
    images, faults = folder / "images", folder / "faults"
    whole, broken = folder / "whole", folder / "broken"
    for made in (images, faults):
        made.mkdir()
    write_images(images)
    run(steps, whole, images, None)
    hit = disturbed(steps, kills, broken, images, faults)
    assert hit >= kills - 1, "the run ended before it could be killed"

    assert same_weights(whole, broken) and same_figures(whole, broken)
    last = RunData(broken).steps[-1]
    assert (last["step"], last["problems/skipped"]) == (steps, 2)

    calm, events = (Counter(e["event"] for e in read_events(f / "events.jsonl")) for f in (whole, broken))
    assert set(calm) == {"started", "finished", "problem_skipped", "unjudged"}
    assert events["resumed"] + events["started"] == kills + 1 and events["finished"] == 1
    assert events["worker_restarted"] == events["call_retried"] >= 1
    assert events["image_retried"] >= 1
    for folder in (whole, broken):
        told = "\n".join(story(read_events(folder / "events.jsonl")))
        assert "problems skipped: 2" in told and "gone.png" in told
        assert f"filed-sum#{GONE}: " in told and f"filed-sum/{UNUSABLE}: " in told
    unjudged = [e for e in read_events(whole / "events.jsonl") if e["event"] == "unjudged"]
    assert {e["problem"] for e in unjudged} == {f"filed-sum/{UNJUDGED}"}

    workers = [int(file.name.removeprefix("pid-")) for file in faults.glob("pid-*")]
    assert len(workers) > kills
    deadline = time.monotonic() + 30  # a hanging one outlives its killed parent by some seconds
    while running := [pid for pid in workers if is_worker(pid)]:
        assert time.monotonic() < deadline, f"workers are left: {running}"
        time.sleep(0.1)
    return story(read_events(broken / "events.jsonl"))


def is_worker(pid: int) -> bool:
    try:
        return b"selfverify.core.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_steps_and_ten_kills(tmp_path: Path) -> None:
    """All at once; in the ordinary tests each fault is looked at by itself."""
    print("\n".join(check(200, 10, tmp_path)))
