"""A problem's messages as the model's chat template writes them, and the token that ends an answer there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any

from jinja2 import TemplateSyntaxError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.message_content import content_parts
from selfverify.core.problem import Problem
from selfverify.policy.loading import Loaded
from selfverify.policy.reply_parts import without_surrogates

_ASKED = {"role": "user", "content": [{"type": "text", "text": "?"}]}
_ANSWER = "ANSWER"
_THOUGHT_END = re.compile(r"[<\[][^<>\[\]\n]{0,24}think[^<>\[\]\n]{0,24}[>\]]", re.IGNORECASE)
"""The last of these ends an assistant's thoughts: ``</think>``, ``[/THINK]``, ``<|END_THINKING|>``."""


class TemplateRefusal(DataError):
    """The chat template raises an error on the messages of a problem, or leaves words of them out.

    Args:
        problem_id: The problem's id.
        reason: What the template says, or leaves out.
    """

    def __init__(self, problem_id: str, reason: str) -> None:
        super().__init__(problem_id, reason)
        self.problem_id, self.reason = problem_id, reason

    def __str__(self) -> str:
        return (
            f"problem {self.problem_id}: the model's chat template does not take its messages: {self.reason}"
        )


def check_template(loaded: Loaded) -> None:
    """Refuse a model without a chat template, or with one that is no jinja template.

    Raises:
        ConfigError: It has none, or several of which none is the default, or one cannot be read.
    """
    tokenizer: Any = loaded.tokenizer
    remedy = f"put a right one into {tokenizer.name_or_path or 'its folder'} as chat_template.jinja"
    found = tokenizer.chat_template
    if not found:
        raise ConfigError(
            "policy.path: the model has no chat template, which makes prompts of messages; take one that was "
            f"tuned to chat, or {remedy}"
        )
    named = found if isinstance(found, dict) else {"default": found}
    if "default" not in named:
        raise ConfigError(
            f"policy.path: the model has the chat templates {', '.join(sorted(named))}, and none is called "
            f"default; {remedy}"
        )
    for name, template in named.items():
        try:
            tokenizer.apply_chat_template([_ASKED], chat_template=template, tokenize=False)
        except (TemplateSyntaxError, ImportError) as error:
            raise ConfigError(
                f"policy.path: the model's chat template {name!r} cannot be read: {error}; {remedy}"
            ) from error
        except Exception:
            # It takes other messages than this one: problems will tell.
            continue


def chat_text(loaded: Loaded, problem: Problem, begun: bool = True) -> str:
    """A problem's messages and tools as the chat template writes them.

    Templates of models that read images loop over the parts of a content, and many find none in a string;
    others take messages without images as strings only. What leaves words out is written in the other form.

    Args:
        loaded: The model with its tokenizer, which holds the template.
        problem: The problem.
        begun: Whether the policy's message is begun behind them.

    Raises:
        ConfigError: The problem has tools, and the chat template does not show them.
        DataError: A message is of no form that is known, or has a part that the model does not read.
        TemplateRefusal: The template raises an error, or leaves out words of the messages.
    """
    family, model = loaded.family, loaded.model

    def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
        try:
            text: str = loaded.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=begun, **loaded.template_options
            )
        except Exception as error:
            # Templates raise whatever their authors chose, and jinja its own errors.
            raise TemplateRefusal(problem.id, str(error) or type(error).__name__) from error
        text = without_surrogates(text)
        _check_shown(problem, text)
        for message in messages:
            parts = message.get("content")
            if isinstance(parts, list) and parts and any(form in text for form in _as_lists(parts)):
                raise TemplateRefusal(problem.id, f"it writes parts as they are in Python: {str(parts)[:80]}")
        return text

    tools = problem.tools or None
    if family.placeholder(model) is None and family.shares_prompts:
        messages = text_only(problem)
        text = rendered(messages, tools)
    else:
        messages = _in_parts(problem)
        try:
            text = rendered(messages, tools)
        except TemplateRefusal as error:
            messages = [_as_string(message) for message in messages]
            try:
                text = rendered(messages, tools)
            except TemplateRefusal:
                raise error from None
    if tools:
        try:
            shown = text != rendered(messages, None)
        except TemplateRefusal:
            shown = True
        if not shown:
            raise ConfigError(
                f"problem {problem.id}: the model's chat template does not show tools; describe them in the "
                "problem's messages and leave Problem.tools empty, or take a model whose template shows them"
            )
    return text


def text_only(problem: Problem) -> list[dict[str, Any]]:
    """Return the messages with plain strings as contents, which templates of text-only models need.

    Raises:
        DataError: A message is of no form that is known, or has a part that is no text.
    """
    messages = []
    for message in checked_messages(problem):
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


