"""The sample store: a journal of every sampled answer, one line per problem."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from selfverify.core.errors import ConfigError
from selfverify.core.jsonl_store import STRICT, read_journal

STORES = ("samples.jsonl", "samples-after.jsonl", "samples-before.jsonl")
"""The sample stores of a folder; the first that is there is taken."""
DECODINGS = ("soft", "greedy", "sampled")
"""The ways of reading the score that a model gave itself."""
CORRECT_1 = "correct_1"
"""The reward that says whether the first of two answers is right; ``correct`` is about the second one."""


@dataclass(slots=True)
class StoredVerdict:
    """What a task says of one turn: the answer, its key and whether it is right, as in `StoredSample`."""

    __pydantic_config__: ClassVar = STRICT

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
        values: What was measured of a turn, by name.
        verdict: What the task says of a turn, where it says something.
        record: What the episode tells of a turn, as plain JSON; for an agent which call was read, and at the
            end what was handed in and every vote (`agents.agent_endings.ending_of_agent`). Of an
            environment's message who said it and where in the text (`rollouts.talk.said_by`).
    """

    __pydantic_config__: ClassVar = STRICT

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
        read_by: Who read the answer: ``rules``, or an extractor (`selfverify.evaluation.extraction`). None if
            nobody could read it.
        lost: Whether the episode failed every time, so that nothing is known of how the conversation ended.
        retries: How often the conversation was held again, because it was lost.
        steps: The messages of a conversation; empty where the policy has spoken once.
    """

    __pydantic_config__: ClassVar = STRICT

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
class StoredProblem:
    """A line of the store: what was sampled for one problem.

    Args:
        index: The problem's index in its split.
        digest: `Problem.digest` of the problem, by which changed data is noticed.
        samples: The answers to the problem.
    """

    __pydantic_config__: ClassVar = STRICT

    index: int
    digest: str
    samples: list[StoredSample]


def find_store(source: Path, instead: str = "") -> Path:
    """The sample store that is meant: ``source`` itself, or the one in the folder of an evaluation or a run.

    Of a run's two stores that of after training is taken.

    Args:
        source: A file or a folder.
        instead: What an error says of a folder without samples, where there is something better to say.

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
        The settings, and the samples, problem by problem.

    Raises:
        DataError: The file is no sample store, or a line in it is corrupt.
    """
    settings, problems = read_journal(Path(path), StoredProblem)
    return settings, [sample for problem in problems.values() for sample in problem.samples]
