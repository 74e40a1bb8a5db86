"""A model behind a server as judge: asked in a turn of its own whether an answer is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.errors import ServerError
from selfverify.remote.client import OpenAIClient
from selfverify.remote.replies import TOP_LOGPROBS, last_score, soft_score
from selfverify.remote.sampling import read_choices
from selfverify.remote.usage import Usage
from selfverify.rollouts.requests import RATE
from selfverify.rollouts.tags import parse_score

MAX_TOKENS = 64
"""A rating is a few tokens; models that go on are cut off."""


class ServerRating:
    """Rates answers; remembers whether the server shows probabilities."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self._without_logprobs: set[str] = set()

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
        asking = {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        if model in self._without_logprobs:
            reply = await self.client.chat(body, usage.lost)
        else:
            try:
                reply = await self.client.chat(body | asking, usage.lost)
            except ServerError as error:
                if error.status not in (400, 422, 501):
                    raise
                reply = await self.client.chat(body, usage.lost)  # if this works, it was the probabilities
                self._without_logprobs.add(model)
        [written, *_] = read_choices(reply, usage, judge=True)
        soft = soft_score(written.logprobs)
        if soft is not None:
            return soft
        said = last_score(written.text)
        return parse_score(written.text) if said is None else said
