"""One conversation with a server, in which its model looks at images again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from selfverify.clients.openai_client import ServerConfig, Usage, estimated_tokens
from selfverify.clients.replies import Completion, read_text
from selfverify.core.problem import Problem
from selfverify.rollouts.server_sampler import AwaitedSpeaker, ServerSpeaker, hold
from selfverify.serving.free_question import FreeQuestion
from selfverify.serving.heard_speaker import HeardSpeaker
from selfverify.serving.told_looks import OnStep, ToldLooks
from selfverify.tasks.answering import Verdict
from selfverify.visual.episode import VisualEpisode
from selfverify.visual.task import VisualToolTask

AT_ONCE = 8
"""Conversations that are held with a server at the same time."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A conversation with a server that is over.

    Args:
        reply: Its answer.
        judged: The verdict on the answer.
        steps: What it looked at.
        last: What the model said last.
    """

    reply: Completion
    judged: Verdict
    steps: Sequence[Mapping[str, Any]]
    last: str


def look_once(
    looking: VisualToolTask,
    asked: Problem,
    server: ServerConfig,
    fields: dict[str, Any],
    lock: Lock,
    over: Callable[[], bool] = lambda: False,
    tell: OnStep | None = None,
    usage: Usage | None = None,
) -> Looked:
    """Hold one conversation.

    Args:
        looking: How the model looks.
        asked: The question, as `VisualToolTask.asked` has returned it.
        server: Where the model is.
        fields: The other fields of its requests.
        lock: Held while a verifier listens.
        over: Whether nobody waits for it any more; it then breaks off before the next turn.
        tell: Told of each step.
        usage: Counts what it costs, turn by turn.

    Raises:
        DataError: An image cannot be looked at.
        ServerError: The server cannot be reached or refuses, or nobody waits.
    """
    look, speaker = looking.look(asked), ServerSpeaker(asked, server, fields, usage)
    try:
        with lock:  # the first conversation loads the verifier
            listener = looking.hook()
        heard = speaker if listener is None else HeardSpeaker(speaker, listener, asked, lock)
        held = look if tell is None else ToldLooks(look, tell)
        ending = hold(held, AwaitedSpeaker(heard, over), looking.limits.turns)
        steps = [turn for turn in ending.turns if isinstance(turn, dict)]
    finally:
        look.release()
    written = [message["content"] for message in speaker.messages if message["role"] == "assistant"]
    text = "\n\n".join(part for part in written if part)
    judged, answered = ending.parsed, written[-1] if written else ""
    answer, key, score = judged.answer, judged.key, ending.scores.get("sampled")
    if answer is None and isinstance(looking.inner, FreeQuestion) and not _is_step(look, answered):
        # A model that was never taught the tags answers in plain words.
        answer, key, score = read_text(answered, looking.inner.answers)
    reply = Completion(answer, key, score, tokens=estimated_tokens(text), text=text)
    return Looked(reply, judged, steps, answered)


def _is_step(look: VisualEpisode, text: str) -> bool:
    """Whether the model's last words are a step, so that it has not answered."""
    return bool(look.steps) and look.last_said == text
