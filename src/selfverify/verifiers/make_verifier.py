"""Makes verifiers from the descriptions that commands and requests use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.clients.candidates import AT_ONCE, rate_all
from selfverify.clients.openai_client import ModelOnServer, OpenAIClient, Usage, openai_messages
from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import ServedModelConfig
from selfverify.core.trajectory import Group
from selfverify.policy.policy import Policy
from selfverify.rollouts.score_reading import answer_logprob
from selfverify.selection.calibration import Fusion, fusion_of
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task
from selfverify.verifiers.base import Scores, Verifier, answers, no_scores
from selfverify.verifiers.policy_verifiers import (
    Inline,
    PolicyJudge,
    Repeated,
    SecondTurns,
    Soft,
    TrajectoryRatio,
)


@dataclass(frozen=True, slots=True)
class Fused:
    """A `Fusion` of another verifier's scores, `Soft` ones, with the log-probabilities of the answers.

    An answer without a score, or sampled by an engine that gave no log-probabilities, has none.
    """

    scores: Verifier
    fusion: Fusion
    name: str = "fused"

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`."""
        return [
            [self.fusion.of(s, answer_logprob(t)) for s, t in zip(row, group.trajectories, strict=True)]
            for row, group in zip(self.scores.score(groups), groups, strict=True)
        ]


def make_verifier(
    spec: str,
    policy: Policy,
    task: Task | None = None,
    second_turn: str = SECOND_TURN,
    fitted: Fusion | None = None,
) -> Verifier:
    """Make a verifier from its description.

    Args:
        spec: ``inline``, ``soft``, ``greedy``, ``fused`` or ``fused:A``, ``repeated`` or ``repeated:K``,
            ``judge:MODEL``, ``ask:MODEL``, ``judge:URL#MODEL`` for a model behind a server, ``ratio`` or
            ``ratio:MODEL`` (a model with an adapter), or, with a ``task``, ``turns`` or ``turns:K``.
        policy: Writes the answers.
        task: Reads the answers.
        second_turn: The request that opens the second turns of ``turns``.
        fitted: What ``fused`` makes its scores with.

    Raises:
        ConfigError: The description is none of these.
    """
    kind, _, rest = spec.partition(":")
    if spec == "inline":
        return Inline()
    if spec in ("soft", "greedy"):
        return Soft(policy, "soft" if spec == "soft" else "greedy")
    if fusion := fusion_of(spec, fitted):
        return Fused(Soft(policy), fusion, spec)
    counted = not rest or (rest.isascii() and rest.isdigit() and 0 < int(rest) <= 256)
    if kind == "repeated" and counted:
        return Repeated(policy, int(rest or 4), name=spec)
    if kind == "turns" and counted and task is not None:
        return SecondTurns(policy, task, second_turn, int(rest or 4), name=spec)
    if kind == "ratio":
        return TrajectoryRatio(_loaded(rest, policy) if rest else None, name=spec)
    if kind in ("judge", "ask") and rest.startswith(("http://", "https://")):
        return ServerJudge.of(rest, spec)
    if kind in ("judge", "ask") and rest:
        return PolicyJudge(_loaded(rest, policy), spec, "ask" if kind == "ask" else "continue")
    raise ConfigError(
        f"there is no verifier {spec!r}; verifiers: inline, soft, greedy, fused, fused:A, repeated:K and "
        "turns:K (K at most 256), judge:MODEL, ask:MODEL, judge:URL#MODEL, ratio, ratio:MODEL"
    )


def _loaded(path: str, policy: Policy) -> Policy:
    """The model at ``path``; ``policy`` itself if it is that one."""
    return policy if path == policy.config.path else Policy.load(policy.config.for_model(path))


@dataclass(frozen=True, slots=True)
class ServerJudge:
    """A `Verifier` that asks the server about every answer in a turn of its own (`clients.candidates.rate`).

    Args:
        served: The judge.
        name: What its scores are stored under.
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
        """See `Verifier.score`. Answers that are unreadable, or on which the server failed, have no score.

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
