"""Conversations: their figures, what is learnt of demonstrated ones, of own successes and of preferences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.agents.test_agent_rollout import HERMES
from tests.agents.test_agent_rollout import group as rolled_out
from tests.experiments.looks.looks_files import write_looks
from tests.updating import update

from killed_runs import rows
from rounding import assert_gradients_close
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import EnvironmentLost, Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.base import Training
from selfverify.methods.grpo import GRPO
from selfverify.methods.metrics import conversation_metrics
from selfverify.methods.sft import ConversationSFT, ConversationSFTConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.tasks.base import DemonstratedTurn, Task, Verdict, user_turn
from selfverify.trainer.batch import UNTRAINED, TokenStreams, make_streams, select
from selfverify.trainer.trainer import Trainer
from tables import yaml_cases

SAMPLING = SamplingConfig(group_size=1)


class Counting(Task):
    """Asks for the number behind each one, up to a last."""

    name = "counting"
    summary = "test"
    limits = RolloutLimits(turns=6)

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        return Problem(f"counting/{index}", user_turn("Count.", images=0), target=1 + index % 3)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return Verdict(1.0, True)

    def open(self, problem: Problem, seed: int) -> Episode:
        return Asking(problem.target)

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        """Counts to the target; the first number is a slip, which is not taught."""
        numbers = range(problem.target + 1)
        return [
            DemonstratedTurn(f"so {number}" if number else "oops", taught=number > 0) for number in numbers
        ]


class Asking(Episode):
    def __init__(self, last: int) -> None:
        self.last = last

    def step(self, said: PolicyTurn) -> Observation:
        cuts = [("plan", 0), ("action", 3)] if said.turn else []
        return Observation("Go on.", done=said.turn >= self.last, channels=cuts)

    def result(self) -> EpisodeResult:
        return EpisodeResult({"answer": 1.0})


def shown(policy: Policy, task: Task, count: int = 1, **options: Any) -> tuple[ConversationSFT, Rollout]:
    method = ConversationSFT(ConversationSFTConfig(**options))
    problems = [task.problem("train", 0, index) for index in range(count)]
    return method, method.rollout(policy, task, problems, list(range(count)), SAMPLING)


def test_what_is_shown_is_learnt_but_for_slips_and_what_the_episode_says(policy: Policy) -> None:
    method, rollout = shown(policy, Counting(), 3)
    for prompt, group in zip(rollout.prompts, rollout.groups, strict=True):
        (told,) = group.trajectories
        turns = 1 + group.problem.target
        expected = [("context", "policy")] + [
            one
            for _ in range(turns - 1)
            for one in (("observation", "environment"), ("plan", "policy"), ("action", "policy"))
        ]
        assert [(segment.channel, segment.author) for segment in told.segments] == expected
        streams = make_streams(prompt, group, method.credit(group, valid_trajectories(group, False)))
        trained = streams.channel_gr[0] != UNTRAINED
        assert trained.tolist() == told.channel_mask(["plan", "action"])
        # The token that ends a turn is learnt, too.
        ends = [token == policy.tokenizer.eos_token_id for token in told.tokens]
        assert sum(e and t for e, t in zip(ends, trained.tolist(), strict=True)) == turns - 1


def test_the_gradient_is_that_of_the_plain_likelihood_with_a_weight_for_each_turn(
    load_policy: Any, in_float64: Any
) -> None:
    """VTS-V, Eq. 3: the sum over a trajectory's tokens of log pi, times 1/(H+1)."""
    policy = in_float64(load_policy())
    method, rollout = shown(policy, Counting(), 3, share_turns=True)
    streams = [
        make_streams(prompt, group, method.credit(group, valid_trajectories(group, False)))
        for prompt, group in zip(rollout.prompts, rollout.groups, strict=True)
    ]
    update(policy, streams, objective="likelihood", loss__denominator="trajectory")
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    loss = torch.zeros(())
    for prompt, group in zip(rollout.prompts, rollout.groups, strict=True):
        (told,) = group.trajectories
        rows = policy.model(input_ids=torch.tensor([[*prompt.ids, *told.tokens]])).logits[0].log_softmax(-1)
        places = range(len(prompt.ids) - 1, len(prompt.ids) - 1 + len(told.tokens))
        mask = told.channel_mask(["plan", "action"])
        share = float(torch.tensor(1 / (group.problem.target + 1), dtype=torch.float32))  # as it is kept
        for place, token, taught in zip(places, told.tokens, mask, strict=True):
            if taught:
                loss = loss - rows[place, token] * share / len(rollout.groups)
    loss.backward()  # type: ignore[no-untyped-call]
    theirs = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert_gradients_close(found, theirs)


