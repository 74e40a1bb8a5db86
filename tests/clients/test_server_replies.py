"""Reading completions: in tags or not, their scores sharp or soft, their tool calls."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from selfverify.clients.candidates import ScoreReader
from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.clients.replies import (
    Completion,
    Usage,
    ending,
    finish_reading,
    read_text,
    read_tool_calls,
    shown_answer,
    soft_score,
    without_score,
)
from selfverify.core.score_tokens import SCORE_TEXTS
from selfverify.serving.config import BestOfConfig
from serving_servers import Body, FakeUpstream, ask, open_upstream, question, tagged
from tables import yaml_cases


@yaml_cases
def test_texts(text: str, answer: str | None, score: float | None) -> None:
    text = text.replace("LONG", "x" * 3000)
    found = read_text(text)
    said = found.answer.strip() if found.answer else found.answer
    assert (said, found.score) == (answer, score)
    assert (found.key is None) == (answer is None)
    assert "<score>" not in without_score(text)
    assert read_text(text, strict=True).answer == (
        answer if "<answer>" in text and "<think>" in text else None
    )


@yaml_cases
def test_readers_see_no_tags(text: str, shown: str) -> None:
    assert shown_answer(text) == shown


def test_the_log_probability_is_the_answers_without_the_scores() -> None:
    """Tokens up to the one that ends `<score>`; all where there is no score."""
    tokens = ["<think>.</think>", "<answer>9</answer><", "score", ">", "0", ".9", "</score>"]
    told = [{"token": t, "logprob": -float(i)} for i, t in enumerate(tokens)]
    reply = Completion(text="".join(tokens), logprobs=told)
    finish_reading(reply, read_text)
    assert reply.logprob == -1.5  # of 0, -1, -2, -3
    for last, mean in ((-2.0, -1.5), (None, None)):
        told = [{"token": "9", "logprob": -1.0}, {"token": " so", "logprob": last}]
        reply = Completion(text="9 so", logprobs=told)
        finish_reading(reply, read_text)
        assert reply.logprob == mean


TAGS = ["<think>", "</think>", "<answer>", "</answer>", "<score>", "</score>"]


@given(st.text() | st.lists(st.sampled_from([*TAGS, "<", "</", "x", " "])).map("".join))
def test_never_raises(text: str) -> None:
    for strict in (True, False):
        read_text(text, strict=strict)
    assert not any(tag in shown_answer(text) for tag in TAGS)


def entries(*tokens: tuple[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Tokens that were written, each with its alternatives."""

    def alternatives(options: dict[str, float]) -> list[dict[str, Any]]:
        return [{"token": token, "logprob": math.log(share)} for token, share in options.items()]

    return [{"token": t, "logprob": 0.0, "top_logprobs": alternatives(options)} for t, options in tokens]


def test_soft_score_by_enumeration() -> None:
    """One token per character: p(1) * 1 + p(0) * sum_d p(d | "0.") * d / 10, shares among scores only."""
    digits = {str(d): (d + 1) / 55 for d in range(10)}
    found = soft_score(
        entries(("<score>", {}), ("0", {"1": 0.3, "0": 0.6, "maybe": 0.1}), (".", {".": 1.0}), ("8", digits))
    )
    below = sum(p * int(d) / 10 for d, p in digits.items())
    assert found == pytest.approx((0.3 * 1 + 0.6 * below) / 0.9)

    shares = {text: (i + 1) / 66 for i, text in enumerate(SCORE_TEXTS)}
    expected = sum(p * float(text) for text, p in shares.items())
    assert soft_score(entries(("9</answer><score>", {}), ("0.7", shares))) == pytest.approx(expected)


def test_a_score_that_a_tag_closes_is_whole() -> None:
    """And nothing behind the tag is read, however long it is."""
    tail = [("<", {"<": 0.5, ".": 0.5}), *[("x", {"x": 1.0})] * 5000]
    found = soft_score(entries(("<score>", {}), ("0", {"0": 1.0}), *tail))
    assert found == pytest.approx((0.0 + 0.45) / 2)


@yaml_cases
def test_no_soft_score(tokens: list[Any]) -> None:
    assert soft_score(entries(*tokens)) is None


def test_tool_calls_are_equal_by_function_and_arguments() -> None:
    def call(arguments: str, id: str) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "tap", "arguments": arguments}}

    one = Completion(tool_calls=[call('{"x": 1, "y": 2}', "a")])
    two = Completion(tool_calls=[call('{"y":2,"x":1}', "b")])
    for reply in (one, two):
        finish_reading(reply, read_text)
    assert one.key == two.key is not None
    assert one.answer == [{"name": "tap", "arguments": {"x": 1, "y": 2}}]
    for broken in ({}, {"function": {"name": 3}}, call("{", "c")):
        assert read_tool_calls([broken]) == (None, None)


