"""AdaPO and ADPO in one: three credits by hand, on tokens of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from rounding import assert_close
from selfverify import TrainerConfig, learn
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import make_streams


def trajectory(first: int, second: int, score: float, finish: str = "stop") -> Trajectory:
    segments = [
        Segment("turn_1", [5, 6], [-1.0, -1.0]),
        Segment("observation", [7], [0.0], author="environment", turn=1),
        Segment("turn_2", [8, 9, 9], [-1.0] * 3, turn=1),
        Segment("score", [3, 2], [-1.0] * 2, turn=1, finish=finish),  # type: ignore[arg-type]
    ]
    names = ("answer", "correct", "correct_1", "answer_format", "score_format", "score_opened")
    rewards = dict(zip(names, (second, second, first, 1.0, 1.0, 1.0), strict=True))
    return Trajectory(segments, {"sampled": score}, rewards)


GROUP = [(0, 0, 0.9), (0, 1, 0.6), (1, 1, 0.8), (0, 0, 0.7)]


def test_each_credit_has_tokens_of_its_own() -> None:
    made = Group(Problem("p", []), [trajectory(*kind) for kind in GROUP])
    credits = make_method("adapo-adpo").credit(made, torch.ones(4, dtype=torch.bool))
    streams = make_streams(Prompt("p", torch.tensor([1]), torch.tensor([[0]])), made, credits)
    assert streams.channel_gr[0].tolist() == [0, 0, -1, 1, 1, 1, 2, 2]
    for number, columns in enumerate(([0, 1], [3, 4, 5], [6, 7])):
        expected = credits[number].advantage.float()[:, None].expand(4, len(columns))
        torch.testing.assert_close(streams.advantage_gr[:, columns], expected)


def test_what_was_cut_off_is_nobodys_contrast() -> None:
    """Also not the score's: its right answer would have been the only one."""
    rows = [trajectory(*GROUP[0]), trajectory(0, 1, 0.95, "length"), trajectory(*GROUP[3])]
    credits = make_method("adapo-adpo").credit(Group(Problem("p", []), rows), torch.ones(3, dtype=torch.bool))
    assert not any(credit.teaches for credit in credits)
    assert all(c.valid is not None and c.valid.tolist() == [True, False, True] for c in credits)


def test_what_cannot_be_combined_is_refused() -> None:
    for options in (
        {"credit": "entangled"},
        {"k_01": 2.0},
        {"verification": "binary", "verification_credit": "concordance"},
    ):
        with pytest.raises(ValidationError):
            make_method("adapo-adpo", **options)


def test_options_of_both() -> None:
    """Each is checked as in its own method, with AdaPO's coefficient for the turns."""
    assert make_method("adapo-adpo").config.kl == make_method("adapo").config.kl  # type: ignore[attr-defined]
    for options, needs in (
        ({"kl": 0, "kl_scale": 0}, False),
        ({"kl": 0, "kl_scale": 0, "score_kl": 0.1}, True),
        ({"kl": 0, "score_kl": 0}, True),
        ({"kl": 0, "reward": "fixed"}, False),
    ):
        assert make_method("adapo-adpo", **options).config.needs_reference is needs  # type: ignore[attr-defined]


def test_every_score_that_could_have_been_written_learns() -> None:
    """Real second turns with scores: what an untrained policy writes has none, and tests no places."""
    start = Path(__file__).parents[2] / "reproduce" / "weights" / "digits-two-turns"
    policy, task = Policy.load(str(start), device="cpu"), make_task("digits-pick")
    method = make_method("adapo-adpo", second_turn="Check the answer.", verification_credit="expected")
    problems = [task.problem("train", 0, index) for index in range(3)]
    sampling = SamplingConfig(group_size=8, max_new_tokens=32)
    rollout = method.rollout(policy, task, problems, [1, 2, 3], sampling)
    taught = 0
    for prompt, made in zip(rollout.prompts, rollout.groups, strict=True):
        credits = method.credit(made, torch.ones(8, dtype=torch.bool))
        if not all(credit.teaches for credit in credits):
            continue
        taught += 1
        streams = make_streams(prompt, made, credits)
        choices = streams.choices
        assert choices is not None
        assert len(choices.rows) >= 4
        for row, place in zip(choices.rows.tolist(), choices.places.tolist(), strict=True):
            last = made.trajectories[row].segments[-1]
            assert last.channel == "score"
            assert place >= len(made.trajectories[row].tokens) - len(last.tokens)
        mean = (choices.probability * choices.advantage).sum(-1)
        assert_close(mean, torch.zeros_like(mean), size=float(choices.advantage.abs().max()))
    assert taught > 0


@pytest.mark.parametrize("credit", ["normalised", "concordance", "expected"])
def test_a_run(tiny_folder: Path, tmp_path: Path, credit: str) -> None:
    fresh = Policy.load(str(tiny_folder), device="cpu")
    learn(
        fresh,
        make_task("digits-pick"),
        make_method("adapo-adpo", second_turn="Check the answer.", verification_credit=credit),
        TrainerConfig(steps=1, groups_per_step=2, drop_zero_advantage=False),
        SamplingConfig(group_size=3, max_new_tokens=12),
        output=tmp_path / "run",
    )
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 1
