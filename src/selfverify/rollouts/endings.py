"""How conversations are wound up: their episodes say what came of them, and are closed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from selfverify.core.episode import Episode, EpisodeResult
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.policy.kv_sessions import SampleIndex
from selfverify.rollouts.replying import EpisodeRunner, ending_of, outcome
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)


class Held(Protocol):
    """A conversation that was held, with a policy or with a model behind a server."""

    problem: Problem
    episode: Episode | None
    error: Exception | None
    ending: EpisodeResult | None
    turns: list[int]

    def fail(self, error: Exception) -> None:
        """End without a verdict."""


def find_endings(task: Task, talks: Mapping[SampleIndex, Held]) -> None:
    """Ask what came of each conversation that has not failed; the task sees all their answers before."""
    whole = [(talk, talk.episode) for talk in talks.values() if talk.episode is not None and not talk.error]
    answers: list[tuple[Problem, Tagged]] = []
    for talk, episode in whole:
        given = outcome(partial(_answers, episode))
        if isinstance(given, Exception):
            talk.fail(given)
        else:
            answers += [(talk.problem, tagged) for tagged in given]
    task.prepare(answers)
    for talk, episode in whole:
        if talk.error is not None:
            continue
        ending = outcome(partial(ending_of, episode, len(talk.turns)))
        if isinstance(ending, Exception):
            # As of a reply: no verdict, never a 0.
            talk.fail(ending)
        else:
            talk.ending = ending


def _answers(episode: Episode) -> list[Tagged]:
    return list(episode.answers())


def close(talks: Mapping[SampleIndex, Held], replies: EpisodeRunner) -> None:
    """Close all episodes. A conversation is over then, whatever closing its episode comes to."""
    closed = replies.close({p: talk.episode for p, talk in talks.items() if talk.episode is not None})
    for place, error in closed.items():
        if error is not None:
            problem = talks[place].problem
            message = f"problem {problem.id}: an episode could not be closed: {error}"
            note(logger, "episode_not_closed", message, problem=problem.id, reason=str(error))
