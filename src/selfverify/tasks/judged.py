"""What a task makes of one answer, and the rewards that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfverify.core.tags import Tagged

RULES = "rules"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A task's verdict on one answer.

    Args:
        reward: The reward of the answer channel without any part for the format: 0 or more, in most tasks at
            most 1.
        correct: Whether the answer counts as right in accuracy, AUC and AP.
        answer: The parsed answer as a JSON value, None when it cannot be read.
        key: A text that is equal for equivalent answers; None when the answer cannot be read.
        unjudged: Why there is no verdict (the judge hung twice, or its data is gone); else empty. A
            trajectory without a verdict takes no part in training. A malformed answer is wrong instead.
        quality: What decides whether two answers contrast (ADPO Eq. 6 and 7); None means ``reward``.
        parts: Components by name, which become rewards of the trajectory beside ``answer`` and are logged as
            ``reward/NAME``: a mean over the answers that have it.
        error: The class of error of a wrong answer that could be read, one of `Task.errors`; else None.
        read_by: Who read the answer: the task's `RULES`, or in evaluations an extractor's name.
    """

    reward: float
    correct: bool
    answer: Any = None
    key: str | None = None
    unjudged: str = ""
    quality: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    read_by: str = RULES


UNREADABLE = Verdict(reward=0.0, correct=False)


def worth_imitating(rewards: Mapping[str, float]) -> bool:
    """Whether rewards (`answer_rewards`) are those of what is right and came to a proper end."""
    return rewards.get("correct", 0.0) > 0 and ended_properly(rewards)


def ended_properly(rewards: Mapping[str, float]) -> bool:
    """Whether rewards (`answer_rewards`, or those of a stored sample) are those of a well-formed answer.

    An agent may reach its goal and hand in nothing proper, or be cut off: it is no example to learn from.
    """
    return rewards.get("answer_format", rewards.get("format", 1.0)) > 0


def answer_rewards(tagged: Tagged, judged: Verdict) -> dict[str, float]:
    """A judged answer's rewards by name.

    ``answer`` (the task's, without format), ``correct``, ``answer_format`` (0 or 1), where a score is
    asked for ``score_format`` and ``score_opened``, the task's ``parts`` and, where it is not the answer's
    reward, the ``quality`` that decides contrast. An answer whose tags are malformed earns 0.
    """
    rewards = judged.parts | {
        "answer": judged.reward,
        "correct": float(judged.correct),
        "answer_format": float(tagged.answer_ok),
    }
    if tagged.score_asked:
        rewards |= {
            "score_format": float(tagged.score_ok),
            "score_opened": float(tagged.score_start is not None),
        }
    return rewards if judged.quality is None else rewards | {"quality": judged.quality}
