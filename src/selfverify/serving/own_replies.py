"""What an own policy has said, as the completion of a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from selfverify.clients.replies import Completion
from selfverify.core.trajectory import TURN_1, Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.score_reading import answer_logprob
from selfverify.tasks.base import Verdict
from selfverify.visual.episode import steps_of

if TYPE_CHECKING:
    from selfverify.serving.completions import Likeliest


def reply_of(trajectory: Trajectory, verifier: str, continuous: bool = False) -> Completion:
    """Return a judged trajectory as a candidate, with the score that ``verifier`` gave it.

    Args:
        trajectory: The trajectory, judged by its task.
        verifier: The name of the verifier.
        continuous: Whether answers are boxes, which have no keys.
    """
    judged: Verdict | None = trajectory.parsed
    first: Verdict | None = next((s.parsed for s in trajectory.segments if s.channel == TURN_1), None)
    return Completion(
        answer=judged.answer if judged else None,
        key=None if judged is None or continuous else judged.key,
        score=trajectory.scores.get(verifier),
        logprob=answer_logprob(trajectory),
        tokens=trajectory.written,
        text=trajectory.text,
        first=first.answer if first else None,
        finish=str(trajectory.finish),
    )


def looked_completion(policy: Policy, trajectory: Trajectory, verifier: str, number: int) -> Completion:
    """Return a conversation with visual tools as a candidate: its last turn, and as ``looks`` its steps.

    Args:
        policy: Wrote it.
        trajectory: The conversation.
        verifier: The name of the verifier.
        number: The conversation's number in the request.
    """
    reply = reply_of(trajectory, verifier)
    own = [segment for segment in trajectory.segments if segment.author == "policy"]
    tokens = [token for segment in own if segment.turn == own[-1].turn for token in segment.tokens]
    told = tokens[:-1] if reply.finish == "stop" else tokens
    reply.text = policy.tokenizer.decode(told, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    reply.about = {"looks": steps_of(trajectory), "conversation": number}
    return reply


def completion_of(
    policy: Policy,
    trajectory: Trajectory,
    likeliest: Likeliest,
    verifier: str,
    stops: Sequence[str],
    with_logprobs: bool,
) -> Completion:
    """Return a trajectory of one turn as a chat completion: without its end token, cut at the first stop.

    Args:
        policy: Wrote it.
        trajectory: The turn.
        likeliest: The alternatives of its tokens; empty where they are not known.
        verifier: The name of the verifier.
        stops: Texts before which the answer ends.
        with_logprobs: Whether the log-probabilities of its tokens are wanted.
    """
    reply, decode = reply_of(trajectory, verifier), policy.tokenizer.decode
    told = trajectory.tokens[:-1] if reply.finish == "stop" else trajectory.tokens
    reply.text = decode(told, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    places = [place for stop in stops if stop and (place := reply.text.find(stop)) >= 0]
    if places:
        reply.text, reply.finish = reply.text[: min(places)], "stop"
    if with_logprobs:
        drawn, shown = zip(told, trajectory.logprobs, strict=False), likeliest or [[] for _ in told]
        reply.logprobs = [
            _entry(decode, token, value) | {"top_logprobs": [_entry(decode, *other) for other in others]}
            for (token, value), others in zip(drawn, shown, strict=False)
        ]
    return reply


def _entry(decode: Callable[[list[int]], str], token: int, logprob: float) -> dict[str, Any]:
    piece = decode([token])
    return {"token": piece, "logprob": logprob, "bytes": list(piece.encode())}
