"""The figures that every rollout method logs. docs/metrics.md explains them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from selfverify.agents.reward import summarise_parts
from selfverify.core.trajectory import ANSWER, SCORE, Finish, Group, Trajectory
from selfverify.evaluation.statistics import transitions, within_problem_auc

_COMMON = {
    "reward/answer": "answer",
    "accuracy": "correct",
    "format/answer": "answer_format",
    "format/score": "score_format",
}
"""The rewards that mostly every trajectory has, by the names of their figures."""
_NAMED = {
    "answer", "correct", "quality", "answer_format", "score_format", "score_opened", "verification",
    "correct_1", "answer_format_1",
}  # fmt: skip
"""Rewards that have figures of their own; all others are parts of an answer that a task names."""


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return means over a step's judged trajectories, and within-problem AUC over mixed groups."""
    rows = [t for group in groups for t in group.trajectories if t.finish != Finish.ERROR]
    if not rows:
        return {}
    metrics = {}
    for name, reward in _COMMON.items():
        # A task whose conversations are no answers with tags may leave some of these out.
        if having := [t for t in rows if reward in t.rewards]:
            metrics[name] = _mean_reward(having, reward)
    spreads = [spread for group in groups if (spread := _spread(group)) is not None]
    if spreads:
        metrics["groups/reward_spread"] = float(np.mean(spreads))
    metrics["tokens/response"] = float(np.mean([t.written for t in rows]))
    metrics["truncated"] = float(np.mean([t.truncated for t in rows]))
    for name in sorted({name for t in rows for name in t.rewards} - _NAMED):
        metrics[f"reward/{name}"] = _mean_reward([t for t in rows if name in t.rewards], name)
    if scored := [t.scores["sampled"] for t in rows if "sampled" in t.scores]:
        values = np.array(scored)
        metrics["verification/score_mean"] = float(values.mean())
        metrics["verification/score_std"] = float(values.std())
        metrics["verification/score_is_1"] = float((values >= 1).mean())
    for verifier, name in (("sampled", "verification/auc"), ("soft", "verification/soft_auc")):
        aucs = [auc for group in groups if not math.isnan(auc := _group_auc(group, verifier))]
        if aucs:
            metrics[name] = float(np.mean(aucs))
    if verified := [t for t in rows if "verification" in t.rewards]:
        metrics["reward/verification"] = _mean_reward(verified, "verification")
        if paid := [t for t in verified if t.rewards["verification"] >= 1]:
            metrics["verification/correct_given_reward1"] = _mean_reward(paid, "correct")
    return metrics


def _mean_reward(rows: Sequence[Trajectory], name: str) -> float:
    return float(np.mean([t.rewards[name] for t in rows]))


def _spread(group: Group) -> float | None:
    """Unbiased standard deviation of a group's judged rewards; None where there are not two."""
    rewards = [
        t.rewards["answer"] for t in group.trajectories if t.finish != Finish.ERROR and "answer" in t.rewards
    ]
    return float(np.std(rewards, ddof=1)) if len(rewards) > 1 else None


def conversation_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return how long a step's conversations were and how they ended; nothing if they are single answers.

    ``conversation/turns`` is the mean number of turns of the policy. ``conversation/stop``, ``/length`` and
    ``/error`` are the shares of the conversations that ended by themselves, at a limit, and without a
    verdict. Lost conversations count in all of them.
    """
    rows = [t for group in groups for t in group.trajectories]
    if all(s.channel in (ANSWER, SCORE) for t in rows for s in t.segments):
        return {}
    turns = [len({s.turn for s in t.segments if s.author == "policy"}) for t in rows]
    metrics = {"conversation/turns": float(np.mean(turns))}
    for finish in Finish:
        metrics[f"conversation/{finish}"] = float(np.mean([t.finish == finish for t in rows]))
    return metrics


def agent_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return the figures of a step's agents as ``agent/NAME``; docs/metrics.md explains each.

    They are over all trajectories that came to an end, also over those without a verdict.
    """
    figures = summarise_parts([t.rewards for group in groups for t in group.trajectories])
    return {f"agent/{name}": value for name, value in figures.items()}


def turn_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Return what second turns did to the first ones, over a step's judged trajectories.

    docs/metrics.md explains each figure. A trajectory without a second answer, because it was cut off, ends
    wrong.
    """
    rows = [t for group in groups for t in group.trajectories if t.finish != Finish.ERROR]
    found = transitions([t.rewards["correct_1"] > 0 for t in rows], [t.rewards["correct"] > 0 for t in rows])
    logged = {f"turns/{name}": value for name, value in found.items()}
    repeated = [t for t in rows if len(t.segments) > 1 and _last_turn(t) == t.segments[0].tokens]
    if rows:
        logged["turns/repeated"] = len(repeated) / len(rows)
        logged["turns/missing"] = float(np.mean([len(t.segments) == 1 for t in rows]))
    return logged


def _last_turn(trajectory: Trajectory) -> list[int]:
    """Return the second turn's tokens, with those of its score if that is a segment of its own."""
    own = [s.tokens for s in trajectory.segments[1:] if s.author == "policy"]
    return [token for tokens in own for token in tokens]


def _group_auc(group: Group, verifier: str) -> float:
    """Within-problem AUC of a group's scores; NaN without a scored right and a scored wrong answer."""
    rows = [t for t in group.trajectories if verifier in t.scores and t.finish != Finish.ERROR]
    scores = [[t.scores[verifier] for t in rows]]
    return float(within_problem_auc(scores, [[t.rewards["correct"] > 0 for t in rows]])[0])
