"""What a run does with problems it cannot use, and what a resumed run takes over besides weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from killed_runs import rows
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import read_events, story
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Group
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.policy.policy import Policy
from selfverify.tasks.digits_pick import DigitsPick

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


def config(steps: int) -> TrainerConfig:
    return TrainerConfig(
        steps=steps, groups_per_step=3, loss={"drop_zero_advantage": False}, checkpoint={"every": 1}
    )


def train(folder: Path, output: Path, task: DigitsPick, method: ADPO, steps: int = 1, **more: Any) -> None:
    learn(Policy.load(str(folder)), task, method, config(steps), SAMPLING, output=output, **more)


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
    assert told[0] == "3 steps without a usable problem"
    assert told[1] == "9 problems skipped" and "digits-pick/train/0/0" in told[2]


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


def test_a_busy_machine_is_named_once(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1e3, 0.0, 0.0))
    train(tiny_folder, tmp_path, DigitsPick(), ADPO(), 3)
    [event] = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "machine_busy"]
    assert event["step"] == 1 and "1000.0 threads" in event["message"]


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
