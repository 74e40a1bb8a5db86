"""What a run does with problems and numbers it cannot use, what a resumed one takes over, what it tells."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from killed_runs import rows
from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import CheckpointError, ConfigError, DataError, SelfVerifyError
from selfverify.core.events import read_events
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import ANSWER, SCORE, Credit, Group
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.base import Training
from selfverify.methods.sft import SFT
from selfverify.policy.policy import Policy
from selfverify.reports.run_data import story
from selfverify.tasks.base import Verdict
from selfverify.tasks.digits_pick import DigitsPick
from selfverify.trainer.rollout_source import RolloutSource
from selfverify.trainer.trainer import Trainer, check_processes
from updating import trainer_config

SAMPLING = SamplingConfig(group_size=2, max_new_tokens=4)


class Damaged(DigitsPick):
    """`digits-pick` in which the problems of some places have lost their image."""

    def __init__(self, lost: Sequence[int]) -> None:
        super().__init__()
        self.lost = lost

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        problem = super().problem(split, seed, index)
        return replace(problem, images=[]) if index in self.lost else problem


class Recorder(ADPO):
    """Remembers what was sampled for each problem, and logs a number from NumPy's global generator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[list[int]]] = {}

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        self.seen |= {g.problem.id: [t.tokens for t in g.trajectories] for g in groups}
        return super().metrics(groups) | {"drawn": float(np.random.rand())}


def train(folder: Path, output: Path, task: DigitsPick, method: ADPO, steps: int = 1, **more: Any) -> None:
    settings = {"groups_per_step": 3, "loss__drop_zero_advantage": False, "checkpoint__every": 1}
    config = trainer_config(steps=steps, **settings)
    learn(Policy.load(str(folder)), task, method, config, SAMPLING, output=output, **more)


