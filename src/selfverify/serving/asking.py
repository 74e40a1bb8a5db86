"""`selfverify solve` with a server: one question is asked the way the gateway asks."""

from __future__ import annotations

import asyncio
import time

from selfverify.clients.openai_client import OpenAIClient, ServerConfig, openai_messages
from selfverify.clients.replies import Reader, Reading, read_text
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.selection.calibration import Calibration
from selfverify.serving.backend import AnswerRequest
from selfverify.serving.best_of import BestOf
from selfverify.serving.free_question import FreeQuestion
from selfverify.serving.selecting import Selection, check_verifier, select
from selfverify.serving.solve import OnCandidate, Solution
from selfverify.serving.solve_settings import SolveConfig
from selfverify.serving.upstream import Upstream
from selfverify.tasks.base import Task, Verdict


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
        best_of = BestOf.model_validate(choosing.model_dump(exclude={"calibration"}))
        deadline = asyncio.get_running_loop().time() + answerer.timeout
        ask = AnswerRequest(body, [], best_of, deadline, streams=True)
        tell = None if on_candidate is None else lambda place, candidate: on_candidate(candidate)
        return ask, await select(backend, ask, calibration=calibration, tell=tell, read=read)


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


async def _only_model(client: OpenAIClient) -> str:
    names = [str(model["id"]) for model in await client.models()]
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"which model is meant? {client.settings.url} has: {known}; say --model NAME")
    return names[0]
