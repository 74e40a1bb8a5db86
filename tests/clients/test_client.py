"""The client: retries, errors one can act on, and N candidates from servers that do not know ``n``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from selfverify.clients.candidates import CandidateSampler, Mode, rate
from selfverify.clients.openai_client import (
    API_KEY_VARIABLE,
    OpenAIClient,
    ServerConfig,
    seconds_of,
    server_url,
)
from selfverify.clients.replies import Usage
from selfverify.core.errors import ConfigError, ServerError
from serving_servers import Body, FakeUpstream, draw, question, tagged, with_client
from tables import yaml_cases


def fails_first(times: int, how: Any) -> Callable[[Any], Any]:
    left = [how] * times
    return lambda body: left.pop() if left else None


def test_all_text_arrives_and_half_a_surrogate_pair_as_own_models_read_it() -> None:
    fake = FakeUpstream()
    for text in ('"7" + 2 = ½?\n\0 \u2028 𝟟', "half a pair: \ud83d, ½"):
        with_client(fake, lambda client, text=text: client.chat(question(text)))
    assert fake.seen == [question('"7" + 2 = ½?\n\0 \u2028 𝟟'), question("half a pair: ?, ½")]


def test_addresses_and_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_url("http://h:1") == "http://h:1/v1"
    assert server_url("https://h/api/v3/") == "https://h/api/v3"
    with pytest.raises(ConfigError, match="address"):
        server_url("h:1")
    monkeypatch.setenv(API_KEY_VARIABLE, "abc")
    fake = FakeUpstream()
    with_client(fake, lambda client: client.chat(question()))
    assert fake.keys == ["Bearer abc"]

    async def nobody() -> None:
        async with OpenAIClient(ServerConfig("http://127.0.0.1:9", wait_s=0.01)) as client:
            await client.models()

    with pytest.raises(ServerError, match="cannot be reached") as caught:
        asyncio.run(nobody())
    assert caught.value.code == "unreachable"


@pytest.mark.parametrize("mode", ["n", "stream"])
@pytest.mark.parametrize("knows_n", [True, False, None])
def test_n_candidates_however_the_server_is(mode: Mode, knows_n: bool | None) -> None:
    """Each once, with different seeds where they are asked for one by one, and everything counted."""
    fake = FakeUpstream(knows_n=knows_n, write=lambda body, i: tagged(f"{body['seed']}+{i}"))
    got, usage, fault = draw(fake, 4, mode, seed=5)
    assert fault is None and len(got) == 4
    assert len({reply.text for reply in got}) == 4
    assert (usage.candidate_tokens, usage.complete) == (28, True)
    answered = 1 if knows_n else 4
    assert usage.calls == answered and usage.prompt_tokens == 10 * answered
    assert len(fake.seen) == answered + (knows_n is None)


def asked_for(fake: FakeUpstream, draws: int, **more: Any) -> list[Any]:
    """The ``n`` of all requests for ``draws`` times three candidates."""

    async def use(client: OpenAIClient) -> None:
        sampler = CandidateSampler(client)
        for _ in range(draws):
            await sampler.draw(question(**more), 3, lambda reply: None, Usage())

    with_client(fake, use)
    return [body.get("n") for body in fake.seen]


def test_a_server_without_n_is_asked_one_by_one_from_then_on() -> None:
    """After two odd replies in a row; after one refusal, but for greedy ones, which would be the same."""

    class Odd(FakeUpstream):
        async def _chat(self, request: Any, body: Any) -> Any:
            self.knows_n = len(self.seen) not in (1, 5)
            return await super()._chat(request, body)

    assert asked_for(FakeUpstream(knows_n=False), 3) == [3, None, None] * 2 + [None] * 3
    assert asked_for(FakeUpstream(knows_n=None), 2) == [3] + [None] * 6
    assert asked_for(FakeUpstream(knows_n=None), 2, temperature=0) == [3, None, None, None] * 2
    assert asked_for(Odd(), 4) == [3, None, None, 3, 3, None, None, 3]


@pytest.mark.parametrize("probed", [500, 429, 400])
def test_a_server_that_fails_while_n_is_probed_is_told_of(probed: int) -> None:
    """And not the refusal that led to the probe; one of all requests is not taken for one of n."""
    fake = FakeUpstream(fault=lambda body: 400 if body.get("n") else probed)
    with pytest.raises(ServerError) as caught:
        draw(fake, 4)
    assert caught.value.status == probed and (len(fake.seen) == 2 or probed != 400)


@yaml_cases
def test_the_wait_that_a_server_asks_for(header: str, seconds: float | None) -> None:
    assert seconds_of(header) == seconds


@pytest.mark.parametrize("waits", [
    {"Retry-After-Ms": "400"},
    {"Retry-After-Ms": "400", "Retry-After": "3600"},
    {"retry-after-ms": "soon", "Retry-After": "0.4s"},
    {"RETRY-AFTER": "400ms"},
])  # fmt: skip
def test_milliseconds_come_before_seconds(waits: dict[str, str]) -> None:
    fault, _, outcomes, seconds = tried(busy(waits))
    assert fault is None and outcomes == ["refused", "ok"] and 0.4 <= seconds < 20


def test_a_date_after_which_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()  # a date without a zone is no local time
    soon = datetime.now(UTC) + timedelta(seconds=100)
    for date in (
        format_datetime(soon),
        f"{soon:%a, %d %b %Y %H:%M:%S} -0000",
        f"{soon:%a %b %d %H:%M:%S %Y}",
    ):
        assert 90 < (seconds_of(date) or 0.0) <= 100, date
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("mode", ["n", "stream"])
def test_missing_candidates_are_asked_for_again(mode: Mode) -> None:
    fake = FakeUpstream(fault=fails_first(1, "half"))
    got, usage, fault = draw(fake, 6, mode)
    assert len(got) == 6 and fault is None
    assert usage.candidate_tokens == 7 * 6


@pytest.mark.parametrize(("fate", "calls"), [("cut", 3), ("garbage", 2)])
def test_a_stream_that_breaks_off(fate: str, calls: int) -> None:
    """What was finished is kept, the rest asked for anew, and the broken call's cost is not made up."""
    fake = FakeUpstream(fault=fails_first(1, fate))
    got, usage, fault = draw(fake, 4, "stream")
    assert len(got) == 4 and fault is None and len(fake.seen) == calls
    assert not usage.complete and usage.calls == calls


