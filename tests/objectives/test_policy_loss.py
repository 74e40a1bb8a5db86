"""The clipped surrogate, its weights, gradient isolation between channels, splitting a batch."""

import math

import pytest
import torch

from selfverify.objectives import (
    UNTRAINED,
    importance_weight,
    kl_k3,
    likelihood,
    pairwise,
    surrogate,
    token_weights,
)
from tables import yaml_cases


def logs(*ratios):
    return torch.tensor([[math.log(r) for r in ratios]])


# ------------------------------------------------------------------------------------------------- loss


def test_importance_weight_by_hand():
    """Learner .3 / sampler .4 = .75; .4 / .1 = 4, cut to 2; equal: 1; unknown: 1. No gradient either way."""
    old, sampler = logs(0.3, 0.4, 0.2, 0.2).requires_grad_(), logs(0.4, 0.1, 0.2, 0.2)
    sampler[0, 3] = math.nan
    weight = importance_weight(old, sampler, cap=2.0)
    torch.testing.assert_close(weight, torch.tensor([[0.75, 2.0, 1.0, 1.0]]))
    assert not weight.requires_grad
    assert importance_weight(torch.zeros(1, 1), torch.full((1, 1), -1e4), cap=2.0) == 2


def test_weight_is_for_the_first_term_alone():
    """A = 2, ratio 1: -2 w + .1 k3, with k3 = .193147 (new .5, ref .25); the weight carries no gradient."""
    new, weight = logs(0.5, 0.5), torch.tensor([[0.75, 2.0]], requires_grad=True)
    new.requires_grad_()
    terms = surrogate(new, new.detach(), 2.0, ref_logprobs=logs(0.25, 0.25), kl_coef=0.1, weight=weight)
    kl = 0.1 * (math.log(2) - 0.5)
    torch.testing.assert_close(terms.loss, torch.tensor([[-1.5 + kl, -4.0 + kl]]))
    terms.loss.sum().backward()
    assert weight.grad is None
    # d/dnew of the KL term: .1 (1 - e^d) = .1 (1 - .5)
    torch.testing.assert_close(new.grad, torch.tensor([[-1.45, -3.95]]))


def test_gradient_stops_where_clipped_and_diagnostics_carry_none():
    new = logs(1.5, 1.5).requires_grad_()
    terms = surrogate(new, logs(1, 1), torch.tensor([[1.0, -1.0]]))
    terms.loss.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[0.0, 1.5]]))
    assert not terms.ratio.requires_grad and not terms.kl.requires_grad


def test_a_reference_is_needed_for_kl():
    new = torch.zeros(2, 2)
    for coef in (0.1, torch.tensor([[0.0], [0.1]])):
        with pytest.raises(ValueError, match="ref_logprobs"):
            surrogate(new, new, 1.0, kl_coef=coef)
    surrogate(new, new, 1.0, kl_coef=torch.zeros(2, 1))


@pytest.mark.parametrize("shape", [(3,), (1, 3), (3, 2), (2, 3, 3)])
def test_streams_that_would_broadcast_wrongly_are_refused(shape):
    new = torch.zeros(3, 3)
    with pytest.raises(ValueError, match="advantage"):
        surrogate(new, new, torch.zeros(shape))
    with pytest.raises(ValueError, match="kl_coef"):
        surrogate(new, new, 1.0, ref_logprobs=new, kl_coef=torch.zeros(shape))


# ------------------------------------------------------------------------------- ratios of trajectories


def eq_1(new, old, trained, advantage, low, high):
    """SmartSnap's Eq. 1 as it is printed, for one group, as a number to minimise."""
    terms = []
    for n, o, own, a in zip(new, old, trained, advantage, strict=True):
        ratio = (n[own].sum() - o[own].sum()).exp()
        terms.append(torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a))
    return -torch.stack(terms).mean()


