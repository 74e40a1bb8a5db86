"""`selfverify solve --look` with a server: several conversations in which its model looks again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.looking.look_episode import LookEpisode
from selfverify.looking.looking_task import LookingTask
from selfverify.remote.client import ServerSettings
from selfverify.remote.server_replies import Completion, read_text
from selfverify.remote.usage import estimated_tokens
from selfverify.selection.calibration import Calibration
from selfverify.selection.choose import choose
from selfverify.serving.agent_speakers import OnServer, hold
from selfverify.serving.asking import only_model
from selfverify.serving.free_question import FreeQuestion
from selfverify.serving.heard_speaker import HeardSpeaker
from selfverify.serving.selecting import Selection, use_of, with_probability
from selfverify.serving.solve import OnCandidate, Solution
from selfverify.serving.solve_settings import SolveSettings
from selfverify.tasks.answering import AnswerOnce
from selfverify.tasks.base import Task
from selfverify.tasks.judged import Judged

AT_ONCE = 8
"""Conversations that are held with a server at the same time."""


@dataclass(frozen=True, slots=True)
class Looked:
    """A conversation with a server that is over.

    Args:
        reply: Its answer.
        judged: The verdict on the answer.
        steps: What it looked at.
    """

    reply: Completion
    judged: Judged
    steps: Sequence[Mapping[str, Any]]


def look_on_server(
    settings: SolveSettings, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Hold conversations with a server's model, and choose one of their answers.

    Args:
        settings: The server, how it looks, how the answer is chosen. Each conversation has a seed of its own,
            which some servers ignore.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate, in order.

    Raises:
        ConfigError: The server has several models and none is named, or a tool is not available here.
        DataError: An image cannot be looked at.
        ServerError: The server cannot be reached or refuses.
    """
    begun = time.perf_counter()
    answerer, choosing = settings.answerer, settings.choosing
    if answerer.server is None:
        raise ConfigError("there is no server to ask")
    server = ServerSettings(answerer.server, timeout_s=answerer.timeout)
    fields = {
        "model": answerer.model or only_model(server),
        "temperature": settings.drawing.temperature,
        "top_p": settings.drawing.top_p,
        "max_tokens": settings.drawing.max_new_tokens,
    }
    looking = LookingTask(task, settings.looking.settings())
    asked = looking.asked(problem)

    lock = Lock()

    def one(number: int) -> Looked:
        return _looked(looking, asked, server, fields | {"seed": settings.drawing.seed + number}, lock)

    found: list[Looked] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for looked in pool.map(one, range(choosing.n)):
            found.append(looked)
            if on_candidate:
                on_candidate(looked.reply)
    replies = [looked.reply for looked in found]
    choice = choose(replies, choosing.strategy, choosing.options)
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    if calibration is not None and calibration.misfit(use_of(choosing, "inline")):
        calibration = None
    selected = with_probability(choice, replies[choice.index], calibration)
    selection = Selection([selected], list(replies), "samples", 0, "inline", calibration is not None)
    correct = found[choice.index].judged.correct if task.judges else None
    tokens = sum(reply.tokens for reply in replies)
    return Solution.of(selection, tokens, begun, correct, [looked.steps for looked in found])


def _looked(
    looking: LookingTask, asked: Problem, server: ServerSettings, fields: dict[str, Any], lock: Lock
) -> Looked:
    """One conversation; ``lock`` is held while a verifier listens to it."""
    episode: AnswerOnce = looking.look(asked)
    assert isinstance(episode, LookEpisode)
    look, speaker = episode, OnServer(asked, server, fields)
    try:
        with lock:  # the first conversation loads the verifier
            listener = looking.listener()
        heard = speaker if listener is None else HeardSpeaker(speaker, listener, asked, lock)
        ending = hold(look, heard, looking.limits.turns)
        steps = [turn for turn in ending.turns if isinstance(turn, dict)]
        if look.dropped is not None:
            episode = AnswerOnce(look.dropped, looking.tags, looking.verdict)
            speaker = OnServer(look.dropped, server, fields)
            ending = hold(episode, speaker, 1)
    finally:
        look.close()
    written = [message["content"] for message in speaker.messages if message["role"] == "assistant"]
    text = "\n\n".join(part for part in written if part)
    judged, answered = ending.parsed, written[-1] if written else ""
    answer, key, score = judged.answer, judged.key, ending.scores.get("sampled")
    if answer is None and isinstance(looking.inner, FreeQuestion) and not _is_step(look, answered):
        # A model that was never taught the tags answers in plain words.
        answer, key, score = read_text(answered, looking.inner.answers)
    reply = Completion(answer, key, score, tokens=estimated_tokens(text), text=text)
    return Looked(reply, judged, steps)


def _is_step(look: LookEpisode, text: str) -> bool:
    """Whether the model's last words are a step, so that it has not answered."""
    return look.dropped is None and bool(look.steps) and look.last_said == text
