"""Conversations with a model behind an OpenAI-compatible server, as `converse` holds them with a policy."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfverify.core.episode_settings import EpisodeLimits
from selfverify.core.errors import ConfigError, SelfVerifyError, ServerError
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Group
from selfverify.policy.sampling import derived_seed
from selfverify.policy.threads import Place
from selfverify.remote.candidates_of_server import ServerSampler
from selfverify.remote.client import OpenAIClient
from selfverify.remote.messages import openai_messages
from selfverify.remote.model_on_server import BoundedClient, ModelOnServer
from selfverify.remote.score_reading import ScoreReader
from selfverify.remote.score_shares import soft_score
from selfverify.remote.server_replies import Completion
from selfverify.remote.usage import Usage
from selfverify.rollouts.converse import OpenEpisode
from selfverify.rollouts.endings import find_endings
from selfverify.rollouts.served_talk import ServedTalk
from selfverify.tasks.base import Task

logger = logging.getLogger(__name__)

Keep = Callable[[int, Group], None]
"""Gets the place of each problem among those asked, and its group, as soon as it is whole."""

_LARGEST_SEED = 2**31 - 1
"""Of requests: some servers hold seeds in 32 bits."""


@dataclass(frozen=True, slots=True)
class _Asking:
    """What a server is asked by; ``reader`` is None where it does not continue messages."""

    client: OpenAIClient
    sampler: ServerSampler
    reader: ScoreReader | None


@dataclass(slots=True)
class ServedRollouts:
    """Asks a server about problems, each in as few requests as the server allows.

    Args:
        served: The model.
        task: Opens the conversations and judges answers.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        at_once: The most requests that wait for the server at the same time.
        open_episode: Begins each conversation; None: as the task does.
        limits: In turns; None takes the task's.
        read_scores: Whether expected scores are read from probabilities, where the server shows any.
        usage: Counts what the calls cost.
    """

    served: ModelOnServer
    task: Task
    sampling: SamplingConfig
    at_once: int = 32
    open_episode: OpenEpisode | None = None
    limits: EpisodeLimits | None = None
    read_scores: bool = True
    usage: Usage = field(default_factory=Usage)

    def ask(self, problems: Sequence[Problem], seeds: Sequence[int], keep: Keep) -> None:
        """Hold all conversations about the problems.

        When a problem fails, those that were begun are still finished and kept, and no other one is begun.

        Args:
            problems: The problems.
            seeds: One per problem, sent with its requests; some servers ignore it.
            keep: Called with each problem's group.

        Raises:
            ConfigError: The task's conversations need tools, or the server chooses among answers.
            ServerError: The server failed; the message names the problems that have no answers.
        """
        for problem in problems:
            if problem.tools:
                raise ConfigError(
                    f"problem {problem.id}: task {self.task.name} offers tools, which an evaluation by a "
                    "server does not call; `selfverify agent run` and `solve --look` do"
                )
        asyncio.run(self._ask(problems, seeds, keep))

    async def _ask(self, problems: Sequence[Problem], seeds: Sequence[int], keep: Keep) -> None:
        room, judging = asyncio.Semaphore(self.at_once), asyncio.Lock()
        faults: dict[str, ServerError] = {}
        async with BoundedClient(self.served.server, self.at_once) as client:
            reader = ScoreReader(client)
            reads = self.read_scores and await reader.can_read(self.served.model, self.usage, math.inf)
            # Alternatives for every token are most of what a server would send; a reader does without.
            asking = _Asking(client, ServerSampler(client), reader if reads else None)

            async def one(place: int) -> None:
                async with room:
                    if faults:
                        return
                    try:
                        talks = await self._hold(asking, problems[place], seeds[place])
                        scores = await self._soft(asking.reader, talks)
                    except ServerError as error:
                        faults[problems[place].id] = error
                        return
                    async with judging:  # off the loop: judging may take long, and replies go on coming
                        named: dict[Place, ServedTalk] = {(0, g): talk for g, talk in enumerate(talks)}
                        await asyncio.to_thread(find_endings, self.task, named)
                    group = Group(problems[place], [talk.trajectory() for talk in talks])
                    for trajectory, soft in zip(group.trajectories, scores, strict=True):
                        if soft is not None and "sampled" in trajectory.scores:
                            trajectory.scores["soft"] = soft
                    keep(place, group)

            try:
                async with asyncio.TaskGroup() as tasks:
                    for place in range(len(problems)):
                        tasks.create_task(one(place))
            except* SelfVerifyError as errors:
                raise errors.exceptions[0] from None
        if faults:
            raise _failed(faults)

    async def _hold(self, asking: _Asking, problem: Problem, seed: int) -> list[ServedTalk]:
        """Hold the conversations about one problem; what begins alike is asked for together."""
        task, messages = self.task, openai_messages(problem)
        talks = [ServedTalk(problem, messages, "think" in task.tags) for _ in range(self.sampling.group_size)]
        for g, talk in enumerate(talks):
            talk.open(self.open_episode or task.open, derived_seed(seed, g))
        turns = (self.limits or task.limits).turns
        for turn in range(turns):
            going = [g for g, talk in enumerate(talks) if not talk.over]
            if not going:
                break
            alike = all(talks[g].messages == talks[going[0]].messages for g in going)
            parts = [going] if alike else [[g] for g in going]
            drawn = await asyncio.gather(
                *[self._draw(asking, talks[part[0]], seed, turn, part) for part in parts],
                return_exceptions=True,
            )
            for part, replies in zip(parts, drawn, strict=True):
                if isinstance(replies, BaseException):
                    raise replies
                for g, reply in zip(part, replies, strict=True):
                    talks[g].say(reply, more=turn + 1 < turns)
        for talk in talks:
            if talk.episode is not None:
                talk.episode.close()
        return talks

    async def _draw(
        self, asking: _Asking, talk: ServedTalk, seed: int, turn: int, part: Sequence[int]
    ) -> list[Completion]:
        """What the model says in conversations that are alike so far, one for each number in ``part``."""
        sampling = self.sampling
        own = derived_seed(seed, turn) if turn else seed
        body: dict[str, Any] = {
            "model": self.served.model,
            "messages": talk.messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": (own + (part[0] if len(part) == 1 else 0)) % _LARGEST_SEED,
        }

        async def draw(more: dict[str, Any]) -> list[Completion]:
            found: list[Completion] = []
            fault = await asking.sampler.draw(body | more, len(part), found.append, self.usage)
            if len(found) < len(part):
                raise fault or ServerError(
                    f"the server gave {len(found)} of {len(part)} answers", 502, "bad_reply", retry=True
                )
            _refuse_chosen(found)
            return found

        alternatives = self.read_scores and asking.reader is None
        return await asking.client.with_logprobs(self.served.model, draw, alternatives)

    async def _soft(self, reader: ScoreReader | None, talks: Sequence[ServedTalk]) -> list[float | None]:
        """The expected score behind each conversation's last words; None where the server does not say."""
        if not self.read_scores:
            return [None] * len(talks)

        async def read(talk: ServedTalk) -> float | None:
            if talk.last is None:
                return None
            found = soft_score(talk.last.logprobs)
            if found is None and reader is not None:
                body = {"model": self.served.model, "messages": talk.asked}
                found = await reader.read(body, talk.last, self.usage, math.inf)
            return found

        return await asyncio.gather(*map(read, talks))


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