def test_the_ratio_of_a_trajectory_by_hand():
    """Ratios of two trained tokens each: 1.5 * .8 = 1.2 and .5 * .5 = .25; the third token is not trained.

    First: A = 2, and 1.2 lies within the clip at .3: -2.4 / 2 tokens = -1.2 each, gradient -r A = -2.4 each.
    Second: A = -1: -min(-.25, -.7) = .7, / 2 tokens = .35 each, and no gradient.
    """
    old = torch.zeros(2, 3)
    new = torch.cat([logs(1.5, 0.8, 7.0), logs(0.5, 0.5, 1.0)]).requires_grad_()
    trained = torch.tensor([[True, True, False]] * 2)
    advantage = torch.tensor([[2.0], [-1.0]])
    terms = surrogate(new, old, advantage, clip_low=0.3, clip_high=0.3, trajectories=trained)
    expected = torch.tensor([[-1.2, -1.2], [0.35, 0.35]])
    torch.testing.assert_close(terms.loss[:, :2], expected)
    (terms.loss * trained).sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-2.4, -2.4, 0], [0, 0, 0]]))
    torch.testing.assert_close(terms.ratio[:, 0], torch.tensor([1.2, 0.25]))
    assert terms.clipped[:, 0].tolist() == [False, True]


@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_those_of_smartsnap_eq_1(seed):
    g = torch.Generator().manual_seed(seed)
    new = torch.randn(6, 5, generator=g).requires_grad_()
    old = new.detach() + 0.1 * torch.randn(6, 5, generator=g)
    trained = torch.rand(6, 5, generator=g) < 0.7
    trained[:, 0] = True
    advantage = torch.randn(6, 1, generator=g)
    weights = token_weights(torch.where(trained, 0, UNTRAINED), torch.ones_like(new), "trajectory")
    terms = surrogate(new, old, advantage, trajectories=trained)
    ours = (weights * terms.loss).sum()
    theirs = eq_1(new, old, trained, advantage[:, 0], 0.2, 0.2)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(loss, new)[0] for loss in (ours, theirs)))


def test_a_ratio_that_would_overflow_stays_finite():
    new = torch.full((1, 4000), 1.0).requires_grad_()
    terms = surrogate(new, torch.zeros(1, 4000), -1.0, trajectories=torch.ones(1, 4000, dtype=torch.bool))
    terms.loss.sum().backward()
    assert terms.loss.isfinite().all() and new.grad.isfinite().all()


# ------------------------------------------------------------------------------------------------ pairs


def test_pairwise_by_hand():
    """beta .5. Chosen: log-ratios ln 2 + ln 3; rejected: ln 1.5 (and one that is not trained).

    Margin .5 (ln 6 - ln 1.5) = ln 2. Loss -ln sigmoid(ln 2) = -ln(2/3). Its gradient to each trained token is
    -+ beta (1 - 2/3) = -+ 1/6.
    """
    new = torch.stack([torch.cat([logs(0.2, 0.3), logs(0.3, 0.9)])]).requires_grad_()
    ref = torch.stack([torch.cat([logs(0.1, 0.1), logs(0.2, 0.1)])])
    preference = torch.tensor([[[1.0, 1.0], [-1.0, 0.0]]])
    terms = pairwise(new, ref, preference, 0.5)
    torch.testing.assert_close(terms.margin, torch.tensor([math.log(2)]))
    torch.testing.assert_close(terms.loss, torch.tensor([-math.log(2 / 3)]))
    terms.loss.sum().backward()
    expected = torch.tensor([[[-1 / 6, -1 / 6], [1 / 6, 0.0]]])
    torch.testing.assert_close(new.grad, expected)
    assert not terms.margin.requires_grad


# ---------------------------------------------------------------------------------------------- weights

IDS = torch.tensor([[0, 0, 0, 1], [0, 1, -1, -1], [-1, -1, -1, -1]])
"""Three answer tokens and a score token; one and one; a trajectory with nothing to train."""


@yaml_cases
def test_denominators_by_hand(denominator, first, second):
    weights = token_weights(IDS, torch.ones(IDS.shape), denominator)
    torch.testing.assert_close(weights, torch.tensor([first, [second, second, 0.0, 0.0], [0.0] * 4]))
    nothing = token_weights(torch.full((2, 3), UNTRAINED), torch.ones(2, 3), denominator)
    assert nothing.tolist() == [[0.0] * 3] * 2


def test_vts_v_eq_3_by_hand():
    """H = 1 (weight 1/2): log-probs -1, -2, -3, -4; H = 3 (weight 1/4): -4, -8. (10/2 + 12/4) / 2 = 4."""
    logprobs = -torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 8.0, 7.0, 7.0], [5.0] * 4])
    weight = torch.tensor([[0.5] * 4, [0.25] * 4, [1.0] * 4])
    weights = token_weights(IDS, weight, denominator="trajectory")
    assert (weights * likelihood(logprobs)).sum() == 4


