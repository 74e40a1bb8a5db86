"""A person's question: nobody knows its answer, but answers to it can be read and compared."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.data.images import ImageRef
from selfverify.selection.rules import Kind, read_answer
from selfverify.tasks.base import SCORE_INSTRUCTION, UNREADABLE, Task, Verdict, user_turn

MOST_PIXELS = 50_000_000
"""The largest image that is decoded; its pixels take 150 MB."""


class FreeQuestion(Task):
    """A question without a known answer: it can be parsed and compared, not judged."""

    name = "question"
    summary = "a person's own question"
    judges = False

    def __init__(self, kind_of_answer: Kind = "text") -> None:
        super().__init__()
        self.answers = kind_of_answer
        self.kind = "continuous" if kind_of_answer == "box" else "discrete"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """There are no problems but the one that is asked."""
        raise DataError("a free question has no problems of its own")

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """The answer and its key, without a reward: nobody knows whether the answer is right."""
        answer, key = read_answer(tagged.fields.get("answer", ""), self.answers)
        return UNREADABLE if answer is None else Verdict(0.0, False, answer, key)


def free_problem(question: str, images: Sequence[Image.Image]) -> Problem:
    """The problem that a person's question makes: the images, the question, the request for the format."""
    text = f"{question.strip()} {SCORE_INSTRUCTION}".strip()
    return Problem("question", user_turn(text, len(images)), list(images), meta={"question": question})


def open_image(path: Path) -> Image.Image:
    """A person's image, decoded.

    Raises:
        DataError: The file is missing, is no image, or has more than `MOST_PIXELS` pixels.
    """
    if not path.is_file():
        raise DataError(f"the image {path}: there is no such file")
    image = ImageRef("--image", path)
    with warnings.catch_warnings():  # PIL's own limit is a warning here and an error there; ours is an error
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        width, height = image.size
    if width * height > MOST_PIXELS:
        raise DataError(
            f"the image {path} has {width} x {height} pixels, more than {MOST_PIXELS:,}: make it smaller"
        )
    return image.open(tries=1)
