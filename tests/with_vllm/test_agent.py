"""Agents behind a real vLLM server, which reads their calls of tools."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from selfverify.data.conversations import journal_of
from selfverify.experiments.agent_session import run_agent
from selfverify.experiments.command_config import (
    ActorConfig,
    AgentRunConfig,
    AgentSessionConfig,
    TeacherConfig,
)
from selfverify.experiments.recipe import load_recipe, recipe_task
from selfverify.experiments.teaching import collect
from selfverify.policy.loading import resolve
from selfverify.rollouts.server_sampler import ServerMessages
from selfverify_phone.task import PhoneAgents, PhoneAgentsConfig
from serving_servers import Loop, quick_gateway
from with_vllm.conftest import Serving, openai_client, serving

RECIPE = load_recipe("smartsnap-phone")
TASKS, TOKENS = 12, 40
TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{{ (message['content'] or '') | replace('\n\n', '<|end|><|user|>') }}"
    "{% for call in message['tool_calls'] or [] %}"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "{% endfor %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""As the policy was taught: calls as plain JSON, and the first screen in a message of its own."""


@pytest.fixture(scope="module")
def phone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """vLLM before a copy of `builtin:phone` that reads JSON as calls, for which it wants Llama's mark."""
    folder = shutil.copytree(resolve("builtin:phone"), tmp_path_factory.mktemp("agent") / "phone")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marks = [*tokenizer.extra_special_tokens, "<|python_tag|>"]
    tokenizer.add_special_tokens({"extra_special_tokens": marks})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    with serving(folder, "--enable-auto-tool-choice", "--tool-call-parser", "llama3_json") as found:
        yield found


def conversations(folder: Path, teacher: TeacherConfig) -> list[dict[str, Any]]:
    """What was said with a teacher about training problems, and what came of it."""
    output = folder / "conversations.jsonl"
    found = collect(RECIPE, teacher, output, TASKS, keep="all")
    assert (found.conversations, found.lost) == (TASKS, 0)
    _, *lines = journal_of(output).read_text("utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: row["index"])
    return [told for row in rows for told in row["conversations"]]


def untagged(message: dict[str, str]) -> dict[str, str]:
    """A message without what a call from a server's ``tool_calls`` is noted down in."""
    content = message["content"].removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
    return {**message, "content": content}


def test_it_acts_as_it_does_here(phone_server: Serving, tmp_path: Path) -> None:
    """Greedily a served policy says in every turn of every conversation what it says in this process."""
    drawn: dict[str, Any] = {"temperature": 0.0, "max_tokens": TOKENS}
    teachers = {
        "own": TeacherConfig(own=True, **drawn),
        "server": TeacherConfig(server=phone_server.url, model="m", **drawn),
    }
    told = {}
    for name, teacher in teachers.items():
        (tmp_path / name).mkdir()
        told[name] = conversations(tmp_path / name, teacher)
    for own, there in zip(told["own"], told["server"], strict=True):
        assert [untagged(message) for message in there["messages"]] == own["messages"]
        assert there["rewards"] == own["rewards"] and there["finish"] == own["finish"]
    # The calls did something, and the server has told them from words.
    assert sum(each["rewards"]["correct"] for each in told["server"]) >= 2
    said = [m for each in told["server"] for m in each["messages"] if m["role"] == "assistant"]
    assert len(said) >= 4 * TASKS and sum("<tool_call>" in m["content"] for m in said) >= 0.9 * len(said)


def test_a_session_through_the_gateway(phone_server: Serving, servers: Loop, tmp_path: Path) -> None:
    """`selfverify agent run` with a gateway in between, which passes tools and calls on."""
    address = servers.gateway(quick_gateway(phone_server.url, timeout_s=60.0)).removesuffix("/v1")
    actor = ActorConfig(server=address, model="m@plain", text="terse", prompt="task", max_new_tokens=TOKENS)
    outcomes = []
    for seed in range(4):
        task = AgentRunConfig(template="clock-add", seed=seed, max_turns=10)
        settings = AgentSessionConfig(task=task, actor=actor, output=tmp_path / f"{seed}.html")
        phone = PhoneAgents(PhoneAgentsConfig.model_validate(settings.options()))
        session = run_agent(phone, settings, lambda problem: None, lambda turn, worked, said, reply: None)
        assert session.error is None and session.page is not None and session.ending is not None
        outcomes.append(session.worked.outcome)
        assert any("round" in turn for turn in session.worked.turns.values())
    assert "submitted" in outcomes


def test_calls_in_a_stream(phone_server: Serving, servers: Loop) -> None:
    """OpenAI's client gets the same call whole and in pieces, without selection and as the choice of six."""
    task = recipe_task(RECIPE)
    problem = task.problem("train", RECIPE.seed, 0)
    episode, speaker = task.open(problem, 0), ServerMessages(problem)
    first = episode.reset()
    episode.release()
    assert first is not None
    speaker.hear(first)
    asked: dict[str, Any] = {
        "messages": speaker.messages, "tools": problem.tools, "temperature": 0.0, "max_tokens": TOKENS,
    }  # fmt: skip
    with openai_client(phone_server, servers) as client:
        called = []
        for model in ("m@plain", "m@bo6"):
            [choice] = client.chat.completions.create(model=model, **asked).choices
            called += [[(c.function.name, c.function.arguments) for c in choice.message.tool_calls or []]]
            pieces = ["", ""]
            for chunk in client.chat.completions.create(model=model, stream=True, **asked):
                for delta in (d for c in chunk.choices for d in c.delta.tool_calls or []):
                    pieces[0] += delta.function.name or ""
                    pieces[1] += delta.function.arguments or ""
            called.append([(pieces[0], pieces[1])])
    assert called == [[("launch", '{"app": " maps"}')]] * 4
