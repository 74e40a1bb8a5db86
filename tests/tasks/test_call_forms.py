"""Calls as they are written out."""

from __future__ import annotations

import json

import pytest

from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.tasks.tool_calls import CallForm, read_calls, written_call

CALL = Call("submit", {"message": "Done.", "evidences": [1, 3]})


@pytest.mark.parametrize("form", ["tagged", "json"])
def test_what_is_written_is_read_again(form: CallForm) -> None:
    (read,) = read_calls(PolicyTurn(written_call(CALL, form), [], Finish.STOP, 0)).calls
    assert (read.name, read.arguments) == (CALL.name, CALL.arguments)


def test_spaced_texts_begin_with_a_space_and_nothing_else_changes() -> None:
    written = json.loads(written_call(CALL, "spaced"))
    assert written == {"name": "submit", "arguments": {"message": " Done.", "evidences": [1, 3]}}
