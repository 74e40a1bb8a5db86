"""A model behind a server judges the answers of right traces once more (VTS-V §4.1, ``llm_as_a_judge``)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from selfverify.clients.openai_client import OpenAIClient, ServerConfig
from selfverify.core import event_loop
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.jsonl_store import STRICT
from selfverify.evaluation.samples import Progress, ResumableBatches
from selfverify.experiments.looks.looks_folder import SOURCES, VERDICTS, read_lessons, traces_of
from selfverify.experiments.teacher_settings import TeacherConfig
from selfverify.visual.traces import VisualTrace

AT_ONCE = 32
"""Requests that wait for the server at the same time."""
_ASKED = (
    "A question about an image was answered. Say whether the answer means the same as the reference.\n\n"
    "Question: {question}\nReference: {target}\nAnswer: {answer}\n\n"
    "Reply with one word: CORRECT or INCORRECT."
)
_WORD = re.compile(r"\b(IN)?CORRECT\b")
_LONGEST_ANSWER = 4000


@dataclass(frozen=True, slots=True)
class OnAnswer:
    """A line of ``verdicts.jsonl``.

    Args:
        index: The trace's number among those that are judged.
        trace: Its id.
        right: What the model says; None where it says neither.
        reason: Why there is no verdict.
    """

    __pydantic_config__: ClassVar = STRICT

    index: int
    trace: str
    right: bool | None = None
    reason: str = ""


def judge_looks(folder: Path, judge: TeacherConfig, progress: Progress | None = None) -> tuple[int, int, int]:
    """Ask a model about the answer of every trace that the task found right.

    Args:
        folder: See `looks_folder`.
        judge: The model: a server.
        progress: Called after each batch.

    Returns:
        How many answers are right for it, how many are wrong, and of how many it says neither.

    Raises:
        ConfigError: The judge is no server, nothing was collected, or the verdicts were made otherwise.
        DataError: The journal is damaged, or a problem has no question or target in words.
    """
    if judge.server is None:
        raise ConfigError("answers are judged by a model behind a server: name it with --server and --model")
    asked: list[tuple[VisualTrace, str]] = []
    for source in SOURCES:
        if source == "induced" or (source != "sampled" and not (folder / SOURCES[source]).is_file()):
            continue
        settings, rows = read_lessons(folder, source)
        for row in rows:
            for trace in traces_of(row, source, str(settings.get("task", ""))):
                if trace.correct and not trace.lost and trace.turns:
                    asked.append((trace, _question(row.about, trace)))
    about = {
        "judge": judge.model_dump(mode="json", exclude={"timeout"}),
        "traces": [trace.id for trace, _ in asked],
    }
    sweep = ResumableBatches(folder / VERDICTS, OnAnswer, about, len(asked), AT_ONCE, progress)
    for share in sweep.shares():
        batch = [(index, *asked[index]) for index in share]
        sweep.store(event_loop.start(_ask_all(batch, judge)).result())
    found = [row.right for row in sweep.rows.values()]
    return found.count(True), found.count(False), found.count(None)


def _question(about: dict[str, Any], trace: VisualTrace) -> str:
    if about.get("question") is None or about.get("target") is None:
        raise DataError(
            f"{trace.id}: its problem has no question and target in words, so that no model can judge it"
        )
    return _ASKED.format(
        question=about["question"],
        target=about["target"],
        answer=trace.turns[-1]["content"][-_LONGEST_ANSWER:],
    )


async def _ask_all(batch: Sequence[tuple[int, VisualTrace, str]], judge: TeacherConfig) -> list[OnAnswer]:
    assert judge.server is not None
    async with OpenAIClient(ServerConfig(judge.server, timeout_s=judge.timeout)) as client:
        return await asyncio.gather(*(_ask(client, judge, *one) for one in batch))


async def _ask(
    client: OpenAIClient, judge: TeacherConfig, index: int, trace: VisualTrace, words: str
) -> OnAnswer:
    body = {**judge.fields(0), "temperature": 0.0, "messages": [{"role": "user", "content": words}]}
    try:
        said = (await client.chat(body))["choices"][0]["message"].get("content")
    except (SelfVerifyError, KeyError, IndexError, TypeError, AttributeError) as error:
        return OnAnswer(index, trace.id, None, str(error)[:500])
    words_said = {match[0] for match in _WORD.finditer(str(said or "").upper())}
    if len(words_said) != 1:
        return OnAnswer(index, trace.id, None, f"it says neither: {str(said)[:200]!r}")
    return OnAnswer(index, trace.id, words_said == {"CORRECT"})
