"""Fused scores that are no probabilities: answers chosen by them have no confidence, and none is withheld."""

from __future__ import annotations

import math
from typing import Any

import pytest

import serving_servers
from selfverify.selection.calibration import Calibration, Fusion
from serving_servers import Body, FakeUpstream, question, tagged

FITTED = Calibration("temperature", fusion=Fusion(2.0, 3.0, 0.5), fitted_on={"verifier": "fused"})


def ask(
    best_of: Body, logprob: float | None = -2.0, calibration: Calibration | None = None
) -> tuple[int, Body]:
    """Status and JSON of one chat completion, whose candidates are tokens of this log-probability."""
    text = tagged("9", "0.9")
    told = {} if logprob is None else {"logprobs": {"content": [{"token": text, "logprob": logprob}]}}
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **told}
    numbered = [{"index": i, **choice} for i in range(3)]
    fake = FakeUpstream(says=lambda body: {"choices": numbered[: body.get("n", 1)]})
    return serving_servers.ask(fake, question(best_of={"n": 3} | best_of), calibration=calibration)


def told(reply: Body) -> Body:
    """What a reply says of its answer."""
    found: Body = reply["choices"][0]["verification"]
    return found


@pytest.mark.parametrize(
    ("asked", "logprob", "calibration", "strategy", "score", "confidence"),
    [
        *[({"verifier": "fused:2", "strategy": s}, -2.0, None, s, 0.9 - 2 * 2.0, None)
          for s in ("best", "weighted")],
        ({"verifier": "fused:2", "strategy": "majority"}, -2.0, None, "majority", 0.9 - 2 * 2.0, 1.0),
        # Without log-probabilities there are votes, which say nothing of what the score would have been.
        ({"verifier": "fused:2"}, None, None, "majority", None, None),
        ({"verifier": "fused"}, None, FITTED, "majority", None, None),
    ],
)  # fmt: skip
def test_a_sum_is_no_confidence_and_a_share_of_votes_is_one(
    asked: Body, logprob: float | None, calibration: Any, strategy: str, score: Any, confidence: Any
) -> None:
    status, reply = ask(asked, logprob, calibration)
    found = told(reply)
    assert (status, found["strategy"], found["abstained"]) == (200, strategy, False)
    assert found["score"] == pytest.approx(score) and found["confidence"] == confidence


def test_a_fitted_sum_is_a_confidence() -> None:
    status, reply = ask({"verifier": "fused", "abstain_below": 0.5}, calibration=FITTED)
    sure = 1 / (1 + math.exp(-(3.0 * (0.9 - 4.0) + 0.5)))
    assert status == 200 and told(reply)["confidence"] == pytest.approx(sure) and told(reply)["abstained"]


def test_nothing_is_withheld_by_a_sum() -> None:
    status, reply = ask({"verifier": "fused:2", "abstain_below": 0.5})
    assert status == 400 and reply["error"]["param"] == "best_of.abstain_below"
    assert "fused:2" in reply["error"]["message"] and "leave it out" in reply["error"]["message"]
    assert ask({"verifier": "fused:2", "abstain_below": 0.5, "strategy": "majority"})[0] == 200
