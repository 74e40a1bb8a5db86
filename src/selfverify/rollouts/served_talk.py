"""One conversation with a model behind a server: the messages so far, and what was said as segments."""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any

from selfverify.clients.replies import Completion
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn, RolloutHook
from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.trajectory import OBSERVATION, TOKENS, Finish, Segment, Trajectory
from selfverify.rollouts.replying import ask, begin, outcome
from selfverify.rollouts.server_messages import ServerMessages
from selfverify.rollouts.talk import said_by

logger = logging.getLogger(__name__)

_PLACE = (0, 0)
"""Each conversation has a listener of its own."""
_FULL = re.compile(r"context.?(length|size|window)", re.IGNORECASE)
"""What servers say of a conversation that is longer than their model reads: OpenAI's code is
``context_length_exceeded``, llama.cpp's ``exceed_context_size_error``."""
_WHOLE = ("stop", "tool_calls", "function_call")
"""How OpenAI's API says that a message is whole."""
_THOUGHTS = ("reasoning_content", "reasoning")
"""Where servers keep thoughts that they take out of a message."""


class ServedConversation:
    """A conversation about a problem, between a model behind a server and an episode.

    Args:
        problem: What the conversation is about.
        thinks: Whether an answer begins with a tag ``think``. Where the server has taken the thoughts out of
            the message they are put back: the task reads them.
        listener: Is told what the model says before its episode replies.
        lock: Held while the listener works: its models serve several conversations.
    """

    def __init__(
        self, problem: Problem, thinks: bool, listener: RolloutHook | None = None, lock: Lock | None = None
    ) -> None:
        self.problem, self.thinks = problem, thinks
        self.served = ServerMessages(problem)
        self.listener, self.lock = listener, lock or Lock()
        self.episode: Episode | None = None
        self.error: Exception | None = None
        self.ending: EpisodeResult | None = None
        self.turns: list[int] = []
        self.over = False
        self.last: Completion | None = None
        """What was said last."""
        self.asked: list[dict[str, Any]] = []
        """The messages that it answers."""
        self._segments: list[Segment] = []
        self._before = 0, 0
        """The segments and turns that there were before something was shown last."""

    def open(self, make: Callable[[], Episode]) -> None:
        """Make the episode; an environment that does not start is lost like one that dies."""
        opened = outcome(make)
        if isinstance(opened, Episode):
            self.episode = opened
        else:
            kind = type(opened).__name__
            self.fail(opened if isinstance(opened, Exception) else TypeError(f"a {kind} is no Episode"))

    def begin(self) -> Observation | None:
        """What the episode shows before the model speaks, whatever that may raise."""
        assert self.episode is not None
        if self.listener is not None:
            with self.lock:
                self.listener.begin({_PLACE: self.problem})
        return begin(self.episode)

    def start(self, reply: Observation | None) -> None:
        """Take what the episode shows before the model speaks."""
        self.over = reply is not None and reply.done
        if reply is not None and not self.over:
            self._show(reply)

    def say(self, reply: Completion) -> PolicyTurn:
        """Keep what the model says; `answer` divides it into channels.

        Args:
            reply: What the server sent.
        """
        text = reply.text
        thoughts = next((reply.rest[name] for name in _THOUGHTS if reply.rest.get(name)), None)
        if self.thinks and isinstance(thoughts, str) and "<think" not in text:
            text = f"<think>{thoughts}</think>{text}"
        self.asked, self.last = [*self.served.messages], reply
        finish = Finish.STOP if reply.finish in _WHOLE else Finish.LENGTH
        said = self.served.said(text, reply.tool_calls, finish, len(self.turns))
        self.turns.append(len(self._segments))
        return said

    def reply(self, said: PolicyTurn) -> Observation:
        """The episode's reply to what the model has just said, whatever that may raise."""
        assert self.episode is not None
        if self.listener is not None:
            with self.lock:
                self.listener.said({_PLACE: said})
        return ask(self.episode, said)

    def answer(self, said: PolicyTurn, heard: Observation | Exception, more: bool) -> None:
        """Take the episode's reply to what the model has just said.

        Args:
            said: What the model has said.
            heard: The reply, or why there is none.
            more: Whether the model may speak once more.

        Raises:
            ConfigError: The episode asks something aside.
        """
        assert self.episode is not None and self.last is not None
        cuts = (
            heard.channels
            if isinstance(heard, Observation) and heard.channels
            else [(self.episode.channel, 0)]
        )
        self._segments += _segments(self.last, said, cuts)
        self._segments[-1].finish = said.finish
        if isinstance(heard, Exception):
            self.fail(heard)
            return
        if heard.probe is not None:
            raise ConfigError("only a model that runs here can be asked aside, not one behind a server")
        if heard.undo:
            segments, turns = self._before
            del self._segments[segments:], self.turns[turns:]
        self.over = heard.done or (said.finish != Finish.STOP and not heard.undo) or not more
        if not self.over:
            self._show(heard)

    def refused(self, error: ServerError) -> None:
        """End where the server takes no more: at the context, as with a policy, else without a verdict."""
        if _FULL.search(f"{error.code} {error.message}") is None:
            self.fail(error)
            return
        self.over = True
        if self._segments and self._segments[-1].author != "policy":
            del self._segments[-1]  # nobody has read it
        self._segments = self._segments or [_nothing()]
        self._segments[-1].finish = Finish.LENGTH
        message = f"problem {self.problem.id}: a conversation has reached the context of the server's model"
        note(logger, "context_full", message, problem=self.problem.id, turn=len(self.turns))

    def fail(self, error: Exception) -> None:
        """End without a verdict."""
        self.error, self.over = error, True
        name, turn = self.problem.id, len(self.turns)
        message = f"problem {name}, turn {turn}: its episode failed: {type(error).__name__}: {error}"
        note(logger, "episode_failed", message, problem=name, turn=turn, reason=str(error))

    def trajectory(self) -> Trajectory:
        """What the conversation came to; one without an ending ends with ``error``."""
        segments = self._segments or [_nothing()]
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

    def _show(self, reply: Observation) -> None:
        """Let the model read what the episode says."""
        if not reply.undo:
            self._before = len(self._segments), len(self.turns)
        self.served.hear(reply)
        if self.listener is not None:
            with self.lock:
                self.listener.shown({_PLACE: reply})
        self._segments.append(
            Segment(
                OBSERVATION, [], text=reply.text,
                author="environment", turn=len(self.turns),
                parsed=said_by(reply, reply.text), images=list(reply.images),
            )
        )  # fmt: skip


def _nothing() -> Segment:
    """What a trajectory holds in which nothing was said."""
    return Segment(OBSERVATION, [], author="environment", finish=Finish.STOP)


def _segments(reply: Completion, said: PolicyTurn, cuts: Sequence[tuple[str, int]]) -> list[Segment]:
    """A turn in the channels that its episode names, with the log-probabilities that the server gave.

    Token ids are the server's own. Log-probabilities are left out where the tokens' texts are not the turn's.
    """
    text, starts = said.text, [start for _, start in cuts]
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
            Segment(channel, [], [float(v) for v in own if v is not None], text[start:end], turn=said.turn)
        )
    found[0].values = {TOKENS: float(reply.tokens)}
    found[-1].values |= said.values
    return found
