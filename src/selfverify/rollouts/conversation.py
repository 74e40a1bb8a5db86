"""One conversation on its way: what has been said and shown, where it stands, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.tags import channel_lengths, token_ends
from selfverify.core.trajectory import OBSERVATION, Finish, Segment, Trajectory
from selfverify.policy.chat import TooLongError, read_message
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import longest_row
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.rollouts.episode_runner import ask, begin, outcome

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _SaidBefore:
    """Where a conversation stood before the policy was shown something.

    Args:
        segments: How many there were.
        turns: How often the policy had spoken.
        used: The tokens, the prompt's among them.
        said: Those of the policy's last segment; empty before it has spoken.
    """

    segments: int
    turns: int
    used: int
    said: Sequence[int]


class Conversation:
    """A conversation about a problem, between a policy and an episode.

    Args:
        policy: Speaks.
        writer: Turns what the episode shows into tokens.
        problem: What the conversation is about.
        used: The tokens of the problem's prompt.
        room: The tokens that the conversation may have; None where nobody looks.
    """

    def __init__(
        self, policy: Policy, writer: ReplyEncoder, problem: Problem, used: int = 0, room: int | None = None
    ) -> None:
        self.policy, self.writer, self.problem = policy, writer, problem
        self.episode: Episode | None = None
        self.error: Exception | None = None
        """Why the conversation has no ending."""
        self.ending: EpisodeResult | None = None
        self.over = False
        """Whether nothing is said any more."""
        self.turns: list[int] = []
        """For each turn of the policy the number of its first segment."""
        self._segments: list[Segment] = []
        self._used, self._room = used, room
        self._ends: Sequence[int] = ()
        """For each token of the last turn where in the turn's text it ends."""
        self.aside: Continuation | None = None
        """What the policy hears for once before it hears what `answer` has returned."""
        self.taken_back = False
        """Whether the policy has to forget what it heard and said last before it hears that."""
        self._before = _SaidBefore(0, 0, used, [])

    def open(self, make: Callable[[], Episode]) -> None:
        """Make the episode; an environment that does not start is lost like one that dies.

        Raises:
            ConfigError: The chat template cannot show what the episode will reply.
        """
        opened = outcome(make)
        if not isinstance(opened, Episode):
            kind = type(opened).__name__
            self.fail(opened if isinstance(opened, Exception) else TypeError(f"a {kind} is no Episode"))
            return
        self.episode = opened
        checked = outcome(lambda: self.check(opened))
        if isinstance(checked, ConfigError):
            raise checked
        if checked is not None:
            self.fail(checked)

    def check(self, episode: Episode) -> None:
        """Refuse a chat template that cannot show what the episode will reply, before anything is sampled."""
        for reply in episode.expected_observations():
            self.writer.check(self.problem, reply)

    def begin(self) -> Observation | None:
        """What the episode shows before the policy speaks, whatever that may raise."""
        assert self.episode is not None
        return begin(self.episode)

    def start(self, reply: Observation | None) -> Continuation | None:
        """Take what the episode shows before the policy speaks.

        Returns:
            What the policy hears; None where it hears nothing, or where the conversation is `over`.

        Raises:
            ConfigError: The episode shows something, and `Problem.environment_begins` is not set.
            DataError: What it shows cannot be shown to the policy.
        """
        self.over = reply is not None and reply.done
        begins = self.problem.environment_begins
        if reply is not None and not reply.done and not begins:
            raise ConfigError(
                f"problem {self.problem.id}: its episode shows something before the policy speaks; make the "
                "problem with environment_begins=True"
            )
        if self.over or not begins:
            return None
        return self._show(lambda: self.writer.opening(self.problem, reply), reply)

    def say(self, sample: Sample) -> PolicyTurn:
        """Keep what the policy says as one segment, which `answer` divides."""
        text, self._ends = token_ends(self.policy.tokenizer, sample.tokens)
        turn, channel = len(self.turns), self.episode.channel if self.episode is not None else OBSERVATION
        self.turns.append(len(self._segments))
        said = _said(sample, turn, text, self._ends)
        said.message = read_message(self.policy.loaded, text, self.problem.tools)
        self._segments.append(
            Segment(
                channel, sample.tokens, sample.logprobs, text,
                turn=turn, finish=sample.finish, values=said.values,
            )
        )  # fmt: skip
        self._used += len(sample.tokens)
        return said

    def reply(self, said: PolicyTurn) -> Observation:
        """The episode's reply to what the policy has just said, whatever that may raise."""
        assert self.episode is not None
        return ask(self.episode, said)

    def answer(self, reply: Observation, more: bool) -> Continuation | None:
        """Take the episode's reply to what the policy has just said.

        Args:
            reply: The reply.
            more: Whether the policy may speak once more.

        Returns:
            What the policy hears; None where the conversation is `over`.

        Raises:
            DataError: The reply cannot be shown to the policy.
        """
        self.taken_back = reply.undo
        if reply.undo:
            self._take_back()
            self.over = reply.done or not more
        else:
            last = self._cut(reply)
            if last.finish == Finish.LENGTH and self._is_full(self._used):
                self._run_out()
            self.over = reply.done or last.finish != Finish.STOP or not more
            self._before = _SaidBefore(len(self._segments), len(self.turns), self._used, last.tokens)
        self.aside = None
        if self.over:
            return None
        turn, said = len(self.turns), self._before.said

        def encoded(shown: Observation) -> Continuation:
            if not turn and self.problem.environment_begins:
                return self.writer.opening(self.problem, shown)
            return without_written_end(said, self.writer.encode(self.problem, shown, turn))

        if reply.probe is not None:
            with suppress(TooLongError):
                piece = encoded(reply.probe)
                self.aside = None if self._is_full(self._used + len(piece.tokens)) else piece
        return self._show(lambda: encoded(reply), reply)

    def _take_back(self) -> None:
        """Forget what the policy has said last, and what it was shown before that.

        Raises:
            DataError: The episode has not said that it may do so.
        """
        if self.episode is None or not self.episode.may_take_back:
            raise DataError("its episode takes a turn back without may_take_back")
        del self._segments[self._before.segments :], self.turns[self._before.turns :]
        self._used = self._before.used

    def overhear(self, sample: Sample) -> None:
        """Tell the episode what the policy has said to an aside."""
        assert self.episode is not None
        told = partial(self.episode.probed, said_of(self.policy, sample, len(self.turns)))
        if isinstance(error := outcome(told), Exception):
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End without a verdict."""
        self.error, self.over = error, True
        turn = len(self.turns)
        message = (
            f"problem {self.problem.id}, turn {turn}: its episode failed: {type(error).__name__}: {error}"
        )
        note(logger, "episode_failed", message, problem=self.problem.id, turn=turn, reason=str(error))

    def trajectory(self) -> Trajectory:
        """What the conversation came to; one without an ending ends with ``error``."""
        segments, ending = self._segments or [nothing_said()], self.ending
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
        return Trajectory(segments, ending.scores, ending.rewards, ending.parsed)

    def _cut(self, reply: Observation) -> Segment:
        """Divide what was said last into the channels that the reply names; returns the last of them."""
        if not reply.channels:
            return self._segments[-1]
        whole = self._segments.pop()
        starts = [
            0 if n == 0 else channel_lengths(self._ends, char) for n, (_, char) in enumerate(reply.channels)
        ]
        chars = [char for _, char in reply.channels]
        for number, (channel, _) in enumerate(reply.channels):
            low, high = starts[number], [*starts, len(whole.tokens)][number + 1]
            text = whole.text[chars[number] : [*chars, len(whole.text)][number + 1]]
            if number == 0 or high > low:
                tokens, logprobs = whole.tokens[low:high], whole.logprobs[low:high]
                self._segments.append(Segment(channel, tokens, logprobs, text, turn=whole.turn))
        last = self._segments[-1]
        last.finish, last.values = whole.finish, whole.values
        return last

    def _show(self, encode: Callable[[], Continuation], reply: Observation | None) -> Continuation | None:
        """Keep what the environment shows; None where it fills the context, which ends the conversation."""
        try:
            piece = encode()
        except TooLongError:
            self._run_out()
            return None
        tokens = list(piece.tokens)
        if self._is_full(self._used + len(tokens)):
            self._run_out()
            return None
        words: str = self.policy.tokenizer.decode(
            piece.unexpanded or tokens, clean_up_tokenization_spaces=False
        )
        # The environment's tokens have no probability; nothing is trained on them, so that 0 does no harm.
        zeros = [0.0] * len(tokens)
        self._segments.append(
            Segment(
                OBSERVATION, tokens, zeros, words,
                author="environment", turn=len(self.turns), parsed=said_by(reply, words),
                images=list(piece.pictures),
            )
        )  # fmt: skip
        self._used += len(tokens)
        return piece

    def _is_full(self, tokens: int) -> bool:
        return self._room is not None and tokens >= self._room

    def _run_out(self) -> None:
        """The context is full: the conversation ends where the policy has spoken last."""
        self.over = True
        self._segments = self._segments or [nothing_said()]
        self._segments[-1].finish = Finish.LENGTH
        name = self.problem.id
        room = self._room if self._room is not None else longest_row(self.policy.model)
        message = f"problem {name}: a conversation has reached its limit of {room} tokens"
        note(logger, "context_full", message, problem=name, turn=len(self.turns), tokens=self._used)


def said_by(reply: Observation | None, words: str) -> dict[str, Any] | None:
    """Who replied, and where in the text the reply's own words stand, without what the template adds.

    Args:
        reply: The reply.
        words: The text that the policy hears.

    Returns:
        ``role``, and ``said``, the beginning and the end; None where they do not stand there as they are.
    """
    if reply is None:
        return None
    start = words.find(reply.text)
    return None if start < 0 else {"role": reply.role, "said": [start, start + len(reply.text)]}


def nothing_said() -> Segment:
    """What a trajectory holds in which nothing was said."""
    return Segment(OBSERVATION, [], author="environment", finish=Finish.STOP)


def said_of(policy: Policy, sample: Sample, turn: int = 0) -> PolicyTurn:
    """What an episode gets to know of a turn: its text without the token that ended it."""
    return _said(sample, turn, *token_ends(policy.tokenizer, sample.tokens))


def _said(sample: Sample, turn: int, text: str, ends: Sequence[int]) -> PolicyTurn:
    if sample.finish == Finish.STOP:
        text = text[: ends[-2] if len(ends) > 1 else 0]
    # A copy: what an episode does to it must not reach what is learnt.
    return PolicyTurn(text, list(sample.tokens), sample.finish, turn)
