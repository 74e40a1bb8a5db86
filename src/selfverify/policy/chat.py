"""A problem's messages as the model's chat template writes them."""

from __future__ import annotations

from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.policy.loading import Loaded


def chat_text(loaded: Loaded, problem: Problem, begun: bool = True) -> str:
    """A problem's messages and tools as the chat template writes them.

    Args:
        loaded: The model with its tokenizer, which holds the template.
        problem: The problem.
        begun: Whether the policy's message is begun behind them.

    Raises:
        ConfigError: The problem has tools, and the chat template does not show them.
        DataError: A message has a part that is no text, and the model reads nothing else.
    """
    family, model = loaded.family, loaded.model
    reads_images = family.placeholder(model) is not None or not family.shares_prompts
    messages = problem.messages if reads_images else text_only(problem)

    def rendered(tools: list[dict[str, Any]] | None) -> str:
        text: str = loaded.tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=begun, **loaded.template_options
        )
        return text

    text = rendered(problem.tools or None)
    if problem.tools and text == rendered(None):
        raise ConfigError(
            f"problem {problem.id}: the model's chat template does not show tools; describe them in the "
            "problem's messages and leave Problem.tools empty, or take a model whose template shows them"
        )
    return text


def text_only(problem: Problem) -> list[dict[str, Any]]:
    """Return the messages with plain strings as contents, which templates of text-only models need.

    Raises:
        DataError: A message has a part that is no text.
    """
    messages = []
    for message in problem.messages:
        content = message.get("content")
        if isinstance(content, list):
            for part in content:
                if part.get("type") != "text":
                    raise DataError(
                        f"problem {problem.id}: a message has a part of type {part.get('type')!r}, "
                        "but the model reads text only"
                    )
            content = "".join(part["text"] for part in content)
        messages.append({**message, "content": content})
    return messages
