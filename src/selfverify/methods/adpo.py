"""ADPO: answers learn from answer rewards, scores from verification rewards, on disjoint tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from selfverify.core.score_tokens import SCORE_TEXTS, ScoreReading
from selfverify.core.trajectory import ANSWER, SCORE, Alternatives, Credit, Group
from selfverify.methods.base import Method, PolicyGradientConfig, column, quality, scores
from selfverify.objectives import (
    binary_reward,
    concordance_credit,
    expected_concordance,
    group_advantage,
    preference_reward,
)


class ADPOConfig(PolicyGradientConfig):
    """Options of ADPO and of its ablations."""

    verification: Literal["pairwise", "class_mean", "binary"] = "pairwise"
    """R^p by pairs (Eq. 5), against the other class's mean (§3.2's prose), or R^b (Eq. 4)."""

    credit: Literal["decoupled", "entangled"] = "decoupled"
    """Two advantages on disjoint tokens (Eq. 9), or one of the sum (Eq. 8)."""

    verification_credit: Literal["normalised", "concordance", "expected"] = "normalised"
    """Group-normalised R^p as in the paper, the drift-free concordance credit, or that in expectation over
    all scores the policy could have written."""

    gamma: float = Field(0.0, ge=0, lt=1)
    """Margin of the contrastive set (Eq. 7); 0 is 'differs' (Eq. 6)."""

    score_weight: float = Field(1.0, ge=0)
    """Loss weight of the score channel."""

    score_kl: float | None = Field(None, ge=0)
    """The score channel's own KL coefficient; None is the answers' (`kl`)."""

    concordance_scale: float = Field(4.0, gt=0)
    """Multiplies the concordance and the expected credit, whose size is about 1/G of a normalised one."""

    tau_score: float = Field(0.5, ge=0, le=1)
    """Score threshold of the binary reward (tau_s)."""

    tau_answer: float = Field(0.5, ge=0, le=1)
    """Answer threshold of the binary reward (tau_a)."""

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0 or (self.score_kl or 0) > 0

    @property
    def reads_scores(self) -> bool:
        return self.verification_credit == "expected"

    @model_validator(mode="after")
    def _check_verification(self) -> ADPOConfig:
        if self.verification_credit != "normalised" and self.verification != "pairwise":
            raise ValueError(
                f"verification_credit: {self.verification_credit} is a sum over pairs; use verification: "
                "pairwise, or verification_credit: normalised"
            )
        if self.verification_credit != "normalised" and self.credit == "entangled":
            raise ValueError(
                f"credit: entangled adds rewards; verification_credit: {self.verification_credit} is no "
                "reward"
            )
        if self.credit == "entangled" and self.score_weight != 1:
            raise ValueError(
                f"score_weight: {self.score_weight:g} has no meaning with credit: entangled, where all "
                "tokens have one advantage; leave it at 1"
            )
        if self.verification == "binary" and self.gamma > 0:
            raise ValueError(
                f"gamma: {self.gamma:g} is a margin between answers, and verification: binary compares none; "
                "leave it at 0"
            )
        if self.changed("concordance_scale") and self.verification_credit == "normalised":
            raise ValueError(
                f"concordance_scale: {self.concordance_scale:g} scales no normalised reward; drop it, or "
                "set verification_credit: concordance or expected"
            )
        for name in ("tau_score", "tau_answer"):
            if self.verification != "binary" and self.changed(name):
                raise ValueError(
                    f"{name}: {getattr(self, name):g} is a threshold of verification: binary, and "
                    f"{self.verification} has none; leave it out"
                )
        return self


class ADPO(Method):
    """See the module's docstring; `ADPOConfig` holds the paper's choices and ours."""

    name = "adpo"
    summary = "answers and scores learn from separate advantages (ADPO)"
    config_class = ADPOConfig
    teaches_scores = True
    compares = True
    config: ADPOConfig

    def verification_reward(self, group: Group, valid: Tensor) -> Tensor:
        """Return R^p or R^b of a group, ``[G]`` in [0, 1], and note it in its trajectories' rewards.

        Contrast is decided by the answer's quality without its format part; a malformed score earns 0.
        """
        c, s = self.config, scores(group)
        if c.verification == "binary":
            reward = binary_reward(s, quality(group), c.tau_score, c.tau_answer)
        else:
            reward = preference_reward(s, quality(group), c.gamma, c.verification, valid)
        for trajectory, value in zip(group.trajectories, reward.tolist(), strict=True):
            trajectory.rewards["verification"] = value
        return reward

    def credit(self, group: Group, valid: Tensor, extra: Tensor | None = None) -> list[Credit]:
        """Return the answer's and the score's credit: each its own advantage (Eq. 9), or one (Eq. 8).

        ``extra`` [G] is added to the answers' rewards and, like their format part, decides no contrast.
        """
        c = self.config
        opened, score_format = column(group, "score_opened"), column(group, "score_format")
        # A score that was never opened is the answer's fault; one that was opened badly is the score's.
        answer_reward = column(group, "answer") + c.format_weight * torch.minimum(
            column(group, "answer_format"), opened
        )
        if extra is not None:
            answer_reward = answer_reward + extra
        penalty = c.score_penalty * (opened - score_format)
        reward = self.verification_reward(group, valid)
        score_kl = c.kl if c.score_kl is None else c.score_kl
        if c.credit == "entangled":
            total = self._advantage(answer_reward + reward - penalty, valid)
            return [
                Credit(ANSWER, total, kl_coef=c.kl, valid=valid),
                Credit(SCORE, total, kl_coef=score_kl, valid=valid),
            ]
        choices = None
        if c.reads_scores:
            choices = self._choices(group, valid)
            verification = torch.where(valid, -penalty, 0.0)
        elif c.verification_credit == "concordance":
            concordance = concordance_credit(scores(group), quality(group), c.gamma, valid)
            verification = c.concordance_scale * concordance - torch.where(valid, penalty, 0.0)
        else:
            verification = self._advantage(reward - penalty, valid)
        return [
            Credit(ANSWER, self._advantage(answer_reward, valid), kl_coef=c.kl, valid=valid),
            Credit(SCORE, verification, score_kl, c.score_weight, valid, choices),
        ]

    def _choices(self, group: Group, valid: Tensor) -> Alternatives | None:
        """Return every score that could have been written, token by token, and the credit it would expect."""
        last = [t.segments[-1].parsed for t in group.trajectories]
        readings = [parsed if isinstance(parsed, ScoreReading) else None for parsed in last]
        if any("sampled" in t.scores and "soft" not in t.scores for t in group.trajectories):
            raise ValueError(
                f"{group.problem.id}: verification_credit: expected needs the scores' distributions; call "
                "read_rollout on rollouts that ADPO.rollout did not make"
            )
        levels, rows = score_distributions(readings)
        worth = self.config.concordance_scale * expected_concordance(
            levels, rows, quality(group), self.config.gamma, valid
        )
        found = []
        for i, (trajectory, reading) in enumerate(zip(group.trajectories, readings, strict=True)):
            # Where a limit ended a conversation that was to go on, no token is a score's.
            is_score = trajectory.segments[-1].channel == SCORE
            if reading is not None and is_score and bool(valid[i]):
                start = len(trajectory.tokens) - len(trajectory.segments[-1].tokens)
                values = dict(zip(levels.tolist(), worth[i].tolist(), strict=True))
                choices = reading.choices(trajectory.segments[-1].tokens, values)
                found += [(i, start + choice.place, choice) for choice in choices]
        if not found:
            return None
        return Alternatives(
            torch.tensor([row for row, _, _ in found]),
            torch.tensor([place for _, place, _ in found]),
            pad_sequence([torch.tensor(c.tokens) for _, _, c in found], batch_first=True),
            pad_sequence([torch.tensor(c.probability) for _, _, c in found], batch_first=True),
            pad_sequence([torch.tensor(c.advantage) for _, _, c in found], batch_first=True),
        )

    def _advantage(self, reward: Tensor, valid: Tensor) -> Tensor:
        return group_advantage(reward, valid, scale=self.config.scale_advantage)


def score_distributions(readings: Sequence[ScoreReading | None]) -> tuple[Tensor, Tensor]:
    """Return score levels ``[K]`` and each reading's probabilities ``[G, K]``, NaN without a reading."""
    levels = [float(text) for text in SCORE_TEXTS]
    missing = dict.fromkeys(levels, float("nan"))
    rows = [list((r.distribution() if r else missing).values()) for r in readings]
    return torch.tensor(levels, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64)
