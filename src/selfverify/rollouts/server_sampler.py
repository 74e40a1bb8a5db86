"""Conversations with a model behind an OpenAI-compatible server, held as `rollout` does with a policy.

`ServerRollouts` holds them. A `ServedConversation` keeps what was said as segments, and its `ServerMessages`
what the model was asked, said and shown, as OpenAI's messages.

`hold` makes no trajectory: it lets a `Speaker`, a script or a model behind a server, act in an episode.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Any, TypeVar

from selfverify.clients.candidates import CandidateSampler, ScoreReader, read_choices
from selfverify.clients.openai_client import (
    REFUSALS,
    ModelOnServer,
    OpenAIClient,
    ServerConfig,
    server_url,
)
from selfverify.clients.replies import Completion, soft_score
from selfverify.clients.usage import Usage
from selfverify.core import event_loop
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn, RolloutHook
from selfverify.core.errors import ConfigError, SelfVerifyError, ServerError
from selfverify.core.events import note
from selfverify.core.images import image_part
from selfverify.core.problem import BETWEEN, Problem, content_parts, openai_messages
from selfverify.core.trajectory import OBSERVATION, TOKENS, Finish, Group, Segment, Trajectory
from selfverify.policy.decoding import derived_seed
from selfverify.policy.kv_sessions import SampleIndex
from selfverify.rollouts.conversation import said_by
from selfverify.rollouts.episode_runner import RELEASED, SHOWN, EpisodeRunner, ask, begin, ending_of, outcome
from selfverify.rollouts.rollout import OpenEpisode
from selfverify.tasks.base import Task
from selfverify.tasks.tool_calls import read_calls, read_json


class ServerMessages:
    """The messages so far, with calls and results of tools as servers know them.

    Args:
        problem: What the conversation is about; the model is offered its tools.

    Raises:
        DataError: The problem has more or fewer places than images.
    """

    def __init__(self, problem: Problem) -> None:
        self.messages = openai_messages(problem)
        self.tools = problem.tools
        self._named: list[str] = []
        """The ids of the calls in the last message."""
        self._before = [*self.messages], self._named
        """Both as they were before something was shown last."""

    def body(self) -> dict[str, Any]:
        """The fields of a request that say what the model reads."""
        # An empty list of tools is refused by some servers.
        return {"messages": [*self.messages], **({"tools": self.tools} if self.tools else {})}

    def hear(self, reply: Observation) -> None:
        """Add what the episode shows, images between texts as it shows them.

        Behind calls, images follow in a message of the user: those of tools hold text.
        """
        if reply.undo:
            messages, self._named = self._before
            self.messages = [*messages]
        else:
            self._before = [*self.messages], self._named
        parts = content_parts(reply.content)
        words = "\n".join(part["text"] for part in parts if part["type"] == "text")
        for name in self._named:
            self.messages.append({"role": "tool", "tool_call_id": name, "content": words})
        left = iter(reply.images)
        told: list[dict[str, Any]] = []
        for part in parts:
            if part["type"] == "image":
                told.append(image_part(next(left)))
            elif not self._named and told and told[-1]["type"] == "text":
                told[-1]["text"] += "\n" + part["text"]
            elif not self._named:
                told.append({"type": "text", "text": part["text"]})
        if told or not self._named:
            self._told(told or [{"type": "text", "text": ""}])
        self._named = []

    def _told(self, parts: list[dict[str, Any]]) -> None:
        """Go on with the user's message: many chat templates refuse two in a row.

        Servers put nothing between two texts of a message, or one line break.
        """
        if self.messages[-1]["role"] == "user":
            *before, last = content_parts(self.messages.pop()["content"])
            if last["type"] == "text" and parts[0]["type"] == "text":
                last["text"] += BETWEEN + parts.pop(0)["text"]
            parts = [*before, last, *parts]
        alone = len(parts) == 1 and parts[0]["type"] == "text"  # which templates without parts read, too
        self.messages.append({"role": "user", "content": parts[0]["text"] if alone else parts})

    def said(self, text: str, calls: Sequence[Any], finish: Finish, turn: int) -> PolicyTurn:
        """Add what the model says.

        Args:
            text: Its words.
            calls: OpenAI's ``tool_calls`` of its message, which are its text's end to us.
            finish: How it ended.
            turn: How often it had spoken before.
        """
        if not calls:
            self.messages.append({"role": "assistant", "content": text})
            return PolicyTurn(text, [], finish, turn)
        self.messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        self._named = [str(call.get("id", "")) for call in calls if isinstance(call, Mapping)]
        read = _read(calls)
        shown = read.get("tool_calls", calls)
        written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in shown)
        return PolicyTurn("\n".join(part for part in (text, written) if part), [], finish, turn, message=read)

    def recall(self, text: str, turn: int) -> None:
        """Take a turn as the model's own that somebody else has said."""
        read = read_calls(PolicyTurn(text, [], Finish.STOP, turn), self.tools)
        words, tag, _ = text.partition("<tool_call>")
        if not read.calls or not tag:
            self.messages.append({"role": "assistant", "content": text})
            return
        self._named = [f"turn-{turn}-call-{number}" for number in range(len(read.calls))]
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for name, call in zip(self._named, read.calls, strict=True)
        ]
        self.messages.append({"role": "assistant", "content": words.strip(), "tool_calls": calls})


