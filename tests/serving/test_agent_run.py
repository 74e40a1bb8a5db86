"""One session of an agent: a script, a server, an own model; what breaks off, and the page about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agents.phone.played import call
from tests.policy.test_tool_templates import QWEN3

from selfverify.agents.task import AgentTask
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.experiments.agent_session import AgentRun, run_agent
from selfverify.experiments.command_config import ActorConfig, AgentRunConfig, AgentSessionConfig
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from serving_servers import FakeUpstream, Loop

YES = "<Reasoning>Round 1 shows it.</Reasoning><ValidEvidence>True</ValidEvidence><Verdict>SUCCESS</Verdict>"


def agent_server(*turns: Any) -> FakeUpstream:
    """A model server that speaks ``turns``: texts, or lists of calls as OpenAI's protocol has them."""

    def says(body: dict[str, Any]) -> dict[str, Any]:
        said = turns[sum(message["role"] == "assistant" for message in body["messages"])]
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            message["tool_calls"] = [
                {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
                for n, (name, arguments) in enumerate(said)
            ]
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}

    return FakeUpstream(says=says)


def agent_task(settings: AgentSessionConfig) -> AgentTask:
    """The task that the settings name, as the command makes it."""
    task = make_task(settings.task.environment, **settings.options())
    assert isinstance(task, AgentTask)
    return task


def held(page: Path, task: dict[str, Any], actor: dict[str, Any], **more: Any) -> tuple[AgentRun, list[str]]:
    """A session, and what was told of each turn."""
    told: list[str] = []
    settings = AgentSessionConfig(
        task=AgentRunConfig(**task), actor=ActorConfig(**actor), output=page, **more
    )
    session = run_agent(
        agent_task(settings), settings, lambda problem: None,
        lambda turn, worked, said, reply: told.append(reply),
    )  # fmt: skip
    return session, told


def test_a_server_calls_tools_and_a_judge_votes(tmp_path: Path, servers: Loop) -> None:
    agent = agent_server(
        [("launch", '{"app": "clock"}')],
        [("tap", '{"id": "add"'), ("home", "{}")],
        call("tap", id="add"),
        [("submit", {"message": "Seen.", "evidences": [1]})],
    )
    judge = FakeUpstream(write=lambda body, i: YES)
    session, _ = held(
        tmp_path / "p.html", {"instruction": "Look at my <b>alarms</b>."},
        {"server": servers.upstream(agent), "model": "m"}, judge=servers.upstream(judge), judge_model="m",
    )  # fmt: skip
    assert session.error is None and [turn.get("round") for turn in session.worked.turns.values()] == [
        1, None, 2, None,
    ]  # fmt: skip
    assert session.worked.judgement is not None and session.worked.judgement.success is True
    assert session.worked.truth is None and "no JSON" in session.worked.turns[1]["error"]
    last = agent.seen[-1]
    assert [message["role"] for message in last["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "tool", "assistant", "user",
    ]  # fmt: skip
    assert [m["tool_call_id"] for m in last["messages"] if m["role"] == "tool"] == ["c0", "c0", "c1"]
    assert "submit" in [tool["function"]["name"] for tool in last["tools"]] and last["max_tokens"] == 1024
    assert "Look at my" in judge.seen[0]["messages"][1]["content"]
    page = (tmp_path / "p.html").read_text("utf-8")
    assert "truth not known" in page and "judged a success" in page and "<b>alarms" not in page


def test_pictures_follow_in_a_message_of_the_user(tmp_path: Path, servers: Loop) -> None:
    agent = agent_server([("launch", '{"app": "clock"}')], "I have finished.")
    session, _ = held(
        tmp_path / "p.html",
        {"instruction": "Look."},
        {"server": servers.upstream(agent), "model": "m", "show": "both"},
    )
    messages = agent.seen[-1]["messages"]
    assert [message["role"] for message in messages] == [
        "system", "user", "assistant", "tool", "user",
    ]  # fmt: skip
    # The first screen continues the task, as for a policy whose template takes no two messages in a row.
    assert [part["type"] for part in messages[1]["content"]] == ["text", "image_url"]
    assert re.search(r"# Task\nLook\.\n\n## ", messages[1]["content"][0]["text"])
    assert messages[-1]["content"][0]["type"] == "image_url" and isinstance(messages[-2]["content"], str)
    assert session.worked.outcome == "improper" and session.worked.why == "a message without a call"


def test_what_breaks_off_is_shown(tmp_path: Path, servers: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_server([("launch", '{"app": "clock"}')], 3)
    session, _ = held(
        tmp_path / "p.html", {"instruction": "Look."}, {"server": servers.upstream(agent), "model": "m"}
    )
    assert isinstance(session.error, ServerError) and session.page is not None
    assert session.ending is not None and session.ending.lost
    down, _ = held(
        tmp_path / "q.html", {"instruction": "Look."}, {"server": "http://127.0.0.1:9", "model": "m"}
    )
    assert "cannot be reached" in str(down.error) and down.page is None

    def interrupted(turn: int, worked: Any, said: str, reply: str) -> None:
        if turn == 1:
            raise KeyboardInterrupt

    settings = AgentSessionConfig(
        task=AgentRunConfig(template="clock-add"),
        actor=ActorConfig(expert=True),
        output=tmp_path / "r.html",
    )
    closed: list[bool] = []
    monkeypatch.setattr("selfverify_phone.environment.PhoneEnvironment.close", lambda self: _note(closed))
    stopped = run_agent(agent_task(settings), settings, lambda problem: None, interrupted)
    assert isinstance(stopped.error, KeyboardInterrupt) and closed == [True]
    assert "it was interrupted" in (tmp_path / "r.html").read_text("utf-8")


async def _note(closed: list[bool]) -> None:
    closed.append(True)


def test_an_own_model_acts(
    tmp_path: Path, load_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tiny model says nothing of use: that is a format error, and a page about it.

    Where its template shows no tools they are described in words.
    """
    own = load_policy()
    monkeypatch.setattr(Policy, "load", lambda path: own)
    actor = {"model": "own", "max_new_tokens": 3, "prompt": "task", "temperature": 1.0}
    with monkeypatch.context() as patched:
        patched.setattr(own.tokenizer, "chat_template", QWEN3)
        session, told = held(tmp_path / "p.html", {"template": "clock-add"}, actor)
    assert len(told) == 1 and session.ending is not None and session.page is not None
    page = session.page.read_text("utf-8")
    assert "The model own acted" in page and page.count("<section") == 2
    session, told = held(tmp_path / "q.html", {"template": "clock-add"}, actor)
    assert session.error is None and len(told) == 1 and session.page is not None


def test_a_task_that_cannot_be_asked_like_this_says_so(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"instruction": "x", "task": {}}\n')
    source = {"kind": "server", "url": "http://127.0.0.1:9"}
    task = make_task("environment", train=str(tmp_path / "tasks.jsonl"), sources=[source])
    assert isinstance(task, AgentTask)
    with pytest.raises(ConfigError, match="task environment takes no instructions of your own"):
        task.asked_problem("Look.", 0)
    with pytest.raises(ConfigError, match="task environment has no kinds of problems"):
        task.named_problem("look", 0)


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean clock-add"):
        held(tmp_path / "p.html", {"template": "clock-ad"}, {"expert": True})
    said = {"instruction": "x"}
    for task, actor in (
        ({}, {"expert": True}), (said | {"template": "clock-add"}, {"expert": True}), (said, {}),
        (said, {"expert": True}), (said, {"expert": True, "model": "m"}), (said, {"server": "http://x"}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"`(template|expert|server)`"):
            held(tmp_path / "p.html", task, actor)
