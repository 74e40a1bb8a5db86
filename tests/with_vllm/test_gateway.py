"""The gateway before a real vLLM server, asked by OpenAI's client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from selfverify.core.problem import Problem, openai_messages
from selfverify.experiments.registry import make_task
from serving_servers import Loop
from with_vllm.conftest import Serving, openai_client

TASK = make_task("digits-pick")
MOST = 40


@pytest.fixture
def client(vllm_server: Serving, servers: Loop) -> Iterator[openai.OpenAI]:
    with openai_client(vllm_server, servers) as found:
        yield found


def asked(problem: Problem, **settings: Any) -> dict[str, Any]:
    """The arguments of a request."""
    # The task's problems say themselves how to answer.
    best_of = {"n": 6, "samples": True, "instruction": False} | settings.pop("best_of", {})
    messages = openai_messages(problem)
    more = {"model": "m", "max_tokens": MOST, "temperature": 1.0, "extra_body": {"best_of": best_of}}
    return {"messages": messages, **more, **settings}


def check(found: dict[str, Any], usage: Any, drawn: int) -> None:
    """Six candidates that share what the server has counted, none longer than it was allowed to be."""
    tokens = [sample["tokens"] for sample in found["samples"]]
    assert (found["samples_used"], found["samples_missing"]) == (6, 0) and len(tokens) == 6
    assert min(tokens) > 0 and max(tokens) <= drawn
    assert usage is not None
    assert sum(tokens) == usage.completion_tokens - usage.completion_tokens_details.verification_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_an_image_in_one_call(client: openai.OpenAI, stream: bool) -> None:
    """The model reads the digits: its sums are of digits that are shown, more often than not."""
    problem = TASK.problem("test", 0, 2)  # of which the policy itself reads 96 in 100 right
    if stream:
        whole = {"stream": True, "stream_options": {"include_usage": True}}
        chunks: Any = list(client.chat.completions.create(**asked(problem, n=2, **whole)))
        found, usage = chunks[-2].best_of if chunks[-1].usage else chunks[-1].best_of, chunks[-1].usage
        texts = [
            "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == i)
            for i in range(2)
        ]
    else:
        reply: Any = client.chat.completions.create(**asked(problem, n=2))
        found, usage, texts = reply.best_of, reply.usage, [c.message.content for c in reply.choices]
    check(found, usage, MOST)
    assert found["calls"] == 1
    assert all("<answer>" in text and "<score>" not in text for text in texts)
    # As text: now and then it writes what is no digit.
    shown = set(map(str, problem.meta["digits"]))
    answers = [set(s["answer"].split()) for s in found["samples"] if s["answer"]]
    assert sum(answer <= shown for answer in answers) >= 3


def test_a_client_that_leaves_stops_what_it_asked_for(client: openai.OpenAI, vllm_server: Serving) -> None:
    long = {"max_tokens": 900, "extra_body": {"best_of": {"n": 6}, "ignore_eos": True}}
    before = vllm_server.metric("vllm:generation_tokens_total")
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=2.0).chat.completions.create(**asked(TASK.problem("test", 0, 2)) | long)
    for _ in range(100):
        if vllm_server.metric("vllm:num_requests_running") == 0:
            break
        time.sleep(0.1)
    assert vllm_server.metric("vllm:num_requests_running") == 0
    assert vllm_server.metric("vllm:generation_tokens_total") - before < 6 * 900
