"""`digits-far`: follow digits that are too far away to be read, by looking closer where they lead.

A canvas has nine cells with a digit in each. The digit in a cell names the next cell; a 0 ends the way, and
its cell is the answer. The model is shown a thumbnail in which no digit can be read. It crops a cell. A far
digit is too small to be read there; a frame says where it stands, and the model crops the quarter with the
frame, and the quarter of that. So how many looks are needed depends on what they show: on the length of the
way and on which of its digits are far. The question names the first cell only. No digit lies across the
middle of an image that shows it readably, where `builtin:digits` cuts images into tokens.
`reproduce/far_digits.py` measures what can be read at which scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from PIL import Image

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.looking.image_parts import ImagePart
from selfverify.looking.look_episode import VisualEpisode
from selfverify.looking.look_settings import VisualConfig
from selfverify.looking.look_stopping import StoppingVerifier
from selfverify.looking.look_task import VisualTask, limits_of
from selfverify.looking.set_of_mark import with_numbers
from selfverify.looking.stop_rules import After
from selfverify.looking.tasks.digits_far_config import DigitsFarConfig
from selfverify.looking.tasks.far_canvas import (
    CELLS,
    CLOSER,
    SIXTHS,
    SQUARES,
    FarDigit,
    Sixths,
    cell_box,
    closer,
    corners,
    draw,
    far_digit,
    place,
)
from selfverify.looking.tools.cropping import Crop, ZoomIn
from selfverify.looking.tools.toolbox import Toolbox
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.base import DemonstratedTurn, Verdict, judge_integer, problem_rng, user_turn
from selfverify.tasks.digits import digit_bank, finish
from selfverify.tasks.row_task import Size

LONGEST_WANDER = 3
"""Looks at most behind the 0 in a demonstration that is not told when to answer."""
READABLE = 4.5
"""Pixels of a digit's side as it is shown from which on it can be read (`reproduce/far_digits.py`)."""


@dataclass(frozen=True, slots=True)
class Told:
    """When a model is told to answer, whatever it wants.

    Args:
        steps: After how many steps.
        refused: How many looks behind the 0 the teacher tries to answer, and is refused; None where it waits.
    """

    steps: int
    refused: int | None