def test_one_unusable_problem_is_named_and_the_others_sample_as_ever(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, damaged = Recorder(), Recorder()
    train(tiny_folder, tmp_path / "whole", DigitsPick(), whole)
    with caplog.at_level(logging.WARNING):
        train(tiny_folder, tmp_path / "damaged", Damaged([0]), damaged)
    assert rows(tmp_path / "damaged")[-1]["problems/skipped"] == 1
    assert "digits-pick/train/0/0" in caplog.text
    lost = "digits-pick/train/0/0"
    assert damaged.seen == {name: tokens for name, tokens in whole.seen.items() if name != lost}
    assert len(damaged.seen) == 2
    train(tiny_folder, tmp_path / "damaged", Damaged([0]), Recorder(), 2, resume=True)
    assert [row["problems/skipped"] for row in rows(tmp_path / "damaged")] == [1, 1]


def test_when_no_problem_is_usable_the_setup_is_wrong(tiny_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"of 3 steps in a row.*digits-pick/train/0/8"):
        train(tiny_folder, tmp_path, Damaged(range(30)), ADPO(), 10)
    assert story(read_events(tmp_path / "events.jsonl"))[0].startswith("failed at step 2")


def test_steps_without_a_usable_problem_pass_when_others_follow(tiny_folder: Path, tmp_path: Path) -> None:
    train(tiny_folder, tmp_path, Damaged([*range(6), *range(9, 12)]), ADPO(), 5)
    assert [row["problems/skipped"] for row in rows(tmp_path)] == [3, 6, 6, 9, 9]
    assert ["accuracy" in row for row in rows(tmp_path)] == [False, False, True, False, True]
    told = story(read_events(tmp_path / "events.jsonl"))
    assert told[0] == "times most of a step ran out of tokens: 1"  # an untrained model
    assert told[1] == "steps without a usable problem: 3"
    assert told[2] == "problems skipped: 9" and "digits-pick/train/0/0" in told[3]


def test_global_generators_go_on_where_they_were(tiny_folder: Path, tmp_path: Path) -> None:
    """A task may draw from them. Dropout draws from torch's, which is seeded for each step."""
    for name, steps, seed in (("whole", 2, 0), ("parts", 1, 0), ("parts", 2, 99)):
        np.random.seed(seed)
        train(tiny_folder, tmp_path / name, DigitsPick(), Recorder(), steps, resume=seed > 0)
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_a_credit_with_kl_needs_a_reference(tiny_folder: Path, tmp_path: Path) -> None:
    """A method without an option ``kl`` whose credits ask for it anyway is refused, not ignored."""

    class Asks(ADPO):
        def credit(self, group: Group, valid: torch.Tensor) -> list[Any]:
            unequal = torch.tensor([1.0, -1.0])
            return [replace(c, advantage=unequal, kl_coef=0.5) for c in super().credit(group, valid)]

    with pytest.raises(ValueError, match="ref_logprobs"):
        train(tiny_folder, tmp_path, DigitsPick(), Asks(ADPOConfig(kl=0)))


# --- two turns ----------------------------------------------------------------------------------------------


def run(
    policy: Policy, output: Path, task: str, method: str = "adapo", words: str = "Sure?", turn: int = 4
) -> None:
    learn(
        policy,
        make_task(task),
        # A first stage would leave nothing of the one step.
        make_method(method, second_turn=words, **({"first_stage": 0} if method == "score" else {})),
        TrainerConfig(steps=1, groups_per_step=2, loss={"drop_zero_advantage": False}),
        SamplingConfig(group_size=2, max_new_tokens=turn),
        output=output,
    )


@pytest.mark.parametrize("method", ["adapo", "score", "adapo-adpo", "star", "turns-sft"])
def test_a_template_for_one_turn_is_refused(load_policy: Any, tmp_path: Path, method: str) -> None:
    policy = load_policy()
    policy.tokenizer.chat_template = (
        "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
        "{% for part in messages[0].content %}{{ '<|vision_start|><|image_pad|><|vision_end|>' "
        "if part.type == 'image' else part.text }}{% endfor %}"
    )
    with pytest.raises(
        ConfigError, match=r"problem digits-pick/train/.*cannot continue a conversation.*one message only"
    ):
        run(policy, tmp_path, "digits-pick", method)


def test_a_model_of_text_learns_from_text(load_policy: Any, tmp_path: Path) -> None:
    run(load_policy("llama"), tmp_path, "word-sums", turn=8)
    [row] = rows(tmp_path)
    assert row["turns/acc@t1"] == 0


def test_first_turns_that_were_cut_off_are_counted(load_policy: Any, tmp_path: Path) -> None:
    """An untrained model ends no answer in one token; nothing is left to learn from, and the run goes on."""
    run(load_policy(), tmp_path, "digits-pick", turn=1)
    [row] = rows(tmp_path)
    assert row["turns/missing"] == 1 and row["truncated"] == 1 and row["groups/all_invalid"] == 2


def test_samples_that_run_out_of_tokens_are_told_where_that_begins(
    load_policy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics of such a run may look healthy: they are means over what remains."""
    told: list[list[bool]] = []
    shares = iter([[True, False], [True, True], [], [True, True], [True, False], [True, True]])
    plain = Trainer._note_cut_off

    def noting(self: Trainer, cut: list[bool]) -> None:
        told.append(cut)
        plain(self, next(shares))

    monkeypatch.setattr(Trainer, "_note_cut_off", noting)
    learn(
        load_policy(), make_task("digits-pick"), make_method("sft"),
        trainer_config(steps=6, groups_per_step=1), output=tmp_path,
    )  # fmt: skip
    assert told == [[False] * 3] * 6  # demonstrations end by themselves
    events = [event for event in read_events(tmp_path / "events.jsonl") if event["event"] == "mostly_cut_off"]
    assert [event["step"] for event in events] == [1, 5]
    assert events[0]["cut_off"] == 2 and "2 of 2 samples of step 2 were cut off" in caplog.text


# --- what a run tells ---------------------------------------------------------------------------------------


def events_of(
    folder: Path, tmp_path: Path, sampling: SamplingConfig | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Train, or go on, and return the run's events so far."""
    settings = {"steps": 1, "groups_per_step": 1, "optim__learning_rate": 1e-3} | changes
    learn(
        Policy.load(str(folder)), make_task("digits-pick"), make_method("sft"), trainer_config(**settings),
        sampling, output=tmp_path, resume=(tmp_path / "checkpoints").exists(),
    )  # fmt: skip
    return read_events(tmp_path / "events.jsonl")


def test_what_has_changed_is_told_once(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings, and what prepares images."""
    [begun] = [event for event in events_of(tiny_folder, tmp_path) if event["event"] == "started"]
    assert begun["image_backend"] == "Qwen2VLImageProcessorPil"
    same = {"checkpoint__every": 1, "checkpoint__keep_last": 9, "log__every": 2, "time_limit_s": 1e9}
    told = {event["event"] for event in events_of(tiny_folder, tmp_path, steps=2, **same)}
    assert not told & {"settings_changed", "image_backend_changed"}
    monkeypatch.setattr(Policy, "image_backend", "Qwen2VLImageProcessor")
    changed = {"steps": 3, "optim__learning_rate": 5e-4, "optim__betas": (0.9, 0.95)}
    events = events_of(tiny_folder, tmp_path, SamplingConfig(temperature=0.5), **changed)
    [settings] = [event for event in events if event["event"] == "settings_changed"]
    assert settings["changed"] == [
        "learner.optim.betas was [0.9, 0.99] and is now [0.9, 0.95]",
        "learner.optim.learning_rate was 0.001 and is now 0.0005",
        "sampling.temperature was 1.0 and is now 0.5",
    ]
    assert settings["step"] == 2 and "learner.optim.learning_rate was 0.001 and is now 0.0005" in caplog.text
    assert any("is now 0.0005" in line for line in story(events))
    [backend] = [event for event in events if event["event"] == "image_backend_changed"]
    assert (backend["before"], backend["now"]) == ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    assert "torchvision" in backend["message"]
    again = events_of(tiny_folder, tmp_path, SamplingConfig(temperature=0.5), **changed | {"steps": 4})
    assert [event["event"] for event in again].count("settings_changed") == 1


def test_a_run_with_more_steps_than_are_asked_for_is_finished(tiny_folder: Path, tmp_path: Path) -> None:
    events_of(tiny_folder, tmp_path, steps=2)
    assert [e["event"] for e in events_of(tiny_folder, tmp_path, steps=1)][-2:] == ["resumed", "finished"]
    assert events_of(tiny_folder, tmp_path, steps=4, time_limit_s=1e-9)[-1]["event"] == "time_limit"


def test_trackers_that_would_be_left_out_are_refused(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    monkeypatch.setattr("selfverify.trainer.parallel.get_available_trackers", lambda: installed)
    with pytest.raises(ConfigError, match=r"learner\.log\.trackers: there is no tracker 'wandbb'.*wandb"):
        events_of(tiny_folder, tmp_path, log__trackers=["wandbb"])
    for name in ("wandb", "all"):
        with pytest.raises(ConfigError, match=rf"learner\.log\.trackers: .*{name}.* installed"):
            events_of(tiny_folder, tmp_path, log__trackers=[name])


def test_processes_that_disagree_are_stopped(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, method = make_task("digits-pick"), make_method("sft")
    training = Training(policy, task, method, TrainerConfig(steps=1), SamplingConfig(), tmp_path)
    source = RolloutSource(training)
    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "gather", lambda own: [own, own | {"seed": 4}])
    with pytest.raises(SelfVerifyError, match=r"process 1 has another seed \(4\) than process 0 \(0\)"):
        check_processes(training, source, 0)


# --- numbers that are not finite ----------------------------------------------------------------------------


SHORT = SamplingConfig(group_size=2, max_new_tokens=4)
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


def tightly(steps: int, **changes: Any) -> TrainerConfig:
    kept = {"checkpoint__every": 1, "checkpoint__keep_last": 9, "optim__learning_rate": 1e-2}
    return trainer_config(steps=steps, groups_per_step=2, **kept | changes)


def demonstrated(
    policy: Policy, output: Path, config: TrainerConfig, bad: Collection[int] = (), **more: Any
) -> None:
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
    config = tightly(4, optim__schedule="linear")
    demonstrated(Policy.load(str(tiny_folder), **KINDS[kind]), tmp_path, config, bad=[1])
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
    assert "updates skipped, as their gradient was not finite: 1" in story(events)


@pytest.mark.parametrize("channels", ["separate", "alternate"])
def test_each_channel_is_looked_at_by_itself(tiny_folder: Path, tmp_path: Path, channels: str) -> None:
    """A score's gradient overflows in one step, where the answer's moments go on if it is their turn."""

    def huge(step: int, credit: Credit) -> Credit:
        return replace(credit, weight=3e38) if step == 1 and credit.channel == SCORE else credit

    policy = Policy.load(str(tiny_folder))
    config = tightly(3, optim__channels=channels, batch__inner_epochs=1 if channels == "separate" else 2)
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
    config = tightly(6, checkpoint__keep_last=1, checkpoint__every=2)
    with pytest.raises(SelfVerifyError, match=r"3 updates in a row.*optim\.learning_rate \(now 0\.01\)"):
        demonstrated(policy, tmp_path, config, bad=[2, 3, 4])
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 4]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-000004"]
    assert "updates skipped, as their gradient was not finite: 3" in story(
        read_events(tmp_path / "events.jsonl")
    )
    # The row goes on where it was: the third ends the demonstrated again.
    with pytest.raises(SelfVerifyError, match="3 updates in a row"):
        demonstrated(Policy.load(str(tiny_folder)), tmp_path, config, bad=[4], resume=True)
    demonstrated(Policy.load(str(tiny_folder)), tmp_path, config, resume=True)
    assert read_events(tmp_path / "events.jsonl")[-1]["event"] == "finished"
    assert all(bool(tensor.isfinite().all()) for tensor in checkpoint(tmp_path, 6)[0].values())


def test_weights_that_are_not_finite_are_not_saved(tiny_folder: Path, tmp_path: Path) -> None:
    """The demonstrated ends, and the checkpoint before stays although only one is kept."""
    policy = Policy.load(str(tiny_folder))

    def spoil(step: int, *_: Any) -> None:
        if step == 2:
            with torch.no_grad():
                policy.model.lm_head.weight[3, 4] = torch.inf

    config = tightly(3, checkpoint__keep_last=1)
    match = r"step 2 is not written: \S*weight is not finite.*to inf; checkpoint-000001 remains valid"
    with pytest.raises(CheckpointError, match=match):
        learn(policy, DigitsPick(), make_method("sft"), config, output=tmp_path, on_step=spoil)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["checkpoint-000001"]
    assert len(rows(tmp_path)) == 2
    demonstrated(Policy.load(str(tiny_folder)), tmp_path, config, resume=True)
    assert len(rows(tmp_path)) == 3


@pytest.mark.parametrize("used", [True, False])
def test_a_policy_that_computes_nan_says_so(tiny_folder: Path, used: bool) -> None:
    """Greedily, too, where NaN is taken for the largest logit; and where it never was any better."""
    policy = Policy.load(str(tiny_folder))
    prompts = policy.encode([DigitsPick().problem("train", 0, 0)])
    if used:
        policy.sample(prompts, SHORT, seeds=[0])
    with torch.no_grad():
        policy.model.lm_head.weight[3, 4] = torch.nan
    for temperature in (1.0, 0.0):
        sampling = SHORT.model_copy(update={"temperature": temperature})
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
    learn(policy, Rewarding(reward), method, tightly(1), SHORT, output=tmp_path)
    assert rows(tmp_path)[0]["trajectories/invalid"] == rows(tmp_path)[0]["trajectories/lost"] == 2
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
        learn(Policy.load(str(tiny_folder)), DigitsPick(), Credited(spoilt), tightly(1), output=tmp_path)


def test_a_metric_that_is_nan_is_never_the_best(tiny_folder: Path, tmp_path: Path) -> None:
    """NaN compares with nothing, so that no later checkpoint would be better."""

    from selfverify.methods.base import Training
    from selfverify.trainer.trainer import Trainer

    measured: Sequence[float] = [float("nan"), 0.25, float("nan"), 0.5, 0.4]
    config = tightly(5, checkpoint__best_metric="auc", log__evaluate_every=1, checkpoint__keep_last=1)
    policy = Policy.load(str(tiny_folder))
    each = iter(measured)
    training = Training(
        policy, DigitsPick(), make_method("sft"), config, SHORT, tmp_path,
        evaluate=lambda _: {"auc": next(each)},
    )  # fmt: skip
    learner = Trainer(training)
    learner.run()
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["checkpoint-000004", "checkpoint-000005"] and learner.best == 0.5
