"""One conversation with a model behind a server: the messages so far, and what was said as segments."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from selfverify.core.episode import Ending, Episode, Reply, Said
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.trajectory import OBSERVATION, TOKENS, Finish, Segment, Trajectory
from selfverify.remote.messages import image_url
from selfverify.remote.server_replies import Completion
from selfverify.rollouts.converse import OpenEpisode
from selfverify.rollouts.replying import ask, begin, outcome

logger = logging.getLogger(__name__)

_THOUGHTS = ("reasoning_content", "reasoning")
"""Where servers keep thoughts that they take out of a message."""


class ServedTalk:
    """A conversation about a problem, between a model behind a server and an episode.

    Args:
        problem: What the conversation is about.
        messages: The problem as OpenAI's messages.
        thinks: Whether an answer begins with a tag ``think``. Where the server has taken the thoughts out of
            the message they are put back: the task reads them.
    """

    def __init__(self, problem: Problem, messages: Sequence[Mapping[str, Any]], thinks: bool) -> None:
        self.problem, self.messages, self.thinks = problem, list(messages), thinks
        self.episode: Episode | None = None
        self.error: Exception | None = None
        self.ending: Ending | None = None
        self.turns: list[int] = []
        self.over = False
        self.last: Completion | None = None
        """What was said last."""
        self.asked: list[Mapping[str, Any]] = []
        """The messages that it answers."""
        self._segments: list[Segment] = []

    def open(self, make: OpenEpisode, seed: int) -> None:
        """Make the episode, and take what it shows before the model speaks."""
        opened = outcome(lambda: make(self.problem, seed))
        if not isinstance(opened, Episode):
            kind = type(opened).__name__
            self.fail(opened if isinstance(opened, Exception) else TypeError(f"a {kind} is no Episode"))
            return
        self.episode = opened
        shown = outcome(lambda: begin(opened))
        if isinstance(shown, Exception):
            self.fail(shown)
        elif shown is not None and shown.done:
            self.over = True
        elif shown is not None:
            self._show(shown)

    def say(self, reply: Completion, more: bool) -> None:
        """Take what the model says, and what its episode replies.

        Args:
            reply: What the server sent.
            more: Whether the model may speak once more.
        """
        assert self.episode is not None
        text = reply.text
        thoughts = next((reply.rest[name] for name in _THOUGHTS if reply.rest.get(name)), None)
        if self.thinks and isinstance(thoughts, str) and "<think" not in text:
            text = f"<think>{thoughts}</think>{text}"
        finish = Finish.STOP if reply.finish == "stop" else Finish.LENGTH
        turn, episode = len(self.turns), self.episode
        self.turns.append(len(self._segments))
        said = Said(text, [], finish, turn)
        self.asked, self.last = [*self.messages], reply
        heard = outcome(lambda: ask(episode, said))
        cuts = heard.cuts if isinstance(heard, Reply) and heard.cuts else [(episode.channel, 0)]
        self._segments += _segments(reply, text, cuts, turn)
        self._segments[-1].finish = finish
        if isinstance(heard, Exception):
            self.fail(heard)
            return
        self.over = heard.done or finish != Finish.STOP or not more
        if not self.over:
            self.messages.append({"role": "assistant", "content": text})
            self._show(heard)

    def fail(self, error: Exception) -> None:
        """End without a verdict."""
        self.error, self.over = error, True
        name, turn = self.problem.id, len(self.turns)
        message = f"problem {name}, turn {turn}: its episode failed: {type(error).__name__}: {error}"
        note(logger, "episode_failed", message, problem=name, turn=turn, reason=str(error))

    def trajectory(self) -> Trajectory:
        """What the conversation came to; one without an ending ends with ``error``."""
        segments = self._segments or [Segment(OBSERVATION, [], author="environment", finish=Finish.STOP)]
        ending = self.ending
        if ending is None:
            segments[-1].finish = Finish.ERROR
            return Trajectory(segments)
        starts = [*self.turns, len(segments)]
        for turn, parsed in enumerate(ending.turns):
            segments[starts[turn]].parsed = parsed
        for turn in ending.lost_turns:
            own = [s for s in segments[starts[turn] : starts[turn + 1]] if s.author == "policy"]
            own[-1].finish = Finish.ERROR
        if ending.lost:
            segments[-1].finish = Finish.ERROR
        return Trajectory(segments, dict(ending.scores), ending.rewards, ending.parsed)

    def _show(self, reply: Reply) -> None:
        """Let the model read what the episode says; a server gets all of it as the user's words."""
        content: str | list[dict[str, Any]] = reply.text
        if reply.images:
            pictures = [{"type": "image_url", "image_url": {"url": image_url(i)}} for i in reply.images]
            content = [{"type": "text", "text": reply.text}, *pictures]
        self.messages.append({"role": "user", "content": content})
        self._segments.append(
            Segment(
                OBSERVATION, [], text=reply.text,
                author="environment", turn=len(self.turns), images=list(reply.images),
            )
        )  # fmt: skip


def _segments(reply: Completion, text: str, cuts: Sequence[tuple[str, int]], turn: int) -> list[Segment]:
    """A turn in the channels that its episode names, with the log-probabilities that the server gave.

    Token ids are the server's own. Log-probabilities are left out where the tokens' texts are not the turn's.
    """
    starts = [start for _, start in cuts]
    pieces = [str(entry.get("token", "")) for entry in reply.logprobs]
    values = [entry.get("logprob") for entry in reply.logprobs]
    known = "".join(pieces).startswith(text) and all(isinstance(v, int | float) for v in values)
    ends = list(accumulate(map(len, pieces)))
    bounds = [bisect_right(ends, start) if start else 0 for start in starts] + [len(values)]
    found = []
    for number, (channel, start) in enumerate(cuts):
        end = starts[number + 1] if number + 1 < len(cuts) else len(text)
        own = values[bounds[number] : bounds[number + 1]] if known and values else []
        found.append(
            Segment(channel, [], [float(v) for v in own if v is not None], text[start:end], turn=turn)
        )
    found[0].values = {TOKENS: float(reply.tokens)}
    return found
