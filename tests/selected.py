"""Votes as functions of keys and scores, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from selfverify.selection.rules import Candidates
from selfverify.selection.strategies import STRATEGIES, StrategyConfig


def majority_weights(keys: Any) -> Any:
    """How likely a majority vote picks each candidate."""
    keys = np.array(keys)
    return STRATEGIES["majority"].weigh(Candidates(keys, np.zeros(keys.shape)), StrategyConfig())


def weighted_weights(keys: Any, score: Any, temperature: float = 0.1) -> Any:
    """How likely a vote weighted by scores picks each candidate."""
    arrays = Candidates(np.array(keys), np.array(score, dtype=float))
    return STRATEGIES["weighted"].weigh(arrays, StrategyConfig(temperature=temperature))
