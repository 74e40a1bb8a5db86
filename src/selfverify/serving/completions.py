"""Make the completion, or its chunks, that a client gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from selfverify.selection.candidates import Candidate
from selfverify.serving.backend import Ask
from selfverify.serving.best_of import BestOf
from selfverify.serving.selecting import Selected, Selection, visible

_PIECE = re.compile(r"\s*\S+\s*")
_WORDS_PER_CHUNK = 4


def verification(selected: Selected, outcome: Selection) -> dict[str, Any]:
    """Return how sure an answer is, and why it was chosen."""
    choice = selected.choice
    return {
        "score": choice.score,
        "verifier": outcome.verifier,
        "confidence": choice.confidence,
        "probability": selected.probability,
        "votes": choice.votes,
        "samples": len(outcome.candidates),
        "answer": choice.answer,
        "candidate": choice.index,
        "strategy": choice.strategy,
        "reason": choice.reason,
        "abstained": selected.abstained,
    }


def summary(ask: Ask, outcome: Selection) -> dict[str, Any]:
    """Return the figures of the whole request, with all candidates if they were asked for."""
    found: dict[str, Any] = {
        "strategy": ask.best_of.strategy,
        "verifier": outcome.verifier,
        "samples_used": len(outcome.candidates),
        "samples_missing": outcome.missing,
        "stopped": outcome.stopped,
        "calibrated": outcome.calibrated,
        "calls": ask.usage.calls,
        "usage_complete": ask.usage.complete,
    }
    if ask.best_of.samples:
        found["samples"] = [
            candidate_json(i, reply) | {"text": reply.text, "finish_reason": reply.finish}
            for i, reply in enumerate(outcome.candidates)
        ]
    return found


def candidate_json(index: int, candidate: Candidate) -> dict[str, Any]:
    """Return a candidate without its text. Equal answers have the same ``key``; boxes have none."""
    return {
        "index": index,
        "answer": candidate.answer,
        "key": candidate.key,
        "score": candidate.score,
        "logprob": candidate.logprob,
        "tokens": candidate.tokens,
    }


def usage(ask: Ask, outcome: Selection) -> dict[str, Any]:
    """Return OpenAI's ``usage`` of the whole request."""
    return ask.usage.as_openai(sum(chosen.reply.tokens for chosen in outcome.selected))


def message(selected: Selected, settings: BestOf) -> dict[str, Any]:
    """Return the assistant's message. A withheld answer has a ``refusal`` instead of a content."""
    if selected.abstained:
        sure = selected.choice.confidence if selected.probability is None else selected.probability
        text = f"No answer is sure enough to be given (confidence {sure or 0.0:.2f})."
        return {"role": "assistant", "content": None, "refusal": text}
    found: dict[str, Any] = {"role": "assistant", "content": visible(selected, settings), "refusal": None}
    found |= selected.reply.rest
    if selected.reply.tool_calls:
        found["tool_calls"] = selected.reply.tool_calls
    if selected.reply.tool_calls or found["refusal"]:
        found["content"] = found["content"] or None
    return found


def completion(head: dict[str, Any], ask: Ask, outcome: Selection) -> dict[str, Any]:
    """Return a chat completion; ``head`` holds its id, time and model."""
    with_logprobs = bool(ask.body.get("logprobs"))
    return {
        **head,
        "object": "chat.completion",
        "choices": [
            {
                "index": i,
                "message": message(chosen, ask.best_of),
                "logprobs": {"content": chosen.reply.logprobs, "refusal": None} if with_logprobs else None,
                "finish_reason": chosen.reply.finish,
                "verification": verification(chosen, outcome),
            }
            for i, chosen in enumerate(outcome.selected)
        ],
        "usage": usage(ask, outcome),
        "best_of": summary(ask, outcome),
    }


def chunks(
    head: dict[str, Any], ask: Ask, outcome: Selection, include_usage: bool
) -> Iterator[dict[str, Any]]:
    """Yield a completion's chunks: of each answer its role, its text in pieces, its end and verification."""

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        found = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return found | {"usage": None} if include_usage else found

    with_logprobs = bool(ask.body.get("logprobs"))
    for i, chosen in enumerate(outcome.selected):
        said = message(chosen, ask.best_of)
        yield chunk(i, {"role": "assistant", "content": ""})
        rest = {k: v for k, v in said.items() if k not in ("role", "content", "refusal", "tool_calls")}
        if rest:
            yield chunk(i, rest)
        for piece in pieces(said["content"] or ""):
            yield chunk(i, {"content": piece})
        if said["refusal"]:
            yield chunk(i, {"refusal": said["refusal"]})
        if "tool_calls" in said:
            calls = [{"index": k, **call} for k, call in enumerate(said["tool_calls"])]
            yield chunk(i, {"tool_calls": calls})
        more: dict[str, Any] = {"verification": verification(chosen, outcome)}
        if with_logprobs:
            more["logprobs"] = {"content": chosen.reply.logprobs, "refusal": None}
        last = chunk(i, {}, finish_reason=chosen.reply.finish, **more)
        if i + 1 == len(outcome.selected):
            last["best_of"] = summary(ask, outcome)
        yield last
    if include_usage:
        yield {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage(ask, outcome)}


def pieces(text: str) -> Iterator[str]:
    """Yield a text in parts of a few words."""
    words = _PIECE.findall(text) or ([text] if text else [])
    for start in range(0, len(words), _WORDS_PER_CHUNK):
        yield "".join(words[start : start + _WORDS_PER_CHUNK])
