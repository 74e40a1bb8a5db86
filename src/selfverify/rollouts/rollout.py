"""The one loop of all rollouts: the policy speaks, episodes reply, until all conversations are over.

`rollout` holds conversations and winds them up: their episodes say what came of them, and are released.
`hold_again` holds those again that were lost, as evaluations do. `roll_out` does both, with the task's own
conversations or with answers that are asked for again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from selfverify.core import ranks
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn, RolloutHook
from selfverify.core.errors import ConfigError, DataError, HungError, SelfVerifyError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Group, Trajectory
from selfverify.policy.decoding import Sample, derived_seed
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.kv_sessions import KVSession, SampleIndex
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.rollouts.conversation import Conversation
from selfverify.rollouts.episode_runner import EpisodeRunner, ending_of, outcome
from selfverify.tasks.answering import SelfCorrection
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
    """Release all episodes. A conversation is over then, whatever releasing its episode comes to."""
    closed = replies.close({p: talk.episode for p, talk in talks.items() if talk.episode is not None})
    for place, error in closed.items():
        if error is not None:
            problem = talks[place].problem
            message = f"problem {problem.id}: an episode could not be closed: {error}"
            note(logger, "episode_not_closed", message, problem=problem.id, reason=str(error))


T = TypeVar("T")

OpenEpisode = Callable[[Problem, int], Episode]
"""Begins the conversation about a problem; the number is a seed for whatever is random in it."""


@dataclass(slots=True)
class Rollout:
    """Groups with the encoded prompts they were sampled from, in the same order."""

    prompts: list[Prompt]
    groups: list[Group]
    seconds: dict[str, float] = field(default_factory=dict)
    """Where conversations may have several turns: the time that saying, replying and hearing took."""
    held_again: Counter[SampleIndex] = field(default_factory=Counter)
    """How often conversations that were lost were held again (`hold_again`)."""


def rollout(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    open_episode: OpenEpisode | None = None,
    limits: RolloutLimits | None = None,
    listener: RolloutHook | None = None,
) -> Rollout:
    """Hold G conversations about each problem and ask what came of them.

    What a conversation says depends on its problem's seed, its place in the group and its episode alone, and
    on the others only by the rounding of sums. An episode that raises, hangs or cannot be opened ends its
    trajectory with ``error``, without rewards: such a trajectory takes no part in training, and the others go
    on. A turn that was cut off is the last. A conversation that reaches the model's context ends with
    ``length``; what was said counts.

    Args:
        policy: Speaks.
        task: Opens episodes where ``open_episode`` is None; sees all answers before they are judged.
        problems: B problems.
        seeds: One per problem.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        open_episode: Begins each conversation.
        limits: In turns, in time and at the same time; None takes the task's.
        listener: Told of what is said before episodes reply; None takes the task's, if it has one.

    Returns:
        B groups of G trajectories.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
        HungError: Too many threads of this process hang in episodes.
        SamplingError: The engine has failed.
    """
    limits, listener = limits or task.limits, listener or task.hook()
    prompts = policy.encode(problems)
    writer, room = ReplyEncoder(policy.encoder), _room(policy, limits)
    in_step = sampling.engine != "own"
    names: dict[SampleIndex, str] = {}
    replies = EpisodeRunner(limits, lambda place: names[place])
    seconds = dict.fromkeys(("say", "reply", "hear"), 0.0)
    made: dict[SampleIndex, Trajectory] = {}
    for wave in _waves(len(problems), sampling.group_size, limits.concurrent, in_step):
        own = sorted({b for b, _ in wave})
        talks: dict[SampleIndex, Conversation] = {}
        try:
            for b, g in wave:
                # A wave counts its own problems, so that nothing is computed for those of other waves.
                place, problem, seed = (own.index(b), g), problems[b], derived_seed(seeds[b], g)
                names[place] = f"problem {problem.id}, sample {g}"
                talks[place] = Conversation(policy, writer, problem, len(prompts[b].ids), room)
                talks[place].open(partial(open_episode or task.open, problem, seed))
            if listener is not None:
                listener.begin({place: talk.problem for place, talk in talks.items()})
            threads = policy.threads([prompts[b] for b in own], sampling, seeds=[seeds[b] for b in own])
            rounds = _Rounds(threads, talks, replies, listener, in_step, seconds)
            rounds.run(limits.turns)
            find_endings(task, talks)
        finally:
            close(talks, replies)
        made |= {(own[place[0]], place[1]): talk.trajectory() for place, talk in talks.items()}
    groups = [
        Group(problem, [made[b, g] for g in range(sampling.group_size)]) for b, problem in enumerate(problems)
    ]
    return Rollout(prompts, groups, seconds if limits.turns > 1 else {})


def _room(policy: Policy, limits: RolloutLimits) -> int | None:
    """The tokens that a conversation may have; None where nobody looks."""
    known = [tokens for tokens in (longest_row(policy.model), limits.tokens) if tokens is not None]
    return min(known, default=None)


def _waves(problems: int, samples: int, at_once: int | None, in_step: bool) -> list[list[SampleIndex]]:
    """Which conversations are held at the same time, in order.

    Args:
        problems: B.
        samples: G.
        at_once: The most at the same time; None is all.
        in_step: Whether all processes hold as many waves, some of them without a conversation.
    """
    places = [(b, g) for b in range(problems) for g in range(samples)]
    size = at_once or max(len(places), 1)
    waves = [places[first : first + size] for first in range(0, max(len(places), 1), size)]
    most = max(ranks.gather(len(waves))) if in_step else len(waves)
    return waves + [[] for _ in range(most - len(waves))]


def recite(policy: Policy, problem: Problem, episode: Episode, turns: Sequence[Sample]) -> Trajectory:
    """A conversation in which the policy's turns are given; as many of them are said as the episode lets.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A reply cannot be shown to the policy.
    """
    talk = Conversation(policy, ReplyEncoder(policy.encoder), problem)
    try:
        talk.check(episode)
        talk.episode = episode
        talk.start(talk.begin())
        for number, sample in enumerate(turns, start=1):
            if not talk.over:
                talk.answer(talk.reply(talk.say(sample)), more=number < len(turns))
        talk.ending = ending_of(episode, len(talk.turns))
        return talk.trajectory()
    finally:
        episode.release()


class _Rounds:
    """In each round the policy speaks in all conversations that go on, and all their episodes reply.

    Args:
        threads: The policy's side of the conversations.
        talks: The conversations.
        replies: Asks the episodes.
        listener: See `rollout`.
        in_step: Whether an engine samples for all processes at once, so that all ask it equally often.
        seconds: Gets the time that saying, replying and hearing took.
    """

    def __init__(
        self,
        threads: KVSession,
        talks: Mapping[SampleIndex, Conversation],
        replies: EpisodeRunner,
        listener: RolloutHook | None,
        in_step: bool,
        seconds: dict[str, float],
    ) -> None:
        self.threads, self.talks, self.replies = threads, talks, replies
        self.listener, self.in_step, self.seconds = listener, in_step, seconds
        self._failed: SelfVerifyError | None = None
        self._back: dict[SampleIndex, Callable[[], None]] = {}
        """What brings conversations whose last turn may be taken back to where they stood before that."""

    def run(self, turns: int) -> None:
        """Hold all conversations to their end; the policy speaks at most ``turns`` times in each."""
        opened = {place: talk.begin for place, talk in self.talks.items() if not talk.over}
        self._exchange(opened, Conversation.start, 0)
        for turn in range(turns):
            going = [place for place, talk in self.talks.items() if not (talk.over or self._failed)]
            if not (any(ranks.gather(bool(going))) if self.in_step else going):
                break
            more = turn + 1 < turns
            said = self._say(going, turn, more)
            told = {place: partial(self.talks[place].reply, words) for place, words in said.items()}
            self._exchange(told, partial(Conversation.answer, more=more), turn + 1)
        if self._failed:
            raise self._failed

    def _say(self, places: Sequence[SampleIndex], turn: int, more: bool) -> dict[SampleIndex, PolicyTurn]:
        """Let the policy go on in some conversations."""
        with self._timed("say"):
            samples = self.threads.generate(dict.fromkeys(places, turn), more)
            said = {place: self.talks[place].say(sample) for place, sample in samples.items()}
            if self.listener is not None:
                self.listener.said(said)
        return said

    def _exchange(
        self,
        calls: Mapping[SampleIndex, Callable[[], T]],
        take: Callable[[Conversation, T], Continuation | None],
        turn: int,
    ) -> None:
        """Ask episodes, and let the policy hear what they reply. A conversation whose episode fails is over.

        Args:
            calls: Ask the episodes.
            take: Takes a reply in a conversation, and returns what the policy hears of it.
            turn: The policy's next turn.
        """
        try:
            with self._timed("reply"):
                replies = self.replies.ask(calls, f"turn {turn - 1}" if turn else "before the first turn")
            with self._timed("hear"):
                heard = self._heard(replies, take)
                self._go_back(replies)
                self._ask_aside(heard, turn)
                heard = {place: piece for place, piece in heard.items() if not self.talks[place].over}
                self.threads.append(heard)
                if self.listener is not None:
                    shown = {place: replies[place] for place in heard}
                    self.listener.shown(
                        {p: reply for p, reply in shown.items() if isinstance(reply, Observation)}
                    )
        except SelfVerifyError as error:
            if not self.in_step:
                raise
            # The others go on to ask the engine, which takes this process, too, if with nothing to say.
            self._failed = error

    def _go_back(self, places: Iterable[SampleIndex]) -> None:
        """Let the policy forget turns that are taken back, and mark where others stand that may be."""
        for place in places:
            talk = self.talks[place]
            if talk.over or talk.episode is None or not talk.episode.may_take_back:
                self._back.pop(place, None)
            elif talk.taken_back:
                self._back[place]()
            else:
                self._back[place] = self.threads.mark([place])

    def _ask_aside(self, places: Iterable[SampleIndex], turn: int) -> None:
        """Let the policy answer asides; its conversations then go on as though it had not.

        Raises:
            ConfigError: An engine samples for all processes at once.
        """
        asides = {place: piece for place in places if (piece := self.talks[place].aside) is not None}
        if not asides:
            return
        if self.in_step:
            raise ConfigError("only a model that runs here can be asked aside: set sampling.engine to own")
        back = self.threads.mark(asides)
        self.threads.append(asides)
        for place, sample in self.threads.generate(dict.fromkeys(asides, turn), more=False).items():
            self.talks[place].overhear(sample)
        back()

    def _heard(
        self,
        replies: Mapping[SampleIndex, T | Exception],
        take: Callable[[Conversation, T], Continuation | None],
    ) -> dict[SampleIndex, Continuation]:
        heard = {}
        for place, reply in replies.items():
            talk = self.talks[place]
            if isinstance(reply, Exception):
                talk.fail(reply)
                continue
            try:
                piece = take(talk, reply)
            except DataError as error:
                talk.fail(error)
            else:
                if piece is not None:
                    heard[place] = piece
        return heard

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


def hold_again(
    policy: Policy,
    task: Task,
    first: Rollout,
    seeds: Sequence[int],
    sampling: SamplingConfig,
    times: int,
    open_episode: OpenEpisode | None = None,
    limits: RolloutLimits | None = None,
) -> None:
    """Hold the lost conversations of a rollout again, with `rollout`; whatever comes of them replaces them.

    A conversation draws what it drew before, so that it becomes what it would have been without the loss.
    One that ended without a verdict (`EpisodeResult.lost`) is not lost in this sense: it is left as it is.
    So are all, where too many threads hang.

    Args:
        policy: Speaks.
        task: As of the rollout.
        first: The rollout, changed in place; `Rollout.held_again` counts.
        seeds: One per problem, as of the rollout.
        sampling: As of the rollout.
        times: How often each conversation is held again at most.
        open_episode: As of the rollout.
        limits: As of the rollout.
    """
    for _ in range(times):
        lost = {
            (b, g)
            for b, group in enumerate(first.groups)
            for g, trajectory in enumerate(group.trajectories)
            if trajectory.lost
        }
        if not lost:
            break
        which = sorted({b for b, _ in lost})
        problems = [first.groups[b].problem for b in which]
        note(
            logger,
            "episodes_held_again",
            f"{len(lost)} lost conversations are held again",
            problems=[problem.id for problem in problems],
            count=len(lost),
        )
        wanted = [(b, g) in lost for b in which for g in range(sampling.group_size)]
        begin = _only(open_episode or task.open, wanted)
        again = [seeds[b] for b in which]
        try:
            made = rollout(policy, task, problems, again, sampling, begin, limits or task.limits)
        except HungError:
            return  # what has been said is kept; whoever asks for replies next is refused
        groups = dict(zip(which, made.groups, strict=True))
        for b, g in lost:
            first.groups[b].trajectories[g] = groups[b].trajectories[g]
        for name, seconds in made.seconds.items():
            first.seconds[name] = first.seconds.get(name, 0.0) + seconds
        first.held_again.update(lost)


def _only(open_episode: OpenEpisode, wanted: Iterable[bool]) -> OpenEpisode:
    """Opens those conversations that are ``wanted``; `rollout` opens them problem by problem."""
    turns = iter(wanted)

    def begin(problem: Problem, seed: int) -> Episode:
        return open_episode(problem, seed) if next(turns) else _Over()

    return begin


class _Over(Episode):
    """Stands for a conversation that was not lost: it is over before it begins."""

    def reset(self) -> Observation:
        return Observation(done=True)

    def step(self, said: PolicyTurn) -> Observation:
        raise AssertionError("nothing is said in a conversation that is over")

    def result(self) -> EpisodeResult:
        return EpisodeResult()


def roll_out(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    second_turn: str | None = None,
    retries: int = 0,
) -> Rollout:
    """Sample a group of trajectories for each problem and judge them.

    Args:
        policy: Answers.
        task: Opens the conversations and judges answers.
        problems: B problems.
        seeds: One per problem.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        second_turn: A request to re-examine every answer. The second answer then counts, and its score is
            a channel of its own. None holds the task's own conversations.
        retries: How often a lost conversation is held again at most.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
    """

    begin, limits = opening(task, second_turn)
    rolled = rollout(policy, task, problems, seeds, sampling, begin, limits)
    hold_again(policy, task, rolled, seeds, sampling, retries, begin, limits)
    return rolled


def opening(task: Task, second_turn: str | None) -> tuple[OpenEpisode | None, RolloutLimits | None]:
    """How conversations begin and how long they may get; None leaves both to the task.

    Args:
        task: Judges answers.
        second_turn: A request to re-examine every answer. None means the task's own conversations.
    """
    if second_turn is None:
        return None, None

    def ask(problem: Problem, seed: int) -> Episode:
        return SelfCorrection(problem, task.tags, task.verdict, task.ask_again(second_turn), split_score=True)

    return ask, RolloutLimits(turns=2)
