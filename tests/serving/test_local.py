"""The gateway with a policy in its own process: the same answers as `solve`, one batch for many requests."""

from __future__ import annotations

import asyncio
import io
import json
import math
import threading
import weakref
from typing import Any

import aiohttp
import pytest
import torch
from PIL import Image

from sampled_threads import sampled_threads
from selfverify.clients.openai_client import ModelOnServer, ServerConfig
from selfverify.core.problem import Problem
from selfverify.policy.decoding import TokenSampler
from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway
from selfverify.serving.backend import FreeQuestion, free_problem
from selfverify.serving.completions import OwnStream, likeliest
from selfverify.serving.config import ChoosingConfig, DrawsConfig
from selfverify.serving.schemas import Picture
from selfverify.serving.solve import solve
from selfverify.verifiers.policy_verifiers import Soft
from selfverify.verifiers.server_judge import ServerJudge
from serving_servers import CHAT, Body, FakeUpstream, Loop, data_url, png, post
from serving_servers import served_locally as served

TOKENS = 24


def ask(text: str = "Which?", image: str | None = None, **more: Any) -> Body:
    content: list[Body] = [{"type": "text", "text": text}]
    if image:
        content.insert(0, {"type": "image_url", "image_url": {"url": image}})
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": TOKENS, **more}


def post_one(policy: Policy, body: Body, path: str = CHAT) -> tuple[int, Body]:
    return served(policy, lambda session, url, _: post(session, f"{url}/{path}", body))


def post_all(policy: Policy, *bodies: Body, **more: Any) -> list[tuple[int, Body]]:
    """At once."""

    async def use(session: aiohttp.ClientSession, url: str, _: Gateway) -> list[tuple[int, Body]]:
        return list(await asyncio.gather(*[post(session, f"{url}/{CHAT}", body) for body in bodies]))

    return served(policy, use, **more)


