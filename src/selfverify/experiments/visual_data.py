"""VTS-V's data of looking again: traces, the verdicts on them, and the sets and pairs made of them.

FOLDER/
  collected.jsonl      conversations as they were held, by problem (a journal)
  branched.jsonl       those that go on from the middle of a right one
  induced.jsonl        the same, by a model that was asked to go on wrongly
  hurried.jsonl        the same, by a model that was told to answer at once
  verdicts.jsonl       what a model that judges answers has said (`selfverify.experiments.visual_judge`)
  images/              what they show, by content
  sft.jsonl            right traces, for supervised fine-tuning
  pairs.jsonl          preferences, for the verifier
  data.json            how many traces were dropped for which reason, with the first of each

Teachers make the traces. VTS-V §4.1 has a large model look in a few-shot setting (`collect_looks`) and a
model judge the answers (``llm_as_a_judge``, `judge_looks`); §4.2 has a large model go on from an intermediate
step with wrong reasoning (`branch_looks`). Beside that, traces are branched: the model goes on from the
middle in earnest, and a trace that comes out wrong by itself is a negative that was not asked for.
`selfverify.experiments.visual_sets` makes the data sets: one for supervised fine-tuning, and pairs for the
verifier (§4.2).

Journals are read line by line (`TraceIndex`): of a line no more than its place stays in memory.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

import numpy as np
from PIL.Image import Image
from pydantic import BaseModel, TypeAdapter, ValidationError

from selfverify.core import jsonl_store
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming, open_regular
from selfverify.core.jsonl_store import stream_journal
from selfverify.core.problem import Problem
from selfverify.data.images import read_image
from selfverify.evaluation.samples import IMAGES, Progress, written_images
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.teaching import Asked, TaughtProblem, Teaching, at_most
from selfverify.experiments.visual_judge import VERDICTS, Verdicts, asked_and_wanted
from selfverify.rollouts.wrappers import Message, RecordingEpisode, ResumedEpisode, noted_messages
from selfverify.tasks.answering import worth_imitating
from selfverify.visual.config import ANSWER_NOW
from selfverify.visual.episode import VisualTask, asked_anew
from selfverify.visual.traces import VisualTrace, is_image, malformed_message, parts_of

COLLECTED = "collected.jsonl"
Way = Literal["branched", "induced", "hurried"]
SOURCES = {"sampled": COLLECTED} | {way: f"{way}.jsonl" for way in get_args(Way)}
"""Journals by the source of their traces."""


_SHOTS = Path(__file__).with_name("shots.jsonl")


def image_keeper(folder: Path) -> Callable[[Image], str]:
    """Return a function that writes images into a folder and names them by their content, for several
    threads."""
    lock = Lock()

    def keep(image: Image) -> str:
        with lock:
            [name] = written_images(folder / IMAGES, [image])
        return name

    return keep


class TraceIndex:
    """Finds the traces in a folder's journals, in their order or problem by problem.

    Where lines begin is kept; lines are read when they are asked for.

    Args:
        folder: See the module's docstring.
        sources: The journals, by the source of their traces; only ``collected.jsonl`` has to be there.

    Attributes:
        settings: The header of ``collected.jsonl``; its ``broken_rows`` are those of the data file that are
            no problem, and the first of them.
        unusable: How many problems could not be made, by the reason.
        named: For each of these reasons the first.

    Raises:
        ConfigError: Nothing was collected there.
        DataError: A journal is damaged.
    """

    def __init__(self, folder: Path, sources: Iterable[str] = SOURCES) -> None:
        self.folder = folder
        self.unusable: Counter[str] = Counter()
        self.named: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        """The journals' tasks by source."""
        self._places: list[tuple[str, int, int, int]] = []
        """Of each line its problem, the number of its source, its index, and where it begins."""
        for source in sources:
            path = folder / SOURCES[source]
            if path.is_file():
                self._add(path, source)
            elif source == "sampled":
                raise ConfigError(f"{folder} has no {path.name}; `selfverify visual collect` makes it")

    def _add(self, path: Path, source: str) -> None:
        settings, rows = stream_journal(path, TaughtProblem)
        if source == "sampled":
            self.settings = settings
            if broken := settings.get("broken_rows"):
                self.unusable[BROKEN], self.named[BROKEN] = broken
        self._tasks[source] = str(settings.get("task", ""))
        order, indices = [*SOURCES].index(source), set[int]()
        for begin, row in rows:
            if fault := _fault(row):
                raise DataError(f"{path}: problem {row.problem}: {fault}. Restore the file, or delete it")
            if row.index in indices:
                raise DataError(f"{path}: an index stands in the file twice. Restore the file")
            indices.add(row.index)
            if row.unusable:
                reason = _kind_of(row.unusable)
                self.unusable[reason] += 1
                self.named.setdefault(reason, row.unusable)
                continue
            problem = str(row.about.get("problem") or row.problem)
            self._places.append((problem, order, row.index, begin))

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self._places)

    def rows(self, by_problem: bool = False) -> Iterator[tuple[str, int, TaughtProblem]]:
        """Yield the lines in the journals' order, or problem by problem: each with its source and where it
        begins."""
        names = [*SOURCES]
        for _, order, _, begin in sorted(self._places, key=lambda place: place[0 if by_problem else 1 :]):
            yield names[order], begin, self.row(names[order], begin)

    def row(self, source: str, begin: int) -> TaughtProblem:
        """Read the line of a journal that begins at a byte."""
        path = self.folder / SOURCES[source]
        with naming(path), open_regular(path) as file:
            file.seek(begin)
            return _LINE.validate_json(file.readline())

    def by_problem(self) -> Iterator[list[tuple[dict[str, Any], VisualTrace]]]:
        """Yield the traces of each problem."""
        rows = self.rows(by_problem=True)
        for _, lines in groupby(rows, key=lambda one: one[2].about.get("problem") or one[2].problem):
            yield [one for source, _, row in lines for one in self.traces_of(source, row)]

    def traces_of(self, source: str, row: TaughtProblem) -> Iterator[tuple[dict[str, Any], VisualTrace]]:
        """Yield the traces in a line of a journal."""
        about, begun = row.about, _Beginning.model_validate(row.about)
        name = f"{about.get('parent') or row.problem}{'' if source == 'sampled' else f'/{source}'}"
        for number, told in enumerate(row.conversations):
            yield (
                about,
                VisualTrace(
                    id=f"{name}#{number}",
                    problem=str(about.get("problem") or row.problem),
                    messages=told.messages,
                    cuts=[*begun.cuts, *told.cuts],
                    rewards=told.rewards,
                    steps=[*begun.steps, *told.steps],
                    finish=told.finish,
                    lost=told.lost,
                    source=source,
                    category=str(about.get("category") or ""),
                    task=self._tasks[source],
                    told=begun.told,
                    answer=told.answer,
                ),
            )