@yaml_cases
def test_an_unknown_reason_says_what_the_text_looks_like(
    text: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    reason = f"{uuid4()}"
    assert [ending(reason, text) for _ in range(3)] == [expected] * 3
    assert [record.getMessage() for record in caplog.records if reason in record.getMessage()] == [
        f"a server ends messages with {reason!r}, which is not known here"
    ]


@yaml_cases
def test_reasons_by_which_servers_end_messages(reasons: str, expected: str) -> None:
    for reason in reasons.split():
        assert {ending(reason, text) for text in ("It is 9.", "It is")} == {expected}


def test_an_unknown_reason_beside_calls() -> None:
    for arguments, expected in (('{"a": 1}', "whole"), ('{"a": ', "cut_off")):
        calls = [{"function": {"name": "tap", "arguments": arguments}}]
        assert ending("halted", "", calls) == expected


def test_a_cut_off_reply_is_no_answer() -> None:
    reply = Completion(text=tagged("9"), finish="error")
    finish_reading(reply, read_text)
    assert reply.answer is None


USUAL = {"0": {".": 1.0}, "1": {".": 1.0}, "1.": {"0": 1.0}}
DIGITS = {str(d): (d + 1) ** 2 / 385 for d in range(10)}
BELOW = sum(share * int(d) / 10 for d, share in DIGITS.items())
UNTIL = math.inf


class Continues(FakeUpstream):
    """Goes on from the assistant's last message, one character a token.

    ``likely`` says how likely each is behind what was begun; a server that knows nothing refuses.
    """

    likely: Mapping[str, dict[str, float]] = {}

    async def _chat(self, request: web.Request, body: Body) -> web.StreamResponse:
        last = body["messages"][-1]
        if last["role"] != "assistant":
            return await super()._chat(request, body)
        if not self.likely:
            return web.json_response({"error": {"message": "unknown field"}}, status=422)
        assert body["continue_final_message"] and not body["add_generation_prompt"]
        begun, entries = last["content"].rpartition("<score>")[2], list[Body]()
        for _ in range(body["max_tokens"]):
            options = self.likely.get(begun) or USUAL.get(begun, {"<": 1.0})
            token = max(options, key=lambda t: options[t])
            top = [{"token": t, "logprob": math.log(p)} for t, p in options.items() if p > 0]
            entries.append({"token": token, "logprob": math.log(options[token]), "top_logprobs": top})
            begun += token
        message = {"role": "assistant", "content": "".join(e["token"] for e in entries)}
        choice = {"index": 0, "message": message, "finish_reason": "length", "logprobs": {"content": entries}}
        usage = {"prompt_tokens": 20, "completion_tokens": len(entries)}
        return web.json_response({"choices": [choice], "usage": usage})


def read(fake: FakeUpstream, *texts: str, **rest: Any) -> tuple[list[float | None], Usage]:
    """The scores of candidates; None where the server cannot be asked."""

    async def main() -> tuple[list[float | None], Usage]:
        async with AsyncExitStack() as stack:
            settings = ServerConfig(await open_upstream(fake, stack), tries=1)
            client = await stack.enter_async_context(OpenAIClient(settings))
            reader, usage, found = ScoreReader(client), Usage(), list[float | None]()
            for text in texts:
                able = await reader.can_read("m", usage, UNTIL)
                reply = Completion(text=text, rest=rest)
                found.append(await reader.read(question(stop=["x"]), reply, usage, UNTIL) if able else None)
            return found, usage

    return asyncio.run(main())


def likely(one: float, **more: Any) -> dict[str, dict[str, float]]:
    """What is likely where 1.0 is as likely as ``one``."""
    return {"": {"1": one, "0": 0.9 - one, "maybe": 0.1}, "0.": DIGITS} | more


def hundredths() -> dict[str, dict[str, float]]:
    tenths = {"8": 0.8, "3": 0.15, "1": 0.05}
    return likely(0.1, **{"0.": tenths}) | {f"0.{digit}": {"5": 0.5, "7": 0.5} for digit in tenths}


@pytest.mark.parametrize(
    ("shares", "written", "expected", "asked"),
    [
        (likely(0.2), "0.8", (0.2 + 0.7 * BELOW) / 0.9, [""]),
        (likely(0.2), "1.0", (0.2 + 0.7 * BELOW) / 0.9, [""]),
        # Where it most likely writes 1.0, what follows 0 is asked for, unless that is hardly likely.
        (likely(0.7), "0.8", (0.7 + 0.2 * BELOW) / 0.9, ["", "0."]),
        (likely(0.7), "1.0", (0.7 + 0.2 * BELOW) / 0.9, ["", "0."]),
        (likely(0.8999), "1.0", (0.8999 + 0.0001 * 0.45) / 0.9, [""]),
        # A model that knows no scores goes on, too: with some number.
        (
            likely(0) | {"": {"1": 0.3, "2": 0.2, "5": 0.2, "9": 0.1, "0": 0.1, "good": 0.1}},
            "0.8", (0.3 + 0.1 * BELOW) / 0.4, ["", "0."],
        ),
        # Hundredths where they were written, of the beginnings 0.0 to 0.9 those that weigh.
        (hundredths(), "0.85", (0.1 + 0.8 * (0.8 * 0.86 + 0.15 * 0.36 + 0.05 * 0.145)) / 0.9, ["", "0.3"]),
    ],
)  # fmt: skip
def test_the_expectation_whatever_was_written(
    shares: Any, written: str, expected: float, asked: list[str]
) -> None:
    """p(1) + p(0) * sum_d p(d | "0.") d / 10; the first request finds out whether the server goes on."""
    fake = Continues()
    fake.likely = shares
    [found], usage = read(fake, tagged("9", written))
    assert found == pytest.approx(expected)
    begun = [body["messages"][-1]["content"].partition("</answer>") for body in fake.seen[1:]]
    assert begun == [("<think>.</think><answer>9", "</answer>", f"<score>{prefix}") for prefix in asked]
    assert all(body["max_tokens"] <= len(written) and "stop" not in body for body in fake.seen)
    assert usage.verification_tokens == sum(body["max_tokens"] for body in fake.seen)


def test_a_bare_0_and_two_decimals_mean_what_they_say() -> None:
    """As of a policy of one's own: a 0 closed by its tag is 0; hundredths count where they were written."""
    first = {"0": 0.75, "1": 0.25}
    closed = entries(("<score>", {}), ("0", first), ("</", {"</": 0.6, ".": 0.4}), ("score>", {}))
    # What follows "0." is not shown: the mean of .0 to .9.
    assert soft_score(closed) == pytest.approx(0.25 + 0.75 * 0.4 * 0.45)
    digits = {"8": 0.9, "6": 0.1}
    head = [("<score>", dict[str, float]()), ("0", first), (".", {".": 1.0}), ("8", digits)]
    tenths = entries(*head, ("</score>", {}))
    assert soft_score(tenths) == pytest.approx(0.25 + 0.75 * (0.9 * 0.8 + 0.1 * 0.6))
    hundredths = entries(*head, ("5", {"5": 0.5, "1": 0.5}), ("</score>", {}))
    assert soft_score(hundredths) == pytest.approx(0.25 + 0.75 * (0.9 * 0.83 + 0.1 * 0.645))


@pytest.mark.parametrize("fake", [FakeUpstream(), Continues()])
def test_a_server_that_does_not_continue_is_asked_once(fake: FakeUpstream) -> None:
    """It begins anew, or refuses."""
    found, _ = read(fake, *[tagged("9", "0.8")] * 3)
    assert found == [None] * 3 and len(fake.seen) == 1


def test_thoughts_that_cannot_be_sent_back() -> None:
    fake = Continues()
    fake.likely = likely(0.7)
    assert read(fake, *[tagged("9")] * 2, reasoning_content="7+2")[0] == [None, None]
    assert len(fake.seen) == 1


def test_candidates_are_drawn_without_alternatives() -> None:
    """All that is read beside the candidates is a few tokens of each distinct one."""
    fake = Continues(write=lambda body, i: tagged(str(i % 3), "0.8").replace(".", "many words " * 60, 1))
    fake.likely = likely(0.7)
    choosing = BestOfConfig(n=8, verifier="soft", samples=True).model_dump(exclude_none=True)
    status, reply = ask(fake, question(best_of=choosing))
    assert status == 200, json.dumps(reply)
    expected = (0.7 + 0.2 * BELOW) / 0.9
    assert [s["score"] for s in reply["best_of"]["samples"]] == pytest.approx([expected] * 8, abs=1e-3)
    drawn = [body for body in fake.seen if body["messages"][-1]["role"] == "user"]
    assert len(drawn) == 1 and "logprobs" not in drawn[0] and "top_logprobs" not in drawn[0]
    assert len(fake.seen) == 1 + 1 + 2 * 3  # whether it can, the draw, and two looks at each distinct one
