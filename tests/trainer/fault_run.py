"""A training run whose images are files and whose judge is a process, for tests that disturb both.

Usage: fault_run.py STEPS OUTPUT IMAGES FAULTS. With FAULTS ``-`` nothing is disturbed; otherwise that folder
says what went wrong already. A run that OUTPUT holds is resumed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from killed_runs import train
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.process_pool import WorkerPool
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.data.images import read_image
from selfverify.experiments.registry import make_method
from selfverify.policy.policy import Policy
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
        micro_batch_groups=2,
        learning_rate=1e-4,
        checkpoint_every=4,
        drop_zero_advantage=False,
    )
    policy, task = Policy.load("builtin:digits"), FiledSum(images, faults)
    sampling = SamplingConfig(group_size=4, max_new_tokens=32)
    train(policy, task, make_method("adpo"), config, sampling, output, resume=True, seed=5)


def main() -> None:
    steps, output, images, faults = sys.argv[1:]
    torch.set_num_threads(1)
    run(int(steps), Path(output), Path(images), None if faults == "-" else Path(faults))


if __name__ == "__main__":
    main()
