"""The sample store, a journal with one line per problem, and figures of the conversations in it.

Conversations are stored message by message, with the images in files of their own. `talk_figures` says how
long they were and how they ended; how long they took stands in a file beside the store.

Evaluations, the data filter and STaR's sampling do the same with each of a task's problems. They make their
rows with `ResumableBatches`, so that a kill at any moment only delays them::

    for share in sweep.shares():
        problems, unusable = make_problems(task, split, seed, share, encoder)
        ...
        sweep.store(rows)

`with_rule_scores` puts verifiers that cost nothing beside the model's own scores: rules on an answer's text
that a task knows. A verifier that reads the same text is worth what it is above them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from PIL.Image import Image

from selfverify.core import ranks
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import make_folder, naming
from selfverify.core.images import png
from selfverify.core.jsonl_store import JsonlStore, Row, StrictRow, open_journal, read_journal
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import SCORE_TAG, parse_tagged
from selfverify.core.trajectory import Finish, Segment, Trajectory
from selfverify.selection.rules import Floats
from selfverify.tasks.base import Task, Verdict
from selfverify.tasks.tool_episode import TOOL_CALLS, TOOL_ERRORS

if TYPE_CHECKING:
    from selfverify.policy.encoding import Encoder


STORES = ("samples.jsonl", "samples-after.jsonl", "samples-before.jsonl")
"""The sample stores of a folder; the first that is there is taken."""
DECODINGS = ("soft", "greedy", "sampled")
"""The ways of reading the score that a model gave itself."""
CORRECT_1 = "correct_1"
"""The reward that says whether the first of two answers is right; ``correct`` is about the second one."""


@dataclass(slots=True)
class StoredVerdict:
    """A task's verdict on one turn: the answer, its key and whether it is right, as in `StoredSample`."""

    answer: Any
    key: str | None
    correct: bool


@dataclass(slots=True)
class StoredStep:
    """One message of a conversation.

    Args:
        author: ``policy`` or ``environment``.
        turn: How often the policy had spoken before, or before an environment's reply.
        channel: The channel of its beginning.
        text: Its text with the tokens around it.
        images: Names of files in the folder ``images`` beside the store, in the order of the text.
        finish: How a turn ended; None for an environment's message.
        values: Numbers measured in a turn, by name.
        verdict: The task's verdict on a turn, where there is one.
        record: The episode's record of a turn, as plain JSON; for an agent which call was read, and at the
            end what was handed in and every vote (`agents.episode.ending_of_agent`). Of an
            environment's message who said it and where in the text (`rollouts.conversation.said_by`).
    """

    author: str
    turn: int
    channel: str
    text: str
    images: list[str]
    finish: str | None
    values: dict[str, float]
    verdict: StoredVerdict | None
    record: dict[str, Any] | None = None


@dataclass(slots=True)
class StoredSample:
    """One sampled answer to one problem.

    Args:
        problem: The problem's id.
        sample: The sample's number among the problem's samples, from 0.
        text: Everything the model wrote.
        answer: The canonical answer (a string, a list of numbers, ...); None if it could not be parsed.
        key: The answer as a string that is equal exactly for equal answers, so that votes can be counted;
            None for an unreadable answer and for answers that vary continuously (boxes).
        correct: The task's verdict. For boxes: IoU with the target above 0.5.
        rewards: Rewards by name: ``answer`` and ``format`` at least, and `CORRECT_1` with two turns.
        scores: The score that the model gave itself, by decoding (`DECODINGS`); None if it was malformed.
        tokens: The number of tokens that the model wrote.
        logprob: Mean log-probability of the answer's tokens; None if the sampler gave none.
        finish: How the sample ended: ``stop``, ``length`` or ``error``.
        seed: The seed that the problem's samples were drawn with.
        error: The class of error of a wrong answer (`Verdict.error`), where its task names classes.
        read_by: The reader of the answer: ``rules``, or an extractor (`selfverify.evaluation.extraction`).
            None if it could not be read.
        lost: Whether the episode failed every time, so that nothing is known of how the conversation ended.
        retries: How often the conversation was held again, because it was lost.
        steps: The messages of a conversation; empty where the policy has spoken once.
    """

    problem: str
    sample: int
    text: str
    answer: Any
    key: str | None
    correct: bool
    rewards: dict[str, float]
    scores: dict[str, float | None]
    tokens: int
    logprob: float | None
    finish: str | None
    seed: int
    error: str | None = None
    read_by: str | None = None
    lost: bool = False
    retries: int = 0
    steps: list[StoredStep] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StoredProblem(StrictRow):
    """A line of the store: what was sampled for one problem.

    Args:
        index: The problem's index in its split.
        digest: `Problem.digest` of the problem, by which changed data is noticed.
        samples: The answers to the problem.
    """

    index: int
    digest: str
    samples: list[StoredSample]


