"""Conversations with teachers: a scripted expert, a model behind a server, or the recipe's own policy.

Conversations are kept problem by problem in a journal, so that a call which was killed goes on (`Teaching`).
SmartSnap §4.1 has two sources: in `collect`, teachers do all training tasks, with evidence; in `reanswer`,
they answer existing conversations anew, turn by turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from selfverify.core import event_loop
from selfverify.core.episode import Episode
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError, ServerError
from selfverify.core.jsonl_store import StrictRow
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.data.conversations import check_output, journal_of, write_conversations
from selfverify.evaluation.samples import Progress, ResumableBatches
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.export import Keep, asked_messages, conversation_row, why_unwanted
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.run import start_processes
from selfverify.policy.decoding import derived_seed
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout
from selfverify.rollouts.sampler import Sampler
from selfverify.rollouts.script_sampler import TextSampler
from selfverify.rollouts.wrappers import Message, RecordingEpisode
from selfverify.tasks.answering import worth_imitating
from selfverify.tasks.base import Task
from selfverify.tasks.conversations import Conversations, ConversationsConfig

AT_ONCE = 16
"""Conversations at the same time, where the task does not say how many there may be."""


@dataclass(frozen=True, slots=True)
class TaughtConversation:
    """One conversation with a teacher.

    Args:
        messages: Its messages (`rollouts.wrappers.Message`).
        rewards: The rewards of its result.
        lost: Why it broke off; empty where it did not.
        cuts: For each turn of the teacher the channels that it consists of, as `Observation.channels` has
            them.
        steps: The task's record of each turn.
        finish: How the last turn ended.
        answer: The answer as it was read from the last turn; None where none could be read.
    """

    messages: list[Message]
    rewards: dict[str, float] = field(default_factory=dict)
    lost: str = ""
    cuts: list[list[list[Any]]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    finish: str = ""
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class TaughtProblem(StrictRow):
    """A line of the journal.

    Args:
        index: The index of what was asked.
        problem: Its id; empty where it could not be made.
        conversations: The conversations about it.
        unusable: Why it could not be made.
        about: All else to be known of the problem.
    """

    STORED_AS: ClassVar[str] = "Lessons"

    index: int
    problem: str
    conversations: list[TaughtConversation] = field(default_factory=list)
    unusable: str = ""
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation that is to be held.

    Args:
        problem: Its problem.
        open: Begins it; the number is a seed.
        about: See `TaughtProblem`.
    """

    problem: Problem
    open: Callable[[int], RecordingEpisode]
    about: dict[str, Any] = field(default_factory=dict)


Ask = Callable[[int], Asked]
"""Returns the problem at an index; raises `DataError` where there is none."""


