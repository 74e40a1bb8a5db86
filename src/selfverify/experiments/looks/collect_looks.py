"""Traces of looking again, made by a teacher: from the question on, or on from the middle of a right one.

VTS-V §4.1 has a large model look in a few-shot setting; §4.2 has it go on from an intermediate step with
wrong reasoning. Beside that, traces are branched: whoever looks goes on from the middle in earnest, and what
comes out wrong by itself is a negative that nobody has asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.data.images import read_image
from selfverify.evaluation.samples import IMAGES, Progress
from selfverify.experiments.looks.looks_folder import (
    SOURCES,
    Way,
    image_keeper,
    read_lessons,
    traces_of,
)
from selfverify.experiments.looks.read_pairs import read_lines
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import recipe_task
from selfverify.experiments.teacher_settings import TeacherConfig
from selfverify.experiments.teaching import Asked, TaughtProblem, Teaching, at_most
from selfverify.rollouts.wrappers import Message, RecordingEpisode, ResumedEpisode, noted_messages
from selfverify.tasks.answering import worth_imitating
from selfverify.visual.config import ANSWER_NOW
from selfverify.visual.episode import asked_anew
from selfverify.visual.task import VisualTask
from selfverify.visual.traces import VisualTrace, is_image, parts_of

INDUCE = (
    "From here on, let your reasoning go astray in a way that sounds reasonable: look at an unhelpful place, "
    "misread what is shown, or draw a conclusion that does not follow. Keep to the same form and the same "
    "length as before, end with a final answer that is not right, and write as if you believed all of it."
)
"""What a model is asked that makes wrong traces (§4.2's error induction, in our words)."""
_EXAMPLES = "Here are examples of how questions about images were worked on, each from its question on."


@dataclass(slots=True)
class CollectedLooks:
    """What a collection has come to.

    Args:
        traces: How many conversations were held.
        correct: How many of them came to a right end.
        lost: How many broke off.
        reason: Why the first of these did.
    """

    traces: int = 0
    correct: int = 0
    lost: int = 0
    reason: str = ""


def collect_looks(
    recipe: Recipe,
    teacher: TeacherConfig,
    folder: Path,
    problems: int,
    samples: int = 1,
    shots: Path | None = None,
    shot_count: int = 2,
    progress: Progress | None = None,
) -> CollectedLooks:
    """Hold conversations about a recipe's training problems; ``FOLDER/collected.jsonl`` has them all.

    Args:
        recipe: Names the task; its seed decides the problems.
        teacher: Who looks.
        folder: See `looks_folder`.
        problems: How many problems, at most those that the task has.
        samples: Conversations about each.
        shots: A file of traces (``sft.jsonl``) from which examples are put before each question.
        shot_count: How many examples, drawn for each problem.
        progress: Called after each batch of problems.

    Raises:
        ConfigError: The task has no conversations or no demonstrations, or the folder is that of other
            settings.
        DataError: ``shots`` is damaged.
    """
    task = recipe_task(recipe)
    total, school, keep = (
        at_most(task, problems),
        Teaching(recipe, task, teacher, samples),
        image_keeper(folder),
    )
    examples = [] if shots is None else read_transcripts(shots)

    def ask(index: int) -> Asked:
        problem = task.problem("train", recipe.seed, index)
        asked, shown = noted_messages(problem, keep), problem
        if examples:
            drawn = np.random.default_rng([recipe.seed, index]).permutation(len(examples))[:shot_count]
            shown = _with_examples(problem, [examples[place] for place in drawn])
        about = {"category": str(problem.meta.get("category") or ""), "told": len(asked)}
        about |= _judged_by(problem)
        return Asked(shown, lambda seed: RecordingEpisode(task.open(problem, seed), asked, keep), about)

    settings = school.settings() | {"shots": None if shots is None else [str(shots), shot_count]}
    return _summary(school.hold(folder / SOURCES["sampled"], settings, ask, total, progress))


def branch_looks(
    recipe: Recipe,
    teacher: TeacherConfig,
    folder: Path,
    way: Way,
    samples: int = 1,
    most: int | None = None,
    progress: Progress | None = None,
) -> CollectedLooks:
    """Let a teacher go on from an intermediate step of each right trace that was collected.

    How many steps are kept is drawn for each trace, from one to all of them.

    Args:
        recipe: As it was collected with.
        teacher: Who goes on: a server or the recipe's own policy.
        folder: See `looks_folder`; it has ``collected.jsonl``.
        way: ``branched``: in earnest; ``induced``: it is asked to go on wrongly; ``hurried``: it is told to
            answer at once.
        samples: Conversations from each trace.
        most: From so many traces only, the first ones.
        progress: Called after each batch.

    Raises:
        ConfigError: Nothing was collected, or with another task or seed; or the teacher is a script.
        DataError: A journal is damaged, or no collected trace is right and has a step.
    """
    if teacher.expert:
        raise ConfigError(
            "a script cannot go on from the middle; name --own or --server URL with --model NAME"
        )
    held, rows = read_lessons(folder, "sampled")
    task = recipe_task(recipe)
    for name, ours in (("task", task.name), ("seed", recipe.seed)):
        if held.get(name) != ours:
            raise ConfigError(
                f"{folder}: it was collected with {name} {held.get(name)!r}, and the recipe has {ours!r}"
            )
    parents = _parents(rows, task.name)[:most]
    if not parents:
        raise DataError(f"{folder}: no collected trace is right and has a step to go on from")
    school, keep = Teaching(recipe, task, teacher, samples), image_keeper(folder)
    hurry = f"\n{task.settings.answer_now}" if isinstance(task, VisualTask) else ANSWER_NOW
    words = {"branched": "", "induced": INDUCE, "hurried": hurry}[way]

    def ask(index: int) -> Asked:
        row, trace = parents[index]
        problem = task.problem("train", recipe.seed, row.index)
        rng = np.random.default_rng([recipe.seed, index])
        kept = int(rng.integers(1, len(trace.turns)))
        told = _beginning(trace, kept)
        shown = go_on_from(problem, told[trace.told :], folder / IMAGES, words)
        about = dict(row.about) | {
            "problem": trace.problem, "parent": trace.id, "cuts": trace.cuts[:kept],
            "steps": trace.steps[:kept],
        }  # fmt: skip

        def begin(seed: int) -> RecordingEpisode:
            return RecordingEpisode(
                ResumedEpisode(task.open(problem, seed), told[trace.told :], keep), told, keep
            )

        return Asked(shown, begin, about)

    settings = school.settings() | {"from": [trace.id for _, trace in parents], "way": way}
    return _summary(school.hold(folder / SOURCES[way], settings, ask, len(parents), progress))


def _judged_by(problem: Problem) -> dict[str, Any]:
    """What somebody who judges answers has to know, as far as JSON can hold it."""
    try:
        target = json.loads(json.dumps(problem.target, allow_nan=False))
    except (TypeError, ValueError):
        return {"question": problem.meta.get("question")}
    return {"question": problem.meta.get("question"), "target": target}


def _parents(rows: Sequence[TaughtProblem], task: str) -> list[tuple[TaughtProblem, VisualTrace]]:
    """Right traces with a step, with their lines."""
    return [
        (row, trace)
        for row in rows
        for trace in traces_of(row, "sampled", task)
        if not trace.lost
        and trace.finish == "stop"
        and worth_imitating(trace.rewards)
        and len(trace.turns) > 1
    ]


def _beginning(trace: VisualTrace, turns: int) -> list[Message]:
    """A trace's messages up to the reply to so many turns."""
    said = [place for place, message in enumerate(trace.messages) if message["role"] == "assistant"]
    return trace.messages[: said[turns]]


def go_on_from(problem: Problem, told: Sequence[Message], images: Path, words: str) -> Problem:
    """The problem that a conversation is after some turns, with ``words`` behind what was shown last.

    Raises:
        DataError: An image is gone.
    """
    turns: list[tuple[str, Sequence[dict[str, Any]], Sequence[Any]]] = []
    role = "user"
    for place in range(0, len(told) - 1, 2):
        said, reply = told[place], told[place + 1]
        role, parts = reply["role"], parts_of(reply)
        shown = [read_image(images / part["image"], tries=1) for part in parts if is_image(part)]
        plain = [{"type": "image"} if is_image(part) else part for part in parts]
        turns.append((said["content"], plain, shown))
    return asked_anew(problem, turns, role, words)


def read_transcripts(file: Path) -> list[str]:
    """The conversations of a file of traces as texts, in which images are named by their numbers.

    Raises:
        DataError: The file cannot be read, or a line is no trace.
    """
    found = []
    for number, line in read_lines(file):
        try:
            found.append(transcript(line["messages"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file}, line {number}: it is no trace ({type(error).__name__}: {error})"
            ) from None
    if not found:
        raise DataError(f"{file}: it has no traces to show as examples")
    return found


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as one text; its images are numbered as its model saw them."""
    lines, images = [], 0
    for message in messages:
        words = ""
        for part in parts_of(message):
            if is_image(part):
                images += 1
                words += f"[image {images}]"
            else:
                words += part["text"]
        lines.append(f"{'You' if message['role'] == 'assistant' else 'Shown'}: {words}")
    return "\n".join(lines)


def _with_examples(problem: Problem, examples: Sequence[str]) -> Problem:
    """A problem whose last message begins with examples in words, so that its images keep their numbers."""
    last = dict(problem.messages[-1])
    numbered = "\n\n".join(f"Example {n}:\n{text}" for n, text in enumerate(examples, start=1))
    words = {"type": "text", "text": f"{_EXAMPLES}\n\n{numbered}\n\nNow it is your turn.\n"}
    last["content"] = [words, *parts_of(last)]
    return replace(problem, messages=[*problem.messages[:-1], last])


def _summary(rows: Sequence[TaughtProblem]) -> CollectedLooks:
    found = CollectedLooks()
    for row in rows:
        for told in row.conversations:
            found.traces += 1
            found.correct += worth_imitating(told.rewards)
            if told.lost:
                found.lost, found.reason = found.lost + 1, found.reason or told.lost
        if row.unusable and not found.reason:
            found.reason = row.unusable
    return found
