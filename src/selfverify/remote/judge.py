"""A model behind a server as judge: a turn of its own asks it whether an answer is right."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.core.errors import ServerError
from selfverify.core.tags import RATE, parse_score
from selfverify.remote.client import OpenAIClient
from selfverify.remote.growing import read_choices
from selfverify.remote.score_shares import soft_score
from selfverify.remote.server_replies import last_score
from selfverify.remote.usage import Usage

logger = logging.getLogger(__name__)

Messages = Sequence[Mapping[str, Any]]
"""A question in OpenAI's form."""

MAX_TOKENS = 64
"""A rating is a few tokens; models that go on are cut off."""

AT_ONCE = 32
"""The most ratings that wait for the server at the same time."""


async def rate(
    client: OpenAIClient, model: str, messages: Messages, answer: str, usage: Usage
) -> float | None:
    """Return the score of an answer, None where the judge wrote none.

    The score is the expectation over the score's tokens if the server shows their probabilities, and
    otherwise the number that the judge wrote at temperature 0.

    Args:
        client: The server's client.
        model: The judge's name on the server.
        messages: The question.
        answer: The answer, without a score of its own.
        usage: Counts what the call costs.

    Raises:
        ServerError: The server failed.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            *messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": RATE},
        ],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
    }
    reply = await client.with_logprobs(model, lambda more: client.chat(body | more, usage.lost))
    [written, *_] = read_choices(reply, usage, judge=True)
    soft = soft_score(written.logprobs)
    if soft is not None:
        return soft
    said = last_score(written.text)
    return parse_score(written.text) if said is None else said


async def rate_all(
    client: OpenAIClient,
    model: str,
    asked: Sequence[tuple[str, Messages, str]],
    usage: Usage,
    strict: bool = False,
    at_once: int = AT_ONCE,
) -> list[float | None]:
    """Return the scores of answers as `rate` does; None also for an answer on which the server failed.

    Args:
        client: The server's client.
        model: The judge's name on the server.
        asked: Of each answer: its name in the log, its question, and itself.
        usage: Counts what the calls cost.
        strict: Whether an answer on which the server failed is an error, as where scores are measured.
        at_once: The most ratings that wait for the server at the same time.

    Raises:
        ServerError: The server failed on all answers, or, with ``strict``, on one.
    """
    room, faults = asyncio.Semaphore(at_once), list[ServerError]()
    failed: list[str] = []

    async def one(name: str, messages: Messages, answer: str) -> float | None:
        async with room:
            try:
                return await rate(client, model, messages, answer, usage)
            except ServerError as error:
                logger.warning("%s: the judge failed (%d, %s)", name, error.status, error.code)
                faults.append(error)
                failed.append(name)
                return None

    scores = await asyncio.gather(*[one(*each) for each in asked])
    if faults and strict:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        text = f"the judge failed on {failed[0]}{more}: {faults[0]}; the same call goes on"
        raise ServerError(text, faults[0].status, faults[0].code, faults[0].retry)
    if faults and len(faults) == len(asked):
        raise faults[0]
    return scores
