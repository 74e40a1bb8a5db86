"""Reads a model's turn when it looks: its plan, and the one call in any of the forms that models know."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.tasks.tool_calls import is_attempted, json_at, read_calls, thoughts_end, without_thoughts

_VTS = re.compile(r'\{\s*"(?:thought|action_name|action)"\s*:')
_TAG = re.compile(r"<think>|<tool_call>")
THOUGHT = re.compile(r'\{\s*"thought"\s*:\s*')
_SOURCE = re.compile(r"original_image|observation_([0-9]{1,3})")
_GROUNDING, _GROUNDED = "<grounding>", "</grounding>"
_TERSE = re.compile(r"\s*([a-z_]{1,40}) ([0-9]{1,4}) ([0-9]{1,4}) ([0-9]{1,4}) ([0-9]{1,4}) ([0-9]{1,4})\s*")
_RENAMED = {"bbox_2d": "bounding_box", "bbox": "bounding_box", "target_image": "image_index"}
"""Arguments of other models' tools by ours."""
TERSE = "tool, image and box behind the thought, and nothing else: crop 1 0 0 3 3"
_VTS_FORM = '{"thought": ..., "action_name": ..., "action": {...}}'
_NAMED = re.compile(r'"name"\s*:\s*"([^"\\\n]{1,60})"\s*,\s*"(?:arguments|parameters)"\s*:')
_OBJECT = re.compile(
    r"""\{\s*['"]?(?:thought|action|action_name|tool|tool_name|function|function_call)['"]?\s*:""",
    re.IGNORECASE,
)
_MEANT = r"""
    \b(?:action_name|image_ind(?:ex|ices)|final_response|tool_calls?)\b    # words of the schemas of calls
    | ^\W*(?:{names})\W*$ | \A\W*terminate\b                            # crop; terminate 5
    | \b(?:{names})\b[^\n]{{0,60}}?\d+(?:[^\w\n]{{1,4}}\d+){{3}}  # crop 1 8 8 24
    | \b(?:{names})\(\s*\w+\s*,                                          # crop(image, box)
    | \b(?:tool|function)\ call\W{{0,3}}:                               # Tool call: crop
"""
"""Further marks of a call than `is_attempted` knows, for tools of these ``names``."""


@dataclass(frozen=True, slots=True)
class VisualCall:
    """The request of one turn.

    Args:
        call: The call; None where none can be read.
        error: The fault in words for the model; empty where nothing is.
        action_start: The character at which the plan (the paper's t_h) ends and the action (a_h) begins.
    """

    call: Call | None = None
    error: str = ""
    action_start: int = 0


class _BrokenLook(Exception):
    """A text was meant as a call and is none; the message says why."""


def read_look_call(
    said: PolicyTurn,
    tools: Sequence[Mapping[str, Any]] = (),
    questions: int = 1,
    names: Collection[str] = (),
    form: str = "",
) -> VisualCall:
    """The call in a turn. Nothing raises on what a model writes, and JSON is strict.

    Beside the forms of `read_calls` these are known, outside of ``<think>...</think>``:

    - VTS-V: ``{"thought": ..., "action_name": ..., "action": {...}}``, with or without words or a fence
      around it. The plan ends where the text of ``thought`` ends; in all other forms where the call begins.
    - Mini-o3: ``<grounding>{"bbox_2d": [...], "source": "original_image" | "observation_2"}</grounding>``, a
      crop of the question's first image, or of the image that was shown second after the question's
    - terse, ``crop 1 0 0 3 3``: tool, image and box, for small models; it is the whole message

    Words that were meant as a call in yet another form, such as Python's or ``Action: crop(...)``, are an
    error: the model has not answered. They are taken for an answer where they end with its tag.

    Args:
        said: The model's turn.
        tools: See `read_calls`; a call with name and arguments behind words may also be of any other tool.
        questions: How many images the question has.
        names: The names of the tools, by which attempts to call them are known.
        form: How the model was taught to write calls, which it is told again; by default JSON, as VTS-V's or
            as that of ``tools``.
    """
    json_form = '{"name": ..., "arguments": {...}}' if tools else _VTS_FORM
    try:
        found = _in_other_forms(said.text, questions) if said.message is None else None
        if found is None:
            read = read_calls(said, [*tools, *({"name": name} for name in set(_NAMED.findall(said.text)))])
            start = max(said.text.find("<tool_call>"), 0) if read.start is None else read.start
            if read.error:
                return VisualCall(error=read.error, action_start=start)
            if len(read.calls) > 1:
                raise _BrokenLook(f"{len(read.calls)} calls in one message, and there may be one")
            if not read.calls:
                return VisualCall(error=_attempted(said.text, names, form or f"strict JSON, {json_form}"))
            found = read.calls[0], start
    except (_BrokenLook, ValueError) as error:
        return VisualCall(error=f"the call cannot be read: {error}")
    call, start = found
    if said.finish != Finish.STOP:
        return VisualCall(error="the call was cut off", action_start=start)
    try:
        return VisualCall(Call(call.name, _renamed(call.arguments, questions)), action_start=start)
    except _BrokenLook as error:
        return VisualCall(error=f"the call cannot be read: {error}", action_start=start)


