"""The one loop of all rollouts: a sampler takes the policy's turns, episodes answer, until all are over.

`rollout` holds G conversations about each problem, with any `Sampler`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, Observation, RolloutHook
from selfverify.core.errors import DataError, SamplingError, SelfVerifyError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, SampleIndex, Trajectory
from selfverify.policy.decoding import derived_seed
from selfverify.policy.encoding import Prompt
from selfverify.rollouts.conversation import Conversation, find_results
from selfverify.rollouts.episode_runner import AWAITED, JUDGED, RELEASED, SAID, SHOWN, EpisodeRunner
from selfverify.rollouts.sampler import ContextFull, Encoded, SampledTurn, Sampler
from selfverify.tasks.answering import SelfCorrection
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)

OpenEpisode = Callable[[Problem, int], Episode]
"""Begins the conversation about a problem; the number is a seed for all that is random in it."""


@dataclass(slots=True)
class Rollout:
    """Groups with the encoded prompts they were sampled from, in the same order."""

    prompts: Sequence[Prompt]
    groups: list[Group]
    seconds: dict[str, float] = field(default_factory=dict)
    """Where conversations may have several turns: the time that saying, replying and hearing took."""
    retries: Counter[SampleIndex] = field(default_factory=Counter)
    """How often conversations that were lost were held again."""
    errors: dict[SampleIndex, Exception] = field(default_factory=dict)
    """Why conversations have no result."""


OnGroup = Callable[[int, Rollout], None]
"""Gets a problem's number and its group, as soon as all its conversations have results."""


def rollout(
    sampler: Sampler,
    task: Task,
    problems: Sequence[Problem],
    seeds: Sequence[int],
    group_size: int,
    *,
    open_episode: OpenEpisode | None = None,
    limits: RolloutLimits | None = None,
    hook: RolloutHook | None = None,
    on_group: OnGroup | None = None,
) -> Rollout:
    """Hold G conversations about each problem and ask what came of them.

    Lost conversations are held again as often as ``limits.retries`` says. One that ended without a verdict
    (`EpisodeResult.lost`) is not lost in this sense.

    A conversation's words depend on its problem's seed, its place in the group and its episode alone, and on
    the other conversations only by the rounding of sums. An episode that raises, hangs or cannot be opened
    ends its trajectory with ``error``, without rewards: such a trajectory takes no part in training, and the
    others go on. A turn that was cut off is the last, unless its episode goes on (`Observation.after_cut`). A
    conversation that reaches the model's context ends with ``length``; what was said counts. When a server
    fails, conversations in which something was said go on, groups that are whole are handed to ``on_group``,
    and the error is raised at the end.

    Args:
        sampler: Takes the policy's turns.
        task: Opens episodes where ``open_episode`` is None; sees all answers before they are judged.
        problems: B problems.
        seeds: One per problem.
        group_size: G.
        open_episode: Begins each conversation; called on the caller's thread, problem by problem.
        limits: In turns, in time and at the same time; None takes the task's.
        hook: Told of what is said before episodes reply; None takes the task's, if it has one.
        on_group: Called on the caller's thread.

    Returns:
        B groups of G trajectories.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A problem cannot be encoded.
        HungError: Too many threads of this process hang in episodes.
        SamplingError: The engine has failed.
        ServerError: The server has failed.

    Example:
        >>> from selfverify import Policy, make_task
        >>> from selfverify.core.config import SamplingConfig
        >>> from selfverify.rollouts.policy_sampler import PolicySampler
        >>> task = make_task("digits-pick")
        >>> sampler = PolicySampler(Policy.load("builtin:digits"), SamplingConfig())
        >>> made = rollout(sampler, task, [task.problem("test", 0, 0)], seeds=[7], group_size=4)
        >>> len(made.groups[0].trajectories)
        4
    """
    limits, hook = limits or task.limits, hook or task.hook()
    with sampler.session(problems, seeds, group_size, limits):
        begin = open_episode or task.open
        loop = _Loop(sampler, task, problems, seeds, group_size, begin, limits, hook, on_group)
        loop.run()
        if sampler.outage is not None:
            raise sampler.outage
        groups = [loop.group(b) for b in range(len(problems))]
        seconds = loop.seconds if limits.turns > 1 else {}
        return Rollout(sampler.prompts, groups, seconds, loop.retries, loop.errors)


