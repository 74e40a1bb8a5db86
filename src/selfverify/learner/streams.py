"""From groups and credits to per-token streams: all the learner ever sees of a method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfverify.objectives import UNTRAINED, Denominator, token_weights
from selfverify.policy.encoding import Prompt
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.types import Choices, Credit, Group


@dataclass(slots=True)
class GroupStreams:
    """One group's per-token streams, ``[G, R]`` each (R = its longest response).

    ``channel`` holds -1 where nothing is trained; ``loss_weight`` is the channel's weight before any
    denominator; ``sampler_logprobs`` are those of sampling, or None where nothing was sampled. At the tokens
    of ``choices`` ``advantage`` is 0: they learn from all their alternatives. What is ``foreign`` was sampled
    by another engine than the learner's model, whose log-probs are not quite the same; NaN are unknown ones.
    ``number`` is the group's place in its rollout.
    """

    prompt: Prompt
    tokens: list[list[int]]
    channel: Tensor
    advantage: Tensor
    kl_coef: Tensor
    loss_weight: Tensor
    sampler_logprobs: Tensor | None
    choices: Choices | None = None
    choice_weight: Tensor | None = None
    foreign: bool = False
    number: int = 0

    @property
    def token_count(self) -> int:
        """Tokens to forward: the prompt once and every response."""
        return len(self.prompt.ids) + sum(len(row) for row in self.tokens)

    @property
    def trajectories(self) -> int:
        """How many have trained tokens."""
        return int((self.channel != UNTRAINED).any(-1).sum())


@dataclass(slots=True)
class Dropped:
    """What left the batch and why."""

    zero_advantage: int = 0
    all_invalid: int = 0


def _spread(value: float | Tensor, count: int) -> list[float]:
    tensor = torch.as_tensor(value, dtype=torch.float32)
    result: list[float] = tensor.expand(count).tolist()
    return result


def make_streams(
    prompt: Prompt, group: Group, credits: Sequence[Credit], foreign: bool = False
) -> GroupStreams:
    """Lay a group's credits out over its tokens.

    A credit reaches the policy's tokens in its channel, of valid trajectories. Where a channel's
    advantages are all 0 its KL coefficient is 0 too: what teaches nothing must not be pushed by KL either.
    """
    tokens = [t.tokens for t in group.trajectories]
    shape = (len(tokens), max((len(row) for row in tokens), default=0))
    channel = torch.full(shape, UNTRAINED)
    advantage, kl_coef, weight = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for number, credit in enumerate(credits):
        count = len(tokens)
        silent = not credit.teaches
        values = _spread(credit.advantage, count)
        coefs = [0.0] * count if silent else _spread(credit.kl_coef, count)
        weights = _spread(credit.weight, count)
        for i, trajectory in enumerate(group.trajectories):
            if credit.valid is not None and not bool(credit.valid[i]):
                continue
            mask = torch.zeros(shape[1], dtype=torch.bool)
            flags = trajectory.channel_mask([credit.channel])
            mask[: len(flags)] = torch.tensor(flags, dtype=torch.bool)
            channel[i, mask] = number
            advantage[i, mask], kl_coef[i, mask], weight[i, mask] = values[i], coefs[i], weights[i]
    choosing = [number for number, credit in enumerate(credits) if credit.choices is not None]
    if len(choosing) > 1:
        names = ", ".join(credits[number].channel for number in choosing)
        raise ValueError(f"{group.problem.id}: only one channel may have choices, not {names}")
    choices = choice_weight = None
    if choosing and (choices := credits[choosing[0]].choices) is not None:
        if not bool((channel[choices.rows, choices.places] == choosing[0]).all()):
            raise ValueError(f"{group.problem.id}: choices lie outside their channel's trained tokens")
        advantage[choices.rows, choices.places] = 0.0
        choice_weight = weight[choices.rows, choices.places]
    logprobs = [t.logprobs for t in group.trajectories]
    sampler = None
    if all(len(a) == len(b) for a, b in zip(logprobs, tokens, strict=True)):
        sampler = torch.zeros(shape)
        for i, row in enumerate(logprobs):
            sampler[i, : len(row)] = torch.tensor(row)
    return GroupStreams(
        prompt, tokens, channel, advantage, kl_coef, weight, sampler, choices, choice_weight, foreign
    )


def select(
    rollout: Rollout, credits: Sequence[Sequence[Credit]], drop_zero: bool, foreign: bool = False
) -> tuple[list[GroupStreams], Dropped]:
    """Streams of the groups that teach something; the others leave the batch and are counted.

    What leaves does not count in any denominator: the step's size does not shrink as problems get solved.
    """
    kept, dropped = [], Dropped()
    rows = zip(rollout.prompts, rollout.groups, credits, strict=True)
    for number, (prompt, group, group_credits) in enumerate(rows):
        if all(c.valid is not None and not bool(c.valid.any()) for c in group_credits):
            dropped.all_invalid += 1
        elif drop_zero and not any(c.teaches for c in group_credits):
            dropped.zero_advantage += 1
        else:
            streams = make_streams(prompt, group, group_credits, foreign)
            kept.append(replace(streams, number=number))
    return kept, dropped


def batch_weights(groups: Sequence[GroupStreams], denominator: Denominator) -> list[Tensor]:
    """Loss weights ``[G, R]`` per group of one optimiser batch, denominators included.

    Taken over the whole batch at once, so micro-batches only add up.
    """
    width = max(group.channel.shape[1] for group in groups)

    def widen(tensor: Tensor, value: float) -> Tensor:
        return torch.nn.functional.pad(tensor, (0, width - tensor.shape[1]), value=value)

    channel = torch.cat([widen(group.channel, UNTRAINED) for group in groups])
    weight = torch.cat([widen(group.loss_weight, 0.0) for group in groups])
    total = token_weights(channel, weight, denominator=denominator)
    parts = total.split([len(group.channel) for group in groups])
    return [part[:, : group.channel.shape[1]] for part, group in zip(parts, groups, strict=True)]


def stack_choices(groups: Sequence[GroupStreams]) -> tuple[Tensor, Tensor, Choices]:
    """All groups' choices as one, with each one's group and loss weight, ``[M]``; may be empty."""
    owners, weights, parts = [], [], []
    for b, group in enumerate(groups):
        if group.choices is not None and group.choice_weight is not None:
            owners += [b] * len(group.choices.rows)
            weights.append(group.choice_weight)
            parts.append(group.choices)
    if not parts:
        none, nothing = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1)
        return none, nothing[:, 0], Choices(none, none, none.view(0, 1), nothing, nothing)
    width = max(part.tokens.shape[1] for part in parts)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1])) for t in tensors])

    return (
        torch.tensor(owners),
        torch.cat(weights),
        Choices(
            torch.cat([part.rows for part in parts]),
            torch.cat([part.places for part in parts]),
            join([part.tokens for part in parts]),
            join([part.probability for part in parts]),
            join([part.advantage for part in parts]),
        ),
    )


def stack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """``[B, G, R]`` from ``[G, R]`` tensors of different sizes, padded with zeros."""
    g, r = max(t.shape[0] for t in tensors), max(max(t.shape[1] for t in tensors), 1)
    padded = [torch.nn.functional.pad(t, (0, r - t.shape[1], 0, g - t.shape[0])) for t in tensors]
    return torch.stack(padded).to(device)
