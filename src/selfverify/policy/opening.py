"""Prompts behind which the environment speaks first.

What it shows may differ between the samples of a group, so that it is no part of the prompt that they share.
Such a prompt ends before the chat template begins the policy's message. What is shown follows as a message of
its own or, where a template takes no two messages of users in a row, as the end of the user's message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.core.problem import BETWEEN, Problem, content_parts
from selfverify.policy.chat import TemplateRefusal, chat_text
from selfverify.policy.loading import Loaded

_MARK = "SHOWNFIRST"
_MARKED = [{"type": "text", "text": _MARK}]


@dataclass(frozen=True, slots=True)
class Opening:
    """How the conversations about a problem are opened.

    Args:
        prompt: The text of the prompt.
        continues: Whether what is shown first continues the user's message.
    """

    prompt: str
    continues: bool

    def rest(
        self, loaded: Loaded, problem: Problem, role: str, parts: Sequence[dict[str, Any]]
    ) -> str | None:
        """What the template writes behind the prompt, up to where the policy begins.

        Args:
            loaded: The model with its template.
            problem: The problem that is opened.
            role: Who shows something.
            parts: What is shown; nothing where a conversation is opened without.

        Returns:
            The text; None where the template changes what stands before it.
        """
        if not self.continues:
            shown = [{"role": role, "content": list(parts)}] if parts else []
            whole = chat_text(loaded, replace(problem, messages=[*problem.messages, *shown]))
            return whole.removeprefix(self.prompt) if whole.startswith(self.prompt) else None
        if role != "user":
            return None
        whole = chat_text(loaded, _continued(problem, parts or _MARKED))
        if not whole.startswith(self.prompt):
            return None
        rest = whole.removeprefix(self.prompt)
        return BETWEEN + rest if parts else rest.removeprefix(_MARK)


def find_opening(loaded: Loaded, problem: Problem) -> Opening:
    """How the chat template lets the environment speak first.

    Raises:
        ConfigError: It does not.
        DataError: A message has a part that is no text, and the model reads nothing else; or the template
            refuses the problem's own messages.
    """
    reasons = []
    for continues in (False, True):
        try:
            opening = _opening(loaded, problem, continues)
        except TemplateRefusal as error:
            reasons.append(error.reason)
        else:
            if opening is not None:
                return opening
            reasons.append("it writes other text before what is shown")
    chat_text(loaded, problem)  # what it refuses of every conversation is this problem's fault
    raise ConfigError(
        f"problem {problem.id}: with the model's chat template the environment cannot speak first. As a "
        f"message of its own: {reasons[0]}. At the end of the user's message: {reasons[1]}"
    )


def _opening(loaded: Loaded, problem: Problem, continues: bool) -> Opening | None:
    """An opening of one kind; None where the template does not append what is shown."""
    if not continues:
        prompt = chat_text(loaded, problem, begun=False)
        opening = Opening(prompt, continues)
        return opening if _MARK in (opening.rest(loaded, problem, "user", _MARKED) or "") else None
    if not problem.messages or problem.messages[-1]["role"] != "user":
        raise TemplateRefusal(problem.id, "the last message is not a user's")
    prompt, marked, _ = chat_text(loaded, _continued(problem, _MARKED)).partition(_MARK)
    return Opening(prompt, continues) if marked else None


def _continued(problem: Problem, parts: Sequence[dict[str, Any]]) -> Problem:
    """The problem with ``parts`` at the end of its last message."""
    *before, last = problem.messages
    content = [*content_parts(last["content"]), *parts]
    return replace(problem, messages=[*before, {**last, "content": content}])
