"""A model behind an OpenAI-compatible server as verifier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.trajectory import Group
from selfverify.remote.client import OpenAIClient, ServerSettings, server_url
from selfverify.remote.judge import ServerRating
from selfverify.remote.messages import openai_messages
from selfverify.remote.usage import Usage
from selfverify.verifiers.base import Scores, answers, no_scores

logger = logging.getLogger(__name__)

AT_ONCE = 32
"""The most requests that wait for the server at the same time."""


@dataclass(frozen=True, slots=True)
class ServerJudge:
    """A `Verifier` that asks the server about every answer in a turn of its own (`ServerRating.rate`)."""

    server: ServerSettings
    model: str
    name: str = "judge"

    @classmethod
    def of(cls, address: str, name: str) -> ServerJudge:
        """Make one from an address of the form ``URL#MODEL``.

        Raises:
            ConfigError: The address has another form.
        """
        url, _, model = address.partition("#")
        if not model:
            raise ConfigError(f"verifier {name}: a judge behind a server is given as judge:URL#MODEL")
        server_url(url)
        return cls(ServerSettings(url), model, name)

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`. Answers that are unreadable, or on which the server failed, have no score.

        Raises:
            ServerError: The server failed on all answers.
        """
        return asyncio.run(self._score(groups))

    async def _score(self, groups: Sequence[Group]) -> Scores:
        scores = no_scores(groups)
        faults: list[ServerError] = []
        room, asked = asyncio.Semaphore(AT_ONCE), 0

        async with OpenAIClient(self.server) as client:
            rating = ServerRating(client)

            async def one(b: int, g: int, text: str) -> None:
                async with room:
                    try:
                        messages = openai_messages(groups[b].problem)
                        scores[b][g] = await rating.rate(self.model, messages, text, Usage())
                    except ServerError as error:
                        logger.warning("answer %d of problem %s: %s", g, groups[b].problem.id, error)
                        faults.append(error)

            work = [one(b, g, text) for b, g, text in answers(groups)]
            asked = len(work)
            await asyncio.gather(*work)
        if asked and len(faults) == asked:
            raise faults[0]
        return scores
