"""The one loop of all rollouts: the policy speaks, episodes reply, until all conversations are over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from selfverify.core import ranks
from selfverify.core.episode import Ending, Episode, Reply, Said
from selfverify.core.episode_settings import EpisodeLimits
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.tags import Tagged, channel_lengths, token_ends
from selfverify.core.trajectory import OBSERVATION, Finish, Group, Segment, Trajectory
from selfverify.policy.continuations import Continuation
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.policy import Policy
from selfverify.policy.replies import ReplyEncoder, without_written_end
from selfverify.policy.response_template import read_message
from selfverify.policy.sampling import Sample, derived_seed
from selfverify.policy.threads import Place, Threads
from selfverify.rollouts.replying import Replies, ask, ending_of, outcome
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)

OpenEpisode = Callable[[Problem, int], Episode]
"""Begins the conversation about a problem; the number is a seed for whatever is random in it."""

Listener = Callable[[Mapping[Place, Said], Threads], None]
"""Measures what has just been said in a round and puts it into `Said.values`, before episodes reply."""


@dataclass(slots=True)
class Rollout:
    """Groups with the encoded prompts they were sampled from, in the same order."""

    prompts: list[Prompt]
    groups: list[Group]
    seconds: dict[str, float] = field(default_factory=dict)
    """Where conversations may have several turns: the time that saying, replying and hearing took."""


@dataclass(slots=True)
class _Talk:
    """One conversation on its way."""

    problem: Problem
    episode: Episode | None
    segments: list[Segment]
    turns: list[int]
    """For each turn of the policy the number of its first segment."""
    last: int = 0
    """The token that was said last."""
    tokens: int = 0
    ends: Sequence[int] = ()
    """For each token of the last turn where in the turn's text it ends."""
    error: Exception | None = None


def converse(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    open_episode: OpenEpisode | None = None,
    limits: EpisodeLimits | None = None,
    listener: Listener | None = None,
) -> Rollout:
    """Hold G conversations about each problem and ask what came of them.

    What a conversation says depends on its problem's seed, its place in the group and its episode alone. An
    episode that raises, hangs or cannot be opened ends its trajectory with ``error``, without rewards: such a
    trajectory takes no part in training, and the others go on. A turn that was cut off is the last. A
    conversation that reaches the model's context ends with ``length``; what was said counts.

    Args:
        policy: Speaks.
        task: Opens episodes where ``open_episode`` is None; sees all answers before they are judged.
        problems: B problems.
        seeds: One per problem.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        open_episode: Begins each conversation.
        limits: In turns and in time; None takes the task's.
        listener: Called between what was said and the replies.

    Returns:
        B groups of G trajectories.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
        SamplingError: Too many episodes hang, or the engine has failed.
    """
    limits = limits or task.limits
    prompts = policy.encode(problems)
    replies, writer = Replies(limits), ReplyEncoder(policy.encoder)
    talks: dict[Place, _Talk] = {}
    try:
        for b, (problem, seed) in enumerate(zip(problems, seeds, strict=True)):
            for g in range(sampling.group_size):
                talks[b, g] = _Talk(problem, None, [], [])
                _open(talks[b, g], writer, partial(open_episode or task.open, problem, derived_seed(seed, g)))
        seconds = _talk(policy, prompts, talks, seeds, sampling, limits, listener, replies, writer)
        endings = _endings(task, talks)
    finally:
        _close(talks, replies)
    groups = []
    for b, problem in enumerate(problems):
        made = [_trajectory(talks[b, g], endings.get((b, g))) for g in range(sampling.group_size)]
        groups.append(Group(problem, made))
    return Rollout(prompts, groups, seconds if limits.turns > 1 else {})


def recite(policy: Policy, problem: Problem, episode: Episode, turns: Sequence[Sample]) -> Trajectory:
    """A conversation in which the policy's turns are given; as many of them are said as the episode lets.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A reply cannot be shown to the policy.
    """
    talk, writer = _Talk(problem, episode, [], []), ReplyEncoder(policy.encoder)
    try:
        _check(writer, problem, episode)
        for turn, sample in enumerate(turns):
            reply = ask(episode, _record(policy, talk, sample, turn))
            _cut(talk, reply)
            if reply.done or sample.finish != Finish.STOP or turn + 1 == len(turns):
                break
            piece = without_written_end(sample.tokens, writer.encode(problem, reply, turn + 1))
            talk.segments.append(_observation(policy, piece, turn + 1))
        return _trajectory(talk, ending_of(episode, len(talk.turns)))
    finally:
        episode.close()


