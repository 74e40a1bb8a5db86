"""A model behind a server as judge: a turn of its own asks it whether an answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.core.requests import RATE
from selfverify.core.tags import parse_score
from selfverify.remote.candidates_of_server import read_choices
from selfverify.remote.client import OpenAIClient
from selfverify.remote.logprobs import LogprobsWhereGiven
from selfverify.remote.replies import last_score, soft_score
from selfverify.remote.usage import Usage

MAX_TOKENS = 64
"""A rating is a few tokens; models that go on are cut off."""


class ServerRating:
    """Asks a server's models to rate answers."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._logprobs = LogprobsWhereGiven()

    async def rate(
        self, model: str, messages: Sequence[Mapping[str, Any]], answer: str, usage: Usage
    ) -> float | None:
        """Return the score of an answer, None where the judge wrote none.

        The score is the expectation over the score's tokens if the server shows their probabilities, and
        otherwise the number that the judge wrote at temperature 0.

        Args:
            model: The judge's name on the server.
            messages: The question, in OpenAI's form.
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
        reply = await self._logprobs.ask(model, lambda more: self.client.chat(body | more, usage.lost))
        [written, *_] = read_choices(reply, usage, judge=True)
        soft = soft_score(written.logprobs)
        if soft is not None:
            return soft
        said = last_score(written.text)
        return parse_score(written.text) if said is None else said
