"""Tasks that can be done within a number of calls, for agents that may speak only so often."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from selfverify.core.problem import Split, split_seeds
from selfverify_phone.phone_tasks import PhoneTask, Start, make_task
from selfverify_phone.templates.base import Template

TRIED = 6
"""Contents of which a kind of task is judged."""


def calls_of(task: PhoneTask, asked: bool) -> int:
    """How often an expert speaks: on its way to the goal and to evidence, and to hand it in.

    Args:
        task: The task.
        asked: Whether it asks for the first screen.
    """
    return asked + task.length + task.proving + 1


def short_kinds(
    kinds: Sequence[Template], start: Start, hostile: bool, asked: bool, most: int
) -> list[Template]:
    """The kinds of which at least half of the contents take no more than ``most`` calls.

    Args:
        kinds: Kinds of tasks.
        start: What the phone shows at first.
        hostile: Whether its contents try to deceive.
        asked: As in `calls_of`.
        most: Calls, as `calls_of` counts them.
    """
    limit = most - asked
    return [
        kind
        for kind in kinds
        if 2 * sum(calls <= limit for calls in _calls(kind.name, start, hostile)) >= TRIED
    ]


def short_seed(
    kind: Template, split: Split, seed: int, index: int, start: Start, hostile: bool, asked: bool, most: int
) -> int:
    """The first of the problem's seeds with which a task of `short_kinds` takes no more than ``most`` calls.

    Args:
        kind: One of `short_kinds`, so that many seeds will do.
        split: The problem's split; its seeds belong to no other.
        seed: The task's seed.
        index: The problem's index.
        start: As in `short_kinds`.
        hostile: As in `short_kinds`.
        asked: As in `calls_of`.
        most: Calls, as `calls_of` counts them.
    """
    drawn = split_seeds(split, seed, index)
    return next(s for s in drawn if calls_of(make_task(kind.name, s, start, hostile), asked) <= most)


@lru_cache(maxsize=4096)
def _calls(kind: str, start: Start, hostile: bool) -> tuple[int, ...]:
    """The calls of some contents, without a look at the first screen."""
    return tuple(calls_of(make_task(kind, seed, start, hostile), asked=False) for seed in range(TRIED))