def test_one_of_those_asked_for_alone_is_kept_when_all_others_fail() -> None:
    fates = iter([None, None])
    fake = FakeUpstream(knows_n=None, fault=lambda body: next(fates, 400))
    got, _, fault = draw(fake, 4)
    assert len(got) == 1 and fault is not None and fault.status == 400


@pytest.mark.parametrize("mode", ["n", "stream"])
@pytest.mark.parametrize("alone", [False, True])
def test_calls_that_were_given_up_are_counted(mode: Mode, alone: bool) -> None:
    """All at once, or one by one behind a reply with a single candidate."""
    fake = FakeUpstream(knows_n=not alone, fault=lambda body: None if alone and "n" in body else "slow")
    usage = Usage()

    async def use(client: OpenAIClient) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await CandidateSampler(client).draw(question(), 3, lambda reply: None, usage, mode)

    with_client(fake, use)
    asked = 3 if alone else 1
    assert (usage.calls, usage.complete, len(fake.seen)) == (asked, False, asked)


@pytest.mark.parametrize("mode", ["n", "stream"])
def test_tokens_are_shared_out(mode: Mode) -> None:
    fake = FakeUpstream(write=lambda body, i: "x" * 40 * (i + 1))
    got, usage, _ = draw(fake, 3, mode)
    assert sum(reply.tokens for reply in got) == usage.candidate_tokens == 21
    assert [reply.tokens for reply in got] == [4, 7, 10]