@dataclass(frozen=True, slots=True)
class Teaching:
    """A teacher and the conversations that it is to hold.

    Args:
        recipe: Its task, episode, seed and, for its own policy, model and sampling are used.
        task: The recipe's task.
        teacher: The teacher.
        samples: Conversations about each problem.
    """

    recipe: Recipe
    task: Task
    teacher: TeacherConfig
    samples: int = 1

    def settings(self) -> dict[str, Any]:
        """Return all settings that decide the conversations, for a journal's header."""
        about = {
            "task": self.task.name,
            "task_options": self.task.config.model_dump(mode="json"),
            "turns": self.task.limits.turns,
            "seed": self.recipe.seed,
            "samples": self.samples,
            "teacher": self.teacher.model_dump(mode="json", exclude={"timeout"}),
        }
        if self.teacher.own:
            about |= {
                "policy": self.recipe.policy.model_dump(mode="json"),
                "sampling": self.recipe.sampling.model_dump(mode="json"),
            }
        return about

    def hold(
        self,
        journal: Path,
        settings: Mapping[str, Any],
        ask: Ask,
        total: int,
        progress: Progress | None = None,
        brief: Callable[[TaughtProblem], Any] = lambda row: row,
    ) -> list[Any]:
        """Hold the conversations that the journal does not have yet, and return what ``brief`` makes of all.

        Args:
            journal: The file.
            settings: Its header.
            ask: The problems.
            total: How many problems there are.
            progress: Called after each batch of problems.
            brief: What is kept in memory of a line.

        Raises:
            ConfigError: The journal is that of other settings, or the teacher cannot do this task.
        """
        at_once = self.task.limits.concurrent or AT_ONCE
        size = max(at_once // self.samples, 1)
        sweep = ResumableBatches(journal, TaughtProblem, settings, total, size, progress, brief=brief)
        policy: Policy | None = None
        for share in sweep.shares():
            if self.teacher.own and policy is None:
                policy = self._policy()
            made: dict[int, Asked] = {}
            unusable: dict[int, str] = {}
            # A policy's log-probabilities are rounded with all that is in its batch.
            for index in share if self.teacher.own else [i for i in share if i not in sweep.rows]:
                try:
                    made[index] = ask(index)
                except DataError as error:
                    unusable[index] = str(error)
            sweep.store([TaughtProblem(i, "", unusable=reason) for i, reason in unusable.items()])
            if made:
                self._teach(made, sweep, policy)
        return [sweep.rows[index] for index in sorted(sweep.rows)]

    def _policy(self) -> Policy:
        start_processes(self.recipe)
        policy = Policy.load(self.recipe.policy)
        self.task.set_coordinate_space(policy.coordinate_space)
        self.task.set_policy(policy)
        return policy

    def _teach(
        self, made: Mapping[int, Asked], sweep: ResumableBatches[TaughtProblem], policy: Policy | None
    ) -> None:
        """Hold the conversations, and store those about a problem as soon as all are over."""
        indices, problems = [*made], [asked.problem for asked in made.values()]
        seeds = [derived_seed(self.recipe.seed, index, 0) for index in indices]
        of = {
            derived_seed(seed, g): asked
            for seed, asked in zip(seeds, made.values(), strict=True)
            for g in range(self.samples)
        }
        opened: dict[int, RecordingEpisode] = {}

        def begin(problem: Problem, seed: int) -> Episode:
            opened[seed] = of[seed].open(seed)
            return opened[seed]

        def keep(b: int, done: Rollout) -> None:
            told = []
            for g, trajectory in enumerate(done.groups[0].trajectories):
                noted, error = opened[derived_seed(seeds[b], g)], done.errors.get((0, g))
                told.append(as_taught(noted, trajectory.segments[-1].finish, str(error or "")))
            asked = made[indices[b]]
            sweep.store([TaughtProblem(indices[b], asked.problem.id, told, about=asked.about)])

        sampler = self._sampler(policy, problems, seeds)
        try:
            rollout(sampler, self.task, problems, seeds, self.samples, open_episode=begin, on_group=keep)
        except ServerError as error:
            from selfverify.rollouts.server_sampler import stored

            raise stored(error) from None

    def _sampler(self, policy: Policy | None, problems: Sequence[Problem], seeds: Sequence[int]) -> Sampler:
        teacher = self.teacher
        if policy is not None:
            own = {"temperature": teacher.temperature, "max_new_tokens": teacher.max_tokens}
            return PolicySampler(policy, self.recipe.sampling.model_copy(update={"engine": "own", **own}))
        if teacher.server is None:
            turns = {}
            for b, problem in enumerate(problems):
                for g in range(self.samples):
                    rng = np.random.default_rng(derived_seed(seeds[b], g))
                    turns[b, g] = [turn.text for turn in self.task.demonstrate_turns(problem, rng)]
            return TextSampler(turns)
        from selfverify.clients.openai_client import ServerConfig
        from selfverify.rollouts.server_sampler import ServerSampler

        server = ServerConfig(teacher.server, timeout_s=teacher.timeout)
        return ServerSampler(server, teacher.fields, at_once=AT_ONCE)


def as_taught(noted: RecordingEpisode, finish: Finish | None, error: str) -> TaughtConversation:
    """A conversation that has been held as the journal keeps it; ``error`` is why it has no result."""
    ended = noted.ended
    if ended is None or error:
        return TaughtConversation(noted.messages, lost=(error or "its episode failed")[:2000])
    if ended.lost:
        return TaughtConversation(noted.messages, lost="it was not judged")
    answered = noted.answers()
    return TaughtConversation(
        noted.messages,
        ended.rewards,
        cuts=noted.cuts,
        steps=[dict(turn) for turn in ended.turns if isinstance(turn, dict)],
        finish=str(finish or ""),
        answer=answered[-1].fields.get("answer") if answered else None,
    )


def whole(told: TaughtConversation) -> bool:
    """Whether something was said in every turn, also in the last one, which was not cut off: a policy that
    imitates it would learn to end there."""
    own = [message["content"].strip() for message in told.messages if message["role"] == "assistant"]
    return all(own) and told.finish != Finish.LENGTH and told.messages[-1]["role"] == "assistant"


def at_most(task: Task, problems: int) -> int:
    """Return the number of training problems, at most as many as are wanted.

    Raises:
        ConfigError: The task's conversations are over after the first answer.
    """
    if task.limits.turns == 1:
        raise ConfigError(f"task {task.name}: a conversation is over after the first answer; take another")
    count = task.count("train")
    return problems if count is None else min(problems, count)


@dataclass(slots=True)
class Collection:
    """The outcome of a collection.

    Args:
        conversations: How many were held.
        written: How many of them are in the output.
        lost: How many broke off.
        correct: How many came to a right end.
        reason: Why the first of those that were lost broke off.
    """

    conversations: int = 0
    written: int = 0
    lost: int = 0
    correct: int = 0
    reason: str = ""


def collect(
    recipe: Recipe,
    teacher: TeacherConfig,
    output: Path,
    problems: int,
    samples: int = 1,
    keep: Keep = "correct",
    progress: Progress | None = None,
) -> Collection:
    """Hold conversations with a teacher about a recipe's training problems, and write those worth learning.

    Args:
        recipe: Names the task; its seed decides the problems.
        teacher: The teacher.
        output: The file, ``.parquet`` or ``.jsonl``; ``OUTPUT.journal`` beside it has everything.
        problems: How many problems, at most those that the task has.
        samples: Conversations about each.
        keep: Which of them are written.
        progress: Called after each batch of problems.

    Raises:
        ConfigError: The task has no demonstrations or no conversations, the output cannot be written, or the
            journal is that of other settings.
        DataError: Nothing is worth learning.
    """
    check_output(output)
    task = recipe_task(recipe)
    total, school = at_most(task, problems), Teaching(recipe, task, teacher, samples)

    def ask(index: int) -> Asked:
        problem = task.problem("train", recipe.seed, index)
        before = asked_messages(problem)
        return Asked(problem, lambda seed: RecordingEpisode(task.open(problem, seed), before))

    held = school.hold(journal_of(output), school.settings(), ask, total, progress)
    return _written(task, recipe, held, output, keep)


def _written(
    task: Task, recipe: Recipe, rows: Sequence[TaughtProblem], output: Path, keep: Keep
) -> Collection:
    found = Collection()

    def conversations() -> Iterator[dict[str, Any]]:
        for row in rows:
            for number, told in enumerate(row.conversations):
                found.conversations += 1
                found.correct += worth_imitating(told.rewards)
                right = told.rewards.get("correct", 0) > 0
                if told.lost:
                    found.lost, found.reason = found.lost + 1, found.reason or told.lost
                elif not why_unwanted(keep, right, told.rewards) and whole(told):
                    found.written += 1
                    problem, name = task.problem("train", recipe.seed, row.index), f"{row.problem}#{number}"
                    yield conversation_row(problem, told.messages, name, task.name, told.rewards, right)

    try:
        write_conversations(output, conversations())
    except DataError as error:
        lost = f"; the first of {found.lost} that were lost: {found.reason}" if found.lost else ""
        held = f"{found.conversations} conversations, {found.correct} of them right{lost}"
        raise DataError(f"{output}: {error}; held: {held}. {journal_of(output)} has them all") from None
    return found


ANSWERED_AT_ONCE = 32
"""Requests that wait for the server at the same time."""


@dataclass(frozen=True, slots=True)
class Answered(StrictRow):
    """A line of the journal.

    Args:
        index: The turn's number among all that are answered.
        problem: Its name.
        messages: The conversation with the new answer; empty where there is none.
        lost: Why there is none.
    """

    index: int
    problem: str
    messages: list[dict[str, str]]
    lost: str = ""


def reanswer(
    source: Path,
    teacher: TeacherConfig,
    output: Path,
    sample: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[int, int, str]:
    """Ask a teacher for the turns of a file's conversations.

    Each turn of the assistant becomes a conversation of its own: all that was said before, and the teacher's
    answer to it, which alone is to be learnt.

    Args:
        source: A file of conversations, in any form that is read (docs/data-formats.md).
        teacher: The model that answers: a server.
        output: The file, ``.parquet`` or ``.jsonl``; ``OUTPUT.journal`` beside it has everything.
        sample: So many turns only, drawn by the seed.
        seed: Decides which.
        progress: Called after each batch.

    Returns:
        How many turns were answered, how many were not, and why the first of those was not.

    Raises:
        ConfigError: The teacher is no server, the output cannot be written, or the journal is that of other
            settings.
        DataError: The source is damaged, or nothing was answered.
    """
    check_output(output)
    if teacher.server is None:
        raise ConfigError("conversations are answered anew by a model: name its server and model")
    task = Conversations(ConversationsConfig.model_validate({"train": str(source), "sample": sample}))
    total = task.count("train")
    problems = partial(task.numbered, "train", seed)
    settings = {
        "source": str(source), "turns": total, "sample": sample, "seed": seed,
        "teacher": teacher.model_dump(mode="json", exclude={"timeout"}),
    }  # fmt: skip
    sweep = ResumableBatches(journal_of(output), Answered, settings, total, ANSWERED_AT_ONCE, progress)
    for share in sweep.shares():
        asked = [(index, problems(index)) for index in share]
        sweep.store(event_loop.start(_ask_all(asked, teacher, seed)).result())
    rows = [sweep.rows[index] for index in sorted(sweep.rows)]
    lost = [row for row in rows if row.lost]
    try:
        written = write_conversations(output, _lines(rows, problems))
    except DataError as error:
        first = f"; the first of {len(lost)} turns without an answer: {lost[0].lost}" if lost else ""
        raise DataError(f"{output}: {error}{first}") from None
    return written, len(lost), lost[0].lost if lost else ""


def _lines(rows: Sequence[Answered], problems: Callable[[int], Problem]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if not row.lost:
            problem = problems(row.index)
            yield {
                "messages": row.messages,
                "tools": problem.tools,
                "id": row.problem,
                "category": str(problem.meta.get("category") or ""),
                "taught": "last",
            }


async def _ask_all(asked: Sequence[tuple[int, Problem]], teacher: TeacherConfig, seed: int) -> list[Answered]:
    return await asyncio.gather(*(_ask(index, problem, teacher, seed) for index, problem in asked))


async def _ask(index: int, problem: Problem, teacher: TeacherConfig, seed: int) -> Answered:
    """The teacher's answer to one turn."""
    from selfverify.clients.candidates import read_choices
    from selfverify.clients.openai_client import OpenAIClient, ServerConfig
    from selfverify.clients.replies import Usage
    from selfverify.rollouts.server_sampler import ServerMessages, finish_of

    assert teacher.server is not None
    server = ServerConfig(teacher.server, timeout_s=teacher.timeout)
    talk = ServerMessages(problem)
    said = problem.target["said"]
    replies = [heard.reply() for heard in problem.target["heard"]]
    if problem.images or any(reply.images for reply in replies):
        return Answered(index, problem.id, [], "it shows images, and files of conversations hold text")
    messages = asked_messages(problem)
    for turn, (text, reply) in enumerate(zip(said[:-1], replies, strict=True)):
        messages += [{"role": "assistant", "content": text}, {"role": reply.role, "content": reply.text}]
        talk.recall(text, turn)
        talk.hear(reply)
    body, usage = {**teacher.fields, "seed": derived_seed(seed, index) % 2**31, **talk.body()}, Usage()
    try:
        async with OpenAIClient(server) as client:
            reply, *_ = read_choices(await client.chat(body, usage.lost), usage)
    except SelfVerifyError as error:
        return Answered(index, problem.id, [], str(error)[:2000])
    answer = talk.said(reply.text, reply.tool_calls, finish_of(reply))
    if answer.finish == Finish.ERROR:
        return Answered(index, problem.id, [], f"the server broke its answer off: {reply.finish}")
    if answer.finish != Finish.STOP:
        return Answered(index, problem.id, [], f"its answer is longer than {teacher.max_tokens} tokens")
    if not answer.text.strip():
        return Answered(index, problem.id, [], "its answer is empty")
    return Answered(index, problem.id, [*messages, {"role": "assistant", "content": answer.text}])
