"""Episodes around another one: to change, to record, or to go on from the middle of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from PIL.Image import Image

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, content_parts, content_text
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish


class EpisodeWrapper(Episode):
    """Passes everything on to another episode; a subclass changes or notes a part of it.

    Args:
        inner: The other episode.
    """

    def __init__(self, inner: Episode) -> None:
        self.inner, self.channel = inner, inner.channel

    def expected_observations(self) -> Sequence[Observation]:
        return self.inner.expected_observations()

    def reset(self) -> Observation | None:
        return self.inner.reset()

    def step(self, said: PolicyTurn) -> Observation:
        return self.inner.step(said)

    def probed(self, said: PolicyTurn) -> None:
        self.inner.probed(said)

    def answers(self) -> Sequence[Tagged]:
        return self.inner.answers()

    def awaited(self) -> Future[Any] | None:
        return self.inner.awaited()

    def result(self) -> EpisodeResult:
        return self.inner.result()

    def cut_short(self) -> None:
        self.inner.cut_short()

    def release(self) -> None:
        self.inner.release()


KeepImage = Callable[[Image], str]
"""Puts an image somewhere and returns its name."""
Message = dict[str, Any]
"""``role`` and ``content``: a text, or parts ``{"type": "text", "text": ...}`` and ``{"type": "image",
"image": NAME}``."""


class RecordingEpisode(EpisodeWrapper):
    """An episode whose conversation is noted down.

    Kept are the messages with their images, the channels of each turn, and how it ended.

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
        self.ended: EpisodeResult | None = None

    def reset(self) -> Observation | None:
        reply = super().reset()
        if reply is not None:
            self._note(reply)
        return reply

    def step(self, said: PolicyTurn) -> Observation:
        """Keep the turn and the reply to it.

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
        if not reply.done and (said.finish == Finish.STOP or reply.after_cut):
            self._note(reply)
        return reply

    def result(self) -> EpisodeResult:
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


class ResumedEpisode(EpisodeWrapper):
    """An episode to which the first turns of a held conversation are said before the policy speaks.

    Its replies to them have to be the replies of then: else the turns behind them would belong to another
    conversation.

    Args:
        inner: The episode of the problem as it was first asked.
        told: The messages of these turns and the replies to them.
        keep: Names images.
    """

    def __init__(self, inner: Episode, told: Sequence[Message], keep: KeepImage) -> None:
        super().__init__(inner)
        self.told, self.keep = told, keep
        self.turns = sum(message["role"] == "assistant" for message in told)

    def reset(self) -> Observation | None:
        """Say the first turns to the episode, and compare its replies.

        Raises:
            DataError: The conversation cannot be held again as it was.
        """
        self.inner.reset()
        turn, reply = 0, Observation()
        for message in self.told:
            if message["role"] == "assistant":
                reply = self.inner.step(PolicyTurn(message["content"], [], Finish.STOP, turn))
                turn += 1
                if reply.done:
                    raise DataError(f"the conversation ends after turn {turn}, and went on when it was held")
                continue
            shown = noted_content(content_parts(reply.content), reply.images, self.keep)
            if (reply.role, shown) != (message["role"], message["content"]):
                raise DataError(f"turn {turn} gets another reply than when the conversation was held")
        return None

    def step(self, said: PolicyTurn) -> Observation:
        return super().step(replace(said, turn=said.turn + self.turns))

    def result(self) -> EpisodeResult:
        """Return the result of the whole; verdicts on single turns are those of the new ones only."""
        ended = super().result()
        lost = [turn - self.turns for turn in ended.lost_turns if turn >= self.turns]
        return replace(ended, turns=ended.turns[self.turns :], lost_turns=lost)