@pytest.mark.parametrize("knows", [True, False])
def test_a_rating_is_soft_where_there_are_probabilities(knows: bool) -> None:
    """With 1 and 0 equally likely and nothing known of what follows 0, (1 + mean of 0.0 ... 0.9) / 2."""
    fake = FakeUpstream(write=lambda body, i: "<score>0.8</score>", knows_logprobs=knows)
    usage = Usage()

    async def use(client: OpenAIClient) -> list[float | None]:
        return [await rate(client, "m", question()["messages"], "9", usage) for _ in range(2)]

    found = with_client(fake, use)
    assert found == [pytest.approx(0.725 if knows else 0.8)] * 2
    # Without: once with alternatives, once with log-probabilities alone, then as the server likes it.
    assert len(fake.seen) == (2 if knows else 4)
    assert usage.verification_tokens == 14 and usage.candidate_tokens == 0
    assert [turn["role"] for turn in fake.seen[0]["messages"]] == ["user", "assistant", "user"]


# --- calls that are made again: how often, how long is waited, what is counted


def busy(*waits: str | dict[str, str]) -> FakeUpstream:
    """Refuses its first requests with these ``Retry-After``, or headers; what follows is whole."""
    left = list(waits)

    def says(body: Body) -> web.Response | None:
        if not left:
            return None
        wait, error = left.pop(0), {"error": {"message": "busy"}}
        headers = {"Retry-After": wait} if isinstance(wait, str) else wait
        return web.json_response(error, status=429, headers=headers)

    return FakeUpstream(says=says)


def tried(
    fake: FakeUpstream, within_s: float | None = None, **settings: Any
) -> tuple[ServerError | None, int, list[str], float]:
    """How a call ends, how many tries are lost, the outcomes of all, and the seconds that it took."""
    outcomes, lost = list[str](), list[int]()

    async def use(client: OpenAIClient) -> tuple[ServerError | None, float]:
        now = asyncio.get_running_loop().time
        until = {} if within_s is None else {"until": now() + within_s}
        begun, fault = time.monotonic(), None
        try:
            await client.chat(question(), lambda: lost.append(1), **until)
        except ServerError as error:
            fault = error
        return fault, time.monotonic() - begun

    patience = {"wait_s": 0.001, "longest_wait_s": 0.5, "timeout_s": 60.0} | settings
    fault, seconds = with_client(fake, use, outcomes.append, **patience)
    return fault, len(lost), outcomes, seconds


@yaml_cases
def test_what_may_pass_is_tried_again(
    faults: list[Any], outcomes: str, lost: int, ends: list[int | str] | None
) -> None:
    """What a server may have answered is counted: its reply cannot be read, broke off, or came too late."""
    left = list(faults)
    slow = {"timeout_s": 0.2, "tries": 1} if "slow" in faults else {}
    fault, *counted, _ = tried(FakeUpstream(fault=lambda body: left.pop(0)), **slow)
    assert (fault and [fault.status, fault.code]) == ends and counted == [lost, outcomes.split()]


def test_a_wait_that_the_server_asks_for_is_kept_if_there_is_time() -> None:
    """Until the deadline, or without one for the longest wait; the first second would be too early."""
    fault, _, outcomes, seconds = tried(busy("0.4"), within_s=30.0)
    assert fault is None and len(outcomes) == 2 and seconds >= 0.4
    assert tried(busy("0.4", "0.4"))[2] == ["refused", "refused", "ok"]


@pytest.mark.parametrize(("within_s", "most"), [(None, "0.5"), (0.3, "")])
def test_a_wait_that_is_too_long_is_told_at_once(within_s: float | None, most: str) -> None:
    fault, _, outcomes, seconds = tried(busy("40"), within_s, tries=9)
    assert f"busy; it wants to be asked again in 40 s, and at most {most}" in str(fault)
    assert outcomes == ["refused"] and seconds < 20
    assert tried(FakeUpstream(fault=lambda body: 503), within_s=-1.0)[2] == ["refused"]
