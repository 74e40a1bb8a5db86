"""Which settings of a request win, and requests that cannot be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from selfverify.policy.encoding import longest_row
from selfverify.policy.policy import Policy
from selfverify.selection.rules import Candidate
from selfverify.serving.backend import rank
from selfverify.serving.config import BestOfConfig
from selfverify.serving.schemas import ApiError, ChatRequest, best_of, wants_instruction
from serving_servers import CHAT, Body, post, served_locally

VERIFY = "verify"


@pytest.fixture
def ask(load_policy: Callable[..., Policy]) -> Callable[..., list[tuple[int, Body]]]:
    """``ask(*requests, template=None)``: what a gateway with an own model answers to ``(path, body)``."""

    def asked(*requests: tuple[str, Body], template: str | None = None) -> list[tuple[int, Body]]:
        policy = load_policy("llama")
        policy.tokenizer.chat_template = template or policy.tokenizer.chat_template

        async def use(session: aiohttp.ClientSession, url: str, _: Any) -> list[tuple[int, Body]]:
            return [await post(session, f"{url}/{path}", {"model": "tiny"} | body) for path, body in requests]

        return served_locally(policy, use, n=2)

    return asked


def said(*messages: tuple[str, str], **more: Any) -> Body:
    return {
        "messages": [{"role": role, "content": words} for role, words in messages],
        "max_tokens": 4,
        **more,
    }


@pytest.mark.parametrize("template", ["System role not supported", None])
def test_messages_that_a_template_refuses(ask: Callable[..., Any], template: str | None) -> None:
    """Also those whose words it would leave out, without a word of it; others are answered."""
    words = "{{ m.content }}{% endfor %}"
    refuses = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('"
        + str(template)
        + "') }}{% endif %}"
    )
    ignores = "{% for m in messages if m.role != 'system' %}"
    system, user = ("system", "Be brief."), ("user", "Which?")
    answered, *refused = ask(
        (CHAT, said(user)),
        (CHAT, said(system, user)),
        (CHAT, said(system, user, stream=True)),
        (VERIFY, {"messages": said(system, user)["messages"], "answer": "7"}),
        template=(refuses if template else ignores) + words,
    )
    assert answered[0] == 200
    for status, reply in refused:
        assert status == 400 and (template or "system says 'Be brief.'") in reply["error"]["message"]
        assert reply["error"]["param"] == "messages"


LONG = "again and "


@pytest.mark.parametrize("per_token", [4, 200])
def test_what_no_context_holds_is_refused_by_its_length(ask: Callable[..., Any], per_token: int) -> None:
    """In whatever message it stands, before it is tokenised; the code is the one that clients know."""
    words = LONG * (per_token * 2048 // len(LONG))
    goes_on = {"continue_final_message": True, "model": "tiny@plain"}
    replies = ask(
        (CHAT, said(("user", words))),
        (CHAT, said(("system", words), ("user", "Which?"))),
        (CHAT, said(("user", "Which?"), ("assistant", words), ("user", "Sure?"))),
        (CHAT, said(("user", "Which?"), ("assistant", words), **goes_on)),
        (VERIFY, {"messages": said(("user", words))["messages"], "answer": "7"}),
    )
    for status, reply in replies:
        assert (status, reply["error"]["code"]) == (400, "context_length_exceeded"), reply
        assert "2048" in reply["error"]["message"]


def test_given_answers_that_no_context_holds(ask: Callable[..., Any]) -> None:
    """One beyond any context is refused; one beyond this question's room has no score."""
    question = said(("user", "Which?"))["messages"]
    far, near = (
        {"messages": question, "answer": ["7", LONG * (per_token * 2048 // len(LONG))]}
        for per_token in (200, 4)
    )
    (status, refused), (judged, reply) = ask((VERIFY, far), (VERIFY, near))
    assert (status, refused["error"]["code"]) == (400, "context_length_exceeded")
    assert "answer.1" in refused["error"]["message"]
    assert judged == 200 and [row["score"] is None for row in reply["results"]] == [False, True]


def test_an_answer_that_is_begun_is_words(policy: Policy, ask: Callable[..., Any]) -> None:
    """Special tokens in it would end the message that goes on."""
    more = {"continue_final_message": True, "model": "tiny@plain"}
    spelt, plain = ask(
        (CHAT, said(("user", "Which?"), ("assistant", "It is<|im_end|>"), **more)),
        (CHAT, said(("user", "Which?"), ("assistant", "It is"), **more)),
    )
    tokens = len(policy.encoder.words("It is<|im_end|>", "p")) - len(policy.encoder.words("It is", "p"))
    assert tokens > 1
    assert spelt[1]["usage"]["prompt_tokens"] == plain[1]["usage"]["prompt_tokens"] + tokens
    assert longest_row(policy.model) == 4096


# --- which settings win -------------------------------------------------------------------------------------


DEFAULTS = BestOfConfig(n=4, strategy="majority")


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
    odd = BestOfConfig(
        n=3, strategy="best", verifier="none", stop="beta", answers="set", confidence=0.9, budget_tokens=9,
        vote_temperature=0.2, share=0.5, start=1, step=2, temperature=0.3, abstain_below=0.4,
        instruction=False, content="answer", refusal="content", samples=True, progress="events",
        timeout_s=5.0,
    )  # fmt: skip
    assert not {
        name for name in BestOfConfig.model_fields if getattr(odd, name) == getattr(BestOfConfig(), name)
    }
    assert best_of(asked(), odd) == ("m", odd)
    assert best_of(asked(best_of=BestOfConfig().model_dump()), odd) == ("m", BestOfConfig())


def test_a_default_that_says_what_holds_anyway_decides_nothing() -> None:
    """Else a file with all settings would ask for the answer format beside tools."""
    tools = {"tools": [{"type": "function"}]}
    for default, given, wanted in (
        (True, {}, False),
        (True, {"instruction": True}, True),
        (False, {}, False),
    ):
        _, found = best_of(asked(best_of=given), BestOfConfig(instruction=default))
        assert found is not None and wants_instruction(found, tools) is wanted
        for plain in ({}, {"response_format": {"type": "text"}, "tools": []}):
            assert wants_instruction(found, plain) is (default or wanted)


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


def test_ranked_answers_are_distinct_while_there_are_any() -> None:
    candidates = [Candidate(a, a, s) for a, s in (("7", 0.2), ("9", 0.9), ("7", 0.3), ("8", 0.1))]
    best = BestOfConfig(strategy="best")
    assert [c.index for c in rank(candidates, best, 2)] == [1, 2]
    assert [c.index for c in rank(candidates, best, 9)] == [1, 2, 3, 0]
    assert [c.index for c in rank(candidates, BestOfConfig(strategy="first"), 3)] == [0, 1, 2]
