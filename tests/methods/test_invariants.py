"""Invariants 2 and 3, end to end with a real policy: the loss, and masks on logits."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.test_loss import drifted

from rounding import assert_close, assert_gradients_close
from selfverify.core.config import SamplingConfig
from selfverify.core.trajectory import Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.base import Method
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import TokenStreams, make_streams, select, stack
from updating import update


def make_group(policy: Policy, index: int, qualities: list[float], scores: list[float | None]) -> Any:
    """A prompt and its group: sampled tokens, cut at half, with given qualities and scores."""
    problem = make_task("digits-pick").problem("train", 0, index)
    [prompt] = policy.encode([problem])
    sampling = SamplingConfig(group_size=len(qualities), top_p=1.0, max_new_tokens=6 + index)
    [samples] = policy.sample([prompt], sampling, seeds=[index])
    rows = []
    for sample, quality, score in zip(samples, qualities, scores, strict=True):
        half = (len(sample.tokens) + 1) // 2
        segments = [Segment("answer", sample.tokens[:half], sample.logprobs[:half])]
        segments.append(Segment("score", sample.tokens[half:], sample.logprobs[half:], finish="stop"))
        rewards = {
            "answer": quality,
            "correct": quality,
            "answer_format": 1.0,
            "score_format": float(score is not None),
            "score_opened": 1.0,
        }
        rows.append(Trajectory(segments, {} if score is None else {"sampled": score}, rewards))
    return prompt, Group(problem, rows)


def streams_of(method: Method, rollout: list[Any]) -> list[TokenStreams]:
    groups = Rollout([prompt for prompt, _ in rollout], [group for _, group in rollout])
    credits = [method.credit(group, valid_trajectories(group, False)) for group in groups.groups]
    kept, _ = select(groups, credits, drop_zero=True)
    return kept


# --- invariant 3: disjoint tokens -----------------------------------------------------------------------

ANSWER_ONLY = ([1.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5])  # ties: no score is better than another
SCORE_ONLY = ([1.0, 1.0, 1.0, 1.0], [0.9, 0.1, 0.5, 0.7])  # answers alike: nothing to learn from them
BOTH = ([1.0, 0.0, 1.0, 0.0], [0.9, 0.1, 0.5, 0.7])


@pytest.mark.parametrize("denominator", ["sequence", "channel", "batch"])
@pytest.mark.parametrize(
    ("case", "verification", "silent"),
    [(ANSWER_ONLY, "pairwise", {1}), (SCORE_ONLY, "binary", {0}), (BOTH, "pairwise", set())],
    ids=["only the answer learns", "only the score learns", "both learn"],
)
def test_gradient_on_logits_is_exactly_zero_where_nothing_is_credited(
    load_policy: Any, case: Any, verification: str, silent: set[int], denominator: str
) -> None:
    policy = load_policy()
    policy.shares_prefix = True
    [streams] = streams_of(
        make_method("adpo", kl=0.1, verification=verification), [make_group(policy, 1, *case)]
    )
    reference = drifted(policy, 0.97)
    seen, right = [], policy.head.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden)
        logits.retain_grad()
        seen.append(logits)
        return logits

    policy.head.logits = watched
    update(policy, [streams], reference, loss__denominator=denominator)
    [logits] = seen
    # The head runs on the trained tokens, in order.
    channels = streams.channel_gr[streams.channel_gr >= 0]
    assert len(channels) == len(logits) and set(channels.tolist()) == {0, 1}
    for channel in (0, 1):
        sizes = logits.grad[channels == channel].abs().amax(-1)
        assert bool((sizes == 0).all() if channel in silent else (sizes > 1e-6).all())


def test_a_credit_reaches_its_own_tokens_only(load_policy: Any) -> None:
    policy = load_policy()
    prompt, group = make_group(policy, 2, *BOTH)
    group.trajectories[0].segments.insert(1, Segment("observation", [20, 21], author="environment"))
    group.trajectories[0].segments.append(Segment("answer", [22], author="environment"))
    method = make_method("adpo", kl=0.1)
    credits = method.credit(group, valid_trajectories(group, False))
    streams = make_streams(prompt, group, credits)
    for i, trajectory in enumerate(group.trajectories):
        place = 0
        for segment in trajectory.segments:
            number = {"answer": 0, "score": 1}.get(segment.channel, -1)
            number = number if segment.author == "policy" else -1
            for _ in segment.tokens:
                assert int(streams.channel_gr[i, place]) == number
                wanted = float(credits[number].advantage[i]) if number >= 0 else 0.0
                assert float(streams.advantage_gr[i, place]) == pytest.approx(wanted, abs=1e-6)
                assert float(streams.kl_coef_gr[i, place]) == pytest.approx(0.1 * (number >= 0))
                place += 1
        assert bool((streams.channel_gr[i, place:] == -1).all())
    # Tokens that the environment wrote have no sampling log-probs, so neither has the group.
    assert streams.sampler_logprobs_gr is None


# --- invariant 2: our GRPO is TRL's ---------------------------------------------------------------------


BETA = 2**-7
"""The coefficient of the KL, exact in float32."""


def test_grpo_update_is_trls(load_policy: Any, in_float64: Any) -> None:
    """TRL's own advantage and loss code on the same samples, rewards and log-probs."""
    pytest.importorskip("trl", exc_type=ImportError)
    trl = runpy.run_path(str(Path(__file__).parents[1] / "objectives" / "test_trl.py"))
    policy = in_float64(load_policy())
    policy.shares_prefix = True
    cases = [([1.0, 0.0, 1.0, 0.0], [0.9, None, 0.5, 0.2]), ([0.0, 0.0, 1.0, 0.0], [0.2, 0.1, None, 0.7])]
    rollout = [make_group(policy, index, *cases[index % 2]) for index in range(4)]
    reference = drifted(policy, 0.97)
    groups = streams_of(make_method("grpo", kl=BETA), rollout)
    totals = update(policy, groups, reference)
    ours = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}

    policy.model.zero_grad()
    rewards = torch.tensor(
        [
            [t.rewards["answer"] + 0.1 * t.rewards["score_format"] for t in group.trajectories]
            for _, group in rollout
        ]
    )
    prompts = [prompt for prompt, _ in rollout]
    tokens = [[t.tokens for t in group.trajectories] for _, group in rollout]
    logprobs = policy.logprobs(prompts, tokens).flatten(0, 1)
    with torch.no_grad():
        ref = reference.logprobs(prompts, tokens).flatten(0, 1)
    mask = policy.stack(tokens).mask_bgr.flatten(0, 1).long()
    # Advantages are kept in float32: compared by themselves, then taken as they are.
    advantage = stack([g.advantage_gr for g in groups], policy.device).flatten(0, 1)[:, 0]
    assert_close(*(x.type(torch.float32) for x in (advantage, trl["trl_advantage"](rewards).flatten())))
    loss, metrics = trl["trl_loss"](logprobs, logprobs.detach(), ref, advantage, mask, "grpo", beta=BETA)
    loss.backward()

    assert_close(totals.sums["loss"], loss)
    assert_close(totals.metrics()["kl"], metrics["kl"][0])
    theirs = {n: p.grad for n, p in policy.model.named_parameters() if p.grad is not None}
    assert_gradients_close(ours, theirs)
    assert max(float(g.abs().max()) for g in ours.values()) > 1e-2
