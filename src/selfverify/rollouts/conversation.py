"""One conversation on its way: what has been said and shown, where it stands, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from statistics import fmean
from typing import Any

from selfverify.core.episode import PROBE_LOGPROB, Episode, EpisodeResult, Observation
from selfverify.core.errors import ConfigError, DataError, FileError
from selfverify.core.events import note
from selfverify.core.files import OF_THE_DISK
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged, channel_lengths
from selfverify.core.trajectory import OBSERVATION, Finish, Segment, Trajectory
from selfverify.rollouts.episode_runner import ask, begin, ending_of, outcome
from selfverify.rollouts.sampler import ContextFull, Encoded, SampledTurn
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)


class Conversation:
    """A conversation about a problem, between a policy and an episode.

    `reset`, `step`, `hear_probe` and `release` ask the episode, on any thread. All others are called by the
    loop alone.

    Args:
        problem: The problem.
        limit: How often the policy may speak.
    """

    def __init__(self, problem: Problem, limit: int) -> None:
        self.problem, self.limit = problem, limit
        self.episode: Episode | None = None
        self.error: Exception | None = None
        """Why the conversation has no result."""
        self.ending: EpisodeResult | None = None
        self.over = False
        """Whether nothing is said any more."""
        self.closing = False
        """Whether the episode was told to give back what it holds."""
        self.spoken = 0
        """How often the policy has spoken, turns that were undone included."""
        self.turns: list[int] = []
        """For each turn of the policy the number of its first segment."""
        self.after_probe: Observation | None = None
        """While the policy answers a probe, the observation that is shown next."""
        self.read_score: Future[float | None] | None = None
        """The expected score behind the last words, where a server reads it."""
        self._segments: list[Segment] = []
        self._last: SampledTurn | None = None
        self._is_whole = False
        """Whether the last turn has yet to be divided into channels."""
        self._ended = False
        """Whether the episode has ended it."""
        self._before = 0, 0
        """The segments and turns before the policy was shown something."""

    def open(
        self, make: Callable[[], Episode], check: Callable[[Problem, Sequence[Observation]], None]
    ) -> None:
        """Make the episode; an environment that does not start is lost like one that dies.

        Raises:
            ConfigError: ``check`` (`Sampler.check`) refuses an observation that the episode expects.
        """
        opened = outcome(make)
        if not isinstance(opened, Episode):
            kind = type(opened).__name__
            self.fail(opened if isinstance(opened, Exception) else TypeError(f"a {kind} is no Episode"))
            return
        self.episode = opened
        checked = outcome(lambda: check(self.problem, opened.expected_observations()))
        if isinstance(checked, ConfigError):
            raise checked
        if checked is not None:
            self.fail(checked)

    def reset(self) -> Observation | None:
        """Start the episode, and return what it shows before the policy speaks."""
        assert self.episode is not None
        return begin(self.episode)

    def step(self) -> Observation:
        """Return the episode's answer to what the policy has said last."""
        assert self.episode is not None and self._last is not None
        return ask(self.episode, self._last.turn)

    def hear_probe(self, said: SampledTurn) -> None:
        """Tell the episode what the policy has said to its probe."""
        assert self.episode is not None
        said.turn.turn = len(self.turns)
        if said.segment.logprobs:
            said.turn.values[PROBE_LOGPROB] = fmean(said.segment.logprobs)
        self.episode.probed(said.turn)

    def release(self) -> None:
        """Give back what the episode holds."""
        if self.episode is None:
            return
        try:
            if self.over and not self._ended and self.error is None:
                self.episode.cut_short()
        finally:
            self.episode.release()

    def awaited(self) -> Future[Any] | None:
        """Return what the episode's result would wait for; None for nothing. It is called after `release`."""
        if self.episode is None or self.error is not None:
            return None
        asked = outcome(self.episode.awaited)
        if isinstance(asked, Exception):
            self.fail(asked)
            return None
        return asked

    def say(self, said: SampledTurn) -> None:
        """Keep what the policy says as one segment, which `take` divides."""
        assert self.episode is not None
        segment = said.segment
        said.turn.turn = segment.turn = len(self.turns)
        segment.channel = self.episode.channel
        self.turns.append(len(self._segments))
        self._segments.append(segment)
        self.spoken += 1
        self._last, self._is_whole = said, True

    def take(self, reply: Observation | None) -> bool:
        """Take what the episode shows, and return whether the conversation goes on."""
        self._ended = reply is not None and reply.done
        if self._last is None:
            self.over = self._ended
            return not self.over
        assert reply is not None
        self.over = reply.done or self.spoken >= self.limit
        if reply.undo:
            segments, turns = self._before
            del self._segments[segments:], self.turns[turns:]
            self._is_whole = False
            return not self.over
        self._divide(reply.channels)
        if self._last.full is not None:
            self._run_out(self._last.full)
        self.over = self.over or (self._segments[-1].finish != Finish.STOP and not reply.after_cut)
        self._before = len(self._segments), len(self.turns)
        return not self.over

    def show(self, shown: Encoded, reply: Observation | None) -> None:
        """Keep what the policy is shown of a reply."""
        # The environment's tokens have no probability; nothing is trained on them, so that 0 does no harm.
        zeros = [0.0] * len(shown.tokens)
        self._segments.append(
            Segment(
                OBSERVATION, shown.tokens, zeros, shown.text,
                author="environment", turn=len(self.turns), parsed=said_by(reply, shown.text),
                images=shown.images,
            )
        )  # fmt: skip

    def end(self, error: DataError) -> None:
        """End where an observation cannot be shown; where it is only too long, the turns so far count."""
        if isinstance(error, ContextFull):
            self._run_out(error)
        else:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End without a result.

        Raises:
            FileError: That is the error, of a full or broken disk: it fails all episodes alike, and none of
                them says anything about an answer.
        """
        if isinstance(error, FileError) and error.errno in OF_THE_DISK:
            raise error
        self.error, self.over = error, True
        self._divide([])
        turn = len(self.turns)
        said = f"its episode failed: {type(error).__name__}: {error}"
        message = f"problem {self.problem.id}, turn {turn}: {said}"
        note(logger, "episode_failed", message, problem=self.problem.id, turn=turn, reason=str(error))

    def trajectory(self) -> Trajectory:
        """Return what the conversation came to; one without a result ends with ``error``."""
        segments, ending = self._segments or [_nothing_said()], self.ending
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
        scores = dict(ending.scores)
        if self.read_score is not None and "sampled" in scores:
            soft = self.read_score.result()
            scores |= {} if soft is None else {"soft": soft}
        return Trajectory(segments, scores, ending.rewards, ending.parsed)

    def _divide(self, channels: Sequence[tuple[str, int]]) -> None:
        """Divide what was said last into channels: names, and where in the text each begins."""
        if self._last is None or not self._is_whole:
            return
        self._is_whole = False
        whole = self._segments[-1]
        if channels:
            self._segments[-1:] = _divided(whole, self._last.ends, channels)
        last = self._segments[-1]
        last.finish = whole.finish
        last.values |= self._last.turn.values

    def _run_out(self, error: ContextFull) -> None:
        """The context is full: the conversation ends where the policy has spoken last."""
        self.over = True
        if self._segments and self._segments[-1].author != "policy":
            del self._segments[-1]  # the policy has not read it
        self._segments = self._segments or [_nothing_said()]
        self._segments[-1].finish = Finish.LENGTH
        name = self.problem.id
        message = f"problem {name}: a conversation has reached {error}"
        note(logger, "context_full", message, problem=name, turn=len(self.turns), tokens=error.tokens)


def find_results(task: Task, talks: Sequence[Conversation]) -> None:
    """Ask what came of conversations that are over; the task sees all their answers before."""
    whole = [(talk, talk.episode) for talk in talks if talk.episode and not talk.error]
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
            talk.fail(ending)  # as of a reply: no verdict, never a 0
        else:
            talk.ending = ending


def _answers(episode: Episode) -> list[Tagged]:
    return list(episode.answers())


def _divided(whole: Segment, ends: Sequence[int], channels: Sequence[tuple[str, int]]) -> list[Segment]:
    """A turn's segments by channel; one behind the first that holds no token is left out.

    A server's turn has no tokens, and for each log-probability it has an end.
    """
    chars = [char for _, char in channels]
    starts = [0, *(channel_lengths(ends, char) for char in chars[1:]), len(ends)]
    found = []
    for number, (channel, _) in enumerate(channels):
        low, high = starts[number], starts[number + 1]
        text = whole.text[chars[number] : [*chars, len(whole.text)][number + 1]]
        if number == 0 or high > low or (text and not whole.tokens):
            tokens, logprobs = whole.tokens[low:high], whole.logprobs[low:high]
            found.append(Segment(channel, tokens, logprobs, text, turn=whole.turn))
    found[0].values |= whole.values
    return found


def said_by(reply: Observation | None, words: str) -> dict[str, Any] | None:
    """Say who replied, and where in the text the reply's own words stand, without what the template adds.

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


def _nothing_said() -> Segment:
    return Segment(OBSERVATION, [], author="environment", finish=Finish.STOP)
