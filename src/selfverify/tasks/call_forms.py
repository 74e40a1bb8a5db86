"""How calls of tools are written out, in the forms that `read_calls` reads."""

from __future__ import annotations

import json
from typing import Literal

from selfverify.core.episode import Call

CallForm = Literal["tagged", "json", "spaced"]
"""How calls are written: between ``<tool_call>`` tags with words before them, as plain JSON alone, or as
plain JSON whose texts begin with a space, so that a word is the same token in a call as in what was read."""


def written_call(call: Call, form: CallForm, why: str = "") -> str:
    """A message with one call.

    Args:
        call: The call.
        form: How it is written.
        why: Words before it; plain JSON leaves no room for them.
    """
    arguments = dict(call.arguments)
    if form == "spaced":
        arguments = {key: f" {text}" if isinstance(text, str) else text for key, text in arguments.items()}
    body = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    if form != "tagged":
        return body
    return f"{why}\n<tool_call>\n{body}\n</tool_call>" if why else f"<tool_call>\n{body}\n</tool_call>"
