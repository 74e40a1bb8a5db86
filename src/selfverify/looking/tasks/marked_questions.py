"""`marked`: questions of a data file about images with numbers on their parts (Set-of-Mark prompting)."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from selfverify.core.problem import Problem, Split
from selfverify.looking.set_of_mark import marked
from selfverify.looking.tasks.look_questions import INSTRUCTION
from selfverify.tasks.math import Math, MathConfig

MARKED = "The numbers on an image name its parts; you may refer to them. "


class MarkedQuestionsConfig(MathConfig):
    """Where the rows are, and how they are asked."""

    score: bool = Field(False, description="Ask for a score behind the answer.")
    instruction: str | None = Field(
        MARKED + INSTRUCTION, description="What follows every question: the numbers, and the answer's format."
    )


class MarkedQuestions(Math):
    """The questions of task `math` with numbers drawn on their images; a baseline of looking, without tools.

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    name = "marked"
    summary = "questions of a data file, with numbers on the parts of images (Set-of-Mark)"
    config_class = MarkedQuestionsConfig
    config: MarkedQuestionsConfig

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task`."""
        problem = super().problem(split, seed, index)
        return replace(problem, images=[marked(image) for image in problem.images])
