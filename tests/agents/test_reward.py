"""Eq. 3 by hand: one line for each way in which a conversation can come to its end."""

from __future__ import annotations

import pytest

from selfverify.agents.reward import Components, RewardConfig, composite, format_error

PAPER = RewardConfig()
RELEASE = RewardConfig(invalid=-1.0, conciseness=0.1, free_evidence=3)


@pytest.mark.parametrize(
    ("valid", "success", "evidence", "config", "parts", "total"),
    [
        # Proven by one round: 0.2 + 0.8 - 0.05.
        (True, True, 1, PAPER, (0.0, 0.2, 0.8, -0.05), 0.95),
        # By three: each round costs 0.05.
        (True, True, 3, PAPER, (0.0, 0.2, 0.8, -0.15), 0.85),
        # Relevant evidence, also where it proves the failure: 0.2 - 0.05.
        (True, False, 1, PAPER, (0.0, 0.2, 0.0, -0.05), 0.15),
        # Evidence that has nothing to do with the task: only its price.
        (False, False, 2, PAPER, (0.0, 0.0, 0.0, -0.1), -0.1),
        # No price: the numbers of section 4.2 alone.
        (True, True, 4, RewardConfig(conciseness=0.0), (0.0, 0.2, 0.8, 0.0), 1.0),
        # The first two are free.
        (True, True, 3, RewardConfig(free_evidence=2), (0.0, 0.2, 0.8, -0.05), 0.95),
        # As released: three are free, the fourth and the fifth cost 0.1; irrelevant evidence costs 1.
        (True, True, 3, RELEASE, (0.0, 0.2, 0.8, 0.0), 1.0),
        (True, True, 5, RELEASE, (0.0, 0.2, 0.8, -0.2), 0.8),
        (False, False, 1, RELEASE, (0.0, -1.0, 0.0, 0.0), -1.0),
        # Section 3.4 names 0.5 for relevant evidence.
        (True, False, 1, RewardConfig(relevant=0.5), (0.0, 0.5, 0.0, -0.05), 0.45),
        # Baselines choose nothing and pay nothing.
        (True, True, 0, PAPER, (0.0, 0.2, 0.8, 0.0), 1.0),
    ],
)
def test_proper_submissions(
    valid: bool, success: bool, evidence: int, config: RewardConfig, parts: tuple[float, ...], total: float
) -> None:
    found = composite(valid, success, evidence, config)
    assert (found.format, found.validity, found.complete, found.concise) == pytest.approx(parts)
    assert found.total == pytest.approx(total)


def test_a_format_error_is_the_penalty_and_nothing_else() -> None:
    assert format_error(PAPER) == Components(format=-1.0)
    assert format_error(PAPER).total == -1.0
    assert format_error(RewardConfig(format_error=-0.5)).total == -0.5


def test_success_needs_relevant_evidence() -> None:
    with pytest.raises(ValueError, match="not relevant"):
        composite(False, True, 1, PAPER)


def test_more_evidence_is_never_better() -> None:
    totals = [composite(True, True, n, PAPER).total for n in range(1, 6)]
    assert totals == sorted(totals, reverse=True) and len(set(totals)) == 5
