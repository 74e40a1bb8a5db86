"""The concordance credit: worked examples, no drift, and the gradient of the group's AUC."""

from itertools import permutations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfverify.objectives import concordance_credit, group_advantage, preference_reward

NAN = float("nan")
SCORE = st.sampled_from([NAN, *(k / 10 for k in range(11))])
MEMBERS = st.lists(st.tuples(SCORE, st.sampled_from([0.0, 1.0])), min_size=1, max_size=8)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_concordance_by_hand():
    """R = 1, 1, 0 with scores .9, .2, .5: pairs (1,3) concordant, (2,3) discordant; n+ n- = 2.

    1: (1 - 1/2)/2 = .25. 2: (0 - 1/2)/2 = -.25. 3: both, .25 - .25 = 0. The sum 0 is 2 AUC - 1 at AUC 1/2.
    """
    assert concordance_credit(doubles(0.9, 0.2, 0.5), doubles(1, 1, 0)).tolist() == [0.25, -0.25, 0]


def test_concordance_ties_count_nothing():
    """R = 1, 0, 0, scores .5, .5, .1: the tie is worth 0, the other pair 1/2; n+ n- = 2: 1/4, 0, 1/4."""
    assert concordance_credit(doubles(0.5, 0.5, 0.1), doubles(1, 0, 0)).tolist() == [0.25, 0, 0.25]


def test_concordance_pairs_of_malformed_scores_do_not_count():
    """R = 1, 0, 0 with scores .9, .1, NaN: one readable pair, so 1/2 each, not 1/4."""
    assert concordance_credit(doubles(0.9, 0.1, NAN), doubles(1, 0, 0)).tolist() == [0.5, 0.5, 0]


def test_concordance_on_continuous_answers():
    """IoU 1, .5, 0 with margin .25: three pairs (1,2) (1,3) (2,3). Scores .9, .1, .5: right, right, wrong.

    1: (1/2 + 1/2)/3 = 1/3. 2: (1/2 - 1/2)/3 = 0. 3: (1/2 - 1/2)/3 = 0.
    """
    credit = concordance_credit(doubles(0.9, 0.1, 0.5), doubles(1, 0.5, 0), margin=0.25)
    torch.testing.assert_close(credit, doubles(1 / 3, 0, 0))


@settings(max_examples=100, deadline=None)
@given(MEMBERS)
def test_concordance_sums_to_twice_auc_minus_one(members):
    scores, answers = (doubles(*column) for column in zip(*members, strict=True))
    pairs = [(s, t) for s, r in members for t, q in members if r > q and s == s and t == t]
    total = concordance_credit(scores, answers).sum().item()
    if pairs:
        auc = sum((s > t) + 0.5 * (s == t) for s, t in pairs) / len(pairs)
        assert total == pytest.approx(2 * auc - 1)
    else:
        assert total == 0


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


def test_the_papers_reward_does_push():
    """The same for Eq. 5, normalised: with 4 right and 1 wrong a clear push up; with 1 and 4, down."""
    scores = torch.stack([doubles(*p) for p in permutations([0.1, 0.3, 0.5, 0.7, 0.9])])
    for answers, sign in ((doubles(1, 1, 1, 1, 0), 1), (doubles(0, 0, 0, 0, 1), -1)):
        reward = preference_reward(scores, answers.expand_as(scores))
        push = (group_advantage(reward) * (scores - 0.5)).sum(-1).mean().item()
        assert sign * push > 0.3


@pytest.mark.parametrize("answers", [(1.0, 1.0, 1.0, 0.0), (0.9, 0.6, 0.55, 0.1)])
def test_expected_credit_is_the_gradient_of_the_auc(answers):
    """Four trajectories, each with its own distribution over the scores 0.1, 0.5, 0.9: all 81 outcomes.

    The expected AUC is differentiated exactly; the policy gradient, sum over outcomes of p(outcome) *
    sum_i credit_i grad log p(s_i), must be the same numbers.
    """
    margin = 0.2
    values = doubles(0.1, 0.5, 0.9)
    logits = torch.randn(
        4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True
    )
    log_p = logits.log_softmax(-1)
    pairs = [(i, j) for i in range(4) for j in range(4) if answers[i] - answers[j] > margin]
    auc = surrogate_sum = 0.0
    for outcome in product(range(3), repeat=4):
        log_probs = torch.stack([log_p[i, k] for i, k in enumerate(outcome)])
        s = values[list(outcome)]
        probability = log_probs.sum().exp()
        auc = auc + probability * sum((s[i] > s[j]) + 0.5 * (s[i] == s[j]) for i, j in pairs) / len(pairs)
        credit = concordance_credit(s, doubles(*answers), margin)
        surrogate_sum = surrogate_sum + probability.detach() * (credit * log_probs).sum()
    (exact,) = torch.autograd.grad(auc, logits, retain_graph=True)
    (estimated,) = torch.autograd.grad(surrogate_sum, logits)
    assert exact.abs().max() > 0.01
    torch.testing.assert_close(estimated, exact)
