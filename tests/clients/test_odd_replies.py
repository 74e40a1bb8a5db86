"""Odd replies of servers end as right candidates, or as errors that name the server and say what it said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from selfverify.clients.candidates import Mode
from selfverify.clients.replies import finish_reading, read_text, soft_score
from selfverify.core.errors import ServerError
from serving_servers import Body, FakeUpstream, draw, told
from tables import yaml_cases

Reply = Callable[[], Any]


def reply(*choices: Any, **more: Any) -> Reply:
    """A completion with these choices."""
    return lambda: {"choices": list(choices), "usage": {"prompt_tokens": 1, "completion_tokens": 2}} | more


def choice(content: Any = "9", finish: Any = "stop", logprobs: Any = None, **message: Any) -> Body:
    return told("message", {"content": content, **message}) | {"finish_reason": finish, "logprobs": logprobs}


def raw(body: str, status: int = 200, kind: str = "application/json", headers: Any = None) -> Reply:
    return lambda: web.Response(body=body.encode(), status=status, content_type=kind, headers=headers)


def tap(arguments: Any) -> list[Body]:
    return [{"id": "a", "function": {"name": "tap", "arguments": arguments}}]


def drawn(answer: Reply, n: int, mode: Mode) -> list[tuple[str, str, Any]]:
    """The text or the thoughts, the ending and the answer of each candidate of a server that answers so.

    It has none where single ones are asked for instead of a stream.
    """
    fake = FakeUpstream(says=lambda body: answer() if mode == "n" or body.get("stream") else reply()())
    got, usage, _ = draw(fake, n, mode)
    for candidate in got:
        finish_reading(candidate, read_text)
        soft_score(candidate.logprobs)
    assert usage.candidate_tokens >= sum(candidate.tokens for candidate in got) >= 0
    ids = {call["id"] for candidate in got for call in candidate.tool_calls}
    assert ids <= {"a", "b", "call00000", "call00001"}
    return [(candidate.text or candidate.thoughts, candidate.ending, candidate.answer) for candidate in got]


NINE = ("9", "whole", "9")
TAP: tuple[str, str, Any] = ("", "whole", [{"name": "tap", "arguments": {"x": 1}}])
TOKEN = {"token": "9", "logprob": -0.5, "bytes": [57], "top_logprobs": ["x", {"token": "9", "logprob": "x"}]}
PARTS = [{"type": "text", "text": "9"}]
THOUGHTS = [{"type": "thinking", "thinking": PARTS}, {"type": "reasoning", "text": "8"}]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        *[(reply(choice(finish=finish)), NINE) for finish in (None, "", "eos", "STOP", "stop_sequence")],
        (reply(choice(None, "length", reasoning_content="so")), ("so", "cut_off", None)),
        (reply(choice(None, reasoning_content="", reasoning="so \ud83d")), ("so \ufffd", "whole", None)),
        (reply(choice(None, reasoning=["so"])), ("", "whole", None)),
        (reply(choice(None, None)), ("", "cut_off", None)),
        (reply(choice(None, refusal="no")), ("", "whole", None)),
        (reply(choice(PARTS)), NINE),
        (reply(choice([*THOUGHTS, "9"])), NINE),
        (reply({"message": {"content": "9"}}), NINE),
        *[(reply(choice(), usage=usage), NINE) for usage in (None, [], {"completion_tokens": "1"})],
        *[
            (reply(choice(logprobs=entries)), NINE)
            for entries in (
                {}, [1], {"content": None}, {"content": [3, TOKEN, {"token": None}]},
                {"content": [{"token": "<score>"}, TOKEN]},
            )
        ],
        *[(reply(choice(None, tool_calls=calls)), TAP) for calls in (tap({"x": 1}), tap('{"x":1}')[0])],
        (reply(choice(None, function_call={"name": "tap", "arguments": '{"x":1}'})), TAP),
        (reply(choice(None, tool_calls=tap('{"x": 1'))), ("", "whole", None)),
        (raw(json.dumps(reply(choice())()), kind="text/plain"), NINE),
        (raw("\ufeff" + json.dumps(reply(choice())())), NINE),
        (raw('{"choices":[{"message":{"content":"9 \\ud83d"}}]}'), ("9 \ufffd", "whole", "9 \ufffd")),
    ],
)  # fmt: skip
def test_a_reply_is_a_candidate(answer: Reply, expected: Any) -> None:
    assert drawn(answer, 1, "n") == [expected]


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}, {"index": "x"}])
def test_indices_of_whole_replies_say_nothing(index: Body) -> None:
    """And of those that are more than were asked for, the first count."""
    choices = [choice(str(i)) | index for i in range(5)]
    assert [text for text, *_ in drawn(reply(*choices), 3, "n")] == ["0", "1", "2"]
    lost = [choice("0"), told("message", {}) | {"finish_reason": "error"}, "2", choice(3), choice("1")]
    assert [text for text, *_ in drawn(reply(*lost), 2, "n")] == ["0", "1"]


def event(content: Any, finish: Any = None, **more: Any) -> str:
    return "data: " + json.dumps(
        {"choices": [told("delta", {"content": content}) | {"finish_reason": finish} | more]}
    )


DONE = "data: [DONE]"


@pytest.mark.parametrize(
    "events",
    [
        [event("9"), event(None, "stop")],  # without its end
        [event("9"), DONE],  # without a reason
        [": hello", "data:", event("9"), ": hello", "data: ", event("", "stop"), DONE],
        ["event: chunk\nid: 3\n" + event("9", "stop").replace("data: ", "data:"), DONE],
        [event("8", "stop", index=7), event("9", "stop", index=None), event("8"), DONE],
        [event("9", "", index="0"), event(PARTS[:0], "stop"), DONE],
        [event("", "null"), event("9", "null"), event("", "stop"), DONE],
        ["\ufeff" + event(None, "stop", **told("message", {"content": "9"}), delta=None), DONE],
        ['data: {"choices": null}', event("9"), 'data: {"usage": null}', event(None, "stop"), DONE],
        [event("8", "error"), event("9", "stop"), DONE],
    ],
)  # fmt: skip
@pytest.mark.parametrize("line", ["\n", "\r\n"])
def test_a_stream_is_a_candidate(events: list[str], line: str) -> None:
    text = "\n\n".join([*events, ""]).replace("\n", line)
    assert drawn(raw(text, kind="text/event-stream"), 2, "stream") == [NINE]


@pytest.mark.parametrize("index", [{}, {"index": 0}, {"index": None}])
def test_the_pieces_of_a_call_may_have_no_index(index: Body) -> None:
    pieces = [{"function": {"name": "tap", "arguments": '{"x"'}}, {"function": {"arguments": ":1}"}}]
    calls = [event(None, delta={"tool_calls": [piece | index]}) for piece in pieces]
    text = "\n\n".join([*calls, event(None, "tool_calls"), DONE, ""])
    assert drawn(raw(text, kind="text/event-stream"), 2, "stream") == [TAP]


def piece(index: Any, id: Any, name: Any, arguments: Any) -> Body:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


@yaml_cases
def test_the_pieces_of_calls(pieces: list[Any], calls: int) -> None:
    sent = [event(None, delta={"tool_calls": [piece(*part)]}) for part in pieces]
    text = "\n\n".join([*sent, event(None, "tool_calls"), DONE, ""])
    assert drawn(raw(text, kind="text/event-stream"), 2, "stream") == [("", "whole", TAP[2] * calls)]


def test_halves_of_a_pair_come_in_two_pieces_of_a_stream() -> None:
    text = "\n\n".join([event("9 \ud83d"), event("\ude00", "stop"), DONE, ""])
    [(said, *_)] = drawn(raw(text, kind="text/event-stream"), 2, "stream")
    assert said == "9 \U0001f600"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reply, str], None]:
    """Checks that a reply is an error with these words, and where it is."""
    monkeypatch.setattr("selfverify.clients.openai_client.MOST_BYTES", 10_000)

    def check(answer: Reply, says: str) -> None:
        with pytest.raises(ServerError, match=f"(?s){says}.*") as caught:
            drawn(answer, 1, "n")
        assert "http://127.0.0.1:" in str(caught.value) and "127.0.0.1" not in caught.value.message

    return check


@yaml_cases
def test_an_error_says_what_the_server_said_and_where_it_is(refused: Any, answer: Body, says: str) -> None:
    refused(raw(**answer) if "body" in answer else lambda: answer["says"], says)


@pytest.mark.parametrize(
    ("body", "says"), [("[" * 9_000, "no JSON"), (" " * 20_000 + "{}", "more than 10,000 bytes")]
)
def test_a_reply_without_an_end_is_an_error(refused: Any, body: str, says: str) -> None:
    refused(raw(body), says)
