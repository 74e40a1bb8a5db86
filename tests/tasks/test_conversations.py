"""The task `conversations`: pairs of what was said before and the next turn, drawn and learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.agents.word_policy import two_steps, word_policy
from tests.data.test_tool_conversations import SAID, TOOLS

from selfverify.core.errors import DataError
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.sft import ConversationSFT
from selfverify.tasks.conversations import Conversations

CALL = '<tool_call>\n{"name": "tap", "arguments": {"id": "f"}}\n</tool_call>'


def write(path: Path, count: int = 5, **more: Any) -> Path:
    rows = [{"id": f"c{n}", "messages": SAID, "tools": TOOLS, **more} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def task(path: Path, **options: Any) -> Conversations:
    made = make_task("conversations", **{"train": str(path), "test": str(path), **options})
    assert isinstance(made, Conversations)
    return made


def test_each_turn_is_a_problem(tmp_path: Path) -> None:
    made = task(write(tmp_path / "a.jsonl"))
    assert made.count("train") == made.count("test") == 10
    first, second = made.problem("test", 0, 0), made.problem("test", 0, 1)
    assert (first.id, second.id) == ("conversations/test/a/c0/turn-1", "conversations/test/a/c0/turn-2")
    assert [m["role"] for m in second.messages] == ["system", "user"] and second.tools == TOOLS
    turns = made.demonstrate_turns(second, np.random.default_rng(0))
    assert [(turn.text, turn.taught) for turn in turns] == [
        (f"I tap the field.\n{CALL}", False),
        ('<tool_call>\n{"name": "type", "arguments": {"text_input": "it"}}\n</tool_call>', True),
    ]
    assert [turn.taught for turn in made.demonstrate_turns(first, np.random.default_rng(0))] == [True]
    with pytest.raises(DataError, match="the test data make 10 problems, not 11"):
        made.problem("test", 0, 10)


def test_training_shuffles_and_draws_by_the_seed(tmp_path: Path) -> None:
    made = task(write(tmp_path / "a.jsonl"), sample=4)
    assert made.count("train") == 4 and made.count("test") == 10
    drawn = [made.problem("train", 3, n).id for n in range(8)]
    assert len({*drawn[:4]}) == 4 and {id + "/pass-2" for id in drawn[:4]} == {*drawn[4:]}
    assert drawn == [task(tmp_path / "a.jsonl", sample=4).problem("train", 3, n).id for n in range(8)]
    others = {frozenset(made.problem("train", seed, n).id for n in range(4)) for seed in range(6)}
    assert len(others) > 1
    assert {*drawn[:4]} == {made.numbered("train", 3, n).id for n in range(4)}


def test_whole_conversations_and_last_turns(tmp_path: Path) -> None:
    whole = task(write(tmp_path / "a.jsonl"), learn="conversations")
    assert whole.count("train") == 5 and whole.problem("test", 0, 2).id == "conversations/test/a/c2"
    shown = whole.demonstrate_turns(whole.problem("test", 0, 0), np.random.default_rng(0))
    assert [turn.taught for turn in shown] == [True, True]
    for learn in ("turns", "conversations"):
        last = task(write(tmp_path / "b.jsonl", taught="last"), learn=learn)
        shown = last.demonstrate_turns(last.problem("test", 0, 0), np.random.default_rng(0))
        assert last.count("train") == 5 and [turn.taught for turn in shown] == [False, True]


@pytest.mark.parametrize(("form", "id"), [("json", "f"), ("spaced", " f")])
def test_calls_as_json_leave_no_words(tmp_path: Path, form: str, id: str) -> None:
    made = task(write(tmp_path / "a.jsonl"), calls=form)
    shown = made.demonstrate_turns(made.problem("test", 0, 1), np.random.default_rng(0))
    assert shown[0].text == json.dumps({"name": "tap", "arguments": {"id": id}})


@pytest.mark.parametrize("learn", ["turns", "conversations"])
def test_two_steps_of_fine_tuning(tmp_path: Path, learn: str) -> None:
    """What is taught is learnt, behind what was said and replied as it stands."""
    made = task(write(tmp_path / "a.jsonl"), learn=learn)
    policy = word_policy(tmp_path / "model", [CALL, json.dumps(SAID)])()
    method = make_method("conversations-sft")
    assert isinstance(method, ConversationSFT)
    problem = made.problem("test", 0, 0 if learn == "conversations" else 1)
    [group] = method.rollout(policy, made, [problem], [0], None).groups  # type: ignore[arg-type]
    [told] = group.trajectories
    channels = [(s.channel, s.author) for s in told.segments]
    first = "action" if learn == "conversations" else "context"
    assert channels == [(first, "policy"), ("observation", "environment"), ("action", "policy")]
    assert "## Round 1\nA field." in told.segments[1].text and "<|tool|>" in told.segments[1].text
    lines = two_steps(policy, made, "conversations-sft", tmp_path)
    assert len(lines) == 2 and lines[0]["loss"] > lines[1]["loss"] > 0