def _talk(
    policy: Policy,
    prompts: Sequence[Prompt],
    talks: Mapping[Place, _Talk],
    seeds: Sequence[int],
    sampling: SamplingConfig,
    limits: EpisodeLimits,
    listener: Listener | None,
    replies: Replies,
    writer: ReplyEncoder,
) -> dict[str, float]:
    """Rounds of saying, replying and hearing, until all conversations are over; how long each took."""
    seconds = {"say": 0.0, "reply": 0.0, "hear": 0.0}
    threads = policy.threads(prompts, sampling, seeds=seeds)
    room = longest_row(policy.model)
    going = [place for place, talk in talks.items() if talk.error is None]
    for turn in range(limits.turns):
        # An engine samples for all processes at once, so that all have to ask it equally often.
        if not (any(ranks.gather(bool(going))) if policy.engine is not None else going):
            break
        more = turn + 1 < limits.turns
        clock = [time.perf_counter()]
        said = {
            place: _record(policy, talks[place], sample, turn)
            for place, sample in threads.say(going, turn, more).items()
        }
        if listener is not None:
            listener(said, threads)
        clock.append(time.perf_counter())
        episodes = {p: e for p in said if (e := talks[p].episode) is not None}
        heard: dict[Place, Continuation] = {}
        outcomes = replies.ask(said, episodes)
        clock.append(time.perf_counter())
        for place, reply in outcomes.items():
            talk = talks[place]
            if isinstance(reply, Exception):
                _fail(talk, reply)
                continue
            _cut(talk, reply)
            used = len(prompts[place[0]].ids) + talk.tokens
            if room is not None and used >= room and said[place].finish == Finish.LENGTH:
                _runs_out(talk, room)
            if reply.done or said[place].finish != Finish.STOP or not more:
                continue
            try:
                piece = writer.encode(talk.problem, reply, turn + 1)
            except DataError as error:
                _fail(talk, error)
                continue
            piece = without_written_end([talk.last], piece)
            if room is not None and used + len(piece.tokens) >= room:
                _runs_out(talk, room)
                continue
            talk.segments.append(_observation(policy, piece, turn + 1))
            talk.tokens += len(piece.tokens)
            heard[place] = piece
        threads.hear(heard)
        clock.append(time.perf_counter())
        for number, name in enumerate(seconds):
            seconds[name] += clock[number + 1] - clock[number]
        going = list(heard)
    return seconds


def _open(talk: _Talk, writer: ReplyEncoder, begin: Callable[[], Episode]) -> None:
    """Begin a conversation; an environment that does not start is lost like one that dies."""
    opened = outcome(begin)
    if not isinstance(opened, Episode):
        kind = type(opened).__name__
        _fail(talk, opened if isinstance(opened, Exception) else TypeError(f"a {kind} is no Episode"))
        return
    talk.episode = opened
    checked = outcome(lambda: _check(writer, talk.problem, opened))
    if isinstance(checked, ConfigError):
        raise checked
    if checked is not None:
        _fail(talk, checked)


def _check(writer: ReplyEncoder, problem: Problem, episode: Episode) -> None:
    """Refuse a chat template that cannot show what the episode will reply, before anything is sampled."""
    for reply in episode.foreseen():
        writer.check(problem, reply)


def said_of(policy: Policy, sample: Sample, turn: int = 0) -> Said:
    """What an episode gets to know of a turn: its text without the token that ended it."""
    return _said(sample, turn, *token_ends(policy.tokenizer, sample.tokens))


def _said(sample: Sample, turn: int, text: str, ends: Sequence[int]) -> Said:
    if sample.finish == Finish.STOP:
        text = text[: ends[-2] if len(ends) > 1 else 0]
    # A copy: what an episode does to it must not reach what is learnt.
    return Said(text, list(sample.tokens), sample.finish, turn)


def _record(policy: Policy, talk: _Talk, sample: Sample, turn: int) -> Said:
    """Keep what was said as one segment, which `_cut` divides."""
    text, talk.ends = token_ends(policy.tokenizer, sample.tokens)
    channel = talk.episode.channel if talk.episode is not None else OBSERVATION
    talk.turns.append(len(talk.segments))
    talk.segments.append(
        Segment(channel, sample.tokens, sample.logprobs, text, turn=turn, finish=sample.finish)
    )
    talk.tokens += len(sample.tokens)
    talk.last = sample.tokens[-1] if sample.tokens else -1
    said = _said(sample, turn, text, talk.ends)
    talk.segments[-1].values = said.values
    said.message = read_message(policy.loaded, text, talk.problem.tools)
    return said


