"""The concordance credit, sampled and expected: no drift, the gradient of the group's AUC."""

from __future__ import annotations

from itertools import permutations, product

import pytest
import torch

from selfverify.objectives import choice_surrogate, concordance_credit, expected_concordance, surrogate

NAN = float("nan")


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("answers", [(1, 1, 1, 1, 0), (1, 0, 0), (1, 0.6, 0.3, 0)])
def test_uninformative_scores_are_not_pushed_anywhere(answers):
    """Over all orders of the scores, the mean of sum_i credit_i * f(s_i) is 0: no drift, for any f.

    The reason: swap the scores of a pair (i, j) and both their credits from it change sign while
    f(s_i) + f(s_j) stays. Without f (f = 1) it is the plain sum of credits.
    """
    answers = doubles(*answers)
    scores = torch.stack([doubles(*p) for p in permutations([0.1, 0.2, 0.5, 0.7, 0.9][: len(answers)])])
    credit = concordance_credit(scores, answers.expand_as(scores))
    for push in (torch.ones_like, lambda s: s, torch.exp, lambda s: (s > 0.4).double()):
        assert abs((credit * push(scores)).sum(-1).mean().item()) < 1e-12


# --- in expectation -----------------------------------------------------------------------------------------


LEVELS = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)


def rows(count, seed=0):
    return torch.rand(count, len(LEVELS), generator=torch.Generator().manual_seed(seed)).double().softmax(-1)


@pytest.mark.parametrize(
    ("answers", "margin"), [((1, 1, 0), 0.0), ((1, 0.6, 0.3, 0), 0.35), ((0, 0, 0), 0.0)]
)
def test_it_is_the_concordance_credit_in_expectation(answers, margin):
    """Enumerate every combination of scores; average the sampled credit of member i given its score."""
    answers = doubles(*answers)
    probabilities = rows(len(answers))
    expected = torch.zeros_like(probabilities)
    for drawn in product(range(len(LEVELS)), repeat=len(answers)):
        credit = concordance_credit(LEVELS[list(drawn)], answers, margin)
        chance = torch.stack([probabilities[i, k] for i, k in enumerate(drawn)])
        for i, k in enumerate(drawn):
            expected[i, k] += credit[i] * chance.prod() / chance[i]
    torch.testing.assert_close(expected_concordance(LEVELS, probabilities, answers, margin), expected)


def test_it_is_the_gradient_of_the_expected_auc():
    """``sum_ik value_ik grad p_ik`` equals autograd of P(right above wrong) + P(tie)/2 over the pairs."""
    answers = doubles(1, 0, 1, 0, 0)
    logits = torch.randn(5, len(LEVELS), generator=torch.Generator().manual_seed(1)).double()
    logits.requires_grad_()
    probabilities = logits.softmax(-1)
    above = (LEVELS[:, None] > LEVELS).double() + 0.5 * (LEVELS[:, None] == LEVELS).double()
    pairs = [
        probabilities[i] @ above @ probabilities[j]
        for i, j in product(range(5), repeat=2)
        if answers[i] > answers[j]
    ]
    [gradient] = torch.autograd.grad(torch.stack(pairs).mean(), logits, retain_graph=True)
    value = expected_concordance(LEVELS, probabilities.detach(), answers)
    [ours] = torch.autograd.grad((value * probabilities).sum(), logits)
    torch.testing.assert_close(ours, gradient)


def test_unread_and_invalid_members_take_no_part():
    probabilities = rows(4)
    whole = expected_concordance(LEVELS, probabilities[:3], doubles(1, 0, 0))
    probabilities[3] = NAN
    value = expected_concordance(LEVELS, probabilities, doubles(1, 0, 0, 1))
    torch.testing.assert_close(value[:3], whole)
    assert value[3].tolist() == [0, 0, 0]
    valid = torch.tensor([True, True, True, False])
    torch.testing.assert_close(
        expected_concordance(LEVELS, rows(4), doubles(1, 0, 0, 1), valid=valid)[:3], whole
    )


def test_groups_are_independent():
    probabilities = torch.stack([rows(3, 1), rows(3, 2)])
    answers = torch.stack([doubles(1, 0, 0), doubles(0, 1, 1)])
    both = expected_concordance(LEVELS, probabilities, answers)
    for n in range(2):
        torch.testing.assert_close(both[n], expected_concordance(LEVELS, probabilities[n], answers[n]))


def test_rows_that_are_no_distributions_are_refused():
    with pytest.raises(ValueError, match=r"sums to 2\.0"):
        expected_concordance(LEVELS, rows(3) * torch.tensor([[1.0], [2.0], [1.0]]), doubles(1, 0, 0))


# --- the loss -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_choice_surrogate_is_surrogate_averaged_over_samples(shift):
    """With both policies normalised over the alternatives; ``shift`` is far enough to clip."""
    old = rows(4).float()
    new = (old.log() + shift * torch.tensor([1.0, -1.0, 0.0])).log_softmax(-1)
    advantage = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    averaged = sum(
        old[:, k : k + 1]
        * surrogate(new[:, k : k + 1], old[:, k : k + 1].log(), advantage[:, k : k + 1]).loss
        for k in range(3)
    )
    torch.testing.assert_close(choice_surrogate(new, old, advantage).loss, averaged[:, 0])


def test_an_alternative_that_had_all_but_no_probability_leaves_the_gradient_finite():
    """1 / 1e-45 is infinite in float32, and clipping multiplies it by 0."""
    new = torch.zeros(1, 2, requires_grad=True)
    for sign in (1.0, -1.0):
        terms = choice_surrogate(new, torch.tensor([[1.0, 1e-45]]), torch.tensor([[0.0, sign]]))
        [gradient] = torch.autograd.grad(terms.loss.sum(), new)
        assert bool(gradient.isfinite().all()) and bool(terms.loss.isfinite().all())


def test_choice_surrogate_ignores_padding_and_common_offsets():
    old, advantage = rows(2).float(), torch.tensor([[0.3, -0.2, 0.1], [0.0, 0.5, -0.5]])
    new = old.log().clone().requires_grad_()
    [gradient] = torch.autograd.grad(choice_surrogate(new, old, advantage).loss.sum(), new)
    torch.testing.assert_close(gradient.sum(-1), torch.zeros(2))  # an offset changes nothing
    padded = [torch.nn.functional.pad(t, (0, 2)) for t in (new, old, advantage)]
    torch.testing.assert_close(choice_surrogate(*padded).loss, choice_surrogate(new, old, advantage).loss)
    [again] = torch.autograd.grad(choice_surrogate(*padded).loss.sum(), new)
    torch.testing.assert_close(again, gradient)
    # By hand at ratio 1: d/dlogit_k of -sum p A is -p_k (A_k - mean A).
    mean = (old * advantage).sum(-1, keepdim=True)
    torch.testing.assert_close(gradient, -old * (advantage - mean))