@pytest.fixture
def writes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the policy writes, one text after the other: it has learnt nothing itself."""
    script: list[str] = []
    real = Policy.sample

    def sample(self: Policy, prompts: Any, sampling: Any = None, **more: Any) -> Any:
        rows = real(self, prompts, sampling, **more)
        for row in rows:
            for sample in row:
                if script:
                    ids = self.tokenizer(script.pop(0), add_special_tokens=False)["input_ids"]
                    sample.tokens = [*ids, self.tokenizer.eos_token_id]
                    sample.logprobs, sample.finish = [-0.5] * len(sample.tokens), "stop"
        return rows

    monkeypatch.setattr(Policy, "sample", sample)
    monkeypatch.setattr(policy, "threads", sampled_threads(policy, policy.sample))
    return script


def lines(*answers: str) -> list[str]:
    return [f"<think>.</think><answer>{a}</answer><score>0.5</score>" for a in answers]


def test_the_same_answer_as_solve(policy: Policy, writes: list[str]) -> None:
    """Same prompt, same seed, same candidates, same soft scores, same choice and tokens."""
    picture = Image.open(io.BytesIO(png((40, 40)))).convert("RGB")
    answers = lines("1 2", "2 1", "3 4", "nonsense")
    writes += answers
    expected = solve(
        policy, FreeQuestion("set"), free_problem("Which?", [picture]), Soft(policy), ChoosingConfig(n=4),
        DrawsConfig(seed=3, max_new_tokens=TOKENS),
    )  # fmt: skip
    writes += answers
    body = ask(image=data_url(png((40, 40))), seed=3, best_of={"answers": "set", "samples": True})
    status, reply = post_one(policy, body)
    assert status == 200
    found = reply["choices"][0]["verification"]
    assert found["candidate"] == expected.choice.index and found["votes"] == expected.choice.votes == 2
    assert found["score"] == expected.choice.score and found["reason"] == expected.choice.reason
    samples = reply["best_of"]["samples"]
    assert [s["score"] for s in samples] == [c.score for c in expected.candidates]
    nats = [c.logprob for c in expected.candidates]
    assert [s["logprob"] for s in samples] == pytest.approx(nats, abs=1e-4)
    assert [s["answer"] for s in samples] == [c.answer for c in expected.candidates]
    assert reply["usage"]["completion_tokens"] == expected.tokens
    end = policy.tokenizer.eos_token
    assert [s["text"] + end for s in samples] == [c.text for c in expected.candidates]


def test_real_samples_depend_on_the_seed_alone(policy: Policy) -> None:
    body = ask(image=data_url(png()), seed=5, best_of={"samples": True}, logprobs=True)
    other = ask("Another?", seed=1)

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[Any]:
        asked = [post(session, f"{url}/{CHAT}", b) for b in (body, other, body, other)]
        return [await post(session, f"{url}/{CHAT}", body), *await asyncio.gather(*asked)]

    alone, first, _, third, _ = served(policy, use)
    texts = [[s["text"] for s in reply["best_of"]["samples"]] for _, reply in (alone, first, third)]
    assert texts[0] == texts[1] == texts[2] and len(set(texts[0])) > 1
    content = alone[1]["choices"][0]["logprobs"]["content"]
    assert content and all(entry["logprob"] <= 0 for entry in content)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.parametrize("model", ["tiny@plain", "tiny@bo2,verifier=none,content=raw"])
def test_likeliest_tokens(policy: Policy, temperature: float, model: str) -> None:
    """A place's alternatives are the model's own, best first; a drawn one has the same value."""
    body = ask(image=data_url(png()), seed=5, temperature=temperature, logprobs=True, top_logprobs=4)
    status, reply = post_one(policy, body | {"model": model})
    assert status == 200
    entries = reply["choices"][0]["logprobs"]["content"]
    assert entries and all(len(entry["top_logprobs"]) == 4 for entry in entries)
    for entry in entries:
        values = [other["logprob"] for other in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True) and sum(map(math.exp, values)) <= 1 + 1e-5
        assert all(other["bytes"] == list(other["token"].encode()) for other in entry["top_logprobs"])
        same = [other for other in entry["top_logprobs"] if other["token"] == entry["token"]]
        assert not same or min(abs(o["logprob"] - entry["logprob"]) for o in same) < 1e-4
        assert temperature or same


def test_all_tokens_by_hand(policy: Policy) -> None:
    """The alternatives of an answer of two tokens are the softmax of the whole model's own logits."""
    [prompt] = policy.encode([free_problem("Which?", [])])
    tokens = policy.tokenizer("12", add_special_tokens=False)["input_ids"][:2]
    most, temperature = 3, 0.5
    [rows] = likeliest(policy, prompt, [tokens], most, temperature)
    with torch.no_grad():
        ids = torch.cat([prompt.ids, torch.tensor(tokens)])[None].to(policy.device)
        places = slice(len(prompt.ids) - 1, -1)
        logits = policy.model(input_ids=ids).logits[0, places].float()
    expected = (logits / temperature).log_softmax(-1).topk(most)
    assert [[token for token, _ in row] for row in rows] == expected.indices.tolist()
    assert [v for row in rows for _, v in row] == pytest.approx(expected.values.flatten().tolist(), abs=1e-4)
    assert likeliest(policy, prompt, [[], []], most, temperature) == [[], []]


def test_an_answer_that_is_begun_goes_on(policy: Policy) -> None:
    """What follows the beginning is what the model gives for its tokens behind the prompt."""
    more = {"continue_final_message": True, "add_generation_prompt": False, "model": "tiny@plain"}
    body = ask(temperature=0, logprobs=True, top_logprobs=3) | more | {"max_tokens": 1}
    begun = [*body["messages"], {"role": "assistant", "content": "<answer>12"}]
    status, reply = post_one(policy, body | {"messages": begun})
    assert status == 200
    [entry] = reply["choices"][0]["logprobs"]["content"]
    [prompt] = policy.encode([Problem("p", body["messages"])])
    tokens = policy.tokenizer("<answer>12", add_special_tokens=False)["input_ids"]
    [rows] = likeliest(policy, prompt, [[*tokens, tokens[0]]], 3, 0.0)
    found = [(other["token"], other["logprob"]) for other in entry["top_logprobs"]]
    assert [token for token, _ in found] == [policy.tokenizer.decode([token]) for token, _ in rows[-1]]
    assert [value for _, value in found] == pytest.approx([value for _, value in rows[-1]], abs=1e-4)
    assert reply["usage"]["prompt_tokens"] == len(prompt.ids) + len(tokens)
    image = [{"type": "image_url", "image_url": {"url": data_url(png())}}]
    for content in (
        image,
        policy.tokenizer.convert_ids_to_tokens(policy.loaded.family.placeholder(policy.model)),
    ):
        begun[-1] = {"role": "assistant", "content": content}
        status, _ = post_one(policy, body | more | {"messages": begun})
        assert status == 400


