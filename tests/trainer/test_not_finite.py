"""One number that is not finite costs one update, or ends the run: it never reaches weights or the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from killed_runs import rows
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import CheckpointError, DataError, SelfVerifyError
from selfverify.core.events import read_events, story
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import ANSWER, SCORE, Credit, Group
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import learn
from selfverify.methods.sft import SFT
from selfverify.policy.policy import Policy
from selfverify.tasks.base import Verdict
from selfverify.tasks.digits_pick import DigitsPick
from updating import trainer_config

SAMPLING = SamplingConfig(group_size=2, max_new_tokens=4)
KINDS: dict[str, dict[str, Any]] = {
    "whole": {},
    "lora": {"lora": AdapterConfig(rank=2)},
    "masters": {"dtype": "bfloat16"},
}


class Credited(SFT):
    """Teaches demonstrations, whose answers and scores are two channels, with other credits."""

    def __init__(self, changed: Callable[[int, Credit], Credit]) -> None:
        super().__init__()
        self.changed = changed

    def credit(self, group: Group, valid: torch.Tensor) -> list[Credit]:
        return [self.changed(group.step, credit) for credit in super().credit(group, valid)]


def settings(steps: int, **changes: Any) -> TrainerConfig:
    kept = {"checkpoint__every": 1, "checkpoint__keep_last": 9, "optim__learning_rate": 1e-2}
    return trainer_config(steps=steps, groups_per_step=2, **kept | changes)


def run(policy: Policy, output: Path, config: TrainerConfig, bad: Collection[int] = (), **more: Any) -> None:
    """Train on demonstrations. In the steps ``bad``, from 0, the gradient of one weight holds a NaN."""
    done = [len(rows(output)) if more.get("resume") else 0]
    weight = next(p for p in policy.model.parameters() if p.requires_grad)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        spoilt = gradient.clone()
        spoilt.view(-1)[0] = torch.nan
        return spoilt if done[0] in bad else gradient

    def count(step: int, *_: Any) -> None:
        done[0] = step

    hook = weight.register_hook(spoil)
    try:
        learn(policy, DigitsPick(), make_method("sft"), config, output=output, on_step=count, **more)
    finally:
        hook.remove()


def checkpoint(folder: Path, step: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]:
    """Weights, the optimizer's state, and the number of updates that the schedule has counted."""
    path = folder / "checkpoints" / f"checkpoint-{step:06d}"
    [weights] = (path / "model").glob("*.safetensors")
    kept = load_file(path / "optimizer.safetensors")
    state = json.loads((path / "state.json").read_text())
    moments = {name: tensor for name, tensor in kept.items() if name.startswith("optimizer.")}
    return load_file(weights), moments, state["scheduler"]["last_epoch"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_gradient_changes_nothing_but_the_count_of_updates(
    tiny_folder: Path, tmp_path: Path, kind: str
) -> None:
    """Weights, masters and moments stay; the step counts, and the schedule goes on."""
    config = settings(4, optim__schedule="linear")
    run(Policy.load(str(tiny_folder), **KINDS[kind]), tmp_path, config, bad=[1])
    (first, moments, updates), (second, kept, later) = checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)
    assert moments and same(first, second) and same(moments, kept) and later == updates + 1
    if kind == "masters":
        assert any(name.endswith(".master") for name in moments)
    third = checkpoint(tmp_path, 3)
    assert not same(second, third[0]) and not same(kept, third[1])
    for step in (1, 2, 3, 4):
        assert all(bool(tensor.isfinite().all()) for tensor in checkpoint(tmp_path, step)[0].values())
    told = rows(tmp_path)
    assert [row.get("updates/skipped") for row in told] == [None, 1, None, None]
    assert [row["grad_norm"] is None for row in told] == [False, True, False, False]
    assert [row["learning_rate"] for row in told] == pytest.approx([0.0075, 0.005, 0.0025, 0.0])
    events = read_events(tmp_path / "events.jsonl")
    [skipped] = [event for event in events if event["event"] == "update_skipped"]
    assert (skipped["step"], skipped["channel"], skipped["norm"]) == (1, "all", "nan")
    assert events[-1]["event"] == "finished"
    assert "1 update skipped, as its gradient was not finite" in story(events)


@pytest.mark.parametrize("channels", ["separate", "alternate"])
def test_each_channel_is_looked_at_by_itself(tiny_folder: Path, tmp_path: Path, channels: str) -> None:
    """A score's gradient overflows in one step, where the answer's moments go on if it is their turn."""

    def huge(step: int, credit: Credit) -> Credit:
        return replace(credit, weight=3e38) if step == 1 and credit.channel == SCORE else credit

    policy = Policy.load(str(tiny_folder))
    config = settings(3, optim__channels=channels, batch__inner_epochs=1 if channels == "separate" else 2)
    learn(policy, DigitsPick(), Credited(huge), config, output=tmp_path)
    (_, before, _), (_, after, _) = checkpoint(tmp_path, 1), checkpoint(tmp_path, 2)
    for channel, stays in ((SCORE, True), (ANSWER, False)):
        one, other = (
            {name: tensor for name, tensor in moments.items() if f".{channel}/" in name}
            for moments in (before, after)
        )
        assert one and same(one, other) == stays
    assert [row.get("updates/skipped") for row in rows(tmp_path)] == [None, 1, None]
    events = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "update_skipped"]
    assert [(event["step"], event["channel"]) for event in events] == [(1, SCORE)]


