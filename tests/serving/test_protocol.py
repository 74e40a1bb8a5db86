"""Which settings win, and what is refused before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.selection.rules import Candidate
from selfverify.serving.backend import rank
from selfverify.serving.config import BestOf
from selfverify.serving.schemas import ApiError, ChatRequest, best_of, wants_instruction

DEFAULTS = BestOf(n=4, strategy="majority")


def asked(model: str = "m", **more: Any) -> ChatRequest:
    return ChatRequest.model_validate({"model": model, "messages": [{"role": "user"}], **more})


def test_the_object_goes_before_the_suffix_before_the_defaults() -> None:
    assert best_of(asked(), DEFAULTS) == ("m", DEFAULTS)
    model, found = best_of(asked("org/m@bo12,strategy=best,stop=beta,confidence=0.9"), DEFAULTS)
    assert found is not None and model == "org/m"
    assert (found.n, found.strategy, found.stop, found.confidence) == (12, "best", "beta", 0.9)
    _, found = best_of(asked("m@bo12,strategy=best", best_of={"n": 2}), DEFAULTS)
    assert found is not None and (found.n, found.strategy) == (2, "best")


def test_every_field_has_a_default_that_a_request_can_take_back() -> None:
    odd = BestOf(
        n=3, strategy="best", verifier="none", stop="beta", answers="set", confidence=0.9, budget_tokens=9,
        vote_temperature=0.2, share=0.5, start=1, step=2, temperature=0.3, abstain_below=0.4,
        instruction=False, content="answer", refusal="content", samples=True, progress="events",
        timeout_s=5.0,
    )  # fmt: skip
    assert not {name for name in BestOf.model_fields if getattr(odd, name) == getattr(BestOf(), name)}
    assert best_of(asked(), odd) == ("m", odd)
    assert best_of(asked(best_of=BestOf().model_dump()), odd) == ("m", BestOf())


def test_a_default_that_says_what_holds_anyway_decides_nothing() -> None:
    """Else a file with all settings would ask for the answer format beside tools."""
    tools = {"tools": [{"type": "function"}]}
    for default, given, wanted in (
        (True, {}, False),
        (True, {"instruction": True}, True),
        (False, {}, False),
    ):
        _, found = best_of(asked(best_of=given), BestOf(instruction=default))
        assert found is not None and wants_instruction(found, tools) is wanted
        assert wants_instruction(found, {}) is (default or wanted)


def test_plain() -> None:
    assert best_of(asked("m@plain"), DEFAULTS) == ("m", None)
    assert best_of(asked(best_of=False), DEFAULTS) == ("m", None)
    assert best_of(asked("m@plain", best_of={"n": 2}), DEFAULTS)[1] == DEFAULTS.model_copy(update={"n": 2})
    assert best_of(asked("m@plain@plain"), DEFAULTS) == ("m@plain", None)  # one gateway before another


def test_n_is_the_number_of_answers() -> None:
    _, found = best_of(asked(n=6), DEFAULTS)
    assert found is not None and found.n == 6
    with pytest.raises(ApiError, match="6 answers"):
        best_of(asked(n=6, best_of={"n": 4}), DEFAULTS)


def test_nulls_are_left_out() -> None:
    found = asked(temperature=None, stop=None, seed=None, stream=None, n=None)
    assert (found.temperature, found.stop, found.stream, found.n) == (None, [], False, 1)
    assert asked(stop="x").stop == ["x"]


def test_ranked_answers_are_distinct_while_there_are_any() -> None:
    candidates = [Candidate(a, a, s) for a, s in (("7", 0.2), ("9", 0.9), ("7", 0.3), ("8", 0.1))]
    best = BestOf(strategy="best")
    assert [c.index for c in rank(candidates, best, 2)] == [1, 2]
    assert [c.index for c in rank(candidates, best, 9)] == [1, 2, 3, 0]
    assert [c.index for c in rank(candidates, BestOf(strategy="first"), 3)] == [0, 1, 2]
