"""Makes verifiers from the descriptions that commands and requests use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import is_served
from selfverify.core.trajectory import Group
from selfverify.policy.policy import Policy
from selfverify.rollouts.score_reading import answer_logprob
from selfverify.selection.calibration import Fusion, fusion_of
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task
from selfverify.verifiers.base import Scores, Verifier
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
        fitted: The fusion of ``fused``.

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
    if kind in ("judge", "ask") and is_served(rest):
        from selfverify.verifiers.server_judge import ServerJudge  # it needs the extra `serve`

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
