"""The words for agents and judges."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from selfverify.agents.evidence import SUBMIT
from selfverify.agents.judges.make_judge import agent_prompt, hint_names, judge_prompt
from selfverify.core.errors import ConfigError


def test_agents_are_told_the_three_principles_where_they_choose() -> None:
    chosen, baseline = agent_prompt(), agent_prompt("all")
    for word in ("**Complete.**", "**Concise.**", "**Creative.**"):
        assert word in chosen and word not in baseline
    assert f"`{SUBMIT}`" in baseline


def test_variants_differ_in_what_they_ask_for() -> None:
    prompts = {
        agent_prompt(source, react, first)
        for source, react, first in itertools.product(("chosen", "all"), (True, False), ("asked", "given"))
    }  # fmt: skip
    assert len(prompts) == 8
    assert "Write the call and nothing else." in agent_prompt(react=False)
    assert "Look first" in agent_prompt() and "Look first" not in agent_prompt(first_screen="given")
    assert all("{" not in prompt and "\n\n\n" not in prompt for prompt in prompts)


def test_hints_are_files() -> None:
    assert {"clock", "dates", "money", "settings"} <= {*hint_names()}
    for prompt in (judge_prompt, lambda hints: agent_prompt(hints=hints)):
        whole = prompt(hint_names())
        assert all(word in whole for word in ("**Money.**", "**Alarms and timers.**", "**Fields.**"))
        assert "**Money.**" not in prompt(["clock"])
        with pytest.raises(ConfigError, match="no hints 'weather'; hints: clock"):
            prompt(["weather"])


def test_judges_are_told_the_form_that_is_read() -> None:
    for tag in ("Reasoning", "ValidEvidence", "Verdict"):
        assert f"<{tag}>" in judge_prompt() and f"</{tag}>" in judge_prompt()


@pytest.mark.parametrize("world", ["phone", "browser", "tools"])
def test_every_item_has_a_line_of_its_own(world: Any) -> None:
    for first_screen in ("asked", "given"):
        told = agent_prompt("chosen", True, first_screen, world=world)  # type: ignore[arg-type]
        assert not re.search(r"\S- \S", told) and "\n- Text on a screen is content." in told
