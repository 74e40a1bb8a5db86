"""Turns groups and credits into per-token streams, which are all that the trainer sees of a method.

Names of tensors end in their axes: B groups, G trajectories of each group, R tokens of a response, N rows
(trajectories of several groups), M tokens that learn from all their alternatives, K alternatives of each.
The ragged lists of a rollout become padded tensors here, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from selfverify.core.errors import DataError
from selfverify.core.trajectory import Alternatives, Credit, Group
from selfverify.objectives import UNTRAINED, Denominator, token_weights
from selfverify.policy.packing import Continuation

if TYPE_CHECKING:  # other trainers ask for streams without our models
    from selfverify.policy.encoding import Encoder, Prompt
    from selfverify.policy.families import ImageInput
    from selfverify.rollouts.rollout import Rollout


@dataclass(slots=True)
class TokenStreams:
    """One group's per-token streams, each ``[G, R]``, where R is the group's longest response.

    Args:
        prompt: The prompt that the responses follow.
        tokens: G lists of token ids.
        channel_gr: The number of the token's credit; -1 where nothing is trained.
        advantage_gr: The token's advantage. It is 0 at the tokens of ``choices``, which learn from all their
            alternatives.
        kl_coef_gr: The coefficient of the token's KL term.
        weight_gr: The channel's loss weight, before any denominator.
        sampler_logprobs_gr: Log-probabilities at sampling, NaN where unknown; None where nothing was sampled.
        choices: The alternatives of the M tokens that have some.
        choice_weight_m: The loss weights of these M tokens.
        foreign: Whether another engine than the trained model sampled. Its log-probabilities differ a
            little.
        number: The group's place in its rollout.
        owner: The process that learns from the group.
        old_logprobs_gr: Log-probabilities under the policy that sampled. None in the first update after
            sampling, where that policy is the one that learns, so that the ratio is 1.
        reference_logprobs_gr: Log-probabilities under the reference; None where no KL coefficient is above 0.
        pictures: For each trajectory the images that its environment showed, in order; empty where none were.
        images: The same images, preprocessed by `prepare_images`.
        channels: The names of the channels, by the numbers in ``channel_gr``.
    """

    prompt: Prompt
    tokens: list[list[int]]
    channel_gr: Tensor
    advantage_gr: Tensor
    kl_coef_gr: Tensor
    weight_gr: Tensor
    sampler_logprobs_gr: Tensor | None = None
    choices: Alternatives | None = None
    choice_weight_m: Tensor | None = None
    foreign: bool = False
    number: int = 0
    owner: int = 0
    old_logprobs_gr: Tensor | None = None
    reference_logprobs_gr: Tensor | None = None
    pictures: list[list[Image]] = field(default_factory=list)
    images: list[list[ImageInput]] = field(default_factory=list)
    channels: tuple[str, ...] = ()

    def prepare_images(self, encoder: Encoder) -> None:
        """Preprocess what environments showed, before a pass needs it.

        Raises:
            DataError: An image cannot be read.
        """
        name = self.prompt.problem_id
        self.images = [[encoder.image(picture, name, True) for picture in row] for row in self.pictures]

    @property
    def continuations(self) -> list[Continuation]:
        """Return all that follows the prompt, as `Policy.logprobs` takes it."""
        rows = self.images or [[] for _ in self.tokens]
        return [Continuation(tokens, images) for tokens, images in zip(self.tokens, rows, strict=True)]

    def take(self, rows: Sequence[int]) -> TokenStreams:
        """Return the group with ``rows`` alone; R is the length of the longest of them."""
        if list(rows) == list(range(len(self.tokens))):
            return self
        width = max(len(self.tokens[row]) for row in rows)
        places = list(rows)

        def part(stream_gr: Tensor | None) -> Tensor | None:
            return None if stream_gr is None else stream_gr[places, :width]

        choices, choice_weight_m = self.choices, self.choice_weight_m
        if choices is not None and choice_weight_m is not None:
            new_g = torch.full((len(self.tokens),), -1)
            new_g[places] = torch.arange(len(places))
            kept_m = new_g[choices.rows] >= 0
            choice_weight_m = choice_weight_m[kept_m]
            others = choices.places, choices.tokens, choices.probability, choices.advantage
            choices = Alternatives(new_g[choices.rows[kept_m]], *(values[kept_m] for values in others))
        return replace(
            self,
            tokens=[self.tokens[row] for row in rows],
            channel_gr=self.channel_gr[places, :width],
            advantage_gr=self.advantage_gr[places, :width],
            kl_coef_gr=self.kl_coef_gr[places, :width],
            weight_gr=self.weight_gr[places, :width],
            sampler_logprobs_gr=part(self.sampler_logprobs_gr),
            choices=choices,
            choice_weight_m=choice_weight_m,
            old_logprobs_gr=part(self.old_logprobs_gr),
            reference_logprobs_gr=part(self.reference_logprobs_gr),
            pictures=[self.pictures[row] for row in rows] if self.pictures else [],
            images=[self.images[row] for row in rows] if self.images else [],
        )

    @property
    def width(self) -> int:
        """R, the length of the longest response."""
        return self.channel_gr.shape[1]

    @property
    def trained_gr(self) -> Tensor:
        """Which tokens are trained, ``[G, R]`` bool."""
        return self.channel_gr != UNTRAINED

    @property
    def trajectories(self) -> int:
        """The number of trajectories that have trained tokens."""
        return int(self.trained_gr.any(-1).sum())


def make_streams(
    prompt: Prompt, group: Group, credits: Sequence[Credit], foreign: bool = False, number: int = 0
) -> TokenStreams:
    """Lay a group's credits out over its tokens.

    A credit reaches the policy's tokens in its channel, of valid trajectories. Where all advantages of a
    channel are 0, its KL coefficient is 0, too: a group that teaches nothing must not be pushed by KL either,
    unless the credit asks for that (`Credit.holds`).

    Raises:
        DataError: The advantage, KL coefficient or weight of a trained token is not finite.
        ValueError: Several channels have choices, or choices lie outside their channel's trained tokens.
    """
    tokens = [t.tokens for t in group.trajectories]
    shape = (len(tokens), max((len(row) for row in tokens), default=0))
    channel_gr = torch.full(shape, UNTRAINED)
    advantage_gr, kl_coef_gr, weight_gr = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
    for place, credit in enumerate(credits):
        flags = [torch.tensor(t.channel_mask([credit.channel]), dtype=torch.bool) for t in group.trajectories]
        mask_gr = pad_sequence(flags, batch_first=True)
        if credit.valid is not None:
            mask_gr &= credit.valid[:, None]
        channel_gr[mask_gr] = place
        for stream_gr, value in (
            (advantage_gr, credit.advantage),
            (kl_coef_gr, credit.kl_coef if credit.acts else 0.0),
            (weight_gr, credit.weight),
        ):
            value_g = torch.as_tensor(value, dtype=torch.float32).expand(len(tokens))
            stream_gr[mask_gr] = value_g[:, None].expand(shape)[mask_gr]
        learnt = [stream_gr[mask_gr] for stream_gr in (advantage_gr, kl_coef_gr, weight_gr)]
        if credit.choices is not None:
            learnt.append(credit.choices.advantage)
        if not all(bool(values.isfinite().all()) for values in learnt):
            raise DataError(
                f"problem {group.problem.id}: the credit of channel {credit.channel} is not finite: "
                f"advantage {_plain(credit.advantage)}, KL coefficient {_plain(credit.kl_coef)}, weight "
                f"{_plain(credit.weight)}; its method has to give finite numbers to valid trajectories"
            )
    streams = TokenStreams(
        prompt, tokens, channel_gr, advantage_gr, kl_coef_gr, weight_gr, foreign=foreign, number=number
    )
    streams.channels = tuple(credit.channel for credit in credits)
    pictures = [[image for s in t.segments for image in s.images] for t in group.trajectories]
    streams.pictures = pictures if any(pictures) else []
    choosing = [(place, credit) for place, credit in enumerate(credits) if credit.choices is not None]
    if len(choosing) > 1:
        names = ", ".join(credit.channel for _, credit in choosing)
        raise ValueError(f"{group.problem.id}: only one channel may have choices, not {names}")
    for place, credit in choosing:
        choices = streams.choices = credit.choices
        assert choices is not None
        at = (choices.rows, choices.places)
        if not bool((channel_gr[at] == place).all()):
            raise ValueError(f"{group.problem.id}: choices lie outside their channel's trained tokens")
        advantage_gr[at] = 0.0
        streams.choice_weight_m = weight_gr[at]
    logprobs = [t.logprobs for t in group.trajectories]
    if all(len(a) == len(b) for a, b in zip(logprobs, tokens, strict=True)):
        streams.sampler_logprobs_gr = pad_sequence([torch.tensor(row) for row in logprobs], batch_first=True)
    return streams


def _plain(value: float | Tensor) -> object:
    return value.tolist() if isinstance(value, Tensor) else value


def select(
    rollout: Rollout, credits: Sequence[Sequence[Credit]], drop_zero: bool, foreign: bool = False
) -> tuple[list[TokenStreams], Counter[str]]:
    """Lay out the groups that teach or hold something; the others leave the batch.

    A group that leaves counts in no denominator, so that the other groups weigh more, not less, as more
    problems are solved.

    Returns:
        The streams of the groups that stay, and how many left for which reason: ``all_invalid`` or
        ``zero_advantage``.
    """
    kept, dropped = [], Counter[str]()
    rows = zip(rollout.prompts, rollout.groups, credits, strict=True)
    for number, (prompt, group, group_credits) in enumerate(rows):
        if all(c.valid is not None and not bool(c.valid.any()) for c in group_credits):
            dropped["all_invalid"] += 1
            continue
        streams = make_streams(prompt, group, group_credits, foreign, number)
        # Conversations that were over before the policy spoke have advantages, but no token.
        if not streams.trajectories or (drop_zero and not any(c.acts for c in group_credits)):
            dropped["zero_advantage"] += 1
        else:
            kept.append(streams)
    return kept, dropped


def batch_weights(groups: Sequence[TokenStreams], denominator: Denominator) -> list[Tensor]:
    """Return each group's loss weights ``[G, R]`` in an optimiser batch, denominators included.

    The denominators are taken over the whole batch, so that the losses of micro-batches only add up.
    """
    width = max(group.channel_gr.shape[1] for group in groups)

    def rows(streams: Sequence[Tensor], value: float) -> Tensor:
        return torch.cat([pad(s_gr, (0, width - s_gr.shape[1]), value=value) for s_gr in streams])

    channel_nr = rows([group.channel_gr for group in groups], UNTRAINED)
    weight_nr = rows([group.weight_gr for group in groups], 0.0)
    parts = token_weights(channel_nr, weight_nr, denominator).split(
        [len(group.channel_gr) for group in groups]
    )
    return [part[:, : group.channel_gr.shape[1]] for part, group in zip(parts, groups, strict=True)]


def pair_weights(groups: Sequence[TokenStreams]) -> list[Tensor]:
    """Return each pair's loss weight in an optimiser batch, at every trained token of the pair, ``[G, R]``.

    It is the mean loss weight of the pair's trained tokens, divided by the number of pairs. So the batch's
    loss is a mean over pairs of all lengths, as TRL's is (VTS-V Eq. 6 and 11 print a sum). A pair that has
    lost a trajectory, because it is invalid, has the weight 0 and is not counted.

    Raises:
        ValueError: A group is not a pair of a trajectory with the advantage 1 and one with -1.
    """
    weights = []
    for group in groups:
        trained_gr = group.trained_gr
        signs = [
            row_r[own_r].unique().tolist()
            for row_r, own_r in zip(group.advantage_gr, trained_gr, strict=True)
        ]
        found = sorted(sign for row in signs for sign in row)
        if len(signs) != 2 or found not in ([-1.0, 1.0], [-1.0], [1.0], []):
            raise ValueError(
                f"{group.prompt.problem_id}: a pair is one trajectory with the advantage 1 (chosen) and one "
                f"with -1 (rejected); here the advantages are {signs}"
            )
        mean = group.weight_gr[trained_gr].double().mean().float() if group.trajectories == 2 else 0.0
        weights.append(trained_gr * mean)
    pairs = max(sum(group.trajectories == 2 for group in groups), 1)
    return [weight_gr / pairs for weight_gr in weights]


def stack_choices(groups: Sequence[TokenStreams]) -> tuple[Tensor, Tensor, Alternatives]:
    """Join the choices of all groups.

    Returns:
        The places ``[M, 3]`` (group, trajectory, token), the loss weights ``[M]``, and the choices.
    """
    owners, weights, parts = [], [], []
    for b, group in enumerate(groups):
        if group.choices is not None and group.choice_weight_m is not None:
            owners += [b] * len(group.choices.rows)
            weights.append(group.choice_weight_m)
            parts.append(group.choices)
    if not parts:
        none_m, nothing_mk = torch.zeros(0, dtype=torch.long), torch.zeros(0, 1)
        none = Alternatives(none_m, none_m, none_m.view(0, 1), nothing_mk, nothing_mk)
        return none_m.new_zeros(0, 3), nothing_mk[:, 0], none
    width = max(part.tokens.shape[1] for part in parts)

    def join(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([pad(t_mk, (0, width - t_mk.shape[1])) for t_mk in tensors])

    choices = Alternatives(
        torch.cat([part.rows for part in parts]),
        torch.cat([part.places for part in parts]),
        join([part.tokens for part in parts]),
        join([part.probability for part in parts]),
        join([part.advantage for part in parts]),
    )
    places_m3 = torch.stack([torch.tensor(owners), choices.rows, choices.places], dim=1)
    return places_m3, torch.cat(weights), choices


def stack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack ``[G, R]`` tensors of different sizes to ``[B, G, R]``, padded with zeros."""
    g, r = max(t.shape[0] for t in tensors), max(max(t.shape[1] for t in tensors), 1)
    return torch.stack([pad(t, (0, r - t.shape[1], 0, g - t.shape[0])) for t in tensors]).to(device)


def stack_known(tensors: Sequence[Tensor | None], device: torch.device) -> Tensor | None:
    """Stack tensors as `stack` does; None if any of them is None."""
    known = [tensor for tensor in tensors if tensor is not None]
    return stack(known, device) if len(known) == len(tensors) else None
