"""AdaPO, SCoRe, second-turn fine-tuning, and AdaPO and ADPO in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.methods.test_without_the_model_stack import turns

from killed_runs import rows
from rounding import assert_close
from selfverify import TrainerConfig, learn
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Credit, Finish, Group, Segment, Trajectory
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import make_streams, select
from tables import yaml_cases


def group(*kinds: Any) -> Group:
    return Group(Problem("p", []), [turns(*kind) for kind in kinds])


def credits(method: Any, made: Group) -> list[Credit]:
    found: list[Credit] = method.credit(made, torch.ones(len(made.trajectories), dtype=torch.bool))
    return found


LENGTH = Finish.LENGTH
CUT = Trajectory([Segment("turn_1", [5], finish=LENGTH)])
CUT.rewards = dict.fromkeys(("answer", "correct", "correct_1", "answer_format", "score_format"), 0.0)
"""Cut off in its first turn, it has no second one, and would count as 0->0."""


@pytest.mark.parametrize("name", ["adapo", "score"])
@pytest.mark.parametrize("cut", [CUT, turns(0, 0, None, LENGTH)], ids=["turn 1", "turn 2"])
def test_cut_off_trajectories_leave_before_p(name: str, cut: Trajectory) -> None:
    whole, method = group((1, 1), (0, 1), (0, 0)), make_method(name)
    with_cut = Group(whole.problem, [*whole.trajectories, cut])
    for expected, found in zip(credits(method, whole), credits(method, with_cut), strict=True):
        assert found.advantage.tolist() == [*expected.advantage.tolist(), 0.0]
        assert float(found.kl_coef) == float(expected.kl_coef)
        assert found.valid.tolist() == [True, True, True, False]
    prompt = Prompt("p", torch.tensor([1]), torch.tensor([[0]]))
    streams = make_streams(prompt, with_cut, credits(method, with_cut))
    assert streams.trained_gr.any(-1).tolist() == [True, True, True, False]
    assert method.metrics([with_cut])["turns/missing"] == (0.25 if cut is CUT else 0.0)


def test_groups_without_a_signal_may_be_held() -> None:
    """By the KL terms alone, as without the paper's filter; by default they leave."""
    made, prompt = group((1, 1), (0, 1), (0, 1)), Prompt("p", torch.tensor([1]), torch.tensor([[0]]))
    held, loose = make_method("adapo", kl=0.03, silent_kl=True), make_method("adapo", kl=0.03)
    rollout = Rollout([prompt], [made])
    [streams], dropped = select(rollout, [credits(held, made)], drop_zero=True)
    # P is 2/3: correcting pays 2 (P - 0.6) more, by which the first turn's coefficient is larger.
    assert streams.kl_coef_gr[0].tolist() == pytest.approx([0.03 + 0.01 * 2 / 15] * 2 + [0] + [0.03] * 3)
    assert not streams.advantage_gr.any() and not dropped
    assert select(rollout, [credits(loose, made)], drop_zero=True)[1] == {"zero_advantage": 1}


@yaml_cases
def test_recipes_that_would_learn_something_else_are_refused(changes: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_recipe("adapo-digits", changes)


def test_metrics_say_where_the_group_stands() -> None:
    method = make_method("adapo")
    groups = [group((0, 0), (0, 1), (0, 0), (1, 0)), group((1, 1), (1, 1), (1, 0), (1, 1, None, LENGTH))]
    for each in groups:
        credits(method, each)
    logged = method.metrics(groups)
    assert logged["adapo/error_rate"] == pytest.approx(0.375)  # 3/4 and 0/3
    assert logged["adapo/correcting"] == 0.5
    assert logged["adapo/beta_1"] == pytest.approx((0.004 + 0.001) / 2)
    assert logged["adapo/beta_2"] == pytest.approx((0.001 + 0.013) / 2)
    assert logged["turns/delta"] == pytest.approx(logged["turns/0->1"] - logged["turns/1->0"])


# --- SCoRe ----------------------------------------------------------------------------------------------


def test_the_strict_kl_counts_in_silent_groups() -> None:
    """All second answers right: nothing is learnt, and the first turn is held all the same in stage I."""
    made = group((1, 1), (0, 1))
    prompt = Prompt("p", torch.tensor([1]), torch.tensor([[0]]))
    held, loose = make_method("score", first_stage=3), make_method("score", first_stage=3, silent_kl=False)
    rollout = Rollout([prompt], [made])
    [streams], dropped = select(rollout, [credits(held, made)], drop_zero=True)
    torch.testing.assert_close(streams.kl_coef_gr, torch.tensor([0.1, 0.1, 0.0, 0.0, 0.0, 0.0]).expand(2, 6))
    assert not streams.advantage_gr.any() and not dropped
    assert select(rollout, [credits(loose, made)], drop_zero=True)[1] == {"zero_advantage": 1}
    made.step = 3
    mixed = group((1, 1), (1, 0))
    mixed.step = 3
    [streams], _ = select(Rollout([prompt], [mixed]), [credits(held, mixed)], drop_zero=True)
    assert streams.kl_coef_gr[0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.01, 0.01, 0.01])