def test_channel_weights_multiply_and_leave_the_denominator():
    """Score weight 10, sequence: .125 * 10 = 1.25 and .25 * 10 = 2.5. Weight 0 still counts its token."""
    assert token_weights(IDS, torch.tensor([1.0, 10.0])[IDS])[:2, [3, 1]].tolist() == [
        [1.25, 0.125],
        [0, 2.5],
    ]
    assert token_weights(IDS, torch.tensor([1.0, 0.0])[IDS])[0].tolist() == [0.125] * 3 + [0]


def test_bad_weights_are_errors():
    with pytest.raises(ValueError, match="denominator"):
        token_weights(IDS, torch.ones(IDS.shape), denominator="token")
    with pytest.raises(ValueError, match="one weight per token"):
        token_weights(IDS, torch.ones(3, 1))


# ------------------------------------------------------------------------------------ numbers far off


def test_a_ratio_that_would_overflow_is_clipped_like_any_other():
    """new -1, old -95: exp(94) is infinite in float32. A = 1 is clipped, A = -1 learns with r = e^20."""
    new = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    terms = surrogate(new, torch.tensor([[-95.0, -95.0]]), torch.tensor([[1.0, -1.0]]))
    terms.loss.sum().backward()
    most = math.exp(20)
    torch.testing.assert_close(terms.loss.detach(), torch.tensor([[-1.2, most]]))
    torch.testing.assert_close(new.grad, torch.tensor([[0.0, most]]))
    assert terms.clipped.tolist() == [[True, False]]


def test_the_kl_of_a_token_that_has_vanished_still_points_to_the_reference():
    """new -95, ref -1: d = 94; k3 = e^20 - 95 and its gradient 1 - e^20, which raises the token."""
    new = torch.tensor([[-95.0]], requires_grad=True)
    kl = kl_k3(new, torch.tensor([[-1.0]]))
    kl.sum().backward()
    torch.testing.assert_close(kl.detach(), torch.tensor([[math.exp(20) - 95]]))
    torch.testing.assert_close(new.grad, torch.tensor([[1 - math.exp(20)]]))


@pytest.mark.parametrize("ref", [-math.inf, math.nan, -1.0])
@pytest.mark.parametrize("coefficient", [0.0, torch.zeros(1, 2), torch.zeros(1, 1)])
def test_a_reference_that_counts_nowhere_changes_nothing(ref, coefficient):
    new = torch.tensor([[-95.0, -2.0]], requires_grad=True)
    old = new.detach()
    terms = surrogate(new, old, 0.5, ref_logprobs=torch.full((1, 2), ref), kl_coef=coefficient)
    plain = surrogate(new, old, 0.5)
    assert torch.equal(terms.loss, plain.loss)
    gradients = [torch.autograd.grad(t.loss.sum(), new)[0] for t in (terms, plain)]
    assert torch.equal(*gradients) and bool(gradients[0].isfinite().all())


def test_bounds_change_no_bit_of_ordinary_numbers():
    """The formulas as the papers print them, with gradients, up to log-ratios of 20."""
    generator = torch.Generator().manual_seed(5)
    new, old, ref = (-10 * torch.rand(3, 4, 50, generator=generator)).unbind()
    new.requires_grad_()
    advantage = torch.randn(4, 50, generator=generator)
    terms = surrogate(new, old, advantage, ref_logprobs=ref, kl_coef=0.1)
    ratio, distance = torch.exp(new - old), ref - new
    printed = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    printed = printed + 0.1 * (torch.exp(distance) - distance - 1)
    assert torch.equal(terms.loss, printed)
    assert torch.equal(*(torch.autograd.grad(loss.sum(), new)[0] for loss in (terms.loss, printed)))


def test_a_pair_does_not_look_at_what_is_not_trained():
    new = torch.tensor([[[-1.0, -3.0], [-2.0, -4.0]]], requires_grad=True)
    ref = torch.tensor([[[-1.0, -math.inf], [-2.0, math.nan]]])
    preference = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    terms = pairwise(new, ref, preference, 0.1)
    terms.loss.sum().backward()
    assert terms.loss.item() == pytest.approx(math.log(2))
    torch.testing.assert_close(new.grad, torch.tensor([[[-0.05, 0.0], [0.05, 0.0]]]))
