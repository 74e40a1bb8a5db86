"""Existing conversations answered anew by a teacher, turn by turn (SmartSnap §4.1, its second source).

Each turn of the assistant becomes a conversation of its own: all that was said before, and the teacher's
answer to it, which alone is to be learnt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from selfverify.clients.openai_client import ServerConfig
from selfverify.core import event_loop
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.jsonl_store import STRICT
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.data.conversations import check_output, journal_of, write_conversations
from selfverify.evaluation.samples import Progress, ResumableBatches
from selfverify.experiments.conversation_export import asked_messages
from selfverify.experiments.teacher_settings import TeacherConfig
from selfverify.policy.decoding import derived_seed
from selfverify.rollouts.server_sampler import ServerSpeaker
from selfverify.tasks.conversations import Conversations, ConversationsConfig

AT_ONCE = 32
"""Requests that wait for the server at the same time."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A line of the journal.

    Args:
        index: The turn's number among all that are answered.
        problem: Its name.
        messages: The conversation with the new answer; empty where there is none.
        lost: Why there is none.
    """

    __pydantic_config__: ClassVar = STRICT

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

    Args:
        source: A file of conversations, in any form that is read (docs/data.md).
        teacher: Who answers: a server.
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
        raise ConfigError("conversations are answered anew by a model: name it with --server and --model")
    task = Conversations(ConversationsConfig.model_validate({"train": str(source), "sample": sample}))
    total = task.count("train")
    problems = partial(task.numbered, "train", seed)
    settings = {
        "source": str(source), "turns": total, "sample": sample, "seed": seed,
        "teacher": teacher.model_dump(mode="json", exclude={"timeout"}),
    }  # fmt: skip
    sweep = ResumableBatches(journal_of(output), Answered, settings, total, AT_ONCE, progress)
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
    assert teacher.server is not None
    server = ServerConfig(teacher.server, timeout_s=teacher.timeout)
    speaker = ServerSpeaker(problem, server, teacher.fields(derived_seed(seed, index)))
    said = problem.target["said"]
    replies = [heard.reply() for heard in problem.target["heard"]]
    if problem.images or any(reply.images for reply in replies):
        return Answered(index, problem.id, [], "it shows images, and files of conversations hold text")
    messages = asked_messages(problem)
    for turn, (text, reply) in enumerate(zip(said[:-1], replies, strict=True)):
        messages += [{"role": "assistant", "content": text}, {"role": reply.role, "content": reply.text}]
        speaker.recall(text, turn)
        speaker.hear(reply)
    try:
        answer = await speaker.answer(len(said) - 1)
    except SelfVerifyError as error:
        return Answered(index, problem.id, [], str(error)[:2000])
    if answer.finish != Finish.STOP:
        return Answered(index, problem.id, [], f"its answer is longer than {teacher.max_tokens} tokens")
    if not answer.text.strip():
        return Answered(index, problem.id, [], "its answer is empty")
    return Answered(index, problem.id, [*messages, {"role": "assistant", "content": answer.text}])
