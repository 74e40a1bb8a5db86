"""The recipe and the conversations as verl knows them, and the streams that a method gives whole groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from selfverify.core.problem import Problem
from selfverify.core.score_tokens import ScoreReading
from selfverify.core.trainer_config import LossConfig
from selfverify.core.trajectory import Group, Trajectory, valid_trajectories
from selfverify.methods.base import Method
from selfverify.objectives import UNTRAINED, pairwise, token_weights
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.score_reading import keep_reading
from selfverify.trainer.batch import TokenStreams, pair_weights, select, stack_choices

FIELD = "selfverify"
"""The name in ``AgentLoopOutput.extra_fields`` under which a row carries its `Row`."""

ADVANTAGE, KL_COEF, WEIGHT = "selfverify_advantage", "selfverify_kl_coef", "selfverify_weight"
"""Names of the streams. The weights are final: an optimiser batch's loss is the sum of weight x loss over its
tokens, denominators included."""

CHOSEN = PLACE, ALTERNATIVES, SHARE, WORTH = tuple(
    f"selfverify_choice_{name}" for name in ("place", "tokens", "share", "worth")
)
"""Names of the streams of up to M tokens of a row that learn from all their alternatives: their places in
the response, ``[N, M]``, and ``[N, M, K]`` ids, probabilities (0 is padding) and weighted advantages."""


class Row:
    """A conversation on its way through verl, which has its images apart.

    It is no dataclass: verl's queue would hand over a dictionary in its place.

    Args:
        trajectory: The conversation.
        number: Its place in its group.
        skipped: Why the problem cannot be used; empty where it can.
        fatal: Why the run cannot go on; empty where it can.
    """

    def __init__(self, trajectory: Trajectory, number: int = 0, skipped: str = "", fatal: str = "") -> None:
        segments = [replace(segment, images=[]) for segment in trajectory.segments]
        self.trajectory = replace(trajectory, segments=segments)
        self.number, self.skipped, self.fatal = number, skipped, fatal


def row_streams(
    method: Method,
    rows: Sequence[Row | None],
    uids: Sequence[Any],
    batches: Sequence[Sequence[int]],
    loss: LossConfig,
    step: int = 0,
    readings: Sequence[ScoreReading | None] | None = None,
    logprobs: Sequence[Sequence[Tensor]] = (),
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Ask a method what each token of a rollout is to learn.

    As in our own trainer a group that teaches nothing counts in no denominator, and an optimiser batch in
    which none teaches changes nothing: its weights are NaN, since verl leaves out a step whose gradient is
    not finite. After a gradient of zeros AdamW would go on by its moments.

    Args:
        method: Gives credit to whole groups.
        rows: N conversations; None for rows that verl has added as padding.
        uids: For each row the name of its group.
        batches: The rows of each optimiser batch; denominators are taken over each.
        loss: The denominator, and which trajectories and groups take part.
        step: The number of the training step, from 0.
        readings: The distribution of each row's score, where the method's credit reads them.
        logprobs: Where the method compares pairs, each row's under the policy and under the reference.

    Returns:
        The streams, ``[N, R]`` each, with those of alternatives where scores are read, and the step's
        figures.
    """
    known = {number: row for number, row in enumerate(rows) if row is not None}
    # A conversation without a token has one in verl, as has padding.
    shape = len(rows), max(1, *(len(row.trajectory.tokens) for row in known.values()))
    channel_nr = torch.full(shape, UNTRAINED)
    advantage_nr, kl_nr, loss_nr, weight_nr = (torch.zeros(shape) for _ in range(4))
    members: dict[Any, list[int]] = {}
    for number, row in sorted(known.items(), key=lambda item: item[1].number):
        if not row.skipped:
            members.setdefault(uids[number], []).append(number)
    if logprobs:  # a side that verl has lost takes its pair along
        members = {uid: own for uid, own in members.items() if len(own) == 2}
    groups = [
        Group(Problem(str(uid), []), [known[number].trajectory for number in own], step)
        for uid, own in members.items()
    ]
    for own, group in zip(members.values(), groups, strict=True):
        for place, trajectory in zip(own, group.trajectories, strict=True):
            keep_reading(trajectory, readings[place] if readings else None)
    lost = [t.lost for group in groups for t in group.trajectories]  # credit may add rewards
    valid = [valid_trajectories(group, loss.drop_truncated) for group in groups]
    credits = [method.credit(group, taking_part) for group, taking_part in zip(groups, valid, strict=True)]
    rolled = Rollout(cast(Any, [None] * len(groups)), groups)
    kept, dropped = select(rolled, credits, loss.drop_zero_advantage)
    places = [*members.values()]
    figures = method.metrics(groups) if groups else {}
    if logprobs:
        figures |= _pull(kept, [[[column[i] for i in own] for own in places] for column in logprobs])
    for streams in kept:
        own, width = places[streams.number], streams.width
        channel_nr[own, :width] = streams.channel_gr
        advantage_nr[own, :width] = streams.advantage_gr
        kl_nr[own, :width] = streams.kl_coef_gr
        loss_nr[own, :width] = streams.weight_gr
    for batch in map(list, batches):
        weight = loss_nr[batch]
        if not logprobs:
            weight = token_weights(channel_nr[batch], weight, loss.denominator)
        weight_nr[batch] = weight if bool(weight.any()) else math.nan
    figures |= {
        "groups/kept": float(len(kept)),
        **{f"groups/{reason}": float(dropped[reason]) for reason in ("zero_advantage", "all_invalid")},
        "trajectories/invalid": float(sum(int((~taking_part).sum()) for taking_part in valid)),
        "lost": sum(lost) / max(len(lost), 1),
        "skipped": float(sum(bool(row.skipped) for row in known.values())),
    }
    found = {ADVANTAGE: advantage_nr, KL_COEF: kl_nr, WEIGHT: weight_nr}
    return found | (_choice_streams(kept, places, channel_nr, batches) if readings else {}), figures


