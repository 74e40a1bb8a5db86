"""What goes back to a client: a completion, or its chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from selfverify.selection.candidates import Candidate
from selfverify.serving.protocol import BestOf
from selfverify.serving.selecting import Ask, Outcome, Selected, visible

_PIECE = re.compile(r"\s*\S+\s*")
_WORDS_PER_CHUNK = 4


def verification(selected: Selected, outcome: Outcome) -> dict[str, Any]:
    """How sure an answer is, and why it was chosen."""
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


def summary(ask: Ask, outcome: Outcome) -> dict[str, Any]:
    """About the whole request; with all candidates if they are asked for."""
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
            candidate_json(i, candidate) | {"text": reply.text, "finish_reason": reply.finish}
            for i, (candidate, reply) in enumerate(zip(outcome.candidates, outcome.replies, strict=True))
        ]
    return found


def candidate_json(index: int, candidate: Candidate) -> dict[str, Any]:
    """One candidate, without its text. Those with the same ``key`` gave the same answer; boxes have none."""
    return {
        "index": index,
        "answer": candidate.answer,
        "key": candidate.key,
        "score": candidate.score,
        "logprob": candidate.logprob,
        "tokens": candidate.tokens,
    }


def usage(ask: Ask, outcome: Outcome) -> dict[str, Any]:
    """OpenAI's ``usage`` of the whole request."""
    return ask.usage.as_openai(sum(chosen.reply.tokens for chosen in outcome.selected))


def message(selected: Selected, settings: BestOf) -> dict[str, Any]:
    """The assistant's message. One that is withheld has a ``refusal`` instead of a content."""
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


def completion(head: dict[str, Any], ask: Ask, outcome: Outcome) -> dict[str, Any]:
    """A chat completion; ``head`` holds id, time and model."""
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


def chunks(head: dict[str, Any], ask: Ask, outcome: Outcome, include_usage: bool) -> Iterator[dict[str, Any]]:
    """The same as a stream: for each answer its role, its text in pieces, how it ended and was verified."""

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
    """A text in parts of a few words, which together are the text."""
    words = _PIECE.findall(text) or ([text] if text else [])
    for start in range(0, len(words), _WORDS_PER_CHUNK):
        yield "".join(words[start : start + _WORDS_PER_CHUNK])
