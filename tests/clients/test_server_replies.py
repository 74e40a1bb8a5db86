"""Reading completions: in tags or not, their scores sharp or soft, their tool calls."""

from __future__ import annotations

import math
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfverify.clients.replies import (
    Completion,
    ending,
    finish_reading,
    mean_logprob,
    read_text,
    read_tool_calls,
    shown_answer,
    soft_score,
    without_score,
)
from selfverify.core.score_tokens import SCORE_TEXTS
from serving_servers import tagged


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        (tagged("9", "0.8"), "9", 0.8),
        ("<answer>9</answer>", "9", None),
        ("<think>a<answer>9</answer>", None, None),  # malformed, as in training
        ("<think>.</think><answer>9</answer><score>8</score>", "9", None),
        ("9", "9", None),
        ("9 <score>0.8</score>", "9", 0.8),
        ("9 <score>0.8</score> and more", "9", None),
        ("<think>hm</think> 9 <score>1</score>", "9", 1.0),
        ("<score>0.8</score>", None, None),
        ("", None, None),
        ("x" * 3000, None, None),
    ],
)
def test_texts(text: str, answer: str | None, score: float | None) -> None:
    found = read_text(text)
    said = found.answer.strip() if found.answer else found.answer
    assert (said, found.score) == (answer, score)
    assert (found.key is None) == (answer is None)
    assert "<score>" not in without_score(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<think>1+1</think><answer>- a\n- **b**</answer><score>0.8</score>", "- a\n- **b**"),
        ("<think>1+1</think> 9 <score>0.8</score>", "9"),
        ("so it is</think>9", "9"),  # the prompt's template opened the thoughts
        ("just words, 3 < 4", "just words, 3 < 4"),
        ("<think>1+", ""),
        ("<think>1+1</think><answer>9 and 1", "9 and 1"),
        ("<think>1+1</think><answer>9</ans", "9"),
        ("<think>a</think><answer>8</answer> <answer>9</answer>", "9"),
        ("9</answer><score>0.", "9"),
        ("<answer>a</think>b</answer>", "b"),
        ("<think>s or t?</think><answer>s<t</answer><score>0.9</score>", "s<t"),
        ("b<a", "b<a"),
        ("<score>0.8</score>", ""),
        ("", ""),
    ],
)
def test_readers_see_no_tags(text: str, shown: str) -> None:
    assert shown_answer(text) == shown


def test_the_log_probability_is_the_answers_without_the_scores() -> None:
    """Tokens up to the one that ends `<score>`; all where there is no score."""
    tokens = ["<think>.</think>", "<answer>9</answer><", "score", ">", "0", ".9", "</score>"]
    told = [{"token": t, "logprob": -float(i)} for i, t in enumerate(tokens)]
    reply = Completion(text="".join(tokens), logprobs=told)
    finish_reading(reply, read_text)
    assert reply.logprob == -1.5  # of 0, -1, -2, -3
    reply = Completion(
        text="9 so", logprobs=[{"token": "9", "logprob": -1.0}, {"token": " so", "logprob": -2.0}]
    )
    finish_reading(reply, read_text)
    assert reply.logprob == -1.5


def test_strict_reads_only_tags() -> None:
    assert read_text("9", strict=True).answer is None
    assert read_text(tagged("9"), strict=True).answer == "9"


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


def test_soft_score_of_whole_tokens() -> None:
    shares = {text: (i + 1) / 66 for i, text in enumerate(SCORE_TEXTS)}
    expected = sum(p * float(text) for text, p in shares.items())
    assert soft_score(entries(("9</answer><score>", {}), ("0.7", shares))) == pytest.approx(expected)


def test_a_score_that_a_tag_closes_is_whole() -> None:
    """And nothing behind the tag is read, however long it is."""
    tail = [("<", {"<": 0.5, ".": 0.5}), *[("x", {"x": 1.0})] * 5000]
    found = soft_score(entries(("<score>", {}), ("0", {"0": 1.0}), *tail))
    assert found == pytest.approx((0.0 + 0.45) / 2)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [("9", {"9": 1.0})],
        [("<score>", {})],
        [("<score>", {}), ("0", {})],
        [("<score>", {}), ("good", {"good": 1.0})],
        [("<score>0", {"<score>0": 1.0}), (".8", {".8": 1.0})],  # opened inside a token
    ],
)
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[
            (whole, "whole")
            for whole in ("It is 9.", "9!\n", "七。", f"{tagged('9')}", '{"a": 1}', "| 9 |", "`9`")
        ],
        *[(cut, "cut_off") for cut in ("", "It is", "1,", "<think>So.", "It is (", "so:", "<answer>9.")],
    ],
)
def test_an_unknown_reason_says_what_the_text_looks_like(
    text: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING")
    reason = f"{uuid4()}"
    assert [ending(reason, text) for _ in range(3)] == [expected] * 3
    assert [record.getMessage() for record in caplog.records if reason in record.getMessage()] == [
        f"a server ends messages with {reason!r}, which is not known here"
    ]


def test_an_unknown_reason_beside_calls_says_whether_they_can_be_read() -> None:
    for arguments, expected in (('{"a": 1}', "whole"), ('{"a": ', "cut_off")):
        calls = [{"function": {"name": "tap", "arguments": arguments}}]
        assert ending("halted", "", calls) == expected


def test_no_reason_is_a_whole_message_if_there_is_one() -> None:
    for nothing in (None, ""):
        assert ending(nothing, "9") == ending(nothing, "", [{}]) == "whole"
        assert ending(nothing, "") == "cut_off"


def test_thoughts_are_where_servers_put_them() -> None:
    for rest in (
        {"reasoning_content": "so"},
        {"reasoning": "so"},
        {"reasoning_content": "", "reasoning": "so"},
    ):
        assert Completion(rest=rest).thoughts == "so"
    assert Completion(rest={"reasoning": ["so"]}).thoughts == Completion().thoughts == ""


def test_a_cut_off_reply_is_no_answer() -> None:
    reply = Completion(text=tagged("9"), finish="error")
    finish_reading(reply, read_text)
    assert reply.answer is None


def test_mean_logprob() -> None:
    assert mean_logprob([{"logprob": -1.0}, {"logprob": -2.0}]) == -1.5
    assert mean_logprob([{"logprob": -1.0}, {}]) is None
    assert mean_logprob([]) is None