class DigitsFar(VisualTask):
    """Follow digits from cell to cell, to the 0."""

    name = "digits-far"
    summary = "follow far digits by looking closer where they lead (visual tools)"
    config_class = DigitsFarConfig
    config: DigitsFarConfig
    tags: tuple[str, ...] = ("think", "answer")

    def __init__(self, config: DigitsFarConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.settings = VisualConfig(
            max_steps=c.max_steps,
            most_shown=c.shown**2,
            announce="number",
            answer_now="Answer.",
            stop=c.stop,
            verifier=c.verifier,
            rule=c.rule,
            epsilon=c.epsilon,
            terminate=c.terminate,
            on_stop=c.on_stop,
            results=c.results,
            step_price=c.step_price,
        )
        self.limits = limits_of(self.settings)
        if c.tools == "none":
            self.limits = RolloutLimits(turns=1)
            self.tags = ("think", "answer") if c.think == "way" else ("answer",)
        self.toolbox, self.stopping = Toolbox([Crop(), ZoomIn()]), StoppingVerifier(self.settings)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`."""
        c = self.config
        way, digits = self.scene(split, seed, index)
        canvas = self.canvas(split, seed, index).convert("L")
        small = canvas.resize((c.thumbnail, c.thumbnail), Image.Resampling.LANCZOS)
        # The canvas' own noise is averaged out in so small an image.
        noise = problem_rng(split, seed, index, 2)
        thumbnail = finish(np.asarray(small, dtype=np.float32) / 255, c.noise, noise)
        if c.marks:
            thumbnail = with_numbers(thumbnail, corners(c.thumbnail), c.thumbnail // 32)
        question = f"Start in cell {way[0]}. A digit names the next cell. Which cell has the 0?"
        return Problem(
            id=f"{self.name}/{split}/{seed}/{index}",
            messages=user_turn(question),
            images=[thumbnail],
            target=way[-1],
            meta={
                "question": question,
                "category": f"{len(way)} cells",
                "way": list(way),
                "digits": [digit.digit for digit in digits],
                "looks": self.looks(way, digits),
                "made_of": [split, seed, index],
            },
        )

    def scene(self, split: Split, seed: int, index: int) -> tuple[Sequence[int], Sequence[FarDigit]]:
        """The way through a problem's cells, and the digits of cells 1 to 9."""
        c, rng = self.config, problem_rng(split, seed, index)
        way = [int(cell) for cell in rng.permutation(CELLS**2)[: rng.integers(1, c.longest + 1)] + 1]
        named = [int(digit) for digit in rng.integers(0, 10, CELLS**2)]
        for cell, following in zip(way, [*way[1:], 0], strict=True):
            named[cell - 1] = following
        digits = []
        for digit in named:
            far = bool(rng.random() < c.far_share)
            digits.append(far_digit(digit, far, c.far if far else c.near, c.cell, rng))
        return way, digits

    def canvas(self, split: Split, seed: int, index: int) -> Image.Image:
        """The whole canvas, as tools see it."""
        c = self.config
        _, digits = self.scene(split, seed, index)
        rng = problem_rng(split, seed, index, 1)
        pixels = draw(digits, c.cell, digit_bank(split), rng)
        return finish(pixels, c.noise, rng)

    def looks(self, way: Sequence[int], digits: Sequence[FarDigit]) -> int:
        """How many looks are needed: one for each cell on the way, and more where its digit is far."""
        return sum(1 + CLOSER * digits[cell - 1].far for cell in way)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward the number of the cell by 1 if it is right, else by 0."""
        return judge_integer(problem.target, tagged, largest=CELLS**2)

    def open(self, problem: Problem, seed: int) -> Episode:
        """See `Task`. Without tools the first words are the answer."""
        if self.config.tools == "none":
            return SingleTurn(problem, self.tags, self.verdict)
        return super().open(problem, seed)

    def looking_by(self, changes: Mapping[str, Any]) -> Self:
        """See `VisualTask`.

        Raises:
            ConfigError: There is nothing to look with.
        """
        if self.config.tools == "none":
            raise ConfigError(f"task {self.name} has no tools (task.tools=none), so that nobody looks")
        return super().looking_by(changes)

    def look(self, problem: Problem) -> VisualEpisode:
        """See `VisualTask`."""
        split, seed, index = problem.meta["made_of"]
        originals = [self.canvas(split, seed, index + (self.settings.results == "swapped"))]
        settings, rule = self.settings, self.stopping.rule
        if told := self._told(problem):
            settings, rule = settings.model_copy(update={"terminate": "refuse"}), After(told.steps)
        return VisualEpisode(
            problem,
            self.tags,
            self.verdict,
            self.toolbox,
            settings,
            _sixths,
            rule,
            originals,
            self.tokens_of,
        )

    def seen(self, problem: Problem, steps: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        """See `VisualTask`: how many of the digits on the way have been shown `READABLE`, and whole."""
        way, digits = self.scene(*problem.meta["made_of"])
        left = {cell: place(cell, digits[cell - 1], self.config.cell) for cell in way}
        side = CELLS * self.config.cell
        views = {1: ImagePart((0, 0, side, side), (side, side))}
        shares = []
        for step in steps:
            for number, source in zip(step["images"], step["sources"], strict=True):
                views[number] = views[source["source"]].part(source["region"], source["size"])
                scale = views[number].scale(self.settings.most_shown)
                for cell, box in [*left.items()]:
                    if views[number].holds(box) and digits[cell - 1].size * scale >= READABLE:
                        del left[cell]
            shares.append(1 - len(left) / len(way) if self.settings.results == "shown" else 0.0)
        return shares

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        """Crop each cell on the way, come closer to a digit that is far, answer at the 0.

        Thoughts say what is seen: the digit, or ``?`` where it is too small. As often as `wander` says, the
        squares of the 0's cell are looked at before the answer, in vain; these thoughts stay with the 0.
        Where the model is `told` when to answer, it looks on until then, and may try to answer before.
        Without tools the digits on the way are named, as `think` says, before the answer.
        """
        way, digits = self.scene(*problem.meta["made_of"])
        if self.config.tools == "none":
            return [DemonstratedTurn(self._answered([digits[cell - 1] for cell in way], problem.target))]
        turns, boxes, thought, images, last = list[DemonstratedTurn](), list[Sixths](), str(way[0]), 1, 1
        for cell in way:
            turns.append(DemonstratedTurn(_step(thought, 1, cell_box(cell))))
            images += 1
            last, one = images, digits[cell - 1]
            boxes = closer(one, self.config.cell) if one.far else []
            for box in boxes:
                turns.append(DemonstratedTurn(_step("?", images, box)))
                images += 1
            thought = str(one.digit)
        answer = DemonstratedTurn(f"<think>{thought}</think><answer>{problem.target}</answer>")
        told, wander = self._told(problem), self.config.wander
        more = 0
        if told:
            more = told.steps - len(turns)
        elif wander and rng.random() < wander:
            more = min(int(rng.integers(1, LONGEST_WANDER + 1)), self.settings.max_steps - len(turns))
        others = [box for box in SQUARES if box not in boxes[:1]]
        # In one order: where each next square is a guess, a model at T = 0 looks at the likeliest one twice.
        vain = [DemonstratedTurn(_step(thought, last, box)) for box in others[:more]]
        if told and told.refused is not None:
            vain = [*vain[: told.refused], answer, *vain[told.refused : -1]]
        return [*turns, *vain, answer]

    def _told(self, problem: Problem) -> Told | None:
        """When the model is told to answer, for a share of the training problems."""
        split, seed, index = problem.meta["made_of"]
        rng = problem_rng(split, seed, index, 3)
        if split != "train" or rng.random() >= self.config.told:
            return None
        looks = problem.meta["looks"]
        more = int(rng.integers(max(self.settings.max_steps - looks, 0) + 1))
        # What is refused is a step, and another one has to follow it.
        tries = more >= 2 and bool(rng.random() < 0.5)
        return Told(looks + more, int(rng.integers(min(LONGEST_WANDER + 1, more - 1))) if tries else None)

    def _answered(self, way: Sequence[FarDigit], target: int) -> str:
        """What is said where there are no tools."""
        thought = " ".join(str(one.digit) for one in way)
        return (f"<think>{thought}</think>" if "think" in self.tags else "") + f"<answer>{target}</answer>"


def _step(thought: str, image: int, box: Sixths) -> str:
    """A step as terse as `read_look_call` takes one."""
    return f"<think>{thought}</think>crop {image} {' '.join(map(str, box))}"


def _sixths(size: Size) -> Size:
    return SIXTHS, SIXTHS