@dataclass(eq=False)
class _Loop:
    """The state of one `rollout`; see there for the arguments."""

    sampler: Sampler
    task: Task
    problems: Sequence[Problem]
    seeds: Sequence[int]
    size: int
    open_episode: OpenEpisode
    limits: RolloutLimits
    hook: RolloutHook | None
    on_group: OnGroup | None

    def __post_init__(self) -> None:
        self.runner, self.judge = EpisodeRunner(self.limits), ThreadPoolExecutor(1, "judge")
        self.waiting = deque(product(range(len(self.problems)), range(self.size)))
        """Conversations that have yet to begin."""
        self.talks: dict[SampleIndex, Conversation] = {}
        """Conversations that go on, or whose episodes have yet to be released."""
        self.over: dict[SampleIndex, Conversation] = {}
        """Conversations that are over and released, and have yet to be judged."""
        self.ready: dict[SampleIndex, Observation | None] = {}
        """Observations that the policy is to be shown next; None where it speaks first."""
        self.done: dict[SampleIndex, Trajectory] = {}
        self.errors: dict[SampleIndex, Exception] = {}
        self.retries: Counter[SampleIndex] = Counter()
        self.seconds = dict.fromkeys(("say", "reply", "hear"), 0.0)
        self.broken_off = set[int]()
        """Problems in one of whose conversations the sampler has failed."""
        self.judging = set[int]()
        """Problems whose groups are being judged."""

    def run(self) -> None:
        """Hold all conversations to their ends."""
        if self.hook is not None:
            self.hook.begin({index: self.problems[index[0]] for index in self.waiting})
        try:
            while self.waiting or self.talks or self.over:
                if self.waiting:
                    self._open()
                if self.ready and not (self.sampler.lock_step and self.runner.busy):
                    self._speak()
                    continue
                if self.runner.pending:
                    self._hear()
                self._judge()
                if self.sampler.outage is not None:
                    self.waiting.clear()
                    if not (self.talks or self.runner.pending):
                        self.over.clear()  # their groups will never be whole
        finally:
            self.judge.shutdown(wait=False, cancel_futures=True)
            self.runner.forget()
            left = [index for index, talk in self.talks.items() if not talk.closing]
            for index in left:
                self._release(index)
            if left:
                self._note_unclosed(self.runner.wait(everything=True)[RELEASED])

    def group(self, b: int) -> Group:
        """Return the conversations about a problem that all have results."""
        return Group(self.problems[b], [self.done[b, g] for g in range(self.size)])

    def _open(self) -> None:
        """Begin as many conversations as may be held at the same time; a free slot is filled at once."""
        room = (self.limits.concurrent or len(self.waiting) + len(self.talks)) - len(self.talks)
        if self.limits.concurrent is None and self.sampler.at_once is not None:
            room = self.sampler.at_once * self.size - len(self.talks)
            room -= room % self.size  # whole groups: what begins alike is asked for together
        few = [self.waiting.popleft() for _ in range(min(room, len(self.waiting)))]
        for b, g in few:
            talk = self.talks[b, g] = Conversation(self.problems[b], self.limits.turns)
            seed = derived_seed(self.seeds[b], g)
            talk.open(partial(self.open_episode, self.problems[b], seed), self.sampler.check)
        if not few:
            return
        self.sampler.open(few)
        if self.hook is not None:
            self.hook.open(few)
        with self._timed("reply"):
            for index in few:
                if self.talks[index].over:
                    self._release(index)
                else:
                    # Where environments are lent, others go on: only then may one become free. Such tasks are
                    # not repeatable anyway; all others keep to batches that no clock decides.
                    joins = self.limits.concurrent is None or self.task.repeatable
                    self._start(index, self.talks[index].reset, joins)

    def _start(self, index: SampleIndex, run: Callable[[], Observation | None], joins: bool = True) -> None:
        talk = self.talks[index]
        when = f"turn {len(talk.turns) - 1}" if talk.spoken else "before the first turn"
        name = f"problem {talk.problem.id}, sample {index[1]}, {when}"
        self.runner.start(SHOWN, index, run, name, joins=joins)

    def _speak(self) -> None:
        """Show the policy what is ready, and let it speak; probes first, so that rounds stay together."""
        probes = {i: o.probe for i, o in self.ready.items() if o is not None and o.probe is not None}
        batch = {index: self.ready.pop(index) for index in sorted(probes or self.ready)}
        with self._timed("hear"):
            self.sampler.undo([index for index, o in batch.items() if o is not None and o.undo])
            read = self.sampler.observe({index: probes.get(index, o) for index, o in batch.items()})
            going = [index for index, o in batch.items() if self._shown(index, o, read[index])]
            if self.hook is not None:
                shown = {i: o for i in going if i not in probes and (o := batch[i]) is not None}
                self.hook.shown(shown)
        with self._timed("say"):
            if going:
                said = self.sampler.say({index: self.talks[index].spoken for index in going})
                for indices, turns in said.items():
                    self.runner.watch(SAID, indices, turns)

    def _shown(
        self, index: SampleIndex, observation: Observation | None, read: Encoded | DataError | None
    ) -> bool:
        """Keep what the policy reads, and return whether it speaks next."""
        talk = self.talks[index]
        if observation is not None and observation.probe is not None:
            rest = replace(observation, probe=None)
            if isinstance(read, ContextFull):
                self.ready[index] = rest  # a probe that does not fit is left out
                return False
            talk.after_probe = rest
        if isinstance(read, DataError):
            talk.after_probe = None
            talk.end(read)
            self._release(index)
            return False
        if read is not None and talk.after_probe is None:
            talk.show(read, observation)
        return True

    def _hear(self) -> None:
        """Take what the policy has said and what episodes have shown."""
        with self._timed("say" if self.runner.watched(SAID) else "reply"):
            heard = self.runner.wait(self.sampler.lock_step)
        with self._timed("say"):
            said: dict[SampleIndex, SampledTurn] = {}
            for index, turn in heard[SAID].items():
                if isinstance(turn, Exception):
                    self._unsaid(index, turn)
                elif turn.turn.finish == Finish.ERROR:
                    self._broken_off(index, turn)
                else:
                    said[index] = turn
            probed = [index for index in said if self.talks[index].after_probe is not None]
            own = {index: turn for index, turn in said.items() if index not in probed}
            for index, spoken in own.items():
                self.talks[index].say(spoken)
            if self.hook is not None and own:
                self.hook.said({index: spoken.turn for index, spoken in own.items()})
            self.sampler.undo(probed)
        with self._timed("reply"):
            for index, spoken in said.items():
                talk = self.talks[index]
                self._start(index, partial(talk.hear_probe, spoken) if index in probed else talk.step)
        for index, reply in heard[SHOWN].items():
            talk = self.talks[index]
            after, talk.after_probe = talk.after_probe, None
            if isinstance(reply, Exception):
                talk.fail(reply)
            elif after is not None:
                self.ready[index] = after
            elif talk.take(reply):
                self.ready[index] = reply
            if talk.over:
                self._release(index)
        self._released(heard[RELEASED])
        judged: dict[SampleIndex, Exception | None] = heard[JUDGED]
        for error in judged.values():
            if error is not None:
                raise error
        self._keep([*judged])

    def _broken_off(self, index: SampleIndex, said: SampledTurn) -> None:
        """Lose a conversation whose turn an engine or a server has given up; no episode reads that turn.

        A probe that was given up is left out.
        """
        talk = self.talks[index]
        after, talk.after_probe = talk.after_probe, None
        if after is not None:
            self.sampler.undo([index])
            self.ready[index] = after
            return
        talk.say(said)
        talk.fail(SamplingError("what samples the policy's turns has given this one up"))
        self._release(index)

    def _unsaid(self, index: SampleIndex, error: Exception) -> None:
        """Take that the policy has said nothing: it cannot go on, or its server has failed."""
        talk = self.talks[index]
        after, talk.after_probe = talk.after_probe, None
        if after is not None and isinstance(error, ContextFull):
            self.sampler.undo([index])
            self.ready[index] = after
            return
        if isinstance(error, DataError):
            talk.end(error)
        elif isinstance(error, SelfVerifyError) and self.sampler.outage is not None:
            talk.error, talk.over = error, True
            self.broken_off.add(index[0])
        else:
            raise error
        self._release(index)

    def _release(self, index: SampleIndex) -> None:
        """Let a conversation that is over give its environment back, before its verdict is asked for."""
        talk = self.talks[index]
        talk.closing = True
        for score in self.sampler.close([index]).values():
            talk.read_score = score
            self.runner.watch(AWAITED, [index], score)
        name = f"problem {talk.problem.id}, sample {index[1]}, closing"
        self.runner.start(RELEASED, index, talk.release, name, bounded=False)

    def _released(self, released: Mapping[SampleIndex, Exception | None]) -> None:
        """Take that conversations are over, also where a release raised; lost ones are held again."""
        self._note_unclosed(released)
        for index in released:
            self.over[index] = self.talks.pop(index)
        self._retry([index for index in released if self.over[index].error is not None])
        for index in released:
            future = self.over[index].awaited() if index in self.over else None
            if future is not None:
                self.runner.watch(AWAITED, [index], future)

    def _note_unclosed(self, released: Mapping[SampleIndex, Exception | None]) -> None:
        for (b, _), error in released.items():
            if error is not None:
                name = self.problems[b].id
                message = f"problem {name}: an episode could not be closed: {error}"
                note(logger, "episode_not_closed", message, problem=name, reason=str(error))

    def _judge(self) -> None:
        """Ask what came of conversations: of all at the end, or, without lock-step, of each group's."""
        awaited = self.runner.watched(AWAITED)
        if self.sampler.lock_step:
            if not (self.waiting or self.talks or awaited) and self.over:
                find_results(self.task, [self.over[index] for index in sorted(self.over)])
                self._keep([*self.over])
            return
        for b in sorted({b for b, _ in self.over} - self.judging - self.broken_off):
            group = [(b, g) for g in range(self.size)]
            over = [index for index in group if index in self.over and index not in awaited]
            if all(index in over or index in self.done for index in group):
                self.judging.add(b)
                talks = [self.over[index] for index in over]
                # Judging may take long, and replies go on coming.
                self.runner.watch(JUDGED, over, self.judge.submit(find_results, self.task, talks))

    def _keep(self, indices: Sequence[SampleIndex]) -> None:
        """Keep what has come of conversations; those that are lost may be held again."""
        self._retry([index for index in indices if self.over[index].error is not None])
        for index in indices:
            talk = self.over.pop(index, None)
            if talk is not None:
                self.done[index] = talk.trajectory()
                if talk.error is not None:
                    self.errors[index] = talk.error
        for b in sorted({b for b, _ in indices}):
            self.judging.discard(b)
            group = [(b, g) for g in range(self.size)]
            if self.on_group is not None and all(index in self.done for index in group):
                retries = Counter({(0, g): self.retries[b, g] for _, g in group if self.retries[b, g]})
                errors = {(0, g): self.errors[b, g] for _, g in group if (b, g) in self.errors}
                self.on_group(b, Rollout([], [self.group(b)], {}, retries, errors))

    def _retry(self, lost: Sequence[SampleIndex]) -> None:
        """Let lost conversations wait to be held again; each draws what it drew before."""
        again = [index for index in lost if self.retries[index] < self.limits.retries]
        if again and self.sampler.outage is None:
            text = f"{len(again)} lost conversations are held again"
            names = sorted({self.problems[b].id for b, _ in again})
            note(logger, "episodes_held_again", text, problems=names, count=len(again))
        for index in again:
            del self.over[index]
        self.waiting.extend(again)
        self.retries.update(again)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - start


def opening(task: Task, second_turn: str | None, retries: int = 0) -> tuple[OpenEpisode, RolloutLimits]:
    """Return how conversations begin and how long they may get.

    Args:
        task: Judges answers.
        second_turn: A request to re-examine every answer. The second answer then counts, and its score is a
            channel of its own. None means the task's own conversations.
        retries: How often a lost conversation is held again at most.
    """
    if second_turn is None:
        return task.open, task.limits.model_copy(update={"retries": retries})

    def ask(problem: Problem, seed: int) -> Episode:
        return SelfCorrection(problem, task.tags, task.verdict, task.ask_again(second_turn), split_score=True)

    return ask, RolloutLimits(turns=2, retries=retries)
