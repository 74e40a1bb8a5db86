"""One question, N answers, the best of them with its confidence and the reason for it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from selfverify.data.images import FORMATS, read_image
from selfverify.errors import DataError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import answer_segment, roll_out
from selfverify.rollouts.tags import Tagged
from selfverify.rollouts.two_turn import TURN_1, roll_out_turns
from selfverify.rollouts.types import Problem, Trajectory
from selfverify.selection.adaptive import Stopping, sample_adaptively
from selfverify.selection.answers import Kind, read_answer
from selfverify.selection.calibration import Calibration
from selfverify.selection.candidates import Candidate
from selfverify.selection.choose import Choice, choose
from selfverify.selection.strategies import DEFAULTS, Options, find_strategy
from selfverify.selection.verifiers import Verifier, verify
from selfverify.tasks import Task
from selfverify.tasks.base import SCORE_INSTRUCTION, UNREADABLE, Demonstration, Judged, user_turn

MOST_PIXELS = 50_000_000
"""Largest image that is decoded; its pixels take 150 MB."""


class FreeQuestion:
    """A question without a known answer: it can be parsed and compared, not judged."""

    name = "question"
    tags = ("think", "answer", "score")

    def __init__(self, kind_of_answer: Kind = "text") -> None:
        self.answers = kind_of_answer
        self.kind: Literal["discrete", "continuous"] = "continuous" if kind_of_answer == "box" else "discrete"

    def problem(self, split: str, seed: int, index: int) -> Problem:
        """There are no problems but the one that is asked."""
        raise DataError("a free question has no problems of its own")

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """The answer and its key; nobody knows whether it is right."""
        answer, key = read_answer(tagged.fields.get("answer", ""), self.answers)
        return UNREADABLE if answer is None else Judged(0.0, False, answer, key)

    def demonstrate(self, problem: Problem, rng: Any, wrong: bool) -> Demonstration:
        """There is nothing to show."""
        raise DataError("a free question cannot be demonstrated")


def free_problem(
    question: str, images: Sequence[Image.Image], instruction: str = SCORE_INSTRUCTION
) -> Problem:
    """The problem that a person's question makes: the images, the question, the request for the format."""
    text = f"{question.strip()} {instruction}".strip()
    return Problem("question", user_turn(text, len(images)), list(images), meta={"question": question})


def open_image(path: Path) -> Image.Image:
    """A person's image, decoded.

    Raises:
        DataError: It is missing, no image, or has more than `MOST_PIXELS` pixels.
    """
    if not path.is_file():
        raise DataError(f"the image {path}: there is no such file")
    try:
        with warnings.catch_warnings():  # PIL's limits are a warning here and an error there; ours is one
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
    except Exception as error:
        # PIL raises many types for what is no image; a size beyond its own limit is among them.
        raise DataError(f"the image {path} cannot be read: {type(error).__name__}: {error}") from None
    if width * height > MOST_PIXELS:
        raise DataError(
            f"the image {path} has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller"
        )
    return read_image(path, tries=1)


@dataclass(frozen=True, slots=True)
class Solution:
    """What `solve` found.

    Args:
        choice: The answer and why it was chosen.
        candidates: All of them, in the order they were sampled.
        stopped: Why there are no more: ``samples``, ``tokens`` or ``confident``.
        probability: The choice's calibrated probability of being right; None without a calibration.
        abstained: The probability lies below the calibration's threshold, or no answer could be read.
        verifier: Whose scores these are.
        tokens: Tokens written in all.
        seconds: It took.
        correct: Whether the chosen answer is right, where the task knows.
    """

    choice: Choice
    candidates: list[Candidate]
    stopped: str
    probability: float | None
    abstained: bool
    verifier: str
    tokens: int
    seconds: float
    correct: bool | None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def candidate_of(trajectory: Trajectory, verifier: str, continuous: bool) -> Candidate:
    """A judged and verified trajectory as a candidate."""
    judged: Judged | None = trajectory.parsed
    logprobs = answer_segment(trajectory).logprobs
    opening = trajectory.segments[0]
    first: Judged | None = opening.parsed if opening.channel == TURN_1 else None
    return Candidate(
        answer=judged.answer if judged else None,
        key=None if judged is None or continuous else judged.key,
        score=trajectory.scores.get(verifier),
        logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        tokens=trajectory.written,
        text=trajectory.text,
        first=first.answer if first else None,
    )


def solve(
    policy: Policy,
    task: Task | FreeQuestion,
    problem: Problem,
    verifier: Verifier,
    *,
    strategy: str = "weighted",
    options: Options = DEFAULTS,
    stopping: Stopping | None = None,
    sampling: SamplingConfig | None = None,
    seed: int = 0,
    calibration: Calibration | None = None,
    second_turn: str | None = None,
    on_candidate: Callable[[Candidate], None] | None = None,
) -> Solution:
    """Sample candidates, have them verified, choose one.

    Args:
        policy: Writes the answers.
        task: Parses them and says which are the same.
        problem: The question.
        verifier: Scores them.
        strategy: How to choose.
        options: Of the strategy.
        stopping: How many candidates, and when to stop early. By default 8 at once.
        sampling: Temperature, top-p and length; its group size is not used.
        seed: Of the sampling.
        calibration: Turns the choice's confidence into a probability.
        second_turn: What is asked behind every answer; the answer to that then is the candidate (AdaPO).
        on_candidate: Called with each candidate when it is there.

    Raises:
        ConfigError: No such strategy, or one that needs the truth.
        DataError: The problem's images or messages cannot be used.
    """
    find_strategy(strategy)
    stopping = stopping or Stopping(rule="never", start=8, max_samples=8)
    sampling = sampling or SamplingConfig(max_new_tokens=256)
    begun = time.perf_counter()
    trajectories: list[Trajectory] = []

    def draw(n: int) -> list[Candidate]:
        # The prompt is prefilled again for every batch: few large ones are faster than many small ones.
        config = sampling.model_copy(update={"group_size": n})
        asked: Any = task
        seeds = [seed * 1_000_003 + len(trajectories)]
        if second_turn is None:
            rollout = roll_out(policy, asked, [problem], seeds, config)
        else:
            rollout = roll_out_turns(policy, asked, [problem], seeds, config, second_turn, split_score=True)
        verify(rollout.groups, verifier)
        drawn = rollout.groups[0].trajectories
        trajectories.extend(drawn)
        found = [candidate_of(t, verifier.name, task.kind == "continuous") for t in drawn]
        for candidate in found:
            if on_candidate:
                on_candidate(candidate)
        return found

    candidates, stopped = sample_adaptively(draw, stopping, strategy, options)
    choice = choose(candidates, strategy, options)
    probability = None
    if calibration is not None and choice.confidence is not None:
        probability = float(calibration(choice.confidence))
    threshold = calibration.threshold if calibration else None
    unsure = probability is not None and threshold is not None and probability < threshold
    judged = not isinstance(task, FreeQuestion) and choice.answer == candidates[choice.index].answer
    return Solution(
        choice=choice,
        candidates=candidates,
        stopped=stopped,
        probability=probability,
        abstained=unsure or choice.answer is None,
        verifier=verifier.name,
        tokens=sum(candidate.tokens for candidate in candidates),
        seconds=time.perf_counter() - begun,
        correct=bool(trajectories[choice.index].rewards["correct"]) if judged else None,
    )