def _attempted(text: str, names: Collection[str], form: str) -> str:
    """Why words without a call that can be read are no answer; empty where they do not look like one."""
    words = without_thoughts(text)
    if _OBJECT.search(words) is None and not is_attempted(words, names, _MEANT):
        return ""
    return f"this looks like a call, and it cannot be read; a call is {form}"


def _in_other_forms(text: str, questions: int) -> tuple[Call, int] | None:
    """The call in a form that `read_calls` does not know, and where the action begins; None without one."""
    begin = thoughts_end(text)
    vts, tag = _VTS.search(text, begin), _TAG.search(text, begin)
    if vts is not None and (tag is None or vts.start() < tag.start()):  # else a tag in its thought hides it
        return _vts(text, vts.start())
    if tag is not None:
        return None
    if (terse := _TERSE.fullmatch(text, begin)) is not None:
        image, *box = (int(number) for number in terse.groups()[1:])
        return Call(terse[1], {"image_index": image, "bounding_box": box}), begin
    if (start := text.find(_GROUNDING, begin)) >= 0:
        return _grounding(text, start, questions), start
    return None


def _vts(text: str, start: int) -> tuple[Call, int]:
    """The call whose object begins at ``start``; the action begins behind the thought."""
    value, end = json_at(text, start)
    if _VTS.search(text, end):
        raise _BrokenLook("there is more than one call in the message, and there may be one")
    if not isinstance(value.get("action_name"), str) or not value["action_name"]:
        raise _BrokenLook("it has no action_name")
    arguments = value.get("action", {})
    if not isinstance(arguments, dict):
        raise _BrokenLook("its action is no JSON object")
    if extra := value.keys() - {"thought", "action_name", "action"}:
        raise _BrokenLook(f"it has an unknown key {min(extra)[:60]!r}")
    if not isinstance(value.get("thought", ""), str):
        raise _BrokenLook("its thought is no text")
    first = THOUGHT.match(text, start)
    action = start if first is None else json_at(text, first.end())[1]
    return Call(value["action_name"], arguments), action


def _grounding(text: str, start: int, questions: int) -> Call:
    """Mini-o3's call whose tag begins at ``start``."""
    value, end = json_at(text, start + len(_GROUNDING))
    if not text[end:].lstrip().startswith(_GROUNDED):
        raise _BrokenLook(f"{_GROUNDED} is missing")
    if text.count(_GROUNDING) > 1:
        raise _BrokenLook("there is more than one call in the message, and there may be one")
    if not isinstance(value, dict) or value.keys() != {"bbox_2d", "source"}:
        raise _BrokenLook("it needs bbox_2d and source, and nothing else")
    source = _SOURCE.fullmatch(value["source"]) if isinstance(value["source"], str) else None
    if source is None:
        raise _BrokenLook("its source is neither original_image nor observation_ with a number")
    number = 1 if source.group(1) is None else questions + int(source.group(1))
    return Call("crop", {"image_index": number, "bounding_box": value["bbox_2d"]})


def _renamed(arguments: Mapping[str, Any], questions: int) -> dict[str, Any]:
    """Arguments by our names. DeepEyes' box has a label, which changes nothing, and means the first image.

    Qwen3-VL counts the question's images from 0 (``img_idx``), and looks into no others.
    """
    if not _RENAMED.keys() & arguments.keys():
        return dict(arguments)
    found = {_RENAMED.get(key, key): value for key, value in arguments.items() if key != "label"}
    if "img_idx" in found:
        number = str(found.pop("img_idx")).removesuffix(".0")
        if number not in map(str, range(questions)):
            raise _BrokenLook(f"img_idx is {number[:20]}; the question's images are 0 to {questions - 1}")
        found["image_index"] = int(number) + 1
    return {"image_index": 1} | found
