"""Verification rewards and contrastive sets: properties; worked examples: `test_by_hand`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.objectives import binary_reward, concordance_credit, contrastive_set, preference_reward

NAN = float("nan")
SCORE = st.sampled_from([NAN, *(k / 10 for k in range(11))])
CONTINUOUS = st.lists(st.tuples(SCORE, st.integers(0, 8).map(lambda k: k / 8)), min_size=1, max_size=8)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def columns(members):
    return doubles(*(m[0] for m in members)), doubles(*(m[1] for m in members))


# ------------------------------------------------------------------------------------ contrastive sets


@pytest.mark.parametrize(
    ("rewards", "margin"),
    [
        ((0.1 + 0.2, 0.3), 0.0),
        ((0.3 - 0.3, 0.1 + 0.2 - 0.3), 0.0),
        ((0.9, 0.7), 0.2),
        ((1000.1 + 0.2, 1000.3), 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_makes_no_contrast(rewards, margin, dtype):
    """0.30000000000000004 and 0.3 are one reward, as for advantages; 0.9 - 0.7 exceeds 0.2 by 6e-17 only."""
    assert not contrastive_set(torch.tensor(rewards, dtype=dtype), margin).any()
    assert contrastive_set(torch.tensor([0.3, 0.30001], dtype=dtype)).any()


def test_a_negative_margin_is_an_error():
    for margin in (-0.1, NAN):
        with pytest.raises(ValueError, match="margin"):
            contrastive_set(doubles(1, 0), margin=margin)


# ------------------------------------------------------------------------------------------ preference


@pytest.mark.parametrize("reading", ["pairwise", "class_mean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_earn_nothing(reading, dtype):
    """All scores 0.1. Added up, three of them make 0.30000000000000004: a naive mean is not 0.1."""
    scores = torch.full((6,), 0.1, dtype=dtype)
    answers = torch.tensor([1, 1, 1, 0, 0, 0], dtype=dtype)
    assert preference_reward(scores, answers, reading=reading).tolist() == [0] * 6


def test_class_mean_of_symmetric_scores_is_a_tie():
    """.5 is the mean of .4 and .6; .1 that of 0, 0 and .3; .3 that of 0, 0 and .9; but not in floating point.

    The rounding of .1 - mean is above 0 in float64, that of .3 - mean in float32: neither may earn 1.
    """
    for mine, *others in ([0.5, 0.4, 0.6], [0.1, 0, 0, 0.3], [0.3, 0, 0, 0.9]):
        for dtype in (torch.float32, torch.float64):
            scores = torch.tensor([mine, *others], dtype=dtype)
            answers = torch.tensor([1.0] + [0.0] * len(others))
            for quality in (answers, 1 - answers):
                assert preference_reward(scores, quality, reading="class_mean")[0] == 0


def test_bad_arguments_are_errors():
    with pytest.raises(ValueError, match="reading"):
        preference_reward(doubles(1, 0), doubles(1, 0), reading="mean")
    for function in (binary_reward, preference_reward, concordance_credit):
        with pytest.raises(ValueError, match="shape"):
            function(torch.zeros(2, 3), torch.zeros(3))


@settings(max_examples=100, deadline=None)
@given(CONTINUOUS, st.sampled_from([0.0, 0.125, 0.3]))
def test_a_malformed_score_is_as_if_it_were_not_there(members, margin):
    scores, answers = columns(members)
    readable = ~scores.isnan()
    for function in (
        lambda s, a: preference_reward(s, a, margin),
        lambda s, a: preference_reward(s, a, margin, reading="class_mean"),
        lambda s, a: concordance_credit(s, a, margin),
    ):
        earned = function(scores, answers)
        assert earned[~readable].eq(0).all()
        torch.testing.assert_close(earned[readable], function(scores[readable], answers[readable]))
        assert earned.abs().max() <= 1
