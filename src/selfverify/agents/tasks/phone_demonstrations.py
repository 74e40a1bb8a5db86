"""What an expert would say on the phone, turn by turn, with the smallest evidence at the end."""

from __future__ import annotations

import json
from typing import Any, Literal

from selfverify.agents import background
from selfverify.agents.evidence import SUBMIT, Source
from selfverify.agents.exhibits import Exhibit
from selfverify.agents.goals import minimal_evidence
from selfverify.agents.phone.expert import carry_out
from selfverify.agents.phone.phone_environment import PhoneEnvironment, PhoneOptions
from selfverify.agents.phone.phone_tasks import PhoneTask
from selfverify.core.environment import Call
from selfverify.core.errors import DataError
from selfverify.tasks.base import ShownTurn

CallForm = Literal["tagged", "json"]
"""How calls are written: between ``<tool_call>`` tags with words before them, or as plain JSON alone."""


def demonstrated(
    task: PhoneTask, options: PhoneOptions, source: Source, react: bool, form: CallForm
) -> list[ShownTurn]:
    """The expert's turns: its way to the goal, its way to evidence, and the submission.

    Args:
        task: What is to be done.
        options: How the phone is shown and touched.
        source: Whose evidence is judged; the expert chooses where the agent does.
        react: Whether a reason stands before each call.
        form: How calls are written.

    Raises:
        DataError: No evidence proves what the expert has done.
    """
    phone = task.phone()
    calls = [Call("get_current_xml")] * (options.first_screen == "asked")
    calls += carry_out(phone, task.solve, options.address) + carry_out(phone, task.prove, options.address)
    arguments: dict[str, Any] = {"message": task.message}
    shown: list[str] = []
    if source == "chosen":
        seen = _carried_out(task, options, calls)
        rounds = minimal_evidence(seen, task.goal, task.message)
        if rounds is None:
            raise DataError(f"phone: nothing proves what the expert does in {task.template}/{task.seed}")
        arguments["evidences"] = [*rounds]
        shown = [f"round {number}" for number in rounds]
    last = f"Proven by {' and '.join(shown)}." if shown else "It is done."
    said = [(_reason(call), call) for call in calls] + [(last, Call(SUBMIT, arguments))]
    return [ShownTurn(_written(why if react else "", call, form)) for why, call in said]


def _carried_out(task: PhoneTask, options: PhoneOptions, calls: list[Call]) -> list[Exhibit]:
    """What the agent is shown of these calls."""
    phone = PhoneEnvironment(options)
    first = background.finish_inline(phone.reset({"task": task.record()}, 0))
    seen = [Exhibit(None, first)] if options.first_screen == "given" else []
    return seen + [Exhibit(call, background.finish_inline(phone.act(call))) for call in calls]


def _written(why: str, call: Call, form: CallForm) -> str:
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    if form == "json":
        return body
    return f"{why}\n<tool_call>\n{body}\n</tool_call>" if why else f"<tool_call>\n{body}\n</tool_call>"


def _reason(call: Call) -> str:
    """A few words before a call, which say what it is for."""
    match call.name, call.arguments:
        case "get_current_xml", _:
            return "First I look at the screen."
        case "launch", {"app": app}:
            return f"I open {app}."
        case "tap", {"id": thing}:
            return f"I tap {thing}."
        case "long_press", {"id": thing}:
            return f"I hold {thing}."
        case "type", {"text_input": text}:
            return f"I type {text}."
        case "swipe", {"direction": direction}:
            return f"I swipe {direction} to see more."
        case "back", _:
            return "I go back."
    return f"I call {call.name}."
