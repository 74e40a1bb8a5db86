"""Verification rewards and contrastive sets: worked examples and properties."""

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


# ---------------------------------------------------------------------------------------------- binary


def test_binary_agrees_or_not():
    """(.9-.5)(1-.5) = .2: 1; (.9-.5)(0-.5) = -.2: 0; (.1-.5)(0-.5) = .2: 1; (.1-.5)(1-.5) = -.2: 0."""
    assert binary_reward(doubles(0.9, 0.9, 0.1, 0.1), doubles(1, 0, 0, 1)).tolist() == [1, 0, 1, 0]


def test_binary_is_strict_at_both_thresholds():
    """(0.5-.5)(1-.5) = 0 and (0.9-.5)(0.5-.5) = 0 are not > 0; with tau_s = 0.4, (0.5-.4)(1-.5) = .05 is."""
    assert binary_reward(doubles(0.5, 0.9), doubles(1, 0.5)).tolist() == [0, 0]
    assert binary_reward(doubles(0.5), doubles(1), tau_s=0.4).tolist() == [1]
    assert binary_reward(doubles(0.9), doubles(0.5), tau_a=0.4).tolist() == [1]


def test_binary_malformed_earns_nothing():
    assert binary_reward(doubles(NAN, NAN), doubles(1, 0)).tolist() == [0, 0]


# ------------------------------------------------------------------------------------ contrastive sets


def test_contrast_of_right_and_wrong():
    """R = 1, 0, 1: C_1 = {2}, C_2 = {1, 3}, C_3 = {2}."""
    expected = [[False, True, False], [True, False, True], [False, True, False]]
    assert contrastive_set(doubles(1, 0, 1)).tolist() == expected


def test_contrast_with_margin():
    """IoU .75, .5, .25, margin .25: |.75-.5| = .25 is not > .25, |.75-.25| = .5 is. C_1 = {3}, C_2 = {}."""
    expected = [[False, False, True], [False, False, False], [True, False, False]]
    assert contrastive_set(doubles(0.75, 0.5, 0.25), margin=0.25).tolist() == expected


def test_invalid_members_are_in_no_set():
    contrast = contrastive_set(doubles(1, 0, 0), valid=torch.tensor([True, True, False]))
    assert contrast.tolist() == [[False, True, False], [True, False, False], [False, False, False]]
    assert not contrastive_set(doubles(1, NAN)).any()


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


def test_pairwise_counts_concordant_pairs():
    """R = 1, 1, 0, 0 with scores .9, .4, .5, .1.

    1: .9 > .5 and .9 > .1: 2/2. 2: .4 < .5 wrong, .4 > .1 right: 1/2. 3: .5 < .9 right, .5 > .4 wrong: 1/2.
    4: .1 < .9 and .1 < .4: 2/2.
    """
    assert preference_reward(doubles(0.9, 0.4, 0.5, 0.1), doubles(1, 1, 0, 0)).tolist() == [1, 0.5, 0.5, 1]


def test_class_mean_compares_with_the_mean_of_the_other_class():
    """Same group: the wrong answers' mean is (.5 + .1)/2 = .3, the right ones' (.9 + .4)/2 = .65.

    .9 > .3: 1. .4 > .3: 1. .5 < .65: 1. .1 < .65: 1. Where pairwise gives 1/2, this reading gives 1.
    """
    reward = preference_reward(doubles(0.9, 0.4, 0.5, 0.1), doubles(1, 1, 0, 0), reading="class_mean")
    assert reward.tolist() == [1, 1, 1, 1]


def test_class_mean_can_also_pay_less():
    """R = 1, 0, 0, 0, scores .4, .1, .3, .9: pairwise 1 has 2 of 3; but the mean is 1.3/3 = .433 > .4: 0."""
    scores, answers = doubles(0.4, 0.1, 0.3, 0.9), doubles(1, 0, 0, 0)
    torch.testing.assert_close(preference_reward(scores, answers), doubles(2 / 3, 1, 1, 0))
    assert preference_reward(scores, answers, reading="class_mean").tolist() == [0, 1, 1, 0]


def test_pairwise_on_continuous_answers():
    """IoU .9, .6, .5, .1 with margin .2: C_1 = {2, 3, 4}, C_2 = {1, 4}, C_3 = {1, 4}, C_4 = {1, 2, 3}.

    Scores .8, .9, .2, .3. 1: > .9 no, > .2 yes, > .3 yes: 2/3. 2: < .8 no, > .3 yes: 1/2.
    3: < .8 yes, > .3 no: 1/2. 4: < .8 yes, < .9 yes, < .2 no: 2/3.
    """
    reward = preference_reward(doubles(0.8, 0.9, 0.2, 0.3), doubles(0.9, 0.6, 0.5, 0.1), margin=0.2)
    torch.testing.assert_close(reward, doubles(2 / 3, 1 / 2, 1 / 2, 2 / 3))


def test_class_mean_on_continuous_answers_has_two_other_classes():
    """Same group. 1: no better ones; the worse ones' mean (.9 + .2 + .3)/3 = .467 < .8: 1/1.

    2: better {1} .8, not below: 0; worse {4} .3, above: 1; mean 1/2. 3: better .8, below: 1; worse .3, not
    above: 0; mean 1/2. 4: the better ones' mean (.8 + .9 + .2)/3 = .633 > .3: 1/1.
    """
    reward = preference_reward(
        doubles(0.8, 0.9, 0.2, 0.3), doubles(0.9, 0.6, 0.5, 0.1), margin=0.2, reading="class_mean"
    )
    assert reward.tolist() == [1, 0.5, 0.5, 1]


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


def test_malformed_scores_earn_nothing_and_are_compared_with_nobody():
    """R = 1, 0, 0, scores .5, NaN, .7: C_1 = {3}, .5 < .7: 0. C_3 = {1}, .7 > .5: 0. With .8 for .5: 1, 1."""
    assert preference_reward(doubles(0.5, NAN, 0.7), doubles(1, 0, 0)).tolist() == [0, 0, 0]
    assert preference_reward(doubles(0.8, NAN, 0.7), doubles(1, 0, 0)).tolist() == [1, 0, 1]
    assert preference_reward(doubles(0.8, NAN), doubles(1, 0)).tolist() == [0, 0]


def test_invalid_members_earn_nothing():
    valid = torch.tensor([True, True, False])
    assert preference_reward(doubles(0.8, 0.1, 0.9), doubles(1, 0, 0), valid=valid).tolist() == [1, 1, 0]


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
