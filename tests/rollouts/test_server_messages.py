"""A server's calls of tools as conversations read them."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.rollouts.server_sampler import ServerMessages
from selfverify.tasks.base import user_turn
from selfverify.tasks.tool_calls import ToolCalls, read_calls
from tables import yaml_cases


def called(function: Any) -> ToolCalls:
    """What a call of this function is read as."""
    messages = ServerMessages(Problem("p", user_turn("Look.", 0), []))
    return read_calls(messages.said("", [{"id": "a", "function": function}], Finish.STOP))


@pytest.mark.parametrize("arguments", [None, "", " \n", "{}", {}])
def test_arguments_that_are_not_there_are_none(arguments: Any) -> None:
    [call] = called({"name": "get_current_xml", "arguments": arguments}).calls
    assert (call.name, call.arguments) == ("get_current_xml", {})
    [call] = called({"name": "get_current_xml"}).calls
    assert call.arguments == {}


@yaml_cases
def test_what_is_no_call_says_why(function: Any, why: str) -> None:
    assert why in called(function).error