def test_replies_are_taught_with_a_weight_of_their_own_on_request(policy: Policy) -> None:
    method, rollout = shown(policy, Counting(), 2, observed=0.25)
    for group in rollout.groups:
        assert {segment.author for segment in group.trajectories[0].segments} == {"policy"}
        credits = method.credit(group, valid_trajectories(group, False))
        assert {c.channel: c.weight for c in credits} == {"plan": 1.0, "action": 1.0, "observed": 0.25}


class Failing(Counting):
    """Its episodes fail in one way or another."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        return replace(super().problem(split, seed, index), environment_begins=self.way == "over")

    def open(self, problem: Problem, seed: int) -> Episode:
        if self.way == "no browser" and not seed:
            raise OSError("no browser")
        return Broken(problem.target, self.way if not seed else "")

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        if self.way == "long":
            return [DemonstratedTurn("so " * 40_000), DemonstratedTurn("so it is")]
        return [] if self.way == "silent" else super().demonstrate_turns(problem, rng)


class Broken(Asking):
    def __init__(self, last: int, way: str) -> None:
        super().__init__(last)
        self.way = way

    def reset(self) -> Observation | None:
        return Observation(done=True) if self.way == "over" else None

    def step(self, said: PolicyTurn) -> Observation:
        if self.way == "gone":
            raise EnvironmentLost("the device is gone")
        return super().step(said)


@pytest.mark.parametrize(("way", "reason"), [("no browser", "OSError"), ("gone", "EnvironmentLost")])
def test_an_episode_that_fails_takes_no_part(
    policy: Policy, way: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are learnt."""
    method, rollout = shown(policy, Failing(way), 2)
    lost, whole = rollout.groups
    assert [valid_trajectories(group, False).tolist() for group in (lost, whole)] == [[False], [True]]
    assert f"problem counting/0: its demonstration takes no part: {reason}" in caplog.text
    credits = [method.credit(group, valid_trajectories(group, False)) for group in rollout.groups]
    kept, _ = select(rollout, credits, drop_zero=True)
    assert [streams.prompt.problem_id for streams in kept] == ["counting/1"]
    assert method.metrics(rollout.groups)["conversation/error"] == 0.5


@yaml_cases
def test_a_demonstration_that_cannot_be_learnt_is_named(policy: Policy, way: str, said: str) -> None:
    with pytest.raises(DataError, match=f"problem counting/0: {said}"):
        shown(policy, Failing(way))


