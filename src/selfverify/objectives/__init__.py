"""The papers' mathematics: pure functions of tensors that import torch and nothing else of this library."""

from .adaptive import RewardShape, dynamic_kl, error_rate, reward_table, trajectory_reward
from .advantage import group_advantage
from .policy_loss import (
    UNTRAINED,
    ChoiceTerms,
    Denominator,
    PairTerms,
    Ratio,
    SurrogateTerms,
    choice_probability,
    choice_surrogate,
    importance_weight,
    kl_k3,
    likelihood,
    pairwise,
    surrogate,
    token_weights,
)
from .verification import (
    binary_reward,
    concordance_credit,
    contrastive_set,
    expected_concordance,
    preference_reward,
)

__all__ = [
    "UNTRAINED",
    "ChoiceTerms",
    "Denominator",
    "PairTerms",
    "Ratio",
    "RewardShape",
    "SurrogateTerms",
    "binary_reward",
    "choice_probability",
    "choice_surrogate",
    "concordance_credit",
    "contrastive_set",
    "dynamic_kl",
    "error_rate",
    "expected_concordance",
    "group_advantage",
    "importance_weight",
    "kl_k3",
    "likelihood",
    "pairwise",
    "preference_reward",
    "reward_table",
    "surrogate",
    "token_weights",
    "trajectory_reward",
]