def find_store(source: Path, instead: str = "") -> Path:
    """The sample store that is meant: ``source`` itself, or the one in the folder of an evaluation or a run.

    Of a run's two stores that of after training is taken.

    Args:
        source: A file or a folder.
        instead: The error's words for a folder without samples, where there are better ones.

    Raises:
        ConfigError: There is none.
    """
    if source.is_file():
        return source
    if not source.is_dir():
        raise ConfigError(f"there is no folder and no file {source}")
    for name in STORES:
        if (source / name).is_file():
            return source / name
    more = instead or "`selfverify eval` writes them"
    raise ConfigError(f"{source} holds no samples, neither {' nor '.join(STORES)}; {more}")


def read_samples(path: str | Path) -> tuple[dict[str, Any], list[StoredSample]]:
    """Read a sample store.

    Returns:
        The settings, and the samples, in the order of the problems.

    Raises:
        DataError: The file is no sample store, or a line in it is corrupt.
    """
    settings, problems = read_journal(Path(path), StoredProblem)
    return settings, [sample for problem in problems.values() for sample in problem.samples]


Progress = Callable[[int, int], None]
"""A function that is called with the number of problems that are done and the number of all problems."""


class ResumableBatches(Generic[Row]):
    """The rows of a sweep, one per problem. They are made batch by batch and stored as they are made.

    Each process makes its share of every batch, all processes know all rows, and the first process writes the
    file. All processes have to make the same calls.

    Args:
        path: The journal of the rows. Rows that it holds already are not made again. None keeps the rows in
            memory only.
        row: The dataclass of the rows. Its ``index`` is the problem's.
        settings: Everything that decides what the rows say.
        total: The number of problems; their indices are 0 to ``total`` - 1.
        batch: The number of problems that one process works on at once.
        progress: Called by the first process after each batch.
        brief: What is kept in memory of a row; by default the row itself.

    Raises:
        ConfigError: The journal was written under other settings.
        DataError: The journal is corrupt.
    """

    def __init__(
        self,
        path: Path | None,
        row: type[Row],
        settings: Mapping[str, Any],
        total: int,
        batch: int,
        progress: Progress | None = None,
        brief: Callable[[Row], Any] = lambda row: row,
    ) -> None:
        self.total, self.batch, self.progress, self.brief = total, batch, progress, brief
        self._journal: JsonlStore | None = None

        def open_() -> dict[int, Any]:
            if path is None:
                return {}
            self._journal, rows = open_journal(path, row, settings, brief)
            return rows

        self.rows: dict[int, Any] = ranks.on_first(open_)

    def shares(self) -> Iterator[range]:
        """Yield this process's share of each batch that has a problem without a row; it may be empty.

        A batch of which only some rows were stored is made again as a whole, because how numbers are rounded
        depends on what else is in a batch. The rows that are stored stay as they are.
        """
        size = self.batch * ranks.count()
        for first in range(0, self.total, size):
            whole = range(first, min(first + size, self.total))
            if not self.rows.keys() >= set(whole):
                yield whole[ranks.index() * self.batch :][: self.batch]
            if self.progress and ranks.index() == 0:
                self.progress(whole.stop, self.total)

    def store(self, rows: Iterable[Row]) -> None:
        """Add the rows that all processes have made of a batch. A problem that has a row already keeps it."""
        made = {row.index: row for part in ranks.gather([*rows]) for row in part}
        new = [made[index] for index in sorted(made.keys() - self.rows.keys())]
        self.rows |= {row.index: self.brief(row) for row in new}
        if self._journal is not None:
            self._journal.append(*(asdict(row) for row in new))  # type: ignore[call-overload]


def make_problems(
    task: Task, split: Split, seed: int, indices: Iterable[int], encoder: Encoder | None = None
) -> tuple[dict[int, Problem], dict[int, DataError]]:
    """Make problems and, with an ``encoder``, find out whether they can be encoded.

    Returns:
        The problems that can be used by index, and by index the reasons why the others cannot.
    """
    problems, unusable = {}, {}
    for index in indices:
        try:
            problem = task.problem(split, seed, index)
            if encoder is not None:
                encoder.prompt(problem)
            problems[index] = problem
        except DataError as error:
            unusable[index] = error
    return problems, unusable