def batches(monkeypatch: pytest.MonkeyPatch, go: threading.Event | None = None) -> list[int]:
    """How many requests each batch has; it is sampled when ``go`` is set."""
    sizes, real = list[int](), Policy.sample

    def sample(self: Policy, prompts: Any, sampling: Any = None, **more: Any) -> Any:
        sizes.append(len(prompts))
        assert go is None or go.wait(30)
        return real(self, prompts, sampling, **more)

    monkeypatch.setattr(Policy, "sample", sample)
    return sizes


def test_requests_that_wait_become_one_batch(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first is sampled, seven more come; the next batch is theirs, but for another temperature."""
    sizes = batches(monkeypatch, go := threading.Event())

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        async def one(i: int) -> tuple[int, Body]:
            body = ask(f"{i}?", seed=i, temperature=0.5 if i == 7 else 1.0)
            return await post(session, f"{url}/{CHAT}", body)

        asked = [asyncio.ensure_future(one(0))]
        while not sizes:
            await asyncio.sleep(0.01)
        asked += [asyncio.ensure_future(one(i)) for i in range(1, 8)]
        while gateway.in_flight < 8 or len(gateway.backend.batcher._waiting) < 7:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        go.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 8
        text = gateway.metrics.text().decode()
        assert "selfverify_batch_candidates_sum 32.0" in text

    served(policy, use)
    assert sizes == [1, 6, 1]


def test_a_batch_has_a_limit(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = batches(monkeypatch)
    replies = post_all(policy, *[ask(f"{i}?") for i in range(6)], max_batch=8)
    assert {status for status, _ in replies} == {200}
    assert max(sizes) <= 2 and sum(sizes) == 6


def test_sampling_does_not_wait_for_a_judges_server(policy: Policy, writes: list[str], servers: Loop) -> None:
    """While one request's judge says nothing, another request is answered."""
    go = threading.Event()
    writes += lines("1") * 8
    slow = FakeUpstream(
        write=lambda body, i: "<score>0.9</score>", knows_logprobs=False,
        fault=lambda body: None if go.is_set() else 503,
    )  # fmt: skip
    there = ServerConfig(servers.upstream(slow), tries=1000, wait_s=0.02)
    judge = ServerJudge(ModelOnServer(there, "m"), "judge:far")

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> tuple[int, Body]:
        url = f"{url}/{CHAT}"
        body = ask(best_of={"verifier": "judge:far", "strategy": "best"})
        waiting = asyncio.ensure_future(post(session, url, body))
        while not slow.seen:
            await asyncio.sleep(0.01)
        status, _ = await post(session, url, ask("Another?"))
        assert status == 200 and not waiting.done()
        go.set()
        return await waiting

    status, reply = served(policy, use, judges={"judge:far": judge})
    assert status == 200 and reply["choices"][0]["verification"]["score"] == 0.9


def test_images_wait_encoded(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded when their batch begins, and a batch has so many pixels at most."""
    decoded, decode = list[int](), Picture.decode
    sizes = batches(monkeypatch, go := threading.Event())

    def counted(self: Picture) -> Image.Image:
        decoded.append(self.pixels)
        return decode(self)

    monkeypatch.setattr(Picture, "decode", counted)

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        body = ask(image=data_url(png((40, 40))))
        asked = [asyncio.ensure_future(post(session, f"{url}/{CHAT}", body)) for _ in range(6)]
        batcher = gateway.backend.batcher  # type: ignore[attr-defined]
        while not sizes or len(batcher._waiting) + sizes[0] < 6:
            await asyncio.sleep(0.01)
        assert len(decoded) == sizes[0] <= 2
        go.set()
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 6

    served(policy, use, max_pixels=3500)
    assert max(sizes) <= 2 and sum(sizes) == 6 and decoded == [1600] * 6


def pausing(policy: Policy, monkeypatch: pytest.MonkeyPatch, at: int) -> tuple[list[int], threading.Event]:
    """How many tokens each decoding step has from now on; the step ``at`` waits for the event."""
    widths, go = list[int](), threading.Event()
    real = type(policy.forward).grow

    def grow(self: Any, tokens: Any, *others: Any) -> Any:
        widths.append(tokens.numel())
        if len(widths) == at:
            assert go.wait(30)
        return real(self, tokens, *others)

    monkeypatch.setattr(type(policy.forward), "grow", grow)
    return widths, go


def test_sampling_ends_when_the_client_leaves(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that are sampled together one leaves: its candidates are decoded no further."""
    widths, left = pausing(policy, monkeypatch, 3)
    monkeypatch.setattr(Policy, "stop_tokens", property(lambda self: set()))

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        batcher = gateway.backend.batcher  # type: ignore[attr-defined]
        batcher._working = busy = asyncio.ensure_future(asyncio.sleep(60))  # until both wait
        asked = [
            asyncio.ensure_future(post(session, f"{url}/{CHAT}", ask(f"{i}?", max_tokens=60)))
            for i in range(2)
        ]
        while len(batcher._waiting) < 2:
            await asyncio.sleep(0.01)
        busy.cancel()
        batcher._working = asyncio.ensure_future(batcher._work())
        while len(widths) < 3:
            await asyncio.sleep(0.01)
        together = widths[-1]
        asked[0].cancel()
        while gateway.in_flight > 1:
            await asyncio.sleep(0.01)
        left.set()
        status, reply = await asked[1]
        assert status == 200 and reply["usage"]["completion_tokens"] == 4 * 60
        assert together == 8 and widths[-1] == 4

    served(policy, use)


def test_at_the_deadline_what_is_written_to_its_end_counts(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four candidates have ended when the time is over; the others are cut off and lost."""
    (widths, over), pick = pausing(policy, monkeypatch, 3), TokenSampler.pick
    other = policy.tokenizer("x", add_special_tokens=False)["input_ids"][0]

    def picked(self: TokenSampler, logits: Any, uniform: Any) -> Any:
        tokens, logprobs, _ = pick(self, logits, uniform)
        tokens = torch.full_like(tokens, other)
        if len(widths) == 2:
            tokens[:, :2] = policy.tokenizer.eos_token_id
        return tokens, logprobs, torch.isin(tokens, self.stop)

    monkeypatch.setattr(TokenSampler, "pick", picked)

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> tuple[int, Body]:
        try:
            body = ask(best_of={"timeout_s": 3.0, "samples": True})
            return await post(session, f"{url}/{CHAT}", body)
        finally:
            over.set()

    status, reply = served(policy, use)
    assert status == 200, reply
    found = reply["best_of"]
    assert (found["stopped"], found["samples_used"], found["samples_missing"]) == ("deadline", 2, 2)
    assert [sample["text"] for sample in found["samples"]] == ["xx"] * 2
    assert not found["usage_complete"] and reply["usage"]["completion_tokens"] == 6


def test_without_selection_a_stream_shows_what_is_being_written(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first words are read while the model waits to write the others."""
    monkeypatch.setattr(Policy, "stop_tokens", property(lambda self: {policy.tokenizer.eos_token_id}))
    body = ask(seed=5, model="tiny@plain")

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> None:
        url = f"{url}/{CHAT}"
        _, whole = await post(session, url, body)
        text = whole["choices"][0]["message"]["content"]
        widths, go = pausing(policy, monkeypatch, 5)
        deltas = []
        async with session.post(url, json=body | {"stream": True}) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    [choice] = json.loads(line[6:])["choices"]
                    deltas.append(choice["delta"])
                    if choice["delta"].get("content"):
                        assert go.is_set() or len(widths) <= 5
                        go.set()
        assert deltas[0]["role"] == "assistant" and sum("role" in delta for delta in deltas) == 1
        assert "".join(delta.get("content", "") for delta in deltas) == text and len(text) > 5

    served(policy, use)


@pytest.mark.parametrize("stops", [[], ["<answer>"], ["is", "9<"], ["nowhere"]])
def test_pieces_begin_the_text_that_is_told(policy: Policy, stops: list[str]) -> None:
    text = "<think>é is ü, 7 + 2</think><answer>9</answer>"
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    whole = policy.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    told = whole[: min([whole.find(stop) for stop in stops if stop in whole], default=len(whole))]
    pieces: list[str] = []
    stream = OwnStream(policy, stops, pieces.append)
    for token in ids[:7]:
        stream.token(token)
    stream.restart()
    for token in [*ids, policy.tokenizer.eos_token_id]:
        stream.token(token)
    assert told.startswith("".join(pieces)) and stream.sent == len("".join(pieces)) > 0
    assert len(told) - stream.sent <= max([len(stop) - 1 for stop in stops], default=0)


def test_a_model_that_does_not_run_here(policy: Policy) -> None:
    found, reply = post_one(policy, ask() | {"model": "other"})
    assert (found, reply["error"]["code"], reply["error"]["param"]) == (404, "model_not_found", "model")


def test_stop_and_plain(policy: Policy, writes: list[str]) -> None:
    writes += ["one two three", "four"]
    harmless: Body = {
        "top_k": -1, "repetition_penalty": 1, "min_p": 0, "guided_choice": [], "user": "u",
        "metadata": {"a": "b"}, "tool_choice": "none", "response_format": {"type": "text"},
    }  # fmt: skip
    status, reply = post_one(policy, ask(n=2, stop=" three") | harmless | {"model": "tiny@plain"})
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    assert status == 200 and texts == ["one two", "four"]


def test_a_judge_behind_a_server(policy: Policy, writes: list[str], servers: Loop) -> None:
    """Its scores count; when it is gone, candidates are returned without any, and a vote decides."""
    fake = FakeUpstream(
        write=lambda body, i: f"<score>{0.9 if '9' in body['messages'][1]['content'] else 0.1}</score>",
        knows_logprobs=False,
    )
    there = ServerJudge(ModelOnServer(ServerConfig(servers.upstream(fake)), "m"), "there")
    gone = ServerJudge(ModelOnServer(ServerConfig("http://127.0.0.1:9", tries=1), "m"), "gone")
    judges = {"there": there, "gone": gone}

    async def use(session: aiohttp.ClientSession, url: str, gateway: Gateway) -> list[tuple[int, Body]]:
        found = []
        for name in judges:
            writes[:] = lines("7", "9", "7", "7")
            body = ask(best_of={"verifier": name, "strategy": "best"})
            found.append(await post(session, f"{url}/{CHAT}", body))
        asking = {"model": "tiny", "messages": ask()["messages"], "answer": ["9", "7"], "verifier": "there"}
        return [*found, await post(session, f"{url}/verify", asking)]

    with_judge, without, verified = served(policy, use, judges=judges)
    found = with_judge[1]["choices"][0]["verification"]
    assert (found["answer"], found["score"]) == ("9", 0.9)
    found = without[1]["choices"][0]["verification"]
    assert (found["answer"], found["score"], found["strategy"]) == ("7", None, "majority")
    assert [result["score"] for result in verified[1]["results"]] == [0.9, 0.1]


def test_verify(policy: Policy) -> None:
    """The score that the policy would give the answer if it were its own, whatever it is wrapped in."""
    body = {"model": "tiny", "messages": ask(image=data_url(png()))["messages"]}
    status, reply = post_one(policy, body | {"answer": ["7", "<answer>7</answer>", "9"]}, "verify")
    assert status == 200
    first, wrapped, other = [result["score"] for result in reply["results"]]
    assert first == wrapped != other and 0 <= first <= 1
    assert not reply["usage_complete"]  # a judge does not say what it read
    for wrong in ("inline", "none"):
        status, reply = post_one(policy, body | {"answer": "7", "verifier": wrong}, "verify")
        assert status == 400 and wrong in reply["error"]["message"]


def test_a_failing_request_does_not_fail_the_others(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """One prompt spells an image token, another breaks the model: each hears of it, the rest is answered.

    What failed is freed before each is tried alone: else a batch that did not fit would leave no memory.
    """
    real, held, sizes = Policy.sample, list[Any](), list[int]()
    placeholder = policy.tokenizer.convert_ids_to_tokens(policy.loaded.family.placeholder(policy.model))

    class Cache:
        pass

    def sample(self: Policy, prompts: Any, sampling: Any = None, *, seeds: Any, **more: Any) -> Any:
        assert all(cache() is None for cache in held)
        sizes.append(len(prompts))
        if 666 * 1_000_003 in seeds:
            cache = Cache()
            if len(prompts) > 1:
                held.append(weakref.ref(cache))
            raise torch.OutOfMemoryError("told to")
        return real(self, prompts, sampling, seeds=seeds, **more)

    monkeypatch.setattr(Policy, "sample", sample)
    texts = {"fine?": 1, f"{placeholder}?": 2, "bad?": 666, "ok?": 3}
    fine, literal, broken, ok = post_all(policy, *[ask(text, seed=seed) for text, seed in texts.items()])
    assert fine[0] == ok[0] == 200 and held and sizes[-2:] == [1, 1]
    assert literal[0] == 400 and "image token" in literal[1]["error"]["message"]
    assert broken[0] == 500 and "told to" not in broken[1]["error"]["message"]
