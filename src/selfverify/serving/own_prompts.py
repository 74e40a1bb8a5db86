"""The prompt of a request to an own model, which may go on from a message that is begun."""

from __future__ import annotations

from dataclasses import replace

from selfverify.core.problem import Problem
from selfverify.policy.chat import TooLongError
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.serving.api_errors import invalid_value


def own_prompt(policy: Policy, problem: Problem, goes_on: bool) -> Prompt:
    """Return the encoded messages.

    Args:
        policy: Goes on from them.
        problem: Has the messages.
        goes_on: Whether the last message is the policy's own beginning of its answer, rather than an answer
            that is over.

    Raises:
        ApiError: The beginning is no text.
        DataError: The messages cannot be encoded.
        TooLongError: They are longer than the model's context.
    """
    if not goes_on:
        return policy.encode([problem])[0]
    *before, last = problem.messages
    name = f"messages.{len(before)}"
    if last["role"] != "assistant" or not before:
        text = "continue_final_message: the last of several messages has to be the assistant's"
        raise invalid_value(f"{name}.role", text)
    if any(part["type"] != "text" for part in last["content"]):
        raise invalid_value(f"{name}.content", "continue_final_message: a message that goes on is text")
    [prompt] = policy.encode([replace(problem, messages=before)])
    begun = "".join(part["text"] for part in last["content"])
    where, limit = f"problem {problem.id}: {name}.content", longest_row(policy.model)
    tokens = policy.encoder.words(begun, where)
    if limit is not None and (total := len(prompt.ids) + len(tokens)) >= limit:
        raise TooLongError(f"{where}: its prompt takes {total} tokens and the model reads {limit}")
    return policy.encoder.extended(prompt, Continuation(tokens)) if tokens else prompt
