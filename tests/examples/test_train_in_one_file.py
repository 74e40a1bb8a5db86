"""The example is short, runs as it stands, and its gradient is the learner's."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rounding import assert_gradients_close
from selfverify.core.config import SamplingConfig
from selfverify.core.trajectory import valid_trajectories
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import batch_weights, select
from updating import update

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_in_one_file.py"


def test_two_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints reward, accuracy and AUC before, in each step, and after, and gives back what it trained."""
    main = runpy.run_path(str(EXAMPLE))["main"]
    trained = main(
        ["--steps", "2", "--problems", "3", "--samples", "4", "--held-out", "12", "--at-once", "2"]
    )
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r"   .*", "", line.strip()) for line in lines] == ["before", "step 1", "step 2", "after"]
    for line in (lines[0], lines[-1]):
        assert re.search(r"   reward 0\.\d{3}   accuracy 0\.\d{3}   AUC 0\.\d{3}$", line), line
    assert trained.fingerprint() != Policy.load("builtin:digits", device="cpu").fingerprint()


def test_its_gradient_is_the_learners(in_float64: Callable[[Policy], Policy]) -> None:
    """Two passes over three groups, with a reference that has drifted."""
    example = runpy.run_path(str(EXAMPLE))
    policy, task = in_float64(Policy.load("builtin:digits", device="cpu")), make_task("digits-pick")
    reference = policy.frozen_copy()
    with torch.no_grad():
        for parameter in reference.model.parameters():
            parameter.mul_(0.99)
    method = make_method("adpo", kl=0.2, verification_credit="expected", score_weight=4)
    problems = [task.problem("train", 0, index) for index in range(3)]
    sampling = SamplingConfig(group_size=4, max_new_tokens=32)
    rollout = example["roll_out"](policy, task, problems, sampling, seed=0)
    credits = [method.credit(group, valid_trajectories(group, False)) for group in rollout.groups]
    streams, _ = select(rollout, credits, drop_zero=False)
    assert len(streams) == 3

    update(policy, streams, reference, loss__denominator="channel", batch__micro_batch_groups=2)
    theirs = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    weights = batch_weights(streams, "channel")
    count = sum(group.trajectories for group in streams)
    for part in (slice(0, 2), slice(2, 3)):
        example["loss_of"](policy, reference, streams[part], weights[part], count).backward()
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    assert largest > 1e-3
    ours = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert_gradients_close(ours, theirs)


def test_it_fits_on_three_pages() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 150