IMAGES = "images"
"""The folder of shown images, beside the store."""


def stored_steps(trajectory: Trajectory, store: Path | None) -> list[StoredStep]:
    """The messages behind a problem's prompt; none unless an environment has said something.

    Args:
        trajectory: The conversation.
        store: The store, beside which the images are written; without one they are left out.
    """
    # Observations of a served model have no tokens here.
    if not any(s.author == "environment" and (s.tokens or s.text) for s in trajectory.segments):
        return []
    messages = groupby(trajectory.segments, key=lambda segment: (segment.author, segment.turn))
    return [_step(list(segments), store) for _, segments in messages]


def _step(segments: list[Segment], store: Path | None) -> StoredStep:
    first, images = segments[0], [image for segment in segments for image in segment.images]
    judged = next((s.parsed for s in segments if isinstance(s.parsed, Verdict)), None)
    return StoredStep(
        author=first.author,
        turn=first.turn,
        channel=first.channel,
        text="".join(segment.text for segment in segments),
        images=[] if store is None else written_images(store.parent / IMAGES, images),
        finish=segments[-1].finish,
        values={name: value for segment in segments for name, value in segment.values.items()},
        verdict=None if judged is None else StoredVerdict(judged.answer, judged.key, judged.correct),
        record=next((s.parsed for s in segments if isinstance(s.parsed, dict)), None),
    )


def written_images(folder: Path, images: Iterable[Image]) -> list[str]:
    """The names of images in a folder. An image that is shown again has the file that it had."""
    names = []
    for image in images:
        content = png(image)
        name = f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.png"
        path = folder / name
        if not path.exists():
            make_folder(folder)
            # Several processes may write it at the same time.
            partial = path.with_name(f"{name}.{os.getpid()}.partial")
            with naming(path):
                try:
                    partial.write_bytes(content)
                    partial.replace(path)
                finally:
                    partial.unlink(missing_ok=True)
        names.append(name)
    return names


TOOL_COUNTS = (TOOL_CALLS, TOOL_ERRORS)
"""Rewards that count tools; they have intervals, as other figures of conversations have."""


def talk_figures(rows: Sequence[Sequence[StoredSample]]) -> dict[str, Floats]:
    """Return figures ``[P, G]`` of conversations by name; none where the policy has always spoken once.

    ``turns`` is how often the policy spoke, ``stop``, ``length`` and ``error`` are 1 where the conversation
    ended so, ``lost`` where its episode failed every time (a part of ``error``). ``retries`` is how often it
    was held again, and ``failed_turns``, where there are tools, the number of turns whose call was refused or
    failed.
    """
    samples = [sample for row in rows for sample in row]
    # A single answer has no steps, nor has a conversation that was over before the policy spoke.
    single = any(sample.tokens > 0 and not sample.lost for sample in samples)
    if not any(sample.steps for sample in samples) and (single or not any(s.lost for s in samples)):
        return {}
    own = [[step for step in sample.steps if step.author == "policy"] for sample in samples]
    turns = [len(steps) or int(sample.tokens > 0) for sample, steps in zip(samples, own, strict=True)]
    figures = {
        "turns": turns,
        "retries": [sample.retries for sample in samples],
        "lost": [sample.lost for sample in samples],
        **{str(finish): [sample.finish == finish for sample in samples] for finish in Finish},
    }
    if any(TOOL_ERRORS in sample.rewards for sample in samples):
        figures["failed_turns"] = [sum(s.values.get(TOOL_ERRORS, 0.0) > 0 for s in steps) for steps in own]
    return {
        name: np.array(values, dtype=np.float64).reshape(len(rows), -1) for name, values in figures.items()
    }


TEXT_RULES = ("text_rule", "text_rule_read")
"""The names of such scores (`Task.text_rules`)."""


def with_rule_scores(
    samples: Sequence[StoredSample], task: Task, problems: Mapping[str, Problem]
) -> list[StoredSample]:
    """Return the samples with the scores of the task's rules, too; the others stay as they are.

    Answers without a score to compare with have none: those of a task that asks for no score, malformed ones,
    and whole conversations.

    Args:
        samples: The answers; the text is read once more.
        task: Has the rules.
        problems: The problems by id; their images are not needed.
    """
    if SCORE_TAG not in task.tags:
        return [*samples]
    found = []
    for sample in samples:
        tagged = parse_tagged(sample.text, task.tags)
        if tagged.answer_ok and not sample.steps:
            rules = task.text_rules(problems[sample.problem], tagged)
            sample = replace(sample, scores={**sample.scores, **rules})
        found.append(sample)
    return found
