"""The prompt of a request to an own model, which may go on from a message that is begun."""

from __future__ import annotations

from dataclasses import replace

from selfverify.core.problem import Problem
from selfverify.policy.continuations import Continuation
from selfverify.policy.encoding import Prompt
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
        ApiError: The beginning is no text, or spells an image.
        DataError: The messages cannot be encoded.
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
    tokens = policy.tokenizer(begun, add_special_tokens=False)["input_ids"]
    if policy.loaded.family.placeholder(policy.model) in tokens:
        raise invalid_value(f"{name}.content", "the text contains the image token")
    return policy.encoder.extended(prompt, Continuation(tokens)) if tokens else prompt
