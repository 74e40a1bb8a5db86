"""Stored conversations as files for fine-tuning: verl's ``messages`` and ``tools``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import read_journal
from selfverify.core.problem import Problem
from selfverify.data.conversations import check_output, write_conversations
from selfverify.evaluation.samples import StoredProblem, StoredSample
from selfverify.experiments.questions import Remade
from selfverify.policy.chat import text_only
from selfverify.rollouts.atif import without_end
from selfverify.tasks.answering import ended_properly

Keep = Literal["all", "correct", "judged"]
"""Which samples are worth learning from: all, those that are right, or those that judges found a success."""


@dataclass(slots=True)
class Written:
    """What an export has come to.

    Args:
        conversations: Their number.
        left_out: How many samples were left out, by the reason.
    """

    conversations: int = 0
    left_out: dict[str, int] = field(default_factory=dict)

    def leave_out(self, reason: str) -> None:
        """Count a sample that is left out."""
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def export_conversations(
    store: Path, output: Path, keep: Keep = "all", problems: int | None = None, limit: int | None = None
) -> Written:
    """Write the conversations of a sample store.

    Args:
        store: A ``samples.jsonl``.
        output: The file, ``.parquet`` or ``.jsonl``.
        keep: Which samples.
        problems: At most so many problems, the first ones.
        limit: At most so many conversations.

    Raises:
        ConfigError: The output cannot be written, or the store's task cannot be made any more.
        DataError: The store is damaged, or no conversation is left.
    """
    check_output(output)
    settings, rows = read_journal(store, StoredProblem)
    remade, written = Remade(settings), Written()
    if remade.task is None:
        raise ConfigError(f"{store}: what was asked cannot be found: {remade.why}")

    def conversations() -> Iterator[dict[str, Any]]:
        for row in [rows[index] for index in sorted(rows)][:problems]:
            for sample in row.samples:
                if written.conversations == limit:
                    return
                line = _unwanted(sample, keep) or _row(remade, row, sample, settings)
                if isinstance(line, str):
                    written.leave_out(line)
                    continue
                written.conversations += 1
                yield line

    try:
        write_conversations(output, conversations())
    except DataError as error:
        left = ", ".join(f"{count} because {why}" for why, count in written.left_out.items())
        raise DataError(f"{store}: {error}; left out: {left or 'none'}") from None
    return written


def _unwanted(sample: StoredSample, keep: Keep) -> str:
    """Why a sample is not wanted; empty where it is."""
    if keep == "correct" and not sample.correct:
        return "they are wrong"
    if keep == "correct" and not ended_properly(sample.rewards):
        return "they came to no proper end"
    if keep == "judged" and not sample.rewards.get("judged_success"):
        return "no judge found them a success"
    return "" if sample.steps or sample.text else "nothing was said"


def _row(
    remade: Remade, row: StoredProblem, sample: StoredSample, settings: dict[str, Any]
) -> dict[str, Any] | str:
    """A line of the file, or why there is none."""
    problem = remade.problem(row)
    if isinstance(problem, str):
        return problem
    if problem.images or any(step.images for step in sample.steps):
        return "they show images, and files of conversations hold text"
    messages = asked_messages(problem)
    for step in sample.steps:
        if step.author == "policy":
            if not (words := without_end(step.text)).strip():
                return "nothing is said in one of their turns"
            messages.append({"role": "assistant", "content": words})
            continue
        record = step.record or {}
        if "said" not in record:
            return "where a reply begins is not stored"
        start, end = record["said"]
        messages.append({"role": str(record["role"]), "content": step.text[start:end]})
    if not sample.steps:
        messages.append({"role": "assistant", "content": without_end(sample.text)})
    return {
        "messages": messages,
        "tools": problem.tools,
        "id": f"{sample.problem}#{sample.sample}",
        "data_source": str(settings.get("task", "")),
        "category": str(problem.meta.get("category") or ""),
        "reward": float(sample.rewards.get("answer", 0.0)),
        "correct": sample.correct,
    }


def asked_messages(problem: Problem) -> list[dict[str, str]]:
    """A problem's messages as roles and texts.

    Raises:
        DataError: A message has a part that is no text.
    """
    return [{"role": str(m["role"]), "content": str(m["content"] or "")} for m in text_only(problem)]
