"""Tasks of data files in environments of servers, as a task of recipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tests.agents.told import held

from environment_servers import serve
from selfverify.agents.environment_task import EnvironmentAgents, EnvironmentAgentsConfig
from selfverify.core.episode import Call
from selfverify.core.errors import ConfigError, DataError
from selfverify.experiments.registry import make_task
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from serving_servers import Loop
from tiny_environment import Counter

ROWS = [
    {"id": "to-three", "instruction": "Count to three.", "task": {"goal": 3}, "seed": 0, "category": "small"},
    {"id": "to-nine", "instruction": "Count to nine.", "task": '{"goal": 9}', "steps": 2},
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    path = tmp_path / "counting.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


LENDING: list[EnvironmentAgents] = []
"""Tasks that a test has made."""


@pytest.fixture
def counters(serving: Callable[..., str]) -> str:
    return serving()


@pytest.fixture
def serving(servers: Loop) -> Iterator[Callable[..., str]]:
    """``serving(counter=Counter)`` is a server's address; it ends after those who lend from it."""
    yield lambda **factories: servers.run(serve(servers.stack, **factories))[1]
    while LENDING:
        LENDING.pop()._lender.close()
    servers.run(servers.stack.aclose())
    assert Counter.opened == []


def task(files: Path, url: str, **more: Any) -> EnvironmentAgents:
    given = {
        "train": str(files), "test": str(files), "sources": [{"kind": "server", "url": url, "sessions": 2}],
        "judge": {"kind": "state"}, "done_from": 3.0,
    }  # fmt: skip
    made = make_task("environment", **given | more)
    assert isinstance(made, EnvironmentAgents)
    LENDING.append(made)
    return made


def test_rows_become_problems(files: Path, counters: str) -> None:
    made = task(files, counters, done_from=3.0)
    one, other = made.problem("test", 0, 0), made.problem("test", 0, 1)
    assert one.id == "environment/test/counting/to-three" and one.meta["question"] == "Count to three."
    assert one.target == {"reset": {"goal": 3}, "seed": 0, "goal": None}
    assert one.meta["categories"] == {"app": ["small"]} and other.meta["steps"] == 2
    assert other.target["reset"] == {"goal": 9}
    assert other.target["seed"] == made.problem("test", 0, 1).target["seed"]
    assert [tool["function"]["name"] for tool in one.tools] == ["add", "fail", "submit"]
    passes = [made.problem("train", 0, n) for n in range(4)]
    of_nine = [p.target["seed"] for p in passes if "to-nine" in p.id]
    assert len({*of_nine}) == 2, "a row without a seed has another one in each pass"


PROCESS = {"kind": "process", "factory": "tiny_environment:Counter", "sessions": 1}


@pytest.mark.parametrize("more", [{}, {"sources": [PROCESS]}], ids=["server", "process"])
def test_the_environments_rewards_are_the_truth(files: Path, counters: str, more: dict[str, Any]) -> None:
    made = task(files, counters, **more)
    submit = Call("submit", {"message": "Three.", "evidences": [1]})
    done = held(made, made.problem("test", 0, 0), Call("add", {"number": 3}), submit)
    assert done.rewards["truth"] == 1.0 and done.rewards["answer"] == pytest.approx(0.95)
    missed = held(made, made.problem("test", 0, 0), Call("add", {"number": 2}), submit)
    assert missed.rewards["truth"] == 0.0 and missed.rewards["answer"] == pytest.approx(-0.05)


def test_goals_of_rows_are_for_rules(tmp_path: Path, serving: Callable[..., str]) -> None:
    """Our phone behind a server: its screens' facts come over the wire, so that rules can judge."""
    local = make_task("phone", text="terse", prompt="task", agent={"first_screen": "given"})
    posed = local.problem("test", 0, 0)
    row = {
        "instruction": posed.meta["question"], "task": posed.target["reset"], "seed": posed.target["seed"],
        "goal": json.dumps(posed.target["goal"]), "steps": posed.meta["steps"],
    }  # fmt: skip
    (tmp_path / "phone.jsonl").write_text(json.dumps(row) + "\n")
    url = serving(phone=lambda: PhoneEnvironment(PhoneConfig(text="terse", first_screen="given")))
    made = task(tmp_path / "phone.jsonl", url, judge={"kind": "rules"}, done_from=None)
    turns = local.demonstrate_turns(posed, np.random.default_rng(0))
    rewards = held(made, made.problem("test", 0, 0), *[turn.text for turn in turns]).rewards
    assert rewards["truth"] == 1.0 and rewards["rrr"] > 0
    assert rewards["answer"] == pytest.approx(1 - 0.05 * rewards["evidence"])


def test_a_server_that_is_down(files: Path) -> None:
    made = task(files, "http://127.0.0.1:9", wait_s=0.2)
    with pytest.raises(ConfigError, match=r"task environment: no environment within .*127\.0\.0\.1:9"):
        made.check_files("train")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"instruction": "Count.", "task": "{goal"}, "its task is '{goal', not an object"),
        ({"instruction": "Count.", "task": {"goal": 1}, "seed": -1}, "its seed is -1, not a whole number"),
        ({"instruction": "Count.", "task": {"goal": 1}, "goal": "[]"}, r"its goal is '\[\]', not an object"),
        ({"instruction": "Count.", "task": {"goal": 1}, "steps": "two"}, "its steps is 'two'"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """The error names file and line."""
    (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n")
    made = task(tmp_path / "bad.jsonl", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=rf"bad\.jsonl, line 1: {message}"):
        made.count("test")


@pytest.mark.parametrize(("row", "judge", "message"), [
    ({}, "rules", "odd: the row has no goal, and rules judge by one"),
    ({"goal": {"needs": []}}, "state", r"environment/test/odd/odd: goal: .*done from the start"),
])  # fmt: skip
def test_goals_are_checked_before_a_conversation_begins(
    tmp_path: Path, counters: str, row: dict[str, Any], judge: str, message: str
) -> None:
    (tmp_path / "odd.jsonl").write_text(
        json.dumps({"id": "odd", "instruction": "Count.", "task": {"goal": 1}} | row) + "\n"
    )
    made = task(tmp_path / "odd.jsonl", counters, judge={"kind": judge})
    with pytest.raises(DataError, match=message):
        made.problem("test", 0, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sources": []}, "at least 1"),
        ({"sources": [{"kind": "cloud"}]}, "no kind 'cloud' of sources; kinds: server, mcp, process"),
        ({"sources": [{"kind": "android-world"}]}, "comes with selfverify-android-world .*pip install"),
        ({"sources": [{"url": "http://x:1"}]}, "kind\n *Field required"),
        ({"sources": [{"kind": "mcp"}]}, "either a url or a command"),
        ({"sources": [{"kind": "server"}]}, "Field required"),
        ({"judge": {"kind": "state"}}, "say with done_from which"),
    ],
)
def test_settings_that_cannot_work(changed: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify.core.config.distributions", dict)
    with pytest.raises(ValidationError, match=message):
        EnvironmentAgentsConfig(**{"sources": [{"kind": "server", "url": "http://x:1"}], **changed})


class Submitting(Counter):
    """Has a tool of the same name as the one by which agents hand in."""

    @property
    def tools(self) -> Any:
        [first, *_] = super().tools
        return [first, first | {"function": first["function"] | {"name": "submit"}}]


def test_a_tool_that_is_called_as_the_agents_own_is_refused(files: Path, serving: Callable[..., str]) -> None:
    made = task(files, serving(counter=Submitting))
    with pytest.raises(ConfigError, match="two tools are called 'submit'"):
        made.check_files("test")
