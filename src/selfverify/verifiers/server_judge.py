"""A judge behind an OpenAI-compatible server as a verifier of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.clients.candidates import AT_ONCE, rate_all
from selfverify.clients.openai_client import ModelOnServer, OpenAIClient
from selfverify.clients.replies import Usage
from selfverify.core.policy_config import ServedModelConfig
from selfverify.core.problem import openai_messages
from selfverify.core.trajectory import Group
from selfverify.verifiers.base import Scores, answers, no_scores


@dataclass(frozen=True, slots=True)
class ServerJudge:
    """A `Verifier` that asks the server about every answer in a turn of its own (`clients.candidates.rate`).

    Args:
        served: The judge.
        name: The name under which its scores are stored.
        at_once: The most ratings that wait for the server at the same time.
        strict: Whether an answer on which the server failed is an error, as where scores are measured.
    """

    served: ModelOnServer
    name: str = "judge"
    at_once: int = AT_ONCE
    strict: bool = False

    @classmethod
    def of(cls, address: str, name: str) -> ServerJudge:
        """Make one from an address of the form ``URL#MODEL``.

        Raises:
            ConfigError: The address has another form.
        """
        return cls(ModelOnServer.of(address, f"verifier {name}"), name)

    @classmethod
    def measuring(cls, address: str, name: str, how: ServedModelConfig) -> ServerJudge:
        """Make one whose scores are measured: patient, and never without a score where the server failed.

        Raises:
            ConfigError: The address is not of the form ``URL#MODEL``.
        """
        served = ModelOnServer.of(address, f"verifier {name}", how.timeout_s, how.tries)
        return cls(served, name, how.concurrent, strict=True)

    def score(self, groups: Sequence[Group]) -> Scores:
        """Ask the server about every answer. Unreadable ones, and those on which it failed, have no score.

        Raises:
            ServerError: The server failed on all answers, or, where the judge is ``strict``, on one.
        """
        return asyncio.run(self._score(groups))

    async def _score(self, groups: Sequence[Group]) -> Scores:
        readable = list(answers(groups))
        questions = {b: openai_messages(groups[b].problem) for b, _, _ in readable}
        asked = [
            (f"answer {g} of problem {groups[b].problem.id}", questions[b], text) for b, g, text in readable
        ]
        async with OpenAIClient(self.served.server) as client:
            rated = await rate_all(client, self.served.model, asked, Usage(), self.strict, self.at_once)
        scores = no_scores(groups)
        for (b, g, _), score in zip(readable, rated, strict=True):
            scores[b][g] = score
        return scores
