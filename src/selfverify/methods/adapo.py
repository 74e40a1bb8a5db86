"""AdaPO, which learns to re-examine answers, and its combination with ADPO, which also scores them.

The rewards of an answer and its re-examination follow each problem's own error rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from selfverify.core.trajectory import SCORE, TURN_1, TURN_2, Credit, Group, valid_trajectories
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.base import TwoTurnConfig, TwoTurnMethod, column
from selfverify.objectives import (
    RewardShape,
    dynamic_kl,
    error_rate,
    group_advantage,
    reward_table,
    trajectory_reward,
)

_SHAPE = RewardShape()


class AdaPOConfig(TwoTurnConfig):
    """Options of AdaPO, of its ablations, and of two-turn GRPO with fixed rewards."""

    reward: Literal["adaptive", "fixed", "fixed-correction", "fixed-preservation"] = "adaptive"
    """Eq. 3-5; or their bases alone, with correcting (0->1) or keeping (1->1) an answer paid `fixed_gap`
    more. Fixed rewards go with a fixed KL coefficient."""

    positive: float = 1.0
    """R_base of trajectories that end right."""

    negative: float = -1.0
    """R_base of trajectories that end wrong."""

    k_01: float = _SHAPE.k_01
    """K of 0->1, at least 0: correcting pays more as P rises."""

    k_11: float = _SHAPE.k_11
    """K of 1->1, at most 0: keeping pays less as P rises."""

    k_10: float = _SHAPE.k_10
    """K of 1->0, at least 0: spoiling costs less as P rises."""

    k_00: float = _SHAPE.k_00
    """K of 0->0, at most 0: staying wrong costs more."""

    threshold: float = _SHAPE.threshold
    """theta: the error rate P above which correcting pays more than keeping."""

    fixed_gap: float = Field(0.5, gt=0)
    """What `fixed-correction` and `-preservation` pay more."""

    kl: float = Field(0.001, ge=0)
    """KL coefficient of both turns at least (beta_base)."""

    kl_1: float | None = Field(None, ge=0)
    """beta_base of the first turn, if not `kl`."""

    kl_2: float | None = Field(None, ge=0)
    """beta_base of the second turn, if not `kl`."""

    kl_scale: float = Field(0.01, ge=0)
    """lambda: what the rewards' gap adds to it; 0 is no dynamic KL."""

    silent_kl: bool = False
    """The KL terms also hold groups without a signal, as without the paper's filter (Appendix A.2). Off, such
    groups leave."""

    turn_format_weight: float = Field(0.0, ge=0)
    """What each turn with malformed tags takes from the trajectory's reward. One that ends right must still
    earn more than 0."""

    zero_advantage: Literal["second_turn", "adaptive"] = "second_turn"
    """Groups without a signal: all second answers right or all wrong (Appendix A.2), or all rewards equal."""

    drop_truncated: bool = True
    """Leave out trajectories with a turn that was cut off, before any statistic."""

    scale_advantage: bool = True
    """Divide by the group's standard deviation."""

    @property
    def needs_reference(self) -> bool:
        """Whether any turn can have a KL term."""
        return max(self.bases) > 0 or (self.reward == "adaptive" and self.kl_scale > 0)

    @property
    def bases(self) -> tuple[float, float]:
        """beta_base of the first and of the second turn."""
        first, second = (self.kl if own is None else own for own in (self.kl_1, self.kl_2))
        return first, second

    @property
    def shape(self) -> RewardShape:
        """The rewards as functions of the error rate; fixed ones have slope 0."""
        more = RewardShape(self.positive, self.positive, self.negative, self.negative)
        values = asdict(more)
        if self.reward == "adaptive":
            names = ("k_01", "k_11", "k_10", "k_00", "threshold")
            return RewardShape(**(values | {name: getattr(self, name) for name in names}))
        values |= {"k_01": 0.0, "k_11": 0.0, "k_10": 0.0, "k_00": 0.0}
        if self.reward != "fixed":
            values["base_01" if self.reward == "fixed-correction" else "base_11"] += self.fixed_gap
        return RewardShape(**values)

    @model_validator(mode="after")
    def _check_rewards(self) -> AdaPOConfig:
        self._refuse_unread()
        shape = self.shape  # refuses what would pay for a wrong end
        # At both ends of P; a second turn that is right is well formed, so that only the first can cost.
        least = float(reward_table(torch.tensor([0.0, 1.0]), shape)[..., 0, 1].min())
        if self.turn_format_weight >= least:
            raise ValueError(
                f"turn_format_weight: {self.turn_format_weight:g} is not less than {least:g}, the least that "
                "a trajectory earns that ends right, so that being right would not pay"
            )
        return self

    def _refuse_unread(self) -> None:
        """Raise where an option was changed that the rewards do not read."""
        if self.reward == "adaptive":
            unread: tuple[str, ...] = ("fixed_gap",)
            instead = "adaptive rewards differ by the error rate; set reward: fixed-correction"
        else:
            unread = ("k_01", "k_11", "k_10", "k_00", "threshold")
            unread += ("fixed_gap",) if self.reward == "fixed" else ()
            instead = f"reward: {self.reward} does not read it; leave it out"
        for name in unread:
            if self.changed(name):
                raise ValueError(f"{name}: {getattr(self, name):g} would change nothing: {instead}")


