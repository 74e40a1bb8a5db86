"""A model behind an OpenAI-compatible server as verifier."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.errors import ConfigError, ServerError
from selfverify.remote.client import OpenAIClient, ServerSettings, server_url
from selfverify.remote.judge import ServerRating
from selfverify.remote.messages import openai_messages
from selfverify.remote.usage import Usage
from selfverify.rollouts.types import Group
from selfverify.selection.verifiers import Scores, answer_texts

logger = logging.getLogger(__name__)

AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class ServerJudge:
    """Asked about every answer in a turn of its own; see `ServerRating.rate`. Fulfils `Verifier`."""

    server: ServerSettings
    model: str
    name: str = "judge"

    @classmethod
    def of(cls, address: str, name: str) -> ServerJudge:
        """From ``URL#MODEL``.

        Raises:
            ConfigError: It is not that.
        """
        url, _, model = address.partition("#")
        if not model:
            raise ConfigError(f"verifier {name}: a judge behind a server is given as judge:URL#MODEL")
        server_url(url)
        return cls(ServerSettings(url), model, name)

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier`. An answer that could not be read, or on which the server failed, has none.

        Raises:
            ServerError: It failed on all of them.
        """
        return asyncio.run(self._score(groups))

    async def _score(self, groups: Sequence[Group]) -> Scores:
        scores: Scores = [[None] * len(group.trajectories) for group in groups]
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

            work = [
                one(b, g, text)
                for b, group in enumerate(groups)
                for g, text in enumerate(answer_texts(group))
                if text
            ]
            asked = len(work)
            await asyncio.gather(*work)
        if asked and len(faults) == asked:
            raise faults[0]
        return scores