def test_demonstrations_beyond_the_limit_of_tokens_take_no_part(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    task = Counting()
    _, whole = shown(policy, task, 3)
    lengths = [
        len(prompt.ids) + len(group.trajectories[0].tokens)
        for prompt, group in zip(whole.prompts, whole.groups, strict=True)
    ]
    task.limits = task.limits.model_copy(update={"tokens": min(lengths)})
    _, cut = shown(policy, task, 3)
    kept = [group.trajectories[0].finish != Finish.ERROR for group in cut.groups]
    assert kept == [length == min(lengths) for length in lengths] and not all(kept)
    assert f"and episode.tokens is {min(lengths)}" in caplog.text


# --- figures ------------------------------------------------------------------------------------------------


def conversation(turns: int, finish: Finish, **rewards: float) -> Trajectory:
    segments = []
    for turn in range(turns):
        if turn:
            segments.append(Segment("observation", [9, 9], author="environment", turn=turn))
        # A thought and an action are one turn.
        segments += [Segment("plan", [1], turn=turn), Segment("action", [2, 3], turn=turn)]
    segments[-1].finish = finish
    return Trajectory(segments, rewards=rewards)


def test_turns_and_endings() -> None:
    told = [conversation(1, Finish.STOP, answer=1.0), conversation(4, Finish.STOP, answer=0.0)]
    told += [conversation(3, Finish.LENGTH, answer=0.5), conversation(2, Finish.ERROR)]
    group = Group(Problem("p", []), told)
    found = {"turns": 2.5, "stop": 0.5, "length": 0.25, "error": 0.25}
    found = {f"conversation/{name}": value for name, value in found.items()}
    assert conversation_metrics([group]) == found
    # A task may leave out rewards that answers with tags have.
    logged = GRPO().metrics([group])
    assert logged == found | {
        "reward/answer": 0.5, "tokens/response": 8.0, "truncated": 1 / 3, "groups/reward_spread": 0.5,
    }  # fmt: skip


# --- own successes ------------------------------------------------------------------------------------------


@pytest.fixture
def hermes(load_policy: Any) -> Policy:
    made = load_policy()
    made.tokenizer.chat_template = HERMES
    return made


def kept(found: Group, **options: str) -> list[bool]:
    method = make_method("self-imitation", **options)
    [credit] = method.credit(found, valid_trajectories(found, True))
    assert credit.channel == "action" and method.objective == "likelihood" and method.measured
    taught = torch.as_tensor(credit.advantage) * torch.as_tensor(credit.valid)
    return [bool(value) for value in taught]


def test_only_successes_are_learnt(hermes: Policy) -> None:
    found = rolled_out(hermes)
    successes = [t.rewards.get("judged_success", 0) > 0 for t in found.trajectories]
    assert sum(successes) == 1 and kept(found) == successes
    truth = [t.rewards.get("correct", 0) > 0 and t.finish != "error" for t in found.trajectories]
    assert kept(found, keep="correct") == truth
    logged = make_method("self-imitation").metrics([found])
    assert logged["imitation/kept"] == sum(successes) / len(successes) and logged["agent/SR"] > 0


def test_a_success_that_was_never_handed_in_is_not_learnt(hermes: Policy) -> None:
    found = rolled_out(hermes)
    for trajectory in found.trajectories:
        trajectory.rewards |= {"correct": 1.0, "answer_format": 0.0}
    assert not any(kept(found, keep="correct"))


# --- preferences among conversations ------------------------------------------------------------------------


def streams_of(policy: Policy, method: Any, rollout: Rollout) -> list[TokenStreams]:
    found = []
    for prompt, group in zip(rollout.prompts, rollout.groups, strict=True):
        credits = method.credit(group, valid_trajectories(group, False))
        found.append(make_streams(prompt, group, credits))
        found[-1].prepare_images(policy.encoder)
    return found


def rolled(policy: Policy, task: Any, method: Any, count: int) -> tuple[Rollout, list[TokenStreams]]:
    """The first problems of the validation split, in the file's order."""
    problems = [task.problem("validation", 0, index) for index in range(count)]
    rollout = method.rollout(policy, task, problems, list(range(count)), SAMPLING)
    return rollout, streams_of(policy, method, rollout)


def pairs(folder: Path) -> Any:
    return make_task("pairs", validation=str(folder / "pairs.jsonl"), train=str(folder / "pairs.jsonl"))


def test_all_turns_behind_the_common_beginning_are_compared(policy: Policy, tmp_path: Path) -> None:
    """Plans, actions and answers of both sides; what tools show stands between them and is not learnt."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo"), 2)
    chosen, rejected = rollout.groups[0].trajectories
    assert [s.channel for s in chosen.segments] == ["plan", "action", "observation", "answer"]
    assert [s.channel for s in rejected.segments] == ["plan", "action", "observation"] * 2 + ["answer"]
    # The prompt has the question, the common step and what it showed: two images.
    assert len(rollout.prompts[0].images) == 2
    for row, (told, sign) in enumerate(((chosen, 1.0), (rejected, -1.0))):
        own = torch.tensor([s.author == "policy" for s in told.segments for _ in s.tokens])
        length = len(own)
        assert bool((streams.trained_gr[row, :length] == own).all())
        assert bool((streams.advantage_gr[row, :length] == sign * own).all())
        assert bool((streams.kl_coef_gr[row, :length][own] == torch.tensor(0.1)).all())
        assert len(streams.pictures[row]) == sum(s.author == "environment" for s in told.segments)


def test_the_answers_alone_are_the_baseline(policy: Policy, tmp_path: Path) -> None:
    """Each side's last turn learns; its steps before are read."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo", level="answer"), 2)
    for row, told in enumerate(rollout.groups[0].trajectories):
        *before, last = told.segments
        assert last.channel == "answer"
        assert {s.channel for s in before} == {"context", "observation"}
        own = streams.trained_gr[row].nonzero().flatten().tolist()
        start = len(told.tokens) - len(last.tokens)
        assert own == [*range(start, start + len(last.tokens))]


def test_a_side_that_is_too_long_takes_its_pair_out(policy: Policy, tmp_path: Path) -> None:
    """The pair has no weight, the other pairs learn."""
    write_looks(tmp_path)
    task, method = pairs(tmp_path), make_method("dpo")
    _, [first, _] = rolled(policy, task, method, 2)
    longest = len(first.prompt.ids) + max(len(row) for row in first.tokens)
    task.limits = task.limits.model_copy(update={"tokens": longest - 1})
    rollout, _ = rolled(policy, task, method, 2)
    assert [t.finish == Finish.ERROR for t in rollout.groups[0].trajectories] == [False, True]


def test_who_has_no_preferences_says_so(policy: Policy, tmp_path: Path) -> None:
    task = make_task("digits-far")
    problem = task.problem("train", 0, 0)
    with pytest.raises(ConfigError, match="task digits-far has no preferences"):
        make_method("dpo").rollout(policy, task, [problem], [0], SAMPLING)
    write_looks(tmp_path)
    lines = (tmp_path / "pairs.jsonl").read_text()
    (tmp_path / "pairs.jsonl").write_text(lines.replace("images/", "gone/", 1))
    [row] = [row for row in pairs(tmp_path).rows("validation") if row["id"].endswith("r0 > w0")]
    with pytest.raises(DataError, match=r"pairs\.jsonl, line 1: the image .* cannot be read"):
        row["prompt"][0]["content"][0]["image"].open(tries=1)


def test_training_on_pairs(load_policy: Any, tmp_path: Path) -> None:
    """Two steps with an adapter, whose reference is the model without it: the margin grows from 0."""
    pytest.importorskip("peft")
    write_looks(tmp_path)
    policy = load_policy(lora={"rank": 4})
    learner = TrainerConfig(
        steps=3, groups_per_step=2, optim={"learning_rate": 1e-2}, checkpoint={"every": 0}
    )
    Trainer(Training(policy, pairs(tmp_path), make_method("dpo"), learner, SAMPLING, tmp_path / "run")).run()
    lines = rows(tmp_path / "run")
    assert lines[0]["pairs/margin"] == pytest.approx(0, abs=1e-3)
    assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert lines[-1]["pairs/margin"] > 1e-2 and lines[-1]["loss"] < lines[0]["loss"]
    assert lines[0]["chosen/turns"] == 2 and lines[0]["rejected/turns"] == 3
