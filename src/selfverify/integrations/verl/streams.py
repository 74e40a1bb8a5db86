"""The recipe and the conversations as verl knows them, and the streams that a method gives whole groups."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from selfverify.core.problem import Problem
from selfverify.core.trainer_config import LossConfig
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Method
from selfverify.objectives import UNTRAINED, Denominator, token_weights
from selfverify.tasks.base import Task
from selfverify.trainer.batch import make_streams

if TYPE_CHECKING:
    from selfverify.policy.encoding import Prompt


@dataclass(frozen=True, slots=True)
class Settings:
    """What the agent loop and the trainer read of a recipe.

    Args:
        task: Kept per process, so that data files are read once.
        method: Opens conversations and gives credit.
        loss: Denominator, ratio, importance weights.
        seed: Decides the problems.
        turns: How often the policy speaks in one conversation at most.
        max_new_tokens: Of one turn.
    """

    task: Task
    method: Method
    loss: LossConfig
    seed: int
    turns: int
    max_new_tokens: int


def settings_of(config: Any) -> Settings:
    """Return the settings in verl's configuration: the resolved recipe under ``algorithm.selfverify``."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(config.algorithm.selfverify, resolve=True)
    return _made(json.dumps(plain, sort_keys=True))


@cache
def _made(text: str) -> Settings:
    recipe = Recipe.model_validate(json.loads(text))
    task = recipe_task(recipe)
    method = make_method(recipe.method.name, **recipe.method.options)
    limits = method.limits or task.limits
    return Settings(
        task, method, recipe.learner.loss, recipe.seed, limits.turns, recipe.sampling.max_new_tokens
    )


FIELD = "selfverify"
"""The name in ``AgentLoopOutput.extra_fields`` under which a row carries its conversation."""

ADVANTAGE, KL_COEF, WEIGHT = "selfverify_advantage", "selfverify_kl_coef", "selfverify_weight"
"""Names of the streams. The weights are final: an optimiser batch's loss is the sum of weight x loss over its
tokens, denominators included."""


def as_plain(trajectory: Trajectory) -> dict[str, Any]:
    """Return what of a trajectory credit needs as JSON. The tokens themselves are verl's ``responses``."""
    segments = [
        [s.channel, s.author, len(s.tokens), s.turn, None if s.finish is None else str(s.finish)]
        for s in trajectory.segments
    ]
    return {"segments": segments, "scores": dict(trajectory.scores), "rewards": dict(trajectory.rewards)}


def as_trajectory(plain: dict[str, Any]) -> Trajectory:
    """Return the trajectory of which `as_plain` was made, with zeros in place of its tokens."""
    segments = [
        Segment(
            channel, [0] * count, author=author, turn=turn, finish=None if finish is None else Finish(finish)
        )
        for channel, author, count, turn, finish in plain["segments"]
    ]
    return Trajectory(segments, dict(plain["scores"]), dict(plain["rewards"]))


def row_streams(
    method: Method,
    rows: Sequence[dict[str, Any] | None],
    uids: Sequence[Any],
    mask_nr: Tensor,
    batches: Sequence[Sequence[int]],
    denominator: Denominator,
    drop_truncated: bool = False,
) -> tuple[dict[str, Tensor], list[Group]]:
    """Ask a method what each token of a rollout is to learn.

    A group that teaches nothing counts in no denominator, as in our own trainer.

    Args:
        method: Gives credit to whole groups.
        rows: N conversations (`as_plain`); None for rows that verl has added as padding.
        uids: For each row the name of its group.
        mask_nr: ``[N, R]``, the tokens that the policy has said.
        batches: The rows of each optimiser batch; denominators are taken over each.
        denominator: See `selfverify.objectives.token_weights`.
        drop_truncated: Whether trajectories that were cut off take no part.

    Returns:
        The streams, ``[N, R]`` each, and the groups.
    """
    shape = mask_nr.shape
    channel_nr = torch.full(shape, UNTRAINED)
    advantage_nr, kl_nr, loss_nr, weight_nr = (torch.zeros(shape) for _ in range(4))
    members: dict[Any, list[int]] = {}
    for number, (uid, row) in enumerate(zip(uids, rows, strict=True)):
        if row is not None:
            members.setdefault(uid, []).append(number)
    groups = []
    for uid, own in members.items():
        group = Group(Problem(str(uid), []), [as_trajectory(rows[i] or {}) for i in own])
        groups.append(group)
        credits = method.credit(group, valid_trajectories(group, drop_truncated))
        if not any(credit.acts for credit in credits):
            continue
        streams = make_streams(cast("Prompt", None), group, credits)
        width = min(streams.width, shape[1])
        said_gr = mask_nr[own, :width].bool()
        channel_nr[own, :width] = streams.channel_gr[:, :width].masked_fill(~said_gr, UNTRAINED)
        advantage_nr[own, :width] = streams.advantage_gr[:, :width]
        kl_nr[own, :width] = streams.kl_coef_gr[:, :width]
        loss_nr[own, :width] = streams.weight_gr[:, :width]
    for batch in batches:
        places = list(batch)
        weight_nr[places] = token_weights(channel_nr[places], loss_nr[places], denominator)
    return {ADVANTAGE: advantage_nr, KL_COEF: kl_nr, WEIGHT: weight_nr}, groups


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
    chunk, own = rows // ranks, size // ranks
    return [
        [rank * chunk + place for rank in range(ranks) for place in range(first, first + own)]
        for first in range(0, chunk, own)
    ]
