"""How a question tells a model that it may look again, and how an unfinished conversation is asked anew."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from PIL.Image import Image

from selfverify.core.problem import Problem
from selfverify.looking.tools.toolbox import Toolbox
from selfverify.tasks.base import Space

Part = dict[str, Any]
"""A part of a message in the Hugging Face form."""

_FORM = (
    "You may look at the images again with tools before you answer. Each turn is one JSON object and "
    'nothing else: {"thought": what you want to find out, "action_name": the name of a tool, "action": its '
    "arguments}. What the tool finds is shown to you, and you go on. The images have the numbers 1, 2, ... "
    "in the order in which they are shown. "
)


def with_tools(problem: Problem, toolbox: Toolbox, space: Space, calls: str) -> Problem:
    """A problem that says which tools there are.

    Args:
        problem: The question.
        toolbox: The tools; those that are not available here are not named.
        space: How the model writes places.
        calls: ``template``: the chat template shows the tools. ``vts``: the question describes them, and
            VTS-V's form of calls.
    """
    if calls == "template":
        return replace(problem, tools=toolbox.schemas())
    listed = [
        {key: tool["function"][key] for key in ("name", "description", "parameters")}
        for tool in toolbox.schemas()
    ]
    lines = [json.dumps(tool, ensure_ascii=False) for tool in listed]
    places = f"Boxes are [x_min, y_min, x_max, y_max] in {words_for(space)}. The tools are:"
    return replace(problem, messages=_told(problem.messages, "\n\n" + "\n".join([_FORM + places, *lines])))


def words_for(space: Space) -> str:
    """How places are written, in words."""
    sides = space((640, 480))
    if sides == (1, 1):
        return "fractions of an image's width and height, from 0 to 1"
    if sides == (1000, 1000):
        return "thousandths of an image's width and height, from 0 to 1000"
    return "pixels of the image"


def asked_anew(
    problem: Problem, turns: Sequence[tuple[str, Sequence[Part], Sequence[Image]]], role: str, words: str
) -> Problem:
    """The problem that a conversation up to some step is, with ``words`` behind what was shown last.

    Args:
        problem: What was asked.
        turns: What the model has said in each step, and what it was shown: parts and images.
        role: Who showed it.
        words: What the model is told now; empty for nothing.
    """
    messages, images = deepcopy(problem.messages), list(problem.images)
    for text, parts, shown in turns:
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": role, "content": [dict(part) for part in parts]})
        images += shown
    return replace(problem, messages=_told(messages, f"\n{words}") if words else messages, images=images)


def _told(messages: Sequence[dict[str, Any]], words: str) -> list[dict[str, Any]]:
    """Messages with ``words`` at the end of the last one."""
    last = dict(messages[-1])
    content = last["content"]
    if isinstance(content, str):
        last["content"] = content + words
    else:
        last["content"] = [*content, {"type": "text", "text": words}]
    return [*messages[:-1], last]
