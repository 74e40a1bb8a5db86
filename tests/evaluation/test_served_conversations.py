"""Conversations with tools through a server: as with a policy, in the same store."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import serving_servers
from selfverify.core.config import EvaluationConfig
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.evaluation.answerers import ServerAnswerer
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import StoredSample, mean_time, read_samples, timing_file
from selfverify.tasks.base import Task, Verdict, judge_integer, user_turn
from selfverify.tasks.tool_calls import ToolError, tool
from selfverify.tasks.tool_episode import ToolEpisode
from serving_servers import Body, FakeUpstream, Loop


class Adding(ToolEpisode):
    """Adds, or fails."""

    fails = Counter[str]()
    """How often a problem's conversations are yet to fail."""

    @tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        if self.fails[self.problem.id] > 0:
            self.fails[self.problem.id] -= 1
            raise RuntimeError("the environment has died")
        if a < 0:
            raise ToolError("no negative numbers")
        return str(a + b)


class Sums(Task):
    name, summary, tags = "sums", "sums by a tool", ("answer",)
    limits = Task.limits.model_copy(update={"turns": 4, "step_threads": 2, "step_timeout_s": 20.0})

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        words = user_turn(f"What is {index} + 2?", 0)
        return Problem(f"sums/{split}/{seed}/{index}", words, [], index + 2, tools=Adding.schemas())

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return judge_integer(problem.target, tagged, largest=99)

    def open(self, problem: Problem, seed: int) -> Adding:
        return Adding(problem, self.tags, self.verdict)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes calls out of texts, as those with a parser of tools do."""
    told = serving_servers.told

    def parsed(name: str, message: Body) -> Body:
        words, tag, call = message["content"].partition("<tool_call>")
        if not tag:
            return told(name, message)
        read = json.loads(call.partition("</tool_call>")[0])
        function = {"name": read["name"], "arguments": json.dumps(read["arguments"])}
        calls = [{"id": "call-1", "type": "function", "function": function}]
        found = told(name, {**message, "content": words.strip() or None, "tool_calls": calls})
        return found | {"finish_reason": "tool_calls"}

    monkeypatch.setattr(serving_servers, "told", parsed)


def served(servers: Loop, fake: FakeUpstream) -> ServerAnswerer:
    return ServerAnswerer(
        PolicyConfig(path=f"{servers.upstream(fake)}#m", server={"timeout_s": 20.0, "tries": 1})  # type: ignore[arg-type]
    )


def spoken(body: Body) -> int:
    """How often the model has spoken."""
    return sum(message["role"] == "assistant" for message in body["messages"])


def sums(body: Body, i: int) -> str:
    """Calls, and says what it was told."""
    a = int(str(body["messages"][0]["content"]).split("What is ")[1].split(" ")[0])
    if spoken(body) == 0:
        return f'<tool_call>{{"name": "add", "arguments": {{"a": {a}, "b": 2}}}}</tool_call>'
    return f"<answer>{body['messages'][-1]['content']}</answer>"


def measured(
    answerer: ServerAnswerer, task: Task, store: Path, **config: Any
) -> tuple[dict[str, Any], list[StoredSample]]:
    given = {"problems": 3, "samples": 2, "score": "sampled", "temperature": 0.0} | config
    summary = evaluate(answerer, task, EvaluationConfig(**given), store, max_new_tokens=64)
    return summary, read_samples(store)[1]


def test_a_servers_own_tool_calls(servers: Loop, native: None, tmp_path: Path) -> None:
    """Offered as tools, answered as tools; stored with who spoke, in the channels of an agent."""
    fake = FakeUpstream(write=sums)
    summary, rows = measured(served(servers, fake), Sums(), tmp_path / "s.jsonl")
    assert summary["pass@1"] == 1.0 and summary["conversations"]["turns"] == 2.0
    assert all(body["tools"] == Adding.schemas() for body in fake.seen)
    second = [body["messages"] for body in fake.seen if spoken(body) == 1]
    results = [messages[-1] for messages in second]
    assert all(message["role"] == "tool" and message["tool_call_id"] == "call-1" for message in results)
    assert {message["content"] for message in results} == {"2", "3", "4"}
    assert second[0][-2]["tool_calls"][0]["function"]["name"] == "add"
    steps = rows[0].steps
    assert [(step.author, step.channel) for step in steps] == [
        ("policy", "action"), ("environment", "observation"), ("policy", "answer")
    ]  # fmt: skip
    assert steps[1].record == {"role": "tool", "said": [0, 1]} and '"name": "add"' in steps[0].text
    assert rows[0].rewards["tool_calls"] == 1 and steps[0].values["tool_calls"] == 1
    noted = [json.loads(line) for line in timing_file(tmp_path / "s.jsonl").read_text().splitlines()]
    assert [row["conversations"] for row in noted] == [6]
    assert min(mean_time(tmp_path / "s.jsonl").values()) > 0


@pytest.mark.parametrize("finish", ["stop", "eos", "end_turn", None, "max_tokens", "content_filter"])
def test_calls_in_texts(servers: Loop, tmp_path: Path, finish: str | None) -> None:
    """A server without a parser: the same conversation, the result as the user's words.

    What servers call a whole message is one, and a call that was cut off or withheld is none.
    """
    fake = FakeUpstream(write=sums, finish=finish)
    summary, rows = measured(served(servers, fake), Sums(), tmp_path / "s.jsonl")
    if finish in ("max_tokens", "content_filter"):
        assert summary["pass@1"] == 0.0 and {row.finish for row in rows} == {"length"}
        return
    assert summary["pass@1"] == 1.0 and summary["rewards"]["tool_calls"] == 1
    asked = next(body["messages"] for body in fake.seen if spoken(body) == 1)
    assert asked[-1]["role"] == "user" and asked[-1]["content"] in ("2", "3", "4")
    assert "<tool_call>" in asked[-2]["content"]


def test_lost_conversations_are_held_again(servers: Loop, tmp_path: Path) -> None:
    """An environment that dies loses its conversation, and no other; it is held again as often as asked."""
    name = "sums/test/0/1"
    Adding.fails[name] = 3
    summary, rows = measured(
        served(servers, FakeUpstream(write=sums)), Sums(), tmp_path / "a.jsonl", retries=1
    )
    of = [row for row in rows if row.problem == name]
    assert sorted((row.lost, row.retries) for row in of) == [(False, 1), (True, 1)]
    assert summary["conversations"]["lost"] == pytest.approx(1 / 6) and Adding.fails[name] == 0
    assert all(row.correct for row in rows if not row.lost)


def test_the_end_of_the_context(servers: Loop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A refusal that speaks of it ends the conversation with what was said; another one loses it."""
    chat = FakeUpstream._chat
    words = "This model's maximum context length is 32 tokens."

    async def full(self: FakeUpstream, request: Any, body: Body) -> Any:
        if spoken(body) == 1:
            return serving_servers.web.json_response({"error": {"message": words}}, status=400)
        return await chat(self, request, body)

    monkeypatch.setattr(FakeUpstream, "_chat", full)
    _, rows = measured(served(servers, FakeUpstream(write=sums)), Sums(), tmp_path / "a.jsonl")
    assert {(row.finish, row.lost, row.correct) for row in rows} == {("length", False, False)}
    assert [step.author for step in rows[0].steps] == ["policy"] or not rows[0].steps
    assert rows[0].rewards["tool_calls"] == 1
    words = "an image is too small"
    _, rows = measured(served(servers, FakeUpstream(write=sums)), Sums(), tmp_path / "b.jsonl")
    assert {(row.finish, row.lost) for row in rows} == {("error", True)}
