"""Groups as plain values, the lines of a rollout log, and the same groups again, bit by bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from PIL.Image import Image

from selfverify.core.errors import DataError
from selfverify.core.images import to_rgb
from selfverify.core.jsonl_store import StrictRow
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import ScoreReading, ScoreTree
from selfverify.core.trajectory import Author, Finish, Group, Segment, Trajectory
from selfverify.policy.policy import Policy
from selfverify.policy.scores import score_tree
from selfverify.tasks.answering import Verdict


@dataclass(frozen=True, slots=True)
class RecordedVerdict:
    """A `Verdict`, which explains the fields."""

    reward: float
    correct: bool
    answer: Any
    key: str | None
    unjudged: str
    quality: float | None
    parts: dict[str, float]
    error: str | None
    read_by: str


@dataclass(frozen=True, slots=True)
class RecordedReading:
    """A `ScoreReading`: for each branching its path, its tokens, and their probabilities.

    The tokens of the scores themselves are those of the policy's tokenizer.
    """

    branches: list[tuple[list[int], list[int], list[float]]]


@dataclass(frozen=True, slots=True)
class RecordedValue:
    """A task's verdict or record as a JSON value."""

    value: Any


Parsed = RecordedVerdict | RecordedReading | RecordedValue | None


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """A `Segment`, which explains the fields. Images are the names that their content gives them."""

    channel: str
    tokens: list[int]
    logprobs: list[float]
    text: str
    author: Author
    turn: int
    finish: Finish | None
    parsed: Parsed
    images: list[str]
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """A `Trajectory`, which explains the fields."""

    segments: list[RecordedSegment]
    scores: dict[str, float]
    rewards: dict[str, float]
    parsed: Parsed


@dataclass(frozen=True, slots=True)
class RecordedGroup(StrictRow):
    """A line of a rollout log.

    Args:
        index: The problem's place in its step.
        problem: The problem's name.
        digest: `Problem.digest`; empty where the problem was skipped.
        trajectories: The trajectories that were sampled for it.
        skipped: Why the problem was skipped; empty where it was not.
    """

    index: int
    problem: str
    digest: str = ""
    trajectories: list[RecordedTrajectory] = field(default_factory=list)
    skipped: str = ""


def image_name(image: Image) -> str:
    """32 hexadecimal digits of an image's size and of its RGB pixels, which are all that a policy sees."""
    rgb = to_rgb(image)
    return hashlib.blake2b(repr(rgb.size).encode() + rgb.tobytes(), digest_size=16).hexdigest()


def record(index: int, group: Group, images: dict[str, Image]) -> RecordedGroup:
    """Return a group as plain values, and put the images that its environment showed into ``images``.

    Raises:
        DataError: A task has parsed something into an object that cannot be written down.
    """

    def parsed(made: Any) -> Parsed:
        return _recorded(made, group.problem.id)

    def name(image: Image) -> str:
        content = image_name(image)
        images.setdefault(content, image)
        return content

    trajectories = [
        RecordedTrajectory(
            [
                RecordedSegment(
                    s.channel, s.tokens, s.logprobs, s.text, s.author, s.turn, s.finish,
                    parsed(s.parsed), [name(image) for image in s.images], _floats(s.values),
                )
                for s in t.segments
            ],
            _floats(t.scores),
            _floats(t.rewards),
            parsed(t.parsed),
        )
        for t in group.trajectories
    ]  # fmt: skip
    return RecordedGroup(index, group.problem.id, group.problem.digest(), trajectories)


def play(
    rows: Sequence[RecordedGroup], problems: Sequence[Problem], policy: Policy, image: Callable[[str], Image]
) -> list[Group]:
    """Return the groups that `record` was given.

    Args:
        rows: The lines that `record` made of them.
        problems: Their problems, made anew.
        policy: Its tokenizer writes the scores that were read.
        image: Returns an image by its name.

    Raises:
        DataError: A problem is not the one that was asked, or an image is missing.
    """

    @cache
    def tree() -> ScoreTree:
        return score_tree(policy.tokenizer)

    def segment(s: RecordedSegment) -> Segment:
        images = [image(name) for name in s.images]
        own = s.tokens, s.logprobs, s.text, s.author, s.turn, s.finish
        return Segment(s.channel, *own, _played(s.parsed, tree), images, s.values)

    groups = []
    for row, problem in zip(rows, problems, strict=True):
        if (problem.id, problem.digest()) != (row.problem, row.digest):
            raise DataError(
                f"problem {row.problem} is {problem.id} now, or asks something else: the data has changed "
                "since its rollout was logged; replay it on the data of then"
            )
        made = [
            Trajectory([segment(s) for s in t.segments], t.scores, t.rewards, _played(t.parsed, tree))
            for t in row.trajectories
        ]
        groups.append(Group(problem, made))
    return groups


def _floats(values: dict[str, float]) -> dict[str, float]:
    # A task may write True or a number of NumPy's where a float is meant.
    return {name: float(value) for name, value in values.items()}


def _recorded(parsed: Any, problem: str) -> Parsed:
    match parsed:
        case None:
            return None
        case Verdict():
            made = RecordedVerdict(**{f.name: getattr(parsed, f.name) for f in fields(RecordedVerdict)})
            quality = None if made.quality is None else float(made.quality)
            reward, correct, parts = float(made.reward), bool(made.correct), _floats(made.parts)
            return replace(made, reward=reward, correct=correct, quality=quality, parts=parts)
        case ScoreReading():
            found = parsed.probabilities.items()
            return RecordedReading([(list(path), list(shares), [*shares.values()]) for path, shares in found])
    try:
        json.dumps(parsed, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"problem {problem}: what its task has parsed cannot be logged ({error}); "
            "`EpisodeResult.parsed` and `EpisodeResult.turns` take `Verdict` or JSON values"
        ) from None
    return RecordedValue(parsed)


def _played(parsed: Parsed, tree: Callable[[], ScoreTree]) -> Any:
    match parsed:
        case RecordedVerdict():
            return Verdict(**{f.name: getattr(parsed, f.name) for f in fields(RecordedVerdict)})
        case RecordedReading():
            shares = {tuple(p): dict(zip(t, values, strict=True)) for p, t, values in parsed.branches}
            return ScoreReading(tree(), shares)
        case RecordedValue():
            return parsed.value
    return None


def without_images(group: Group) -> Group:
    """Return a group without its problem's images and without those that its environment showed."""
    trajectories = [
        replace(t, segments=[replace(s, images=[]) if s.images else s for s in t.segments])
        for t in group.trajectories
    ]
    return replace(group, problem=replace(group.problem, images=[]), trajectories=trajectories)
