"""The fused score of an answer: its own score and its log-probability together.

A score that the policy writes and the probability that it gives to its own words know different things: the
first has learnt to check, the second is low where the policy was guessing. Their sum can choose better than
either does, and needs no other model. It is no rule of the papers, and is reported beside theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field, FiniteFloat

from selfverify.core.errors import ConfigError
from selfverify.selection.rules import Floats

FUSED = "fused"
"""The name of the verifier; ``fused:A`` says the weight, which else comes from a calibration."""
MOST_WEIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class Fusion:
    """``s + weight * l``, or in its calibrated form sigmoid(``slope`` * (s + weight * l) + ``intercept``).

    s is an answer's soft score in [0, 1], and l the mean log-probability of its tokens in nats, at most 0.
    Both forms put answers in the same order. The calibrated one is in [0, 1], as other scores are, and says
    how likely a single answer is to be right.

    Args:
        weight: What a nat counts; with 0 the score alone decides.
        slope: Above 0; None leaves the sum as it is.
        intercept: Belongs to ``slope``.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    weight: Annotated[FiniteFloat, Field(ge=0, le=MOST_WEIGHT)]
    slope: Annotated[FiniteFloat, Field(gt=0)] | None = None
    intercept: FiniteFloat = 0.0

    @property
    def is_probability(self) -> bool:
        """Whether its scores are probabilities."""
        return self.slope is not None

    def __call__(self, score: ArrayLike, logprob: ArrayLike) -> Floats:
        """Return the fused scores of any one shape; NaN where the score or the log-probability is."""
        summed: Floats = np.asarray(score, np.float64) + self.weight * np.asarray(logprob, np.float64)
        if self.slope is None:
            return summed
        power = np.clip(self.slope * summed + self.intercept, -500, 500)
        return np.where(np.isnan(summed), np.nan, 1.0 / (1.0 + np.exp(-power)))

    def of(self, score: float | None, logprob: float | None) -> float | None:
        """Return one answer's fused score; None where its score or its log-probability is unknown."""
        return None if score is None or logprob is None else float(self(score, logprob))


def fusion_of(verifier: str, fitted: Fusion | None) -> Fusion | None:
    """Return how the verifier ``fused`` or ``fused:A`` makes its scores; None for all other verifiers.

    Args:
        verifier: The verifier's description.
        fitted: What a calibration was fitted with.

    Raises:
        ConfigError: No weight is known, or ``A`` is none.
    """
    kind, colon, weight = verifier.partition(":")
    if kind != FUSED:
        return None
    if colon:
        if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,9})?", weight) or float(weight) > MOST_WEIGHT:
            raise ConfigError(f"verifier {verifier!r}: a weight from 0 to 1000 is needed, such as fused:2")
        return Fusion(float(weight))
    if fitted is None:
        raise ConfigError(
            "verifier fused needs to know what a log-probability weighs: fit it with `selfverify eval "
            "--calibrate --verifier fused` and give that --calibration, or say the weight, as in fused:2"
        )
    return fitted
