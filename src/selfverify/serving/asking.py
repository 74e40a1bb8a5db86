"""`selfverify solve` on a server: the gateway's way of asking, for one question."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from selfverify.errors import ConfigError
from selfverify.policy.config import SamplingConfig
from selfverify.remote.client import OpenAIClient, ServerSettings
from selfverify.remote.messages import openai_messages
from selfverify.remote.replies import Reply, candidate_of
from selfverify.rollouts.single_turn import verdict
from selfverify.rollouts.tags import parse_tagged
from selfverify.rollouts.types import Problem
from selfverify.selection.calibration import Calibration
from selfverify.selection.candidates import Candidate
from selfverify.serving.errors import ApiError
from selfverify.serving.protocol import BestOf
from selfverify.serving.selecting import Ask, select
from selfverify.serving.upstream import Upstream
from selfverify.solve import FreeQuestion, Solution
from selfverify.tasks import Task


def solve_on_server(
    server: ServerSettings,
    model: str | None,
    task: Task | FreeQuestion,
    problem: Problem,
    settings: BestOf,
    *,
    sampling: SamplingConfig,
    seed: int = 0,
    calibration: Calibration | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
) -> Solution:
    """Draw candidates from a server and choose one; as `selfverify.solve.solve` does with a policy.

    Args:
        server: Which.
        model: As the server calls it; None takes the only one it has.
        task: Reads the answers, and says which are the same.
        problem: The question.
        settings: How to choose.
        sampling: Temperature, top-p and length.
        seed: Sent with the request; not every server heeds it.
        calibration: Turns the choice's confidence into a probability.
        on_candidate: Called with each candidate when it is there.

    Raises:
        ConfigError: Several models and no name, or a verifier that servers do not have.
        ServerError: The server gave no candidate at all.
    """

    def read(reply: Reply, verifier: str) -> Candidate:
        if isinstance(task, FreeQuestion):
            return candidate_of(reply, verifier, task.answers)
        judged = verdict(task, problem, parse_tagged(reply.text, task.tags))
        key = None if task.kind == "continuous" else judged.key
        return replace(candidate_of(reply, verifier), answer=judged.answer, key=key)

    async def main() -> Solution:
        begun = time.perf_counter()
        async with OpenAIClient(server) as client:
            name = model or await _only_model(client)
            body = {
                "model": name,
                "messages": openai_messages(problem),
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_new_tokens,
                "seed": seed,
            }
            deadline = asyncio.get_running_loop().time() + server.timeout_s
            ask = Ask(name, body, [], settings, deadline, streams=True)
            backend = Upstream(client)
            try:
                backend.check(ask)
            except ApiError as error:
                raise ConfigError(str(error).replace("best_of.", "--")) from None

            def tell(place: int, candidate: Candidate) -> None:
                if on_candidate:
                    on_candidate(candidate)

            found = await select(backend, ask, 1, calibration, tell, read)
        [best] = found.selected
        correct = None
        own = best.choice.answer == found.candidates[best.choice.index].answer  # not a consensus of several
        if own and not isinstance(task, FreeQuestion):
            correct = verdict(task, problem, parse_tagged(best.reply.text, task.tags)).correct
        return Solution(
            choice=best.choice,
            candidates=found.candidates,
            stopped=found.stopped,
            probability=best.probability,
            abstained=best.abstained or best.choice.answer is None,
            verifier=found.verifier,
            tokens=ask.usage.candidate_tokens + ask.usage.verification_tokens,
            seconds=time.perf_counter() - begun,
            correct=correct,
        )

    return asyncio.run(main())


async def _only_model(client: OpenAIClient) -> str:
    names = [str(model["id"]) for model in await client.models()]
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"which model is meant? {client.base} has: {known}; say --model NAME")
    return names[0]