_LINE = TypeAdapter(TaughtProblem)
BROKEN = "the row of the data file is broken"
_OWN = re.compile(r"'[^']*'|\"[^\"]*\"|\S*/\S*|\d+")
"""The parts of a reason that are one row's own."""


def _kind_of(reason: str) -> str:
    """Return a reason without the row that it names, so that equal ones can be counted."""
    place, _, why = reason.partition(": ")
    return "the problem cannot be made: " + _OWN.sub("…", why or place)[:120]


def _fault(row: TaughtProblem) -> str:
    """Return the fault of a line whose fields have the right types; empty where nothing is."""
    for number, one in enumerate(row.conversations):
        why = next(filter(None, map(malformed_message, one.messages)), "")
        if why or not one.messages:
            return f"conversation {number}: {why or 'it has no messages'}"
    try:
        _Beginning.model_validate(row.about, strict=True)
    except ValidationError as error:
        fault = error.errors()[0]
        return f"about.{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
    return ""


class _Beginning(BaseModel):
    """The part of `TaughtProblem.about` on the beginning that a conversation goes on from."""

    told: int = 1
    cuts: list[list[Any]] = []
    steps: list[dict[str, Any]] = []


def read_lines(path: Path, row: type[Any] = dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """The lines of a file of JSON lines as rows, with their numbers, from 1.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no such row.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; `selfverify visual sets` writes it")
    return jsonl_store.read_lines(path, row)


INDUCE = tuple(
    " ".join(prompt.split())
    for prompt in Path(__file__).with_name("induce.txt").read_text("utf-8").split("\n\n")
)
"""The prompts of a model that makes wrong traces (§4.2's error induction, in our words), one for each."""
SHOTS, OUR_SHOTS = 2, "builtin"
"""How many examples are put before a question; and the name of those that ship with the package."""
_EXAMPLES = "Here are examples of how questions about images were worked on, each from its question on."


@dataclass(frozen=True, slots=True)
class CollectedLooks:
    """The outcome of a collection.

    Args:
        traces: How many conversations were held.
        correct: How many of them came to a right end, by the task's rules.
        lost: How many broke off.
        unusable: How many problems could not be made.
        reason: Why the first of those broke off or could not be made; empty if there is none.
    """

    traces: int = 0
    correct: int = 0
    lost: int = 0
    unusable: int = 0
    reason: str = ""


def collect_looks(
    recipe: Recipe,
    teacher: TeacherConfig,
    folder: Path,
    problems: int,
    samples: int = 1,
    shots: str | None = None,
    progress: Progress | None = None,
) -> CollectedLooks:
    """Hold conversations about a recipe's training problems; ``FOLDER/collected.jsonl`` has them all.

    Args:
        recipe: Names the task; its seed decides the problems.
        teacher: The model that looks.
        folder: See the module's docstring.
        problems: How many problems, at most those that the task has.
        samples: Conversations about each.
        shots: A file of traces (``sft.jsonl``), of which `SHOTS` are drawn for each problem and put before
            its question; or `OUR_SHOTS`.
        progress: Called after each batch of problems.

    Raises:
        ConfigError: The task has no conversations or no demonstrations, or the folder is that of other
            settings.
        DataError: ``shots`` is damaged.
    """
    task = recipe_task(recipe)
    total, school = at_most(task, problems), Teaching(recipe, task, teacher, samples)
    keep = image_keeper(folder)
    examples = [] if shots is None else read_transcripts(_SHOTS if shots == OUR_SHOTS else Path(shots))

    def ask(index: int) -> Asked:
        problem = task.problem("train", recipe.seed, index)
        if not problem.images:
            raise DataError(f"{problem.id}: the question shows no image, so that there is nothing to look at")
        try:
            asked, shown = noted_messages(problem, keep), problem
        except ValueError as error:  # from `to_rgb`
            raise DataError(f"{problem.id}: an image cannot be shown: {error}") from None
        if examples:
            drawn = np.random.default_rng([recipe.seed, index]).permutation(len(examples))[:SHOTS]
            shown = _with_examples(problem, [examples[place] for place in drawn])
        known = {"category": str(problem.meta.get("category") or ""), "told": len(asked)}
        about = known | asked_and_wanted(problem)
        return Asked(shown, lambda seed: RecordingEpisode(task.open(problem, seed), asked, keep), about)

    settings = school.settings() | {"shots": None if shots is None else [shots, SHOTS]}
    if broken := task.broken("train"):
        settings["broken_rows"] = [len(broken), broken[0]]
    held = school.hold(folder / SOURCES["sampled"], settings, ask, total, progress, _brief)
    return _summary(held)


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

    Where answers were judged (`judge_looks`), right is what the judge found right. How many steps are kept is
    drawn for each trace, from one to all of them.

    Args:
        recipe: As it was collected with.
        teacher: The model that goes on: a server or the recipe's own policy.
        folder: See the module's docstring; it has ``collected.jsonl``.
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
            "a script cannot go on from the middle; name the recipe's own policy or a server with a model"
        )
    index, task = TraceIndex(folder, ["sampled"]), recipe_task(recipe)
    for name, ours in (("task", task.name), ("seed", recipe.seed)):
        if index.settings.get(name) != ours:
            raise ConfigError(
                f"{folder}: it was collected with {name} {index.settings.get(name)!r}, and the recipe has "
                f"{ours!r}"
            )
    judged = (folder / VERDICTS).is_file()
    verdicts = Verdicts(folder / VERDICTS) if judged else None
    lines, numbers, ids = array("q"), array("q"), hashlib.blake2b(digest_size=16)
    for _, begin, row in index.rows():
        for number, (about, trace) in enumerate(index.traces_of("sampled", row)):
            whole = not trace.lost and trace.finish == "stop" and len(trace.turns) > 1
            known = whole and (verdicts is None or not verdicts.decide(about, trace))
            if known and trace.correct and (most is None or len(lines) < most):
                lines.append(begin)
                numbers.append(number)
                ids.update(f"{trace.id}\n".encode("utf-8", "replace"))
    if not lines:
        why = "".join(f"; {count} problems: {index.named[kind]}" for kind, count in index.unusable.items())
        raise DataError(f"{folder}: no collected trace is right and has a step to go on from{why}")
    school, keep = Teaching(recipe, task, teacher, samples), image_keeper(folder)
    hurry = f"\n{task.settings.answer_now}" if isinstance(task, VisualTask) else ANSWER_NOW
    words = {"branched": ("",), "induced": INDUCE, "hurried": (hurry,)}[way]

    def ask(place: int) -> Asked:
        row = index.row("sampled", lines[place])
        _, trace = [*index.traces_of("sampled", row)][numbers[place]]
        problem = task.problem("train", recipe.seed, row.index)
        rng = np.random.default_rng([recipe.seed, place])
        kept = int(rng.integers(1, len(trace.turns)))
        said = [place for place, message in enumerate(trace.messages) if message["role"] == "assistant"]
        told = trace.messages[: said[kept]]
        heard = told[trace.told :]
        shown = go_on_from(problem, heard, folder / IMAGES, words[int(rng.integers(len(words)))])
        cut = {"cuts": trace.cuts[:kept], "steps": trace.steps[:kept]}
        about = row.about | {"problem": trace.problem, "parent": trace.id} | cut

        def begin(seed: int) -> RecordingEpisode:
            return RecordingEpisode(ResumedEpisode(task.open(problem, seed), heard, keep), told, keep)

        return Asked(shown, begin, about)

    settings = school.settings() | {"from": [len(lines), ids.hexdigest()], "way": way, "words": words}
    return _summary(school.hold(folder / SOURCES[way], settings, ask, len(lines), progress, _brief))


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
    lines, numbers = [], count(1)
    for message in messages:
        parts = (f"[image {next(numbers)}]" if is_image(p) else p["text"] for p in parts_of(message))
        lines.append(f"{'You' if message['role'] == 'assistant' else 'Shown'}: {''.join(parts)}")
    return "\n".join(lines)


def _with_examples(problem: Problem, examples: Sequence[str]) -> Problem:
    """A problem whose last message begins with examples in words, so that its images keep their numbers."""
    last = dict(problem.messages[-1])
    numbered = "\n\n".join(f"Example {n}:\n{text}" for n, text in enumerate(examples, start=1))
    words = {"type": "text", "text": f"{_EXAMPLES}\n\n{numbered}\n\nNow it is your turn.\n"}
    last["content"] = [words, *parts_of(last)]
    return replace(problem, messages=[*problem.messages[:-1], last])


def _brief(row: TaughtProblem) -> CollectedLooks:
    """The part of a line that is kept in memory."""
    held = row.conversations
    reasons = (*(one.lost for one in held), row.unusable)
    correct, lost = sum(worth_imitating(one.rewards) for one in held), sum(bool(one.lost) for one in held)
    return CollectedLooks(len(held), correct, lost, bool(row.unusable), next(filter(None, reasons), ""))


def _summary(rows: Iterable[CollectedLooks]) -> CollectedLooks:
    rows, names = [*rows], ("traces", "correct", "lost", "unusable")
    counts = {name: sum(getattr(row, name) for row in rows) for name in names}
    return CollectedLooks(**counts, reason=next((row.reason for row in rows if row.reason), ""))