def _pull(kept: Sequence[TokenStreams], logprobs: Sequence[Sequence[Sequence[Tensor]]]) -> dict[str, float]:
    """Give pairs the advantages whose surrogate has the gradient of `pairwise`, and return their figures.

    That is so where no update lies between ``logprobs`` and the gradient: the derivative of a pair's loss by
    a token's log-probability is ``-beta * sigmoid(-margin)``, or its negative, and rows need not meet.

    Args:
        kept: The pairs.
        logprobs: Under the policy and under the reference, by the pairs' numbers, of both sides.
    """
    losses, margins = [torch.zeros(())], list[float]()
    for streams, weight_gr in zip(kept, pair_weights(kept), strict=True):
        now_gr, reference_gr = (pad_sequence([*side[streams.number]], batch_first=True) for side in logprobs)
        sign_gr, beta_gr = streams.advantage_gr, streams.kl_coef_gr
        terms = pairwise(now_gr[None], reference_gr[None], sign_gr[None], beta_gr[None])
        streams.advantage_gr = sign_gr * beta_gr * (-terms.margin).sigmoid()
        streams.kl_coef_gr, streams.weight_gr = torch.zeros_like(beta_gr), weight_gr
        losses.append(terms.loss[0] * weight_gr.max())
        margins += terms.margin.tolist() if weight_gr.any() else []
    figures = {"pairs/loss": float(sum(losses))}
    if margins:
        figures["pairs/accuracy"] = sum(margin > 0 for margin in margins) / len(margins)
        figures["pairs/margin"] = sum(margins) / len(margins)
    return figures


def _choice_streams(
    kept: Sequence[TokenStreams],
    places: Sequence[Sequence[int]],
    channel_nr: Tensor,
    batches: Sequence[Sequence[int]],
) -> dict[str, Tensor]:
    """Lay out the tokens that learn from all their alternatives; ``places`` are the rows of each group."""
    part_n, counts = torch.zeros(len(channel_nr)), [0] * len(channel_nr)
    for batch in map(list, batches):
        part_n[batch] = 1.0 / (channel_nr[batch] != UNTRAINED).any(-1).sum().clamp(min=1)
    at_m3, weight_m, choices = stack_choices(kept)
    row_m, slot_m = [places[kept[b].number][g] for b, g, _ in at_m3.tolist()], list[int]()
    for row in row_m:
        slot_m.append(counts[row])
        counts[row] += 1
    shape = len(channel_nr), max(*counts, 1), choices.tokens.shape[1]
    tokens_nmk = torch.zeros(shape, dtype=torch.long)
    share_nmk, worth_nmk, place_nm = torch.zeros(shape), torch.zeros(shape), tokens_nmk[:, :, 0].clone()
    tokens_nmk[row_m, slot_m], share_nmk[row_m, slot_m] = choices.tokens, choices.probability
    worth_nmk[row_m, slot_m] = choices.advantage * (weight_m * part_n[row_m])[:, None]
    place_nm[row_m, slot_m] = at_m3[:, 2]
    return {PLACE: place_nm, ALTERNATIVES: tokens_nmk, SHARE: share_nmk, WORTH: worth_nmk}


def in_groups(uids: Sequence[str], lengths: Sequence[int], ranks: int) -> list[int]:
    """Return an order of rows in which those of a group are neighbours, and on one rank where that goes.

    Args:
        uids: For each row the name of its group.
        lengths: How many tokens each row has: ranks get about equally many.
        ranks: Data-parallel ranks, each of which takes an equal run of rows.
    """
    members: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        members.setdefault(uid, []).append(row)
    groups = sorted(members.values(), key=lambda rows: -sum(lengths[row] for row in rows))
    if len(groups) % ranks == 0 and len({len(rows) for rows in groups}) == 1:
        # Back and forth over the ranks, from the longest group to the shortest.
        rounds = [groups[first : first + ranks] for first in range(0, len(groups), ranks)]
        turned = [dealt[::-1] if number % 2 else dealt for number, dealt in enumerate(rounds)]
        groups = [dealt[rank] for rank in range(ranks) for dealt in turned]
    return [row for rows in groups for row in rows]


def optimiser_batches(rows: int, ranks: int, size: int) -> list[list[int]]:
    """Return which rows of a rollout share an optimiser step in verl.

    verl gives each of its data-parallel ranks an equal run of rows, and each rank cuts its own into
    mini-batches (``TrainingWorker.train_mini_batch``, without shuffling).

    Args:
        rows: How many there are.
        ranks: Data-parallel ranks.
        size: Rows of an optimiser batch over all ranks.

    Raises:
        ValueError: They do not divide.
    """
    if rows % size or size % ranks:
        raise ValueError(f"{rows} rows, {size} in an optimiser batch and {ranks} ranks do not divide")
    by_rank = torch.arange(rows).view(ranks, rows // size, size // ranks)
    batches: list[list[int]] = by_rank.transpose(0, 1).flatten(1).tolist()
    return batches
