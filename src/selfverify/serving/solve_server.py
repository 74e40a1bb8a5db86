"""`solve` by a server: one question, with answers, judges and looks of a model behind an address."""

from __future__ import annotations

import asyncio
import time

from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.clients.replies import Reading, read_text
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, openai_messages
from selfverify.core.tags import parse_tagged
from selfverify.selection.calibration import Calibration
from selfverify.serving.backend import AnswerRequest, FreeQuestion, check_choosing, select
from selfverify.serving.config import BestOfConfig, SolveConfig
from selfverify.serving.schemas import ApiError, take_images
from selfverify.serving.solve import OnCandidate, Solution
from selfverify.serving.upstream import Upstream
from selfverify.tasks.base import Task, Verdict
from selfverify.visual.task import VisualToolTask

MOST_PIXELS = 200_000_000
"""The most pixels that a question's images have together where a server's model looks at them again."""


def solve_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Draw candidates from a server and choose one, as `solve` does with a policy.

    With ``--look`` each candidate is a conversation in which the model looks again.

    Args:
        settings: The server, and how the answer is chosen. The seed is sent with the request, but some
            servers ignore it.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate when it is there.

    Raises:
        ConfigError: The server has several models and none is named, servers do not have the verifier, or an
            image cannot be looked at.
        ServerError: The server gave no candidate at all.
    """
    try:
        return asyncio.run(_solve(settings, task, problem, on_candidate))
    except ApiError as error:
        raise ConfigError(str(error)) from None


async def _solve(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None
) -> Solution:
    def judged(text: str) -> Verdict:
        return task.verdict(problem, parse_tagged(text, task.tags))

    def read(text: str) -> Reading:
        if isinstance(task, FreeQuestion):
            return read_text(text, task.answers)
        found = judged(text)
        key = None if task.kind == "continuous" else found.key
        return Reading(found.answer, key, read_text(text).score)

    begun, answerer = time.perf_counter(), settings.answerer
    drawing, choosing = settings.drawing, settings.choosing
    assert answerer.server is not None
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    async with Upstream(OpenAIClient(server)) as backend:
        messages = openai_messages(problem)
        body = {
            "model": answerer.model or await _only_model(backend.client),
            "messages": messages,
            "temperature": drawing.temperature,
            "top_p": drawing.top_p,
            "max_tokens": drawing.max_new_tokens,
            "seed": drawing.seed,
        }
        looks = settings.looking.look
        own = {"verifier": "inline"} if looks else {}  # candidates that look have the score that they write
        best_of = BestOfConfig.model_validate(choosing.model_dump(exclude={"calibration"}) | own)
        check_choosing(backend, best_of, calibration)
        deadline = asyncio.get_running_loop().time() + answerer.timeout
        ask = AnswerRequest(body, [], best_of, deadline, streams=True)
        if looks:
            ask.look = VisualToolTask(FreeQuestion(choosing.answers), settings.looking.settings())
            ask.pictures = await take_images(messages, MOST_PIXELS)
        tell = None if on_candidate is None else lambda place, candidate: on_candidate(candidate)
        found = await select(backend, ask, calibration=calibration, tell=tell, read=read)
    [best] = found.selected
    correct = judged(best.reply.text).correct if task.judges else None
    tokens = ask.usage.candidate_tokens + ask.usage.verification_tokens
    return Solution.of(found, tokens, begun, correct)


async def _only_model(client: OpenAIClient) -> str:
    names = [str(model["id"]) for model in await client.models()]
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"which model is meant? {client.settings.url} has: {known}; name one")
    return names[0]
