"""Adaptive sampling: hand-worked posteriors, budgets, and a simulation."""

from math import comb

import numpy as np
import pytest

from selfverify.core.errors import ConfigError
from selfverify.selection.rules import Candidate, Candidates
from selfverify.selection.stopping import (
    Stopping,
    answer_posterior,
    beta_confidence,
    leader_confidence,
    sample_adaptively,
)
from selfverify.selection.strategies import StrategyConfig

NAN = float("nan")


def test_beta_by_hand():
    """Nothing seen: 1/2. One vote of one: density 2p, 3/4 above 1/2. Three of three: 4p³, 1 − 1/16."""
    assert beta_confidence(0, 0) == pytest.approx(1 / 2)
    assert beta_confidence(1, 0) == pytest.approx(3 / 4)
    assert beta_confidence(3, 0) == pytest.approx(15 / 16)
    assert beta_confidence(2, 2) == pytest.approx(1 / 2)


@pytest.mark.parametrize(("a", "b"), [(4, 1), (5, 3), (7, 0)])
def test_beta_of_whole_votes_is_a_binomial_tail(a, b):
    """P(p > 1/2) for Beta(a + 1, b + 1) is the chance of at most a heads in a + b + 1 tosses."""
    n = a + b + 1
    assert beta_confidence(a, b) == pytest.approx(sum(comb(n, k) for k in range(a + 1)) / 2**n)


def test_posterior_by_hand():
    """a at .8, b at .6, m = 2: a .8·.2 = .16, b .1·.6 = .06, none .1·.2 = .02; over .24."""
    np.testing.assert_allclose(answer_posterior([0, 1], [0.8, 0.6]), np.array([16, 6, 2]) / 24)
    # An unreadable answer and one without a score change nothing but that the latter's answer is there.
    np.testing.assert_allclose(answer_posterior([0, 1, -1], [0.8, 0.6, 0.9]), np.array([16, 6, 2]) / 24)
    np.testing.assert_allclose(answer_posterior([0], [NAN]), [0.5, 0.5])


def test_leader_counts_the_strategys_votes():
    """Answers 0, 0, 1. Majority: Beta(3, 2), 11/16. Scores 0, 0, ln 2 tie the weighted votes: 1/2."""
    c = Candidates(np.array([0, 0, 1, -1]), np.array([0.0, 0.0, np.log(2), 5.0]))
    assert leader_confidence(c) == pytest.approx(11 / 16)
    weighted = leader_confidence(c, "beta", "weighted", StrategyConfig(temperature=1.0))
    assert weighted == pytest.approx(0.5)
    assert leader_confidence(Candidates(np.array([-1]), np.array([0.5]))) == 0
    with pytest.raises(ConfigError, match="probabilities"):
        leader_confidence(c, "posterior")


def source(keys, score=0.5, tokens=10):
    """A ``draw`` over prepared answers that remembers what it was asked for."""
    rest, asked = [Candidate(k, k, score, tokens=tokens) for k in keys], []

    def draw(n):
        asked.append(n)
        taken, rest[:] = rest[:n], rest[n:]
        return taken

    return draw, asked


def test_stops_when_sure():
    """All agree: 4 votes give 31/32 ≥ .95, 3 give 15/16 < .95."""
    draw, asked = source("aaaaaaaa")
    found, why = sample_adaptively(draw, Stopping())
    assert (len(found), why, asked) == (4, "confident", [2, 1, 1])


def test_budgets():
    draw, asked = source("abcdefgh")
    found, why = sample_adaptively(draw, Stopping(max_samples=5, step=2))
    assert (len(found), why, asked) == (5, "samples", [2, 2, 1])
    draw, _ = source("abcdefgh")
    found, why = sample_adaptively(draw, Stopping(max_tokens=35))  # a fourth would make it 40
    assert (len(found), why) == (3, "tokens")
    draw, _ = source("ab")
    assert sample_adaptively(draw, Stopping())[1] == "exhausted"
    draw, asked = source("aaaaaaaa")
    found, why = sample_adaptively(draw, Stopping(rule="never", start=8))
    assert (len(found), why, asked) == (8, "samples", [8])
    draw, _ = source([None] * 8)
    assert sample_adaptively(draw, Stopping())[1] == "samples"  # unreadable answers make nobody sure