def test_three_in_a_row_end_the_run_and_it_can_be_gone_on_with(tiny_folder: Path, tmp_path: Path) -> None:
    policy = Policy.load(str(tiny_folder))
    config = settings(6, checkpoint__keep_last=1, checkpoint__every=2)
    with pytest.raises(SelfVerifyError, match=r"3 updates in a row.*optim\.learning_rate \(now 0\.01\)"):
        run(policy, tmp_path, config, bad=[2, 3, 4])
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-000004"]
    assert "3 updates skipped, as their gradients were not finite" in story(
        read_events(tmp_path / "events.jsonl")
    )
    # The row goes on where it was: the third ends the run again.
    with pytest.raises(SelfVerifyError, match="3 updates in a row"):
        run(Policy.load(str(tiny_folder)), tmp_path, config, bad=[4], resume=True)
    run(Policy.load(str(tiny_folder)), tmp_path, config, resume=True)
    assert read_events(tmp_path / "events.jsonl")[-1]["event"] == "finished"
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoint(tmp_path, 6)[0].values())


def test_weights_that_are_not_finite_are_not_saved(tiny_folder: Path, tmp_path: Path) -> None:
    """The run ends, and the checkpoint before stays although only one is kept."""
    policy = Policy.load(str(tiny_folder))

    def spoil(step: int, *_: Any) -> None:
        if step == 2:
            with torch.no_grad():
                policy.model.lm_head.weight[3, 4] = torch.inf

    config = settings(3, checkpoint__keep_last=1)
    match = r"step 2 is not written: \S*weight is not finite.*to inf; checkpoint-000001 remains valid"
    with pytest.raises(CheckpointError, match=match):
        learn(policy, DigitsPick(), make_method("sft"), config, output=tmp_path, on_step=spoil)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-000001"]
    assert len(rows(tmp_path)) == 2
    run(Policy.load(str(tiny_folder)), tmp_path, config, resume=True)
    assert len(rows(tmp_path)) == 3


@pytest.mark.parametrize("used", [True, False])
def test_a_policy_that_computes_nan_says_so(tiny_folder: Path, used: bool) -> None:
    """Greedily, too, where NaN is taken for the largest logit; and where it never was any better."""
    policy = Policy.load(str(tiny_folder))
    prompts = policy.encode([DigitsPick().problem("train", 0, 0)])
    if used:
        policy.sample(prompts, SAMPLING, seeds=[0])
    with torch.no_grad():
        policy.model.lm_head.weight[3, 4] = torch.nan
    for temperature in (1.0, 0.0):
        sampling = SAMPLING.model_copy(update={"temperature": temperature})
        with pytest.raises(SelfVerifyError, match=rf"{tiny_folder}: its logits are not finite"):
            policy.sample(prompts, sampling, seeds=[0])
        with pytest.raises(SelfVerifyError, match=rf"{tiny_folder}: its logits are not finite"):
            policy.threads(prompts, sampling, seeds=[0]).generate(dict.fromkeys([(0, 1)], 0))


class Rewarding(DigitsPick):
    """Gives one problem's answers a reward of its own."""

    def __init__(self, reward: float) -> None:
        super().__init__()
        self.reward = reward

    def verdict(self, problem: Problem, tagged: Tagged) -> Verdict:
        return Verdict(self.reward, False) if problem.id.endswith("/1") else super().verdict(problem, tagged)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_reaches_no_advantage(
    tiny_folder: Path, tmp_path: Path, reward: float
) -> None:
    """Its trajectories have no verdict, and an event names problem and reward."""
    policy, method = Policy.load(str(tiny_folder)), make_method("grpo")
    learn(policy, Rewarding(reward), method, settings(1), SAMPLING, output=tmp_path)
    assert rows(tmp_path)[0]["trajectories/invalid"] == 2
    failed = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "episode_failed"]
    assert {e["problem"] for e in failed} == {"digits-pick/train/0/1"}
    assert all(f"reward 'answer' is {reward}" in e["reason"] for e in failed)


@pytest.mark.parametrize("field", ["advantage", "kl_coef", "weight"])
def test_a_credit_that_is_no_number_names_problem_and_channel(
    tiny_folder: Path, tmp_path: Path, field: str
) -> None:
    def spoilt(step: int, credit: Credit) -> Credit:
        value: Any = torch.tensor([torch.nan]) if field == "advantage" else torch.inf
        return replace(credit, **{field: value}) if credit.channel == SCORE else credit

    with pytest.raises(DataError, match=r"problem digits-pick/train/0/0: the credit of channel score .*"):
        learn(Policy.load(str(tiny_folder)), DigitsPick(), Credited(spoilt), settings(1), output=tmp_path)


def test_a_metric_that_is_nan_is_never_the_best(tiny_folder: Path, tmp_path: Path) -> None:
    """NaN compares with nothing, so that no later checkpoint would be better."""

    from selfverify.methods.base import Training
    from selfverify.trainer.trainer import Trainer

    measured: Sequence[float] = [float("nan"), 0.25, float("nan"), 0.5, 0.4]
    config = settings(5, checkpoint__best_metric="auc", log__evaluate_every=1, checkpoint__keep_last=1)
    policy = Policy.load(str(tiny_folder))
    each = iter(measured)
    training = Training(
        policy, DigitsPick(), make_method("sft"), config, SAMPLING, tmp_path,
        evaluate=lambda _: {"auc": next(each)},
    )  # fmt: skip
    learner = Trainer(training)
    learner.run()
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["checkpoint-000004", "checkpoint-000005"] and learner.best == 0.5
