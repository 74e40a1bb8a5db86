"""Named keys with limits of their own."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from selfverify.cli.settings_file import with_file
from selfverify.core.errors import ConfigError
from selfverify.remote.usage import Usage
from selfverify.serving.api_errors import ApiError, error_response
from selfverify.serving.app import Gateway
from selfverify.serving.callers import MOST_CALLERS, Callers, Grant
from selfverify.serving.foreseen import Foreseen
from selfverify.serving.key_settings import ClientKey, digests
from selfverify.serving.log_lines import JsonFormatter
from selfverify.serving.request_record import RequestRecord
from selfverify.serving.serve_settings import GatewaySettings, ServeSettings
from selfverify.serving.server import open_gateway
from serving_servers import Body, FakeUpstream, bearer, frozen, key, post, question, served

LIMITS = ("limit", "remaining", "reset")


def test_callers_are_found() -> None:
    callers = Callers([key("a", requests_per_minute=5), key("b")], 2)
    a, b, other = (callers.find(name) for name in ("a", "b", "10.0.0.1"))
    assert [caller.requests and caller.requests.per_minute for caller in (a, b, other)] == [5, 2, 2]
    assert callers.find("a") is a and callers.find("10.0.0.1") is other
    for i in range(MOST_CALLERS + 5):
        callers.find(str(i))
    assert len(callers._others) == MOST_CALLERS and callers.find("10.0.0.1") is not other
    assert Callers([], None).find("x").headers() == {}


def spent(usage: Usage | None, candidates: int | None = None, left: bool = False) -> tuple[int, int]:
    """What is left of 100 requests and 10,000 tokens after a question for eight candidates of 100 tokens."""
    caller = frozen(Callers([key("a", requests_per_minute=100, tokens_per_minute=10_000)], None).find("a"))
    grant = Grant(caller)
    grant.ask(8)
    grant.set_aside(Foreseen(100, 900))
    assert caller.requests is not None and caller.tokens is not None
    assert (round(caller.requests.left), round(caller.tokens.left)) == (92, 9100)
    grant.settle(RequestRecord(usage=usage, candidates=candidates), left)
    return round(100 - caller.requests.left), round(10_000 - caller.tokens.left)


def test_what_it_was_in_the_end_counts() -> None:
    done = Usage(prompt_tokens=30, candidate_tokens=40, verification_tokens=5, calls=1)
    assert spent(done) == (8, 75)
    assert spent(done, candidates=2) == (2, 75)  # it stopped early
    assert spent(None) == (8, 0)  # nothing was asked
    assert spent(Usage(prompt_tokens=900, candidate_tokens=400, calls=2)) == (8, 1300)


def test_counts_that_no_server_can_mean_are_not_believed() -> None:
    usage = Usage()
    written = usage.add({"prompt_tokens": 10**25, "completion_tokens": 10**400}, 5)
    assert (usage.prompt_tokens, written, usage.complete) == (0, 5, False)


def test_who_leaves_pays_what_nobody_counted() -> None:
    lost = Usage(candidate_tokens=40, calls=1, complete=False)
    assert spent(lost, left=True) == (8, 900)
    assert spent(Usage(), left=True) == (8, 900)
    assert spent(lost) == (8, 140)  # with the prompt, which nobody counted
    often = Usage(prompt_tokens=30, calls=3, uncounted_prompts=2, estimated_tokens=7)
    assert spent(often) == (8, 30 + 2 * 100 + 7)
    assert spent(Usage(prompt_tokens=30, candidate_tokens=40, calls=1), left=True) == (8, 70)


def test_a_budget_is_never_exceeded_by_what_is_set_aside() -> None:
    callers = Callers([key("a", budget_tokens=1000)], None)
    caller, budget = callers.find("a"), callers.budgets["a"]
    first, second = Grant(caller), Grant(caller)
    first.set_aside(Foreseen(0, 600))
    with pytest.raises(ApiError, match="may take 600 of the 1,000 tokens left") as caught:
        second.set_aside(Foreseen(0, 500))
    assert (caught.value.status, caught.value.retry_after) == (429, 1)
    first.settle(RequestRecord(usage=Usage(candidate_tokens=700, calls=1)), False)
    with pytest.raises(ApiError, match="this request may take 500 tokens, and 300 of this key's") as caught:
        second.set_aside(Foreseen(0, 500))
    assert (caught.value.code, caught.value.retry_after) == ("insufficient_quota", None)
    second.set_aside(Foreseen(0, 300))
    second.settle(RequestRecord(usage=Usage(candidate_tokens=300, calls=1)), False)
    assert (budget.spent, budget.held) == (1000, 0)
    with pytest.raises(ApiError, match="the 1,000 tokens of this key are used up"):
        Grant(caller)


@pytest.mark.parametrize(("seconds", "told"), [(0.0, "1"), (10.0, "10"), (10.2, "11")])
def test_who_waits_as_told_waits_long_enough(seconds: float, told: str) -> None:
    refused = error_response(ApiError(429, "too many", retry_after=seconds))
    assert refused.headers["Retry-After"] == told


async def asked(session: aiohttp.ClientSession, url: str, body: Body, name: str) -> tuple[int, Any, Body]:
    """Status, headers and JSON of a chat completion."""
    async with session.post(f"{url}/chat/completions", json=body, headers=bearer(name)) as response:
        return response.status, response.headers, await response.json()


def test_candidates_count() -> None:
    """Eight are drawn by default; one that is wrong counts as one, and one that is refused as none."""
    settings = GatewaySettings(keys=[key("a", requests_per_minute=20)])
    bodies = (question(), question(n=-1), question(), question(), question(best_of={"n": 2}))

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[Any]:
        frozen(gateway.entrance.callers.find("a"))
        return [await asked(session, url, body, "a") for body in bodies]

    found = served(FakeUpstream(), use, settings)
    assert [status for status, _, _ in found] == [200, 400, 200, 429, 200]
    left = [int(headers["x-ratelimit-remaining-requests"]) for _, headers, _ in found]
    assert left == [12, 11, 3, 3, 1]
    _, headers, reply = found[3]
    assert reply["error"]["code"] == "rate_limit_exceeded" and reply["error"]["type"] == "rate_limit_error"
    assert "one with n candidates counts as n" in reply["error"]["message"]
    assert headers["Retry-After"] == "15"  # five more candidates, at one every three seconds
    assert headers["x-ratelimit-limit-requests"] == "20" and "x-ratelimit-limit-tokens" not in headers
    assert [headers["x-ratelimit-reset-requests"] for _, headers, _ in found[:2]] == ["24s", "27s"]


def test_tokens_count() -> None:
    """A question for eight candidates costs 10 + 8 * 7; in debt nobody is heard."""
    settings = GatewaySettings(keys=[key("a", tokens_per_minute=150), key("b")])

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[Any]:
        frozen(gateway.entrance.callers.find("a"))
        found = [await asked(session, url, question(), "a")]
        found.append(await asked(session, url, question(best_of={"n": 1}, max_tokens=20), "a"))
        found.append(await asked(session, url, question(stream=True, best_of={"n": 8}), "a"))
        found.append(await asked(session, url, question(), "b"))
        return found

    fake = FakeUpstream()
    first, second, third, other = served(fake, use, settings)
    assert first[0] == 200 and first[1]["x-ratelimit-remaining-tokens"] == "84"
    assert second[0] == 200 and second[1]["x-ratelimit-remaining-tokens"] == "67"
    assert third[0] == 429 and "tokens a minute" in third[2]["error"]["message"]
    assert other[0] == 200 and not [name for name in other[1] if name.lower().startswith("x-ratelimit")]
    assert len(fake.seen) == 3


def test_other_paths_count_too() -> None:
    """Three answers to verify are three; a plain stream without a usage is estimated by what it says."""
    settings = GatewaySettings(keys=[key("a", requests_per_minute=20, tokens_per_minute=9000)])

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[int]:
        found, caller = [], frozen(gateway.entrance.callers.find("a"))
        verify = {"model": "m", "messages": question()["messages"], "answer": ["1", "2", "3"]}
        completion = {"model": "m", "prompt": "7+2?", "n": 2, "max_tokens": 5}
        plain = question(stream=True, n=4) | {"model": "m@plain"}
        for path, body in (("verify", verify), ("completions", completion), ("chat/completions", plain)):
            async with session.post(f"{url}/{path}", json=body, headers=bearer("a")) as response:
                assert response.status == 200, await response.text()
                await response.read()
                found.append(int(response.headers["x-ratelimit-remaining-requests"]))
        assert caller.tokens is not None
        return [*found, round(9000 - caller.tokens.left)]

    fake = FakeUpstream(write=lambda body, i: "x" * 400, counts=False)
    *left, tokens = served(fake, use, settings)
    assert left == [17, 15, 11]
    assert tokens > 400  # of the stream alone


def test_a_stream_has_the_headers() -> None:
    settings = GatewaySettings(keys=[key("a", requests_per_minute=20, tokens_per_minute=9000)])

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[str]:
        frozen(gateway.entrance.callers.find("a"))
        body = question(stream=True)
        async with session.post(f"{url}/chat/completions", json=body, headers=bearer("a")) as response:
            await response.read()
            kinds = ("requests", "tokens")
            return [response.headers[f"x-ratelimit-{name}-{kind}"] for kind in kinds for name in LIMITS]

    found = served(FakeUpstream(), use, settings)
    assert found == ["20", "12", "24s", "9000", "6680", "15.467s"]  # 8 * (34 + 256) tokens are set aside


def test_a_budget_outlives_the_gateway(tmp_path: Path) -> None:
    """66 tokens a question, for which 8 * (34 + 20) are set aside; the fourth may take too much."""
    usage = tmp_path / "usage.sqlite"
    settings = GatewaySettings(keys=[key("a", budget_tokens=570)], key_usage=usage)
    body = question(best_of={"n": 8}, max_tokens=20)

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> Any:
        return await asked(session, url, body, "a")

    found = [served(FakeUpstream(), use, settings) for _ in range(3)]
    assert [status for status, _, _ in found] == [200, 200, 200]
    status, _, reply = served(FakeUpstream(), use, settings)
    assert (status, reply["error"]["code"]) == (429, "insufficient_quota")
    assert "372 of this key's 570" in reply["error"]["message"]


def test_names_are_logged_and_keys_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    settings = GatewaySettings(keys=[key("alice")])

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[int]:
        found = [(await asked(session, url, question(), name))[0] for name in ("alice", "mallory")]
        return [*found, (await post(session, f"{url}/chat/completions", question()))[0]]

    assert served(FakeUpstream(), use, settings) == [200, 401, 401]
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert [line for line in lines if '"key": "alice"' in line]
    assert not [line for line in lines if "alice-key" in line or "mallory" in line]


def test_where_keys_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").write_text("# the key of b\nb-key\n", encoding="utf-8")
    monkeypatch.setenv("KEY_OF_C", " c-key\n")
    keys = [key("a"), ClientKey(name="b", file=tmp_path / "b"), ClientKey(name="c", variable="KEY_OF_C")]
    found = digests(keys)
    assert found == {name: hashlib.sha256(f"{name}-key".encode()).digest() for name in "abc"}


def test_keys_of_a_file_of_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTLY_KEY", "nightly-key")
    path = tmp_path / "gateway.yaml"
    text = """
        backend: {upstream: "http://127.0.0.1:9/v1"}
        gateway:
          key_usage: USAGE
          keys:
            - {name: nightly, variable: NIGHTLY_KEY, budget_tokens: 9, requests_per_minute: 7}
            - {name: other, sha256: DIGEST}
        """
    text = text.replace("USAGE", str(tmp_path / "usage"))
    digest = hashlib.sha256(b"other-key").hexdigest()
    path.write_text(text.replace("DIGEST", digest), encoding="utf-8")
    settings = with_file(ServeSettings, path, {}, lambda place: None)
    assert isinstance(settings, ServeSettings)
    gateway = open_gateway(settings)
    found = [gateway.keys.find(f"Bearer {name}-key") for name in ("nightly", "other", "x")]
    assert found == ["nightly", "other", None]
    caller = gateway.entrance.callers.find("nightly")
    assert caller.requests is not None and caller.requests.per_minute == 7 and caller.budget is not None
    path.write_text(text.replace("DIGEST", "my-secret"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"gateway\.yaml:7: .*should be the SHA-256 of the key") as caught:
        with_file(ServeSettings, path, {}, lambda place: None)
    assert "my-secret" not in str(caught.value)


def test_keys_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_KEY", raising=False)
    (tmp_path / "two").write_text("one\ntwo\n", encoding="utf-8")
    same = key("a").model_copy(update={"name": "b"})
    for keys, text in (
        ([ClientKey(name="a", variable="NO_KEY")], "the key 'a': the environment variable NO_KEY is not set"),
        ([ClientKey(name="a", file=tmp_path / "two")], "holds 2 keys"),
        ([ClientKey(name="a", file=tmp_path / "none")], "cannot be read"),
        ([key("a"), same], "the keys 'a' and 'b' are the same"),
    ):
        with pytest.raises(ConfigError, match=text):
            digests(keys)
    for fields, text in (
        ({}, "one of sha256, variable and file"),
        ({"sha256": "0" * 64, "variable": "X"}, "one of sha256"),
        ({"sha256": "a-key"}, "sha256"),
        ({"variable": "X", "name": "a key"}, "name"),
        ({"variable": "X", "budget": 3}, "budget"),
    ):
        with pytest.raises(ValidationError, match=text):
            ClientKey.model_validate({"name": "a", **fields})
    with pytest.raises(ValidationError, match="two keys are called 'a'"):
        GatewaySettings(keys=[key("a"), key("a")])
    with pytest.raises(ValidationError, match="the key 'a': budget_tokens needs --key-usage"):
        GatewaySettings(keys=[key("a", budget_tokens=9)])
