"""Requests that cannot be meant: values of other types, texts that are too long, what templates refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import requests

from selfverify.policy.encoding import longest_row
from selfverify.policy.policy import Policy
from serving_servers import CHAT, Body, FakeUpstream, Loop, post, question, served_locally

VERIFY = "verify"
BASES: dict[str, Body] = {
    CHAT: question(),
    VERIFY: question(answer="7"),
}
TYPES: list[tuple[str, Body, str]] = [
    *[(CHAT, {"stream": value}, "stream") for value in ("yes", "true", "false", "", 1, 0, 1.0, [], {})],
    *[(CHAT, {"logprobs": value}, "logprobs") for value in ("false", 0, 1)],
    *[(CHAT, {"n": value}, "n") for value in ("2", True, 2.0, 2.5, [2])],
    *[(CHAT, {"seed": value}, "seed") for value in ("5", True, 5.0)],
    *[(CHAT, {"temperature": value}, "temperature") for value in ("0.5", True, [0.5])],
    *[(CHAT, {name: "9"}, name) for name in ("max_tokens", "max_completion_tokens", "top_p", "top_logprobs")],
    (CHAT, {"stream_options": {"include_usage": "no"}}, "stream_options.include_usage"),
    (CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    *[(CHAT, {"best_of": {"n": value}}, "best_of.n") for value in ("2", True, 2.0)],
    *[(CHAT, {"best_of": {"plain": value}}, "best_of.plain") for value in ("no", 0, 1)],
    *[(CHAT, {"best_of": {"samples": value}}, "best_of.samples") for value in ("yes", 1)],
    (CHAT, {"best_of": {"instruction": "off"}}, "best_of.instruction"),
    (CHAT, {"best_of": {"confidence": "0.9"}}, "best_of.confidence"),
    (CHAT, {"best_of": 0}, "best_of"),
    (CHAT, {"model": 5}, "model"),
    (CHAT, {"stop": 5}, "stop"),
    (VERIFY, {"verifier": 1}, "verifier"),
    (VERIFY, {"answer": 7}, "answer.str"),
]  # fmt: skip


def test_a_value_of_another_type_is_refused_and_named(servers: Loop) -> None:
    """As OpenAI's API does: ``"no"`` would be true, and ``true`` one answer."""
    fake = FakeUpstream()
    url, _ = servers.before(fake)
    for path, more, param in TYPES:
        reply = requests.post(f"{url}/{path}", json=BASES[path] | more, timeout=10)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (path, more, reply.text)
    assert fake.seen == []


def test_values_of_their_own_type_are_taken(servers: Loop) -> None:
    """A whole number is one with decimals, too; a suffix is a text, and so are its values."""
    url, _ = servers.before(FakeUpstream())
    bodies = [
        question(temperature=1, top_p=1, n=1, seed=5, stream=False, best_of={"n": 2, "confidence": 1}),
        question(stream=None, n=None, best_of=None),
        question(model="m@bo2,strategy=best,confidence=0.9,samples=true"),
    ]  # fmt: skip
    replies = [requests.post(f"{url}/{CHAT}", json=body, timeout=10) for body in bodies]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len(replies[2].json()["best_of"]["samples"]) == 2


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
