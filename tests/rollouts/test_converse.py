"""Conversations of any length: what is said, shown and learnt, and what happens when an episode fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from tests.rollouts.conversations import LONG, SAMPLING, Talkative, held
from tests.updating import update

from rounding import assert_close
from selfverify.core.config import RolloutLimits
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Credit, Finish
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import make_streams


def streams_of(policy: Policy, rollout: Rollout) -> list[Any]:
    made = []
    for number, (prompt, group) in enumerate(zip(rollout.prompts, rollout.groups, strict=True)):
        count = len(group.trajectories)
        credit = Credit("words", torch.arange(count).double() - 1, valid=torch.ones(count, dtype=torch.bool))
        made.append(make_streams(prompt, group, [credit], number=number))
        made[-1].prepare_images(policy.encoder)
    return made


def test_images_in_mid_conversation(ending_policy: Callable[..., Policy], asked: list[Problem]) -> None:
    """What the sampler says of its tokens is what the learner says, over several turns and images."""
    policy = ending_policy()
    sampling = SAMPLING.model_copy(update={"group_size": 6, "max_new_tokens": 4})
    five = RolloutLimits(turns=5)
    rolled = held(policy, asked, [3, 4], lambda problem, seed: Talkative(seed), five, sampling)
    lengths = set()
    for streams, group in zip(streams_of(policy, rolled), rolled.groups, strict=True):
        [values] = policy.logprobs([streams.prompt], [streams.continuations])
        for row, trajectory in zip(values, group.trajectories, strict=True):
            start = 0
            for segment in trajectory.segments:
                if segment.author == "policy":
                    found = row[start : start + len(segment.tokens)]
                    assert_close(segment.logprobs, found)
                start += len(segment.tokens)
            lengths.add(len(trajectory.segments))
    every = [t for group in rolled.groups for t in group.trajectories]
    assert max(lengths) == 9 and len(lengths) > 1  # 5 turns; others were cut off before
    assert any(sum(len(s.images) for s in t.segments) == 2 for t in every)


def test_shared_gradients_are_those_of_the_plain_forward(
    ending_policy: Callable[..., Policy], asked: list[Problem]
) -> None:
    policy = ending_policy()
    rolled = held(policy, asked, [3, 4], lambda p, seed: Talkative(seed))
    found = {}
    for shared in (True, False):
        policy.shares_prefix = shared
        update(policy, streams_of(policy, rolled), loss__denominator="sequence")
        found[shared] = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    assert found[True].keys() == found[False].keys()
    for name, grad in found[True].items():
        other = found[False][name]
        assert float((grad - other).abs().max()) <= 1e-4 * max(float(other.abs().max()), 1e-6), name


def test_the_time_of_a_rollout_is_that_of_all_its_conversations(
    ending_policy: Callable[..., Policy], asked: list[Problem]
) -> None:
    def begin(problem: Problem, seed: int) -> Talkative:
        time.sleep(0.06)
        return Talkative(seed)

    limits = LONG.model_copy(update={"concurrent": 1, "rollout_timeout_s": 0.15})
    found = held(ending_policy(), asked, [3, 4], begin, limits)
    last = found.groups[1].trajectories[-1]
    assert last.finish == Finish.ERROR and not last.rewards


def test_a_conversation_ends_at_its_limit_of_tokens(
    ending_policy: Callable[..., Policy], asked: list[Problem]
) -> None:
    policy = ending_policy()
    whole = held(policy, asked[1:], [4], lambda _, seed: Talkative(seed, False))
    prompt = len(whole.prompts[0].ids)
    lengths = [prompt + len(t.tokens) for t in whole.groups[0].trajectories]
    limits = LONG.model_copy(update={"tokens": max(lengths) - 5})
    cut = held(policy, asked[1:], [4], lambda _, seed: Talkative(seed, False), limits)
    for length, one, other in zip(
        lengths, whole.groups[0].trajectories, cut.groups[0].trajectories, strict=True
    ):
        if length < max(lengths) - 5:
            assert [s.tokens for s in one.segments] == [s.tokens for s in other.segments]
        else:
            assert other.finish == Finish.LENGTH and other.rewards  # what was said counts
            assert prompt + len(other.tokens) < length
