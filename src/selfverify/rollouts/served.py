"""Conversations with a model behind an OpenAI-compatible server, as `rollout` holds them with a policy."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from selfverify.clients.candidates import CandidateSampler, ScoreReader
from selfverify.clients.openai_client import REFUSALS, BoundedClient, ModelOnServer, OpenAIClient, Usage
from selfverify.clients.replies import Completion, soft_score
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import ConfigError, SelfVerifyError, ServerError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group, Trajectory
from selfverify.policy.decoding import derived_seed
from selfverify.policy.kv_sessions import SampleIndex
from selfverify.rollouts.converse import OpenEpisode
from selfverify.rollouts.endings import close, find_endings
from selfverify.rollouts.replying import EpisodeRunner
from selfverify.rollouts.served_talk import ServedConversation
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)
T = TypeVar("T")

Keep = Callable[[int, Group, Counter[int], dict[str, float]], None]
"""Gets the place of each problem among those asked, its group, as soon as it is whole, how often each of its
conversations was held again, and the seconds that they took by phase."""

_LARGEST_SEED = 2**31 - 1
"""Of requests: some servers hold seeds in 32 bits."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """What a server is asked by; ``reader`` is None where it does not continue messages."""

    client: OpenAIClient
    sampler: CandidateSampler
    reader: ScoreReader | None


@dataclass(slots=True)
class ServerRollouts:
    """Asks a server about problems, each in as few requests as the server allows.

    Args:
        served: The model.
        task: Opens the conversations and judges answers.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        at_once: The most requests that wait for the server at the same time.
        open_episode: Begins each conversation; None: as the task does.
        limits: In turns, in time and at the same time; None takes the task's.
        retries: How often a lost conversation is held again at most.
        read_scores: Whether expected scores are read from probabilities, where the server shows any.
        usage: Counts what the calls cost.
    """

    served: ModelOnServer
    task: Task
    sampling: SamplingConfig
    at_once: int = 32
    open_episode: OpenEpisode | None = None
    limits: RolloutLimits | None = None
    retries: int = 0
    read_scores: bool = True
    usage: Usage = field(default_factory=Usage)
    _listening: Lock = field(default_factory=Lock)

    def ask(self, problems: Sequence[Problem], seeds: Sequence[int], keep: Keep) -> None:
        """Hold all conversations about the problems.

        An episode that fails ends its conversation without a verdict, as in `rollout`; so does a server that
        refuses to go on with one. A conversation that reaches the model's context ends there. When the server
        fails a problem, those that were begun are still finished and kept, and no other one is begun.

        Args:
            problems: The problems.
            seeds: One per problem, sent with its requests; some servers ignore it.
            keep: Called with each problem's place, group, the conversations that were held again, and the
                seconds in which the server spoke (``say``), episodes replied (``reply``) and replies were
                taken in (``hear``).

        Raises:
            ConfigError: The server chooses among answers, or a conversation asks something aside.
            HungError: Too many threads of this process hang in episodes.
            ServerError: The server failed; the message names the problems that have no answers.
        """
        asyncio.run(self._ask(problems, seeds, keep))

    async def _ask(self, problems: Sequence[Problem], seeds: Sequence[int], keep: Keep) -> None:
        limits, size = self.limits or self.task.limits, self.sampling.group_size
        most = self.at_once if limits.concurrent is None else max(limits.concurrent // size, 1)
        room, judging = asyncio.Semaphore(min(self.at_once, most)), asyncio.Lock()
        faults: dict[str, ServerError] = {}
        with ThreadPoolExecutor(self.at_once, "episodes") as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            async with BoundedClient(self.served.server, self.at_once) as client:
                reader = ScoreReader(client)
                reads = self.read_scores and await reader.can_read(self.served.model, self.usage, math.inf)
                # Alternatives for every token are most of what a server would send; a reader does without.
                asking = _Asking(client, CandidateSampler(client), reader if reads else None)

                async def one(place: int) -> None:
                    async with room:
                        if faults:
                            return
                        try:
                            seconds = dict.fromkeys(("say", "reply", "hear"), 0.0)
                            made, again = await self._group(
                                asking, judging, problems[place], seeds[place], seconds
                            )
                        except ServerError as error:
                            faults[problems[place].id] = error
                            return
                        keep(place, Group(problems[place], made), again, seconds)

                try:
                    async with asyncio.TaskGroup() as tasks:
                        for place in range(len(problems)):
                            tasks.create_task(one(place))
                except* SelfVerifyError as errors:
                    raise errors.exceptions[0] from None
        if faults:
            raise _failed(faults)

    async def _group(
        self,
        asking: _Asking,
        judging: asyncio.Lock,
        problem: Problem,
        seed: int,
        seconds: dict[str, float],
    ) -> tuple[list[Trajectory], Counter[int]]:
        """The conversations about a problem, judged; those that were lost are held again."""
        limits, size = self.limits or self.task.limits, self.sampling.group_size
        made: dict[int, Trajectory] = {}
        again = Counter[int]()
        left = list(range(size))
        for retry in range(self.retries + 1):
            wave = limits.concurrent or size
            for first in range(0, len(left), wave):
                part = left[first : first + wave]
                made |= await self._wave(asking, judging, problem, seed, part, seconds)
            again.update(left if retry else [])
            left = [g for g in left if made[g].lost]
            if not left:
                break
            if retry < self.retries:
                text = f"{len(left)} lost conversations about problem {problem.id} are held again"
                note(logger, "episodes_held_again", text, problems=[problem.id], count=len(left))
        return [made[g] for g in range(size)], again

    async def _wave(
        self,
        asking: _Asking,
        judging: asyncio.Lock,
        problem: Problem,
        seed: int,
        numbers: Sequence[int],
        seconds: dict[str, float],
    ) -> dict[int, Trajectory]:
        """Some conversations about a problem, judged."""
        limits = self.limits or self.task.limits
        replies = EpisodeRunner(limits, lambda place: f"problem {problem.id}, sample {place[1]}")
        talks: dict[SampleIndex, ServedConversation] = {}
        try:
            for g in numbers:
                listener = None if limits.turns == 1 else self.task.hook()
                talk = ServedConversation(problem, "think" in self.task.tags, listener, self._listening)
                talks[0, g] = talk
                talk.open(partial(self.open_episode or self.task.open, problem, derived_seed(seed, g)))
            await self._hold(asking, replies, problem, seed, talks, seconds)
            scores = await self._soft(asking.reader, [*talks.values()])
            async with judging:  # off the loop: judging may take long, and replies go on coming
                await asyncio.to_thread(find_endings, self.task, talks)
        finally:
            await asyncio.to_thread(close, talks, replies)
        made: dict[int, Trajectory] = {}
        for (place, talk), soft in zip(talks.items(), scores, strict=True):
            trajectory = made[place[1]] = talk.trajectory()
            if soft is not None and "sampled" in trajectory.scores:
                trajectory.scores["soft"] = soft
        return made

    async def _hold(
        self,
        asking: _Asking,
        replies: EpisodeRunner,
        problem: Problem,
        seed: int,
        talks: Mapping[SampleIndex, ServedConversation],
        seconds: dict[str, float],
    ) -> None:
        """Hold the conversations about one problem to their ends; what begins alike is asked for together."""
        turns = (self.limits or self.task.limits).turns
        begun = {place: talk.begin for place, talk in talks.items() if not talk.over}
        with _timed(seconds, "reply"):
            openings = await self._replied(replies, begun, "before the first turn")
        with _timed(seconds, "hear"):
            for place, shown in openings.items():
                if isinstance(shown, Exception):
                    talks[place].fail(shown)
                else:
                    await self._off_loop(partial(talks[place].start, shown))
        for turn in range(turns):
            going = [place for place, talk in talks.items() if not talk.over]
            if not going:
                break
            asked = [talks[place].served.body() for place in going]
            alike = all(body == asked[0] for body in asked)
            parts = [going] if alike else [[place] for place in going]
            draws = [self._draw(asking, talks[part[0]], seed, turn, part[0][1], len(part)) for part in parts]
            with _timed(seconds, "say"):
                drawn = await asyncio.gather(*draws, return_exceptions=True)
            said: dict[SampleIndex, PolicyTurn] = {}
            for part, completions in zip(parts, drawn, strict=True):
                if isinstance(completions, ServerError) and turn and completions.status in REFUSALS:
                    for place in part:
                        talks[place].refused(completions)
                elif isinstance(completions, BaseException):
                    raise completions
                else:
                    said |= {p: talks[p].say(c) for p, c in zip(part, completions, strict=True)}
            calls = {place: partial(talks[place].reply, words) for place, words in said.items()}
            with _timed(seconds, "reply"):
                replied = await self._replied(replies, calls, f"turn {turn}")
            with _timed(seconds, "hear"):
                for place, heard in replied.items():
                    more = turn + 1 < turns
                    await self._off_loop(partial(talks[place].answer, said[place], heard, more))

    async def _replied(
        self, replies: EpisodeRunner, calls: Mapping[SampleIndex, Callable[[], T]], what: str
    ) -> dict[SampleIndex, T | Exception]:
        """Ask episodes; each reply of a conversation on a thread, as others go on meanwhile."""
        if (self.limits or self.task.limits).turns == 1:
            return replies.ask(calls, what)
        asked = [asyncio.to_thread(replies.ask, {place: call}, what) for place, call in calls.items()]
        return {place: found for each in await asyncio.gather(*asked) for place, found in each.items()}

    async def _off_loop(self, call: Callable[[], None]) -> None:
        """Do what may ask a listener, which computes, or shrink large images."""
        if (self.limits or self.task.limits).turns == 1:
            call()
        else:
            await asyncio.to_thread(call)

    async def _draw(
        self, asking: _Asking, talk: ServedConversation, seed: int, turn: int, first: int, count: int
    ) -> list[Completion]:
        """What the model says in ``count`` conversations that are alike so far, ``first`` among them."""
        sampling = self.sampling
        own = derived_seed(seed, turn) if turn else seed
        body: dict[str, Any] = {
            "model": self.served.model,
            **talk.served.body(),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": (own + first) % _LARGEST_SEED,
        }

        async def draw(more: dict[str, Any]) -> list[Completion]:
            found: list[Completion] = []
            fault = await asking.sampler.draw(body | more, count, found.append, self.usage)
            if len(found) < count:
                raise fault or ServerError(
                    f"the server gave {len(found)} of {count} answers", 502, "bad_reply", retry=True
                )
            _refuse_chosen(found)
            return found

        alternatives = self.read_scores and asking.reader is None
        return await asking.client.with_logprobs(self.served.model, draw, alternatives)

    async def _soft(
        self, reader: ScoreReader | None, talks: Sequence[ServedConversation]
    ) -> list[float | None]:
        """The expected score behind each conversation's last words; None where the server does not say."""
        if not self.read_scores:
            return [None] * len(talks)

        async def read(talk: ServedConversation) -> float | None:
            if talk.last is None:
                return None
            found = soft_score(talk.last.logprobs)
            if found is None and reader is not None:
                body = {"model": self.served.model, "messages": talk.asked}
                found = await reader.read(body, talk.last, self.usage, math.inf)
            return found

        return await asyncio.gather(*map(read, talks))


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add what the clock says to a phase."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] += time.perf_counter() - start


def _refuse_chosen(found: Sequence[Completion]) -> None:
    """Refuse answers that a gateway has chosen: figures of single answers would be those of best-of-N."""
    for reply in found:
        about = reply.head.get("best_of")
        if isinstance(about, Mapping) and about.get("samples_used", 0) > len(found):
            raise ConfigError(
                "the server chooses among several answers, and single ones are measured: name the model "
                "NAME@plain"
            )


def _failed(faults: dict[str, ServerError]) -> ServerError:
    """One error that names the problems."""
    error = next(iter(faults.values()))
    first, *others = sorted(faults, key=lambda name: (len(name), name))
    named = ", ".join([first, *others[:3]]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    text = f"the server failed on {named}: {error}; what is finished is stored, and the same call goes on"
    return ServerError(text, error.status, error.code, error.retry, error.retry_after)