def _cut(talk: _Talk, reply: Reply) -> None:
    """Divide the last segment into the channels that the reply names."""
    if not reply.cuts:
        return
    whole = talk.segments.pop()
    starts = [0 if n == 0 else channel_lengths(talk.ends, char) for n, (_, char) in enumerate(reply.cuts)]
    chars = [char for _, char in reply.cuts]
    for number, (channel, _) in enumerate(reply.cuts):
        low, high = starts[number], [*starts, len(whole.tokens)][number + 1]
        text = whole.text[chars[number] : [*chars, len(whole.text)][number + 1]]
        if number == 0 or high > low:
            tokens, logprobs = whole.tokens[low:high], whole.logprobs[low:high]
            talk.segments.append(Segment(channel, tokens, logprobs, text, turn=whole.turn))
    talk.segments[-1].finish, talk.segments[-1].values = whole.finish, whole.values


def _observation(policy: Policy, piece: Continuation, turn: int) -> Segment:
    tokens = list(piece.tokens)
    words: str = policy.tokenizer.decode(piece.unexpanded or tokens, clean_up_tokenization_spaces=False)
    # The environment's tokens have no probability; nothing is trained on them, so that 0 does no harm.
    zeros = [0.0] * len(tokens)
    return Segment(
        OBSERVATION, tokens, zeros, words, author="environment", turn=turn, images=list(piece.pictures)
    )


def _runs_out(talk: _Talk, room: int) -> None:
    """The context is full: the conversation ends where the policy has spoken last."""
    talk.segments[-1].finish = Finish.LENGTH
    message = f"problem {talk.problem.id}: a conversation has reached the model's context of {room} tokens"
    note(logger, "context_full", message, problem=talk.problem.id, tokens=talk.tokens)


def _fail(talk: _Talk, error: Exception) -> None:
    talk.error = error
    turn = len(talk.turns)
    message = f"problem {talk.problem.id}, turn {turn}: its episode failed: {type(error).__name__}: {error}"
    note(logger, "episode_failed", message, problem=talk.problem.id, turn=turn, reason=str(error))


def _endings(task: Task, talks: Mapping[Place, _Talk]) -> dict[Place, Ending]:
    """What came of each conversation that has not failed; the task sees all their answers before."""
    whole = {
        place: talk.episode for place, talk in talks.items() if talk.episode is not None and not talk.error
    }
    answers: list[tuple[Problem, Tagged]] = []
    for place, episode in whole.items():
        given = outcome(partial(_answers, episode))
        if isinstance(given, Exception):
            _fail(talks[place], given)
        else:
            answers += [(talks[place].problem, tagged) for tagged in given]
    task.prepare(answers)
    endings = {}
    for place, episode in whole.items():
        if talks[place].error is not None:
            continue
        ending = outcome(partial(ending_of, episode, len(talks[place].turns)))
        if isinstance(ending, Exception):
            # As of a reply: no verdict, never a 0.
            _fail(talks[place], ending)
        else:
            endings[place] = ending
    return endings


def _answers(episode: Episode) -> list[Tagged]:
    return list(episode.answers())


def _close(talks: Mapping[Place, _Talk], replies: Replies) -> None:
    """Close all episodes. A conversation is over then, whatever closing its episode comes to."""
    closed = replies.close({p: talk.episode for p, talk in talks.items() if talk.episode is not None})
    for place, error in closed.items():
        if error is not None:
            problem = talks[place].problem
            message = f"problem {problem.id}: an episode could not be closed: {error}"
            note(logger, "episode_not_closed", message, problem=problem.id, reason=str(error))


def _trajectory(talk: _Talk, ending: Ending | None) -> Trajectory:
    if ending is None:
        if not talk.segments:
            talk.segments.append(Segment(OBSERVATION, [], author="environment"))
        talk.segments[-1].finish = Finish.ERROR
        return Trajectory(talk.segments)
    starts = [*talk.turns, len(talk.segments)]
    for turn, parsed in enumerate(ending.turns):
        talk.segments[starts[turn]].parsed = parsed
    for turn in ending.lost_turns:
        own = [s for s in talk.segments[starts[turn] : starts[turn + 1]] if s.author == "policy"]
        own[-1].finish = Finish.ERROR
    if ending.lost:
        talk.segments[-1].finish = Finish.ERROR
    return Trajectory(talk.segments, ending.scores, ending.rewards, ending.parsed)