def _in_parts(problem: Problem) -> list[dict[str, Any]]:
    """Return the messages with lists of parts as contents.

    Raises:
        DataError: A message is of no form that is known, or has a part that is neither text nor image.
    """
    messages = []
    for message in checked_messages(problem):
        if (content := message.get("content")) is not None:
            parts = content_parts(content)
            if unknown := {part["type"] for part in parts} - {"text", "image"}:
                raise DataError(
                    f"problem {problem.id}: a message has a part of type {min(unknown)!r}, "
                    "but the model reads text and images only"
                )
            message = {**message, "content": parts}
        messages.append(message)
    return messages


def _as_lists(parts: list[dict[str, Any]]) -> tuple[str, str]:
    """Parts as templates for strings write them, which know no better."""
    return str(parts), json.dumps(parts, ensure_ascii=False, default=str)


def _as_string(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is a string, unless it shows an image."""
    parts = message.get("content")
    if parts is None or any(part["type"] != "text" for part in parts):
        return message
    return {**message, "content": "".join(part["text"] for part in parts)}


def checked_messages(problem: Problem) -> list[dict[str, Any]]:
    """Return the messages.

    Raises:
        DataError: One is no message in the Hugging Face form.
    """
    for message in problem.messages:
        if not _is_message(message):
            raise DataError(
                f"problem {problem.id}: a message is {str(message)[:100]}; it has to have a role, and as "
                "content a text or a list of {'type': 'text', 'text': ...} and {'type': 'image'}"
            )
    return problem.messages


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return False
    content = message.get("content")
    if not isinstance(content, list):
        return content is None or isinstance(content, str)
    return all(
        isinstance(part, dict)
        and isinstance(part.get("type"), str)
        and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in content
    )


def _check_shown(problem: Problem, text: str) -> None:
    """Refuse what a chat template has written if it leaves out words of a problem's messages.

    White space may differ, words may stand as JSON, and an assistant's thoughts and what it says beside calls
    may be left out, as many templates do.

    Raises:
        TemplateRefusal: Words are missing.
    """
    for message in problem.messages:
        role = message["role"]
        if role == "assistant" and message.get("tool_calls"):
            continue
        for said in content_texts(message.get("content")):
            if said.strip() not in text and not _is_written(said, role == "assistant", text):
                reason = f"it leaves the message out in which the {role} says {said.strip()[:60]!r}"
                raise TemplateRefusal(problem.id, f"{reason}; say it as another role, or mend the template")


def content_texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content."""
    for part in [] if content is None else content_parts(content):
        if part.get("type") == "text":
            yield part["text"]


def _is_written(said: str, by_assistant: bool, text: str) -> bool:
    """Whether words stand in a text in another form than their own; see `_check_shown`."""
    said = without_surrogates(said)
    if by_assistant:
        said = said[max((found.end() for found in _THOUGHT_END.finditer(said)), default=0) :]
    whole = " ".join(text.split())
    forms = (said, json.dumps(said, ensure_ascii=False)[1:-1], json.dumps(said)[1:-1])
    return any(" ".join(form.split()) in whole for form in forms)


def turn_end(loaded: Loaded, stops: AbstractSet[int]) -> int:
    """Return the token that ends the policy's turn where one is demonstrated.

    It is the first token that the chat template writes behind an answer, if the policy stops at it: a
    conversation that goes on then reads as the template writes it. Some templates write that token only once
    somebody else speaks. Where there is none it is the tokenizer's own end token.

    Args:
        loaded: The model with its tokenizer.
        stops: The tokens that end a response (`Policy.stop_tokens`).

    Raises:
        ConfigError: There is no end token either.
    """
    answered = [_ASKED, {"role": "assistant", "content": [{"type": "text", "text": _ANSWER}]}]
    for messages in (answered, [*answered, _ASKED]):
        try:
            _, answer, behind = chat_text(loaded, Problem("", messages), begun=False).rpartition(_ANSWER)
        except TemplateRefusal:
            continue
        ids = loaded.tokenizer(behind, add_special_tokens=False)["input_ids"] if answer else []
        if ids and ids[0] in stops:
            return int(ids[0])
    if loaded.tokenizer.eos_token_id is None:
        raise ConfigError(
            "policy.path: nothing ends a turn: the tokenizer has no eos_token, and the chat template writes "
            "no stop token (generation_config.json: eos_token_id) behind an answer"
        )
    return int(loaded.tokenizer.eos_token_id)
