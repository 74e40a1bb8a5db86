"""Make the completion, or its chunks, that a client gets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from selfverify.clients.replies import Completion
from selfverify.selection.rules import Candidate
from selfverify.serving.backend import AnswerRequest
from selfverify.serving.best_of import BestOf
from selfverify.serving.selecting import Selected, Selection, visible
from selfverify.serving.streaming import EventStream

_PIECE = re.compile(r"(?:\s*\S+\s*){1,4}")
"""Up to four words with the spaces around them."""


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


def summary(ask: AnswerRequest, outcome: Selection) -> dict[str, Any]:
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


def progress(stream: EventStream, settings: BestOf, index: int, candidate: Completion) -> None:
    """Tell a stream of a candidate."""
    if settings.progress == "events":
        about = {name: candidate.about[name] for name in {"conversation"} & candidate.about.keys()}
        stream.put_event(candidate_json(index, candidate) | about | {"of": settings.n}, "candidate")
    else:
        score = "none" if candidate.score is None else f"{candidate.score:.3f}"
        stream.put_comment(f"candidate {index + 1} of {settings.n}, score {score}")


def message(selected: Selected, settings: BestOf) -> dict[str, Any]:
    """Return the assistant's message. A withheld answer has a ``refusal`` instead of a content."""
    if selected.abstained:
        sure = selected.choice.confidence if selected.probability is None else selected.probability
        known = "unknown" if sure is None else f"{sure:.2f}"
        text = f"No answer is sure enough to be given (confidence {known})."
        return {
            "role": "assistant",
            "content": text if settings.refusal == "content" else None,
            "refusal": text,
        }
    found: dict[str, Any] = {"role": "assistant", "content": visible(selected, settings), "refusal": None}
    found |= selected.reply.rest
    if selected.reply.tool_calls:
        found["tool_calls"] = selected.reply.tool_calls
    if selected.reply.tool_calls or found["refusal"]:
        found["content"] = found["content"] or None
    return found


def logprobs(selected: Selected, settings: BestOf) -> dict[str, Any] | None:
    """Return the log-probabilities of the text that is returned; None if that is none that was written."""
    reply, text = selected.reply, visible(selected, settings)
    start = reply.text.find(text)
    if selected.abstained or start < 0 or (settings.content == "answer" and text != reply.text):
        return None
    place, found = 0, []
    for entry in reply.logprobs:
        token = str(entry.get("token", ""))
        if start < place + len(token) and place < start + len(text):
            found.append(entry)
        place += len(token)
    return {"content": found, "refusal": None}


def completion(head: dict[str, Any], ask: AnswerRequest, outcome: Selection) -> dict[str, Any]:
    """Return a chat completion; ``head`` holds its id, time and model.

    What else the server said of the best answer, of its choice and of its reply, is passed on.
    """
    with_logprobs = bool(ask.body.get("logprobs"))
    return {
        **outcome.selected[0].reply.head,
        **head,
        "object": "chat.completion",
        "choices": [
            {
                **chosen.reply.about,
                "index": i,
                "message": message(chosen, ask.best_of),
                "logprobs": logprobs(chosen, ask.best_of) if with_logprobs else None,
                "finish_reason": "stop" if chosen.abstained else chosen.reply.finish,
                "verification": verification(chosen, outcome),
            }
            for i, chosen in enumerate(outcome.selected)
        ],
        "usage": ask.usage.as_openai(sum(chosen.reply.tokens for chosen in outcome.selected)),
        "best_of": summary(ask, outcome),
    }


def piece_of(head: dict[str, Any], delta: dict[str, Any], include_usage: bool) -> dict[str, Any]:
    """Return a chunk of the first answer before its end; ``head`` is that of `completion`."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
    return chunk | ({"usage": None} if include_usage else {})


def chunks(whole: dict[str, Any], include_usage: bool, sent: int = 0) -> Iterator[dict[str, Any]]:
    """Yield a completion in chunks: of each answer its role, its text in pieces, its end and verification.

    ``sent`` characters of the first answer, and its role, have been sent before.
    """
    own = ("choices", "usage", "best_of")
    head = {name: whole[name] for name in whole if name not in own} | {"object": "chat.completion.chunk"}
    bare = {"logprobs": None, "finish_reason": None}

    def chunk(choice: dict[str, Any]) -> dict[str, Any]:
        return {**head, "choices": [choice]} | ({"usage": None} if include_usage else {})

    for choice in whole["choices"]:
        index, said = choice["index"], choice["message"]
        rest = {k: v for k, v in said.items() if k not in ("role", "content", "refusal", "tool_calls")}
        calls = [{**call, "index": k} for k, call in enumerate(said.get("tool_calls", ()))]
        known = sent if index == 0 else 0
        deltas = [
            {} if known else {"role": "assistant", "content": ""},
            rest,
            *({"content": piece} for piece in pieces((said["content"] or "")[known:])),
            {"refusal": said["refusal"]} if said["refusal"] else {},
            {"tool_calls": calls} if calls else {},
        ]
        for delta in filter(None, deltas):
            yield chunk({"index": index, "delta": delta, **bare})
        last = chunk({name: choice[name] for name in choice if name != "message"} | {"delta": {}})
        yield last | ({"best_of": whole["best_of"]} if choice is whole["choices"][-1] else {})
    if include_usage:
        yield {**head, "choices": [], "usage": whole["usage"]}


def pieces(text: str) -> list[str]:
    """Return a text in parts of a few words, which together are the text."""
    return _PIECE.findall(text) or ([text] if text else [])


def figures(ask: AnswerRequest, outcome: Selection) -> dict[str, str]:
    """Return a completion's figures as headers."""
    best = outcome.selected[0]
    sure = {"score": best.choice.score, "confidence": best.choice.confidence, "probability": best.probability}
    return {
        "x-best-of-samples": str(len(outcome.candidates)),
        "x-best-of-stopped": outcome.stopped,
        **{f"x-best-of-{name}": f"{value:.4f}" for name, value in sure.items() if value is not None},
        "x-best-of-abstained": str(best.abstained).lower(),
        "x-best-of-calls": str(ask.usage.calls),
    }
