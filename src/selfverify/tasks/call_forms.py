"""How calls of tools are written out, in the forms that `read_calls` reads."""

from __future__ import annotations

import json
from typing import Literal

from selfverify.core.environment import Call

CallForm = Literal["tagged", "json"]
"""How calls are written: between ``<tool_call>`` tags with words before them, or as plain JSON alone."""


def written_call(call: Call, form: CallForm, why: str = "") -> str:
    """A message with one call.

    Args:
        call: The call.
        form: How it is written.
        why: Words before it; plain JSON leaves no room for them.
    """
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    if form == "json":
        return body
    return f"{why}\n<tool_call>\n{body}\n</tool_call>" if why else f"<tool_call>\n{body}\n</tool_call>"