# --- fine-tuning on second turns ------------------------------------------------------------------------


def taught(**options: Any) -> tuple[Any, Rollout]:
    """The method, and what it makes of four problems."""
    policy, task = Policy.load("builtin:digits", device="cpu"), make_task("digits-pick")
    problems = [task.problem("train", 5, index) for index in range(4)]
    method = make_method("turns-sft", second_turn="Check the answer.", **options)
    return method, method.rollout(policy, task, problems, [1, 2, 3, 4], SamplingConfig(group_size=6))


def test_a_first_turn_that_was_given_up_is_lost_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM does with a request now and then; the others are taught."""
    sample = Policy.sample

    def broken(*asked: Any, **more: Any) -> Any:
        made = sample(*asked, **more)
        made[1][2] = Sample([], [], Finish.ERROR)
        return made

    monkeypatch.setattr(Policy, "sample", broken)
    _, rollout = taught()
    ends = [[t.finish == Finish.ERROR for t in group.trajectories] for group in rollout.groups]
    assert ends == [[(b, g) == (1, 2) for g in range(6)] for b in range(4)]


def test_demonstrated_second_turns_keep_what_is_right() -> None:
    method, rollout = taught(rehearsal={"right": 1, "wrong": 1})
    told = [t for g in rollout.groups for t in g.trajectories[:6] if len(t.segments) == 3]
    right = [t for t in told if t.rewards["correct_1"] > 0]
    assert 0 < len(right) < len(told)
    assert all(t.rewards["correct"] == 1 for t in told)
    assert all((t.segments[0].tokens == t.segments[2].tokens) == (t in right) for t in told)
    for made in rollout.groups:
        assert len(made.trajectories) == 8
        second, *rehearsed = method.credit(made, torch.ones(8, dtype=torch.bool))
        assert second.valid.tolist() == [len(t.segments) == 3 for t in made.trajectories[:6]] + [False, False]
        assert [credit.channel for credit in rehearsed] == ["answer", "score"]
    figures = method.metrics(rollout.groups)
    assert figures["turns/acc@t1"] == len(right) / 24 and figures["turns/acc@t2"] == len(told) / 24


def test_checked_second_turns_keep_what_passes_and_are_learnt_right_or_wrong() -> None:
    """What misses the target is added up, then done anew; what reaches it with a digit not shown is kept."""
    method, rollout = taught(source="checked")
    kept_wrong = redone = 0
    for made in rollout.groups:
        [credit] = method.credit(made, torch.ones(6, dtype=torch.bool))
        for told, learnt in zip(made.trajectories, credit.valid.tolist(), strict=True):
            assert learnt == (len(told.segments) == 3)
            first, second = (
                parse_tagged(told.segments[n].text, make_task("digits-pick").tags) for n in (0, 2)
            )
            passed = sum(map(int, first.fields["answer"].split())) == made.problem.target
            assert (first.fields["answer"] == second.fields["answer"]) == passed
            assert (";" in second.fields["think"]) != passed and second.score == first.score
            assert told.rewards["correct"] == (told.rewards["correct_1"] if passed else 1)
            redone += not passed
            kept_wrong += passed and not told.rewards["correct"]
    assert redone and kept_wrong


# --- training -------------------------------------------------------------------------------------------


@yaml_cases
def test_a_run(tiny_folder: Path, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Through the learner as it is, with an untrained policy's groups."""
    fresh = Policy.load(str(tiny_folder), device="cpu")
    method = make_method(name, second_turn="Check the answer.", **options)
    config = TrainerConfig(steps=1, groups_per_step=2, loss={"drop_zero_advantage": False})
    sampling = SamplingConfig(group_size=3, max_new_tokens=12)
    learn(fresh, make_task("digits-pick"), method, config, sampling, output=tmp_path / "run")
    assert "turns/acc@t1" in rows(tmp_path / "run")[0]


# --- with scores: AdaPO and ADPO ----------------------------------------------------------------------------


def test_options_of_both() -> None:
    """Each is checked as in its own method, with AdaPO's coefficient for the turns."""
    assert make_method("adapo-adpo").config.kl == make_method("adapo").config.kl  # type: ignore[attr-defined]
    for options, needs in (
        ({"kl": 0, "kl_scale": 0}, False),
        ({"kl": 0, "kl_scale": 0, "score_kl": 0.1}, True),
        ({"kl": 0, "score_kl": 0}, True),
        ({"kl": 0, "reward": "fixed"}, False),
        ({"kl": 0, "reward": "fixed", "kl_2": 0.1}, True),
        ({"kl": 0.1, "reward": "fixed", "kl_1": 0, "kl_2": 0}, False),
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
        assert len(choices.rows) >= 4
        for row, place in zip(choices.rows.tolist(), choices.places.tolist(), strict=True):
            last = made.trajectories[row].segments[-1]
            assert last.channel == "score"
            assert place >= len(made.trajectories[row].tokens) - len(last.tokens)
        mean = (choices.probability * choices.advantage).sum(-1)
        assert_close(mean, torch.zeros_like(mean), size=float(choices.advantage.abs().max()))
    assert taught > 0
