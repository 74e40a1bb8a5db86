"""Fused scores that are no probabilities: answers chosen by them have no confidence, and none is withheld."""

from __future__ import annotations

import math

import pytest

import serving_servers
from selfverify.core.errors import ConfigError
from selfverify.selection.calibration import Calibration, Fusion
from selfverify.serving.config import ServeConfig
from selfverify.serving.server import open_gateway
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


def test_a_sum_is_no_confidence() -> None:
    for strategy in ("best", "weighted"):
        status, reply = ask({"verifier": "fused:2", "strategy": strategy})
        assert status == 200 and told(reply)["score"] == pytest.approx(0.9 - 2 * 2.0)
        assert told(reply)["confidence"] is None and not told(reply)["abstained"]
    status, reply = ask({"verifier": "fused:2", "strategy": "majority"})
    assert status == 200 and told(reply)["confidence"] == 1.0  # a share of votes


def test_where_nothing_is_known_there_is_no_confidence() -> None:
    """Whoever counts votes instead says nothing of what the score would have been."""
    for verifier, calibration in (("fused:2", None), ("fused", FITTED)):
        status, reply = ask({"verifier": verifier}, None, calibration)
        assert status == 200 and told(reply)["strategy"] == "majority"
        assert told(reply)["score"] is None and told(reply)["confidence"] is None


@pytest.mark.parametrize("verifier", ["fused", "fused:x"])
def test_a_sum_without_a_weight_is_refused(verifier: str) -> None:
    status, reply = ask({"verifier": verifier})
    assert status == 400 and reply["error"]["param"] == "best_of.verifier"


def test_a_fitted_sum_is_a_confidence() -> None:
    status, reply = ask({"verifier": "fused", "abstain_below": 0.5}, calibration=FITTED)
    sure = 1 / (1 + math.exp(-(3.0 * (0.9 - 4.0) + 0.5)))
    assert status == 200 and told(reply)["confidence"] == pytest.approx(sure) and told(reply)["abstained"]


def test_nothing_is_withheld_by_a_sum() -> None:
    status, reply = ask({"verifier": "fused:2", "abstain_below": 0.5})
    assert status == 400 and reply["error"]["param"] == "best_of.abstain_below"
    assert "fused:2" in reply["error"]["message"] and "leave it out" in reply["error"]["message"]
    assert ask({"verifier": "fused:2", "abstain_below": 0.5, "strategy": "majority"})[0] == 200


def test_the_gateway_does_not_start_with_both() -> None:
    settings = {
        "backend": {"upstream": "http://127.0.0.1:9"},
        "gateway": {"best_of": {"verifier": "fused:2", "abstain_below": 0.5}},
    }
    with pytest.raises(ConfigError, match=r"abstain_below: .*fused:2"):
        open_gateway(ServeConfig.model_validate(settings))
