"""`solve` by a server: one question, with answers, judges and looks of a model behind an address."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.clients.replies import Reader, Reading, read_text
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, openai_messages
from selfverify.core.tags import parse_tagged
from selfverify.selection.calibration import Calibration
from selfverify.selection.strategies import choose
from selfverify.serving.backend import (
    AnswerRequest,
    FreeQuestion,
    Selection,
    check_verifier,
    select,
    use_of,
    with_probability,
)
from selfverify.serving.config import BestOfConfig, SolveConfig
from selfverify.serving.solve import OnCandidate, Solution
from selfverify.serving.upstream import Upstream
from selfverify.serving.visual import AT_ONCE, Looked, look_once
from selfverify.tasks.base import Task, Verdict
from selfverify.visual.task import VisualToolTask


def solve_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Draw candidates from a server and choose one, as `solve` does with a policy.

    Args:
        settings: The server, and how the answer is chosen. The seed is sent with the request, but some
            servers ignore it.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate when it is there.

    Raises:
        ConfigError: The server has several models and none is named, or servers do not have the verifier.
        ServerError: The server gave no candidate at all.
    """

    def judged(text: str) -> Verdict:
        return task.verdict(problem, parse_tagged(text, task.tags))

    def read(text: str) -> Reading:
        if isinstance(task, FreeQuestion):
            return read_text(text, task.answers)
        found = judged(text)
        key = None if task.kind == "continuous" else found.key
        return Reading(found.answer, key, read_text(text).score)

    begun = time.perf_counter()
    ask, found = asyncio.run(_ask(settings, problem, read, on_candidate))
    [best] = found.selected
    correct = judged(best.reply.text).correct if task.judges else None
    tokens = ask.usage.candidate_tokens + ask.usage.verification_tokens
    return Solution.of(found, tokens, begun, correct)


def only_model(server: ServerConfig) -> str:
    """The name of a server's only model.

    Raises:
        ConfigError: It has several, or none.
        ServerError: It cannot be reached.
    """

    async def ask() -> str:
        async with OpenAIClient(server) as client:
            return await _only_model(client)

    return asyncio.run(ask())


def look_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
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
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    fields = {
        "model": answerer.model or only_model(server),
        "temperature": settings.drawing.temperature,
        "top_p": settings.drawing.top_p,
        "max_tokens": settings.drawing.max_new_tokens,
    }
    looking = VisualToolTask(task, settings.looking.settings())
    asked = looking.asked(problem)

    lock = Lock()

    def one(number: int) -> Looked:
        return look_once(looking, asked, server, fields | {"seed": settings.drawing.seed + number}, lock)

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


async def _ask(
    settings: SolveConfig, problem: Problem, read: Reader, on_candidate: OnCandidate | None
) -> tuple[AnswerRequest, Selection]:
    """Ask the server; return the question with what it cost, and what was found."""
    answerer, drawing, choosing = settings.answerer, settings.drawing, settings.choosing
    assert answerer.server is not None
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    async with Upstream(OpenAIClient(server)) as backend:
        check_verifier(backend, choosing.verifier, calibration)
        model = answerer.model or await _only_model(backend.client)
        body = {
            "model": model,
            "messages": openai_messages(problem),
            "temperature": drawing.temperature,
            "top_p": drawing.top_p,
            "max_tokens": drawing.max_new_tokens,
            "seed": drawing.seed,
        }
        best_of = BestOfConfig.model_validate(choosing.model_dump(exclude={"calibration"}))
        deadline = asyncio.get_running_loop().time() + answerer.timeout
        ask = AnswerRequest(body, [], best_of, deadline, streams=True)
        tell = None if on_candidate is None else lambda place, candidate: on_candidate(candidate)
        return ask, await select(backend, ask, calibration=calibration, tell=tell, read=read)


async def _only_model(client: OpenAIClient) -> str:
    names = [str(model["id"]) for model in await client.models()]
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"which model is meant? {client.settings.url} has: {known}; name one")
    return names[0]
