"""Conversations noted down as they are held, whoever holds them: messages with images, channels, the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL.Image import Image

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, content_parts, content_text
from selfverify.core.trajectory import Finish
from selfverify.rollouts.episode_around import EpisodeWrapper

KeepImage = Callable[[Image], str]
"""Puts an image somewhere and returns its name."""
Message = dict[str, Any]
"""``role`` and ``content``: a text, or parts ``{"type": "text", "text": ...}`` and ``{"type": "image",
"image": NAME}``."""


class RecordingEpisode(EpisodeWrapper):
    """An episode whose conversation is noted down.

    Args:
        inner: The episode.
        asked: The messages before it.
        keep: Keeps an image that is shown; None refuses images.
    """

    def __init__(self, inner: Episode, asked: Sequence[Message], keep: KeepImage | None = None) -> None:
        super().__init__(inner)
        self.keep = keep
        self.messages: list[Message] = [*asked]
        self._before = len(self.messages)
        """How many there were before something was shown last."""
        self.cuts: list[list[list[Any]]] = []
        """For each turn of the policy its channels, as `Observation.channels` has them."""
        self.finish: Finish | None = None
        """How the last turn ended."""
        self.ended: EpisodeResult | None = None

    def reset(self) -> Observation | None:
        """See `Episode`."""
        reply = super().reset()
        if reply is not None:
            self._note(reply)
        return reply

    def step(self, said: PolicyTurn) -> Observation:
        """See `Episode`.

        Raises:
            DataError: An image is shown, and none are kept.
        """
        self.messages.append({"role": "assistant", "content": said.text})
        reply = super().step(said)
        if reply.undo:
            del self.messages[self._before :]
            self._note(reply)
            return reply
        self.cuts.append([[*cut] for cut in reply.channels or [(self.channel, 0)]])
        self.finish = said.finish
        if not reply.done and said.finish == Finish.STOP:
            self._note(reply)
        return reply

    def result(self) -> EpisodeResult:
        """See `Episode`."""
        self.ended = super().result()
        return self.ended

    def _note(self, reply: Observation) -> None:
        if reply.images and self.keep is None:
            raise DataError("it shows images, and files of conversations hold text")
        content = noted_content(content_parts(reply.content), reply.images, self.keep)
        self._before = len(self.messages)
        self.messages.append({"role": reply.role, "content": content})


def noted_messages(problem: Problem, keep: KeepImage) -> list[Message]:
    """A problem's messages as they are noted down.

    Raises:
        DataError: Places and images differ in number.
    """
    left, found = list(problem.images), []
    for message in problem.messages:
        parts = content_parts(message.get("content") or "")
        count = sum(part["type"] == "image" for part in parts)
        if count > len(left):
            raise DataError(f"problem {problem.id}: more places for images than images")
        found.append({"role": message["role"], "content": noted_content(parts, left[:count], keep)})
        left = left[count:]
    if left:
        raise DataError(f"problem {problem.id}: {len(left)} images have no place in its messages")
    return found


def noted_content(
    parts: Sequence[Mapping[str, Any]], images: Sequence[Image], keep: KeepImage | None
) -> str | list[dict[str, Any]]:
    """A message's content: a text where it shows no image, else parts in which images have names."""
    if keep is None or not images:
        return content_text(parts)
    left = iter(images)
    return [
        {"type": "image", "image": keep(next(left))} if part["type"] == "image" else dict(part)
        for part in parts
    ]
