"""The policy's words as a chat message, by the response template that its tokenizer may have."""

from __future__ import annotations

from typing import Any

from selfverify.core.problem import Problem
from selfverify.policy.chat import chat_text
from selfverify.policy.loading import Loaded

LONGEST = 100_000
"""Characters of a message that is read. The time that a template takes may grow faster than the text."""


def read_message(loaded: Loaded, text: str, tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the tokenizer's response template makes of the policy's words; see `PolicyTurn.message`.

    transformers reads a response behind its prompt, since a chat template may begin the message itself. The
    prompt given here is that of a harmless question: in the real one, an environment could have written
    what reads like the beginning of the policy's message, with a call in it.

    Args:
        loaded: The model with its tokenizer.
        text: The policy's words with the token that ended them, and nothing that another has written.
        tools: As in `Problem.tools`; arguments are cast to the types that they name.
    """
    template = getattr(loaded.tokenizer, "response_template", None)
    if template is None:
        return None
    if len(text) > LONGEST:
        return {"error": f"the message is longer than {LONGEST} characters"}
    prefix = chat_text(loaded, Problem("", [{"role": "user", "content": [{"type": "text", "text": "?"}]}]))
    try:
        return dict(loaded.tokenizer.parse_response(text, prefix=prefix, tools=tools or None))
    except Exception as error:
        # Templates name their own parsers, each of which raises as it likes on what a model writes.
        return {"error": f"the message cannot be read: {error}"[:500]}