class AdaPO(TwoTurnMethod):
    """An answer and its re-examination learn; `AdaPOConfig` holds the paper's choices and ours."""

    name = "adapo"
    summary = "a second turn re-examines the first; adaptive rewards and KL (AdaPO)"
    config_class = AdaPOConfig
    config: AdaPOConfig

    def credit(self, group: Group, valid: Tensor) -> list[Credit]:
        """Return one advantage for both turns, with a KL coefficient for each turn (Eq. 6-8).

        Cut-off trajectories leave before P, mean and standard deviation are taken. By default a group whose
        second answers are all right or all wrong teaches nothing, although its adaptive rewards may differ:
        they would pay for how the first answers ended.
        """
        c = self.config
        valid = valid & valid_trajectories(group, c.drop_truncated)
        first, second = column(group, "correct_1"), column(group, "correct")
        table = self._table(first, valid)
        reward = trajectory_reward(table, first, second)
        if c.turn_format_weight:
            spoilt = 2 - column(group, "answer_format_1") - column(group, "answer_format")
            reward = reward - c.turn_format_weight * spoilt
        for trajectory, value in zip(group.trajectories, reward.tolist(), strict=True):
            trajectory.rewards["trajectory"] = value
        advantage = group_advantage(reward, valid, scale=c.scale_advantage)
        if c.zero_advantage == "second_turn" and len(second[valid].unique()) < 2:
            advantage = torch.zeros_like(advantage)
        betas = self._betas(table)
        return [
            Credit(channel, advantage, kl_coef=beta, valid=valid, holds=self.config.silent_kl)
            for channel, beta in zip((TURN_1, TURN_2), betas, strict=True)
        ]

    def _table(self, first: Tensor, valid: Tensor) -> Tensor:
        # Without a valid trajectory there is no P, and nothing that would earn by it.
        return reward_table(error_rate(first, valid).nan_to_num(0.0), self.config.shape)

    def _betas(self, table: Tensor) -> tuple[Tensor, Tensor]:
        scale = self.config.kl_scale if self.config.reward == "adaptive" else 0.0
        return dynamic_kl(table, scale, self.config.bases)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return the common figures, those of the turns, and the state that rewards and KL adapt to."""
        logged = super().metrics(groups)
        rates, betas = [], []
        for group in groups:
            valid = valid_trajectories(group, self.config.drop_truncated)
            if bool(valid.any()):
                first = column(group, "correct_1")
                rates.append(float(error_rate(first, valid)))
                betas.append([float(beta) for beta in self._betas(self._table(first, valid))])
        if rates:
            logged["adapo/error_rate"] = float(np.mean(rates))
            logged["adapo/correcting"] = float(np.mean([rate > self.config.threshold for rate in rates]))
            logged["adapo/beta_1"], logged["adapo/beta_2"] = (float(x) for x in np.mean(betas, axis=0))
        return logged


class AdaPOADPOConfig(AdaPOConfig, ADPOConfig):
    """AdaPO's options, and those of ADPO's score channel. `kl` is AdaPO's; `score_kl` is `kl` by default."""

    format_weight: float = Field(0.1, ge=0)
    """What a malformed score loses, unless `score_format_weight` says."""

    @property
    def needs_reference(self) -> bool:
        """Whether any channel can have a KL term."""
        return super().needs_reference or (self.score_kl or 0) > 0

    @model_validator(mode="after")
    def _check_channels(self) -> AdaPOADPOConfig:
        if self.credit == "entangled":
            raise ValueError("credit: entangled has one advantage for all channels, and this method three")
        return self


class AdaPOADPO(TwoTurnMethod):
    """AdaPO and ADPO together: the second turn also says how sure it is of its own answer.

    Neither paper has this method. A trajectory has four segments: ``turn_1``, ``observation``, ``turn_2`` and
    ``score``. The tokens of the two turns learn as in AdaPO; those of the score learn ADPO's verification
    reward of the second answers. So there are three credits on disjoint tokens.
    """

    name = "adapo-adpo"
    summary = "AdaPO whose second turn also writes a score, which learns as in ADPO"
    config_class = AdaPOADPOConfig
    teaches_scores = True
    split_score = True
    config: AdaPOADPOConfig

    def __init__(self, config: AdaPOADPOConfig | None = None) -> None:
        super().__init__(config)
        self.turns, self.scores = AdaPO(self.config), ADPO(self.config)

    def credit(self, group: Group, valid: Tensor) -> list[Credit]:
        """Return AdaPO's two credits, and ADPO's for the score, over the same valid trajectories."""
        turns = self.turns.credit(group, valid)
        kept = valid if turns[0].valid is None else turns[0].valid
        return [*turns, *(credit for credit in self.scores.credit(group, kept) if credit.channel == SCORE)]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return AdaPO's figures, which hold those of scores where there are any."""
        return self.turns.metrics(groups)