def _read(calls: Sequence[Any]) -> dict[str, Any]:
    """A server's ``tool_calls`` as `PolicyTurn.message` has them: their arguments are JSON in a text."""
    found = []
    try:
        for call in calls:
            name, arguments = call["function"]["name"], call["function"].get("arguments")
            if arguments is None or isinstance(arguments, str):
                arguments = read_json(arguments or "{}")
            found.append({"name": name, "arguments": arguments})
    except ValueError as error:
        return {"error": f"its arguments are no JSON: {error}"[:300]}
    except (AttributeError, KeyError, TypeError):
        return {"error": f"it names no function: {call!r}"[:300]}
    return {"tool_calls": found}


logger = logging.getLogger(__name__)

_PLACE = (0, 0)
"""Each conversation has a listener of its own."""
_FULL = re.compile(r"context.?(length|size|window)", re.IGNORECASE)
"""What servers say of a conversation that is longer than their model reads: OpenAI's code is
``context_length_exceeded``, llama.cpp's ``exceed_context_size_error``."""


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
        if self.thinks and reply.thoughts and "<think" not in text:
            text = f"<think>{reply.thoughts}</think>{text}"
        self.asked, self.last = [*self.served.messages], reply
        said = self.served.said(text, reply.tool_calls, _finish(reply), len(self.turns))
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
        self._segments = self._segments or [
            Segment(OBSERVATION, [], author="environment", finish=Finish.STOP)
        ]
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


def _finish(reply: Completion) -> Finish:
    return Finish.STOP if reply.ending == "whole" else Finish.LENGTH


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


T = TypeVar("T")


class _Asked:
    """Asks the episodes of some conversations, and waits for all."""

    def __init__(self, limits: RolloutLimits, name: str) -> None:
        self.limits, self.name = limits, name
        self._ends = EpisodeRunner(limits)._ends

    def ask(
        self, calls: Mapping[SampleIndex, Callable[[], T]], what: str
    ) -> dict[SampleIndex, T | Exception]:
        runner = EpisodeRunner(self.limits)
        runner._ends = self._ends
        for place, call in calls.items():
            runner.start(SHOWN, place, call, f"{self.name}, sample {place[1]}, {what}")
        return runner.wait(everything=True)[SHOWN] if calls else {}


def find_endings(task: Task, talks: Mapping[SampleIndex, ServedConversation]) -> None:
    """Ask what came of each conversation that has not failed; the task sees all their answers before."""
    whole = [(talk, talk.episode) for talk in talks.values() if talk.episode is not None and not talk.error]
    answers = []
    for talk, episode in whole:
        given = outcome(episode.answers)
        if isinstance(given, Exception):
            talk.fail(given)
        else:
            answers += [(talk.problem, tagged) for tagged in given]
    task.prepare(answers)
    for talk, episode in whole:
        if talk.error is None:
            ending = outcome(partial(ending_of, episode, len(talk.turns)))
            if isinstance(ending, Exception):
                talk.fail(ending)
            else:
                talk.ending = ending


