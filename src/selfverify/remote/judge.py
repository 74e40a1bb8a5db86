"""A model behind a server as judge: asked in a turn of its own whether an answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.remote.client import OpenAIClient
from selfverify.remote.logprobs import LogprobsWhereGiven
from selfverify.remote.replies import last_score, soft_score
from selfverify.remote.sampling import read_choices
from selfverify.remote.usage import Usage
from selfverify.rollouts.requests import RATE
from selfverify.rollouts.tags import parse_score

MAX_TOKENS = 64
"""A rating is a few tokens; models that go on are cut off."""


class ServerRating:
    """Rates answers."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._logprobs = LogprobsWhereGiven()

    async def rate(
        self, model: str, messages: Sequence[Mapping[str, Any]], answer: str, usage: Usage
    ) -> float | None:
        """The score of an answer: the expectation over the score's tokens where the server shows their
        probabilities, else the number that was written greedily; None where it wrote none.

        Args:
            model: As the server calls it.
            messages: The question, in OpenAI's form.
            answer: What was answered, without a score of its own.
            usage: Counts.

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
