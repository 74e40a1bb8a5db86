"""Conversations of files, held again: what was replied is replied, whatever is said."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL.Image import Image

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import content_parts
from selfverify.data.images import ImageRef
from selfverify.tasks.tool_episode import ACTION

Cuts = Sequence[Sequence[tuple[str, int]]]
"""For each turn its channels, as `Observation.channels` has them."""


@dataclass(frozen=True, slots=True)
class HeardReply:
    """What was replied to a turn.

    Args:
        role: Who replied, ``user`` or ``tool``.
        parts: Texts and places for images.
        images: The images, not read yet.
    """

    role: str
    parts: list[dict[str, Any]]
    images: list[ImageRef]

    def reply(self) -> Observation:
        """The reply, with its images read.

        Raises:
            DataError: An image cannot be read.
        """
        images = [ref.open() for ref in self.images]
        return Observation(
            [dict(part) for part in self.parts], images, "tool" if self.role == "tool" else "user"
        )


class Replayed(Episode):
    """Replies what was replied, whatever is said; behind the last reply the conversation is over.

    Args:
        heard: The replies.
        cuts: The channels of each turn; empty where all of each is an action.
    """

    channel = ACTION

    def __init__(self, heard: Sequence[HeardReply], cuts: Cuts = ()) -> None:
        self.heard, self.cuts = heard, cuts

    def expected_observations(self) -> Sequence[Observation]:
        """See `Episode`."""
        return [
            HeardReply(role, [{"type": "text", "text": ""}], []).reply()
            for role in dict.fromkeys(heard.role for heard in self.heard)
        ]

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`.

        Raises:
            DataError: An image cannot be read.
        """
        reply = Observation(done=True) if said.turn >= len(self.heard) else self.heard[said.turn].reply()
        if said.turn < len(self.cuts):
            reply.channels = [(channel, start) for channel, start in self.cuts[said.turn]]
        return reply

    def result(self) -> EpisodeResult:
        """See `Episode`."""
        return EpisodeResult()


def turns_of(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the assistant's messages stand."""
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def heard_between(messages: Sequence[Mapping[str, Any]]) -> list[HeardReply]:
    """What stands between the assistant's messages."""
    found = []
    for before, after in itertools.pairwise(turns_of(messages)):
        told = messages[before + 1 : after]
        parts: list[dict[str, Any]] = []
        for number, message in enumerate(told):
            parts += [{"type": "text", "text": "\n"}] if number else []
            parts += content_parts(message["content"])
        found.append(HeardReply(told[0]["role"], *_divided(parts)))
    return found


def asked_of(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Image]]:
    """Messages as a problem has them, and their images.

    Raises:
        DataError: An image cannot be read.
    """
    found, images = [], []
    for message in messages:
        parts, refs = _divided(content_parts(message["content"]))
        found.append({"role": message["role"], "content": parts})
        images += [ref.open() for ref in refs]
    return found, images


def _divided(parts: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[ImageRef]]:
    """Parts with places for images, texts side by side joined; and the images."""
    places: list[dict[str, Any]] = []
    for part in parts:
        if part["type"] == "image":
            places.append({"type": "image"})
        elif places and places[-1]["type"] == "text":
            places[-1] = {"type": "text", "text": places[-1]["text"] + part["text"]}
        else:
            places.append({"type": "text", "text": part["text"]})
    return places, [part["image"] for part in parts if part["type"] == "image"]
