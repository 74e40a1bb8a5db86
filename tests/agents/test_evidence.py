"""What agents and judges are told, what an agent may hand in, and what a judge is shown of it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from selfverify.agents.evidence import (
    EvidenceConfig,
    Exhibit,
    read_submission,
    shown_to_judge,
    submit_tool,
)
from selfverify.agents.judges.make_judge import agent_prompt, hint_names, judge_prompt
from selfverify.agents.tools import ScreenTools
from selfverify.core.episode import Call, PolicyTurn, StepResult
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish
from selfverify.tasks.tool_calls import CallForm, read_calls
from tables import yaml_cases

HISTORY = [Exhibit(None if n == 0 else Call("tap"), StepResult(n, f"screen {n}")) for n in range(5)]
SEEN = HISTORY[1:]
"""The screen after the reset was not shown."""


def rounds(evidences: Any) -> tuple[list[int], str]:
    arguments = {"message": "done", "evidences": evidences}
    message, chosen, fault = read_submission(arguments, SEEN, EvidenceConfig())
    assert message == "done"
    return [exhibit.seen.round for exhibit in chosen], fault


@yaml_cases
def test_improper_evidence_is_refused_and_never_repaired(evidences: Any, fault: str) -> None:
    assert rounds(evidences) == ([], fault)


@yaml_cases
def test_arguments_have_to_be_those_of_the_tool(arguments: dict[str, Any], fault: str) -> None:
    assert rounds([4, 1]) == ([1, 4], "")
    assert read_submission(arguments, SEEN, EvidenceConfig())[1:] == ([], fault)


def test_baselines_take_a_message_only() -> None:
    config = EvidenceConfig(source="all")
    assert read_submission({"message": "done"}, SEEN, config) == ("done", [], "")
    refused = read_submission({"message": "done", "evidences": [1]}, SEEN, config)
    assert refused == ("done", [], "submit has no argument 'evidences'")
    chosen = submit_tool("chosen")["function"]["parameters"]
    assert chosen["required"] == ["message", "evidences"] == [*chosen["properties"]]
    assert submit_tool("all")["function"]["parameters"]["required"] == ["message"]


@yaml_cases
def test_what_a_judge_is_shown(chosen: list[int], settings: dict[str, Any], shown: list[int]) -> None:
    found = shown_to_judge([HISTORY[n] for n in chosen], HISTORY, EvidenceConfig(**settings))
    assert [exhibit.seen.round for exhibit in found] == shown


def test_who_chooses_nothing_has_no_chosen_evidence() -> None:
    with pytest.raises(ValueError, match="with source=all the agent chooses nothing"):
        EvidenceConfig(source="all", judged="chosen")
    assert shown_to_judge([], [], EvidenceConfig(source="last")) == []


def test_hints_are_files() -> None:
    whole = judge_prompt(hint_names())
    assert all(word in whole for word in ("**Money.**", "**Alarms and timers.**", "**Fields.**"))
    assert "**Money.**" not in judge_prompt(["clock"]) and "**Money.**" in agent_prompt(hints=["money"])
    with pytest.raises(ConfigError, match="no hints 'weather'; hints: clock"):
        agent_prompt(hints=["weather"])


@pytest.mark.parametrize("form", ["tagged", "json"])
def test_the_examples_are_proper_calls(form: CallForm) -> None:
    """As the agent would have to write them, with words where there is room for them."""
    told = agent_prompt(react=form == "tagged", calls=form)
    assert told.startswith(agent_prompt(react=form == "tagged").rstrip())
    marks = {"tagged": r"<tool_call>.*?</tool_call>", "json": r"^\{.*\}$"}
    found = [read_calls(PolicyTurn(text, [], Finish.STOP, 0)) for text in
             re.findall(marks[form], told, re.DOTALL if form == "tagged" else re.MULTILINE)]  # fmt: skip
    [*calls, last] = [call for one in found for call in one.calls]
    assert len(calls) > 10 and last.name == "wait" and not any(one.error for one in found)
    for call in (*calls, last):
        if call.name == "submit":
            assert set(call.arguments) == {"message", "evidences"}
        else:
            ScreenTools().read(Call(call.name, call.arguments), (1080, 2400), {})


def test_judges_are_told_the_form_that_is_read() -> None:
    for tag in ("Reasoning", "ValidEvidence", "Verdict"):
        assert f"<{tag}>" in judge_prompt() and f"</{tag}>" in judge_prompt()