def close(talks: Mapping[SampleIndex, ServedConversation], limits: RolloutLimits) -> None:
    """Release all episodes."""
    runner = EpisodeRunner(limits)
    for place, talk in talks.items():
        if talk.episode is not None:
            runner.start(RELEASED, place, talk.episode.release, "closing", bounded=False)
    for place, error in (runner.wait(everything=True)[RELEASED] if runner.busy else {}).items():
        if error is not None:
            problem = talks[place].problem
            message = f"problem {problem.id}: an episode could not be closed: {error}"
            note(logger, "episode_not_closed", message, problem=problem.id, reason=str(error))


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
            async with OpenAIClient(replace(self.served.server, connections=self.at_once)) as client:
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
        replies = _Asked(limits, f"problem {problem.id}")
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
            await asyncio.to_thread(close, talks, limits)
        made: dict[int, Trajectory] = {}
        for (place, talk), soft in zip(talks.items(), scores, strict=True):
            trajectory = made[place[1]] = talk.trajectory()
            if soft is not None and "sampled" in trajectory.scores:
                trajectory.scores["soft"] = soft
        return made

    async def _hold(
        self,
        asking: _Asking,
        replies: _Asked,
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
        self, replies: _Asked, calls: Mapping[SampleIndex, Callable[[], T]], what: str
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


class Speaker(ABC):
    """Acts without a model that is loaded here: says something in turn, and hears what comes of it."""

    @abstractmethod
    def hear(self, reply: Observation) -> None:
        """Be shown what the environment says."""

    @abstractmethod
    def speak(self, turn: int) -> PolicyTurn:
        """Say what is to be done next."""


class ScriptSpeaker(Speaker):
    """Says what was written beforehand.

    Args:
        texts: One for each turn.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def hear(self, reply: Observation) -> None:
        """See `Speaker`. It knows the way."""

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`. Behind its end it says nothing."""
        return PolicyTurn(self.texts[turn] if turn < len(self.texts) else "", [], Finish.STOP, turn)


class AwaitedSpeaker(Speaker):
    """Says what another speaker says, as long as somebody waits for it.

    Args:
        speaker: The other speaker.
        over: Whether nobody waits any more.
    """

    def __init__(self, speaker: Speaker, over: Callable[[], bool]) -> None:
        self.speaker, self.over = speaker, over

    def hear(self, reply: Observation) -> None:
        """See `Speaker`."""
        self.speaker.hear(reply)

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`.

        Raises:
            ServerError: Nobody waits.
        """
        if self.over():
            raise ServerError("nobody waits for this conversation any more", 504, "timeout")
        return self.speaker.speak(turn)


class ServerSpeaker(Speaker):
    """A model behind an OpenAI-compatible server, with tools as the server knows them.

    Calls are taken from the reply's ``tool_calls``; a reply without them is read as text, in which a model
    may have written its call.

    Args:
        problem: What is asked; its tools are offered.
        server: Where the server is.
        fields: The request's other fields: model, temperature, ``max_tokens``, seed.
        usage: Counts what its turns cost, each of which reads all that was said and shown before.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(
        self, problem: Problem, server: ServerConfig, fields: dict[str, Any], usage: Usage | None = None
    ) -> None:
        server_url(server.url)
        self.server, self.fields = server, fields
        self.talk = ServerMessages(problem)
        self.usage = Usage() if usage is None else usage

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All that was said and shown."""
        return self.talk.messages

    def hear(self, reply: Observation) -> None:
        """See `Speaker`."""
        self.talk.hear(reply)

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`.

        Raises:
            ServerError: The server cannot be reached, refuses, or answers what is no chat completion.
        """
        return event_loop.start(self.answer(turn)).result()

    def recall(self, text: str, turn: int) -> None:
        """Take a turn as its own that somebody else has said."""
        self.talk.recall(text, turn)

    async def answer(self, turn: int) -> PolicyTurn:
        """What it says next; see `speak`, which waits for it."""
        body = {**self.fields, **self.talk.body()}
        async with OpenAIClient(self.server) as client:
            said, *_ = read_choices(await client.chat(body, self.usage.lost), self.usage)
        return self.talk.said(said.text, said.tool_calls, _finish(said), turn)


def hold(episode: Episode, speaker: Speaker, turns: int) -> EpisodeResult:
    """Hold a conversation with who needs no policy, to its end, and return what came of it.

    Raises:
        SelfVerifyError: The speaker or the environment has failed; nothing is released then.
    """
    first = episode.reset()
    if first is not None:
        speaker.hear(first)
    for turn in range(turns):
        said = speaker.speak(turn)
        reply = episode.step(said)
        if reply.done or said.finish != Finish.STOP:
            break
        speaker.hear(reply)
    return episode.result()
