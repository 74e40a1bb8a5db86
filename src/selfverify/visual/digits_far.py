"""The task `digits-far`: follow digits too far away to be read by looking closer where they lead.

A canvas has nine cells with a digit in each. The digit in a cell names the next cell; a 0 ends the way, and
its cell is the answer. The model is shown a thumbnail in which no digit can be read. It crops a cell. A far
digit is too small to be read there; a frame says where it stands, and the model crops the quarter with the
frame, and the quarter of that. So how many looks are needed depends on what they show: on the length of the
way and on which of its digits are far. The question names the first cell only. No digit lies across the
middle of an image that shows it readably, where `builtin:digits` cuts images into tokens.
`docs/results/vts-v.md` has what can be read at which scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.base import DemonstratedTurn, TaskConfig, Verdict, judge_integer, problem_rng, user_turn
from selfverify.tasks.digits import Scans, digit_bank, finish, paste
from selfverify.visual.calls import TERSE
from selfverify.visual.config import EndingConfig, Results, VisualConfig
from selfverify.visual.episode import VisualEpisode, VisualTask
from selfverify.visual.stopping import After
from selfverify.visual.tools.base import Toolbox
from selfverify.visual.tools.crop import Crop, ZoomIn, with_numbers
from selfverify.visual.tools.gallery import ImagePart
from selfverify.visual.verifier import StoppingVerifier

CELLS = 3
"""Rows and columns; cells are numbered from 1 in reading order."""
CLOSER = 2
"""How many times a quarter is cropped for a far digit, behind the crop of its cell."""
FRAME, FRAME_INK = 4, 0.6
"""Width in pixels and grey of the frame around a far digit, which is as large as the last of these."""
RIM = 12
"""Width in pixels of the frame around a cell in which a way ends, of the same grey."""
SIXTHS = 6
"""Places are written in sixths of an image's sides, so that each is one digit."""
Sixths = tuple[int, int, int, int]
"""A box in sixths."""
QUARTERS: Sequence[Sixths] = [(x, y, x + 3, y + 3) for y in (0, 3) for x in (0, 3)]
"""The quarters of an image."""
SQUARES: Sequence[Sixths] = [(x, y, x + 3, y + 3) for y in range(4) for x in range(4)]
"""All squares of a quarter's size."""


@dataclass(frozen=True, slots=True)
class FarDigit:
    """A digit on the canvas.

    Args:
        digit: Which.
        left: Its left edge, in pixels of its cell.
        top: Its upper edge.
        size: Its side.
        far: Whether it is too small to be read in a crop of its cell.
    """

    digit: int
    left: int
    top: int
    size: int
    far: bool


def far_digit(digit: int, far: bool, sizes: tuple[int, int], cell: int, rng: np.random.Generator) -> FarDigit:
    """A digit at a place of its own: a near one within a quarter of its cell, a far one of its frame."""
    size = int(rng.integers(sizes[0], sizes[1] + 1))
    parts, frame = (2 ** (CLOSER + 1), FRAME) if far else (2, 0)
    left, top = (_within(cell // parts, size, frame, rng) for _ in range(2))
    return FarDigit(digit, left, top, size, far)


def draw(digits: Sequence[FarDigit], cell: int, bank: Scans, rng: np.random.Generator) -> np.ndarray:
    """The canvas without noise, ``[CELLS * cell, CELLS * cell]`` grey levels in [0, 1]."""
    pixels = np.zeros((CELLS * cell, CELLS * cell), dtype=np.float32)
    for number, one in enumerate(digits, 1):
        left, top, _, _ = place(number, one, cell)
        if one.far:
            side = cell // 2**CLOSER
            x, y = left // side * side, top // side * side
            pixels[y : y + side, x : x + side] = FRAME_INK
            pixels[y + FRAME : y + side - FRAME, x + FRAME : x + side - FRAME] = 0
        paste(pixels, rng.choice(bank[one.digit]), left, top, one.size, ink=float(rng.uniform(0.7, 1.0)))
    return pixels


def place(number: int, one: FarDigit, cell: int) -> tuple[int, int, int, int]:
    """Where the digit of a cell, numbered from 1, is on the canvas, in pixels."""
    left = (number - 1) % CELLS * cell + one.left
    top = (number - 1) // CELLS * cell + one.top
    return left, top, left + one.size, top + one.size


def closer(one: FarDigit, cell: int) -> list[Sixths]:
    """The quarters in which a far digit stands, in sixths: of its cell, of that quarter, and so on."""
    boxes = []
    for level in range(1, CLOSER + 1):
        x, y = (place // (cell // 2**level) % 2 for place in (one.left, one.top))
        boxes.append(QUARTERS[2 * y + x])
    return boxes


def cell_box(cell: int) -> Sixths:
    """A cell's box in sixths of the canvas."""
    side = SIXTHS // CELLS
    column, row = (cell - 1) % CELLS * side, (cell - 1) // CELLS * side
    return column, row, column + side, row + side


def corners(side: int) -> list[tuple[float, float]]:
    """Where the numbers of cells stand in an image of so many pixels a side: in their left upper corners."""
    cell, half = side / CELLS, (2.5 * (side // 32), 3.5 * (side // 32))
    places = [divmod(number, CELLS) for number in range(CELLS**2)]
    return [(column * cell + half[0], row * cell + half[1]) for row, column in places]


def _within(part: int, size: int, frame: int, rng: np.random.Generator) -> int:
    """Where on one axis a digit of ``size`` stands: within a part of its cell, and clear of its frame.

    Parts are in pairs: with a frame, which is around a pair, they begin or end with it.
    """
    number, room = int(rng.integers(2 if not frame else 2 ** (CLOSER + 1))), part - size - frame
    return number * part + (frame if number % 2 == 0 else 0) + int(rng.integers(room + 1))


class DigitsFarConfig(TaskConfig, EndingConfig):
    """Difficulty of `digits-far`, and when looking ends."""

    cell: int = Field(192, ge=48, le=384, multiple_of=16)
    """Side of a cell in pixels."""

    thumbnail: int = Field(16, ge=16, le=256, multiple_of=16)
    """Side of the canvas as shown first."""

    shown: int = Field(32, ge=16, le=256, multiple_of=16)
    """Side of an image that a tool returns."""

    near: tuple[int, int] = (60, 72)
    """Smallest and largest side of a near digit in pixels."""

    far: tuple[int, int] = (12, 13)
    """Smallest and largest side of a far digit in pixels."""

    far_share: float = Field(0.4, ge=0, le=1)
    """How many of the digits are far, as a share."""

    longest: int = Field(3, ge=1, le=9)
    """Cells on the longest way, its end included."""

    ends: float | None = Field(None, gt=0, le=1)
    """The chance that a way ends in each of its cells, so that the number of looks says nothing about it;
    null: all lengths up to the `longest` are alike."""

    end: Literal["zero", "frame"] = "zero"
    """What ends a way: a 0, or a frame around a cell whose digit leads on all the same, so that looks in vain
    follow digits as needed ones do. The thumbnail does not show the frame."""

    wander: float = Field(0.0, ge=0, le=1)
    """How many demonstrations, as a share, look on after the 0 was seen: at one to three parts of its cell,
    or with `think: none` at cells not visited yet, in random order or, with `end: frame`, as digits lead."""

    told: float = Field(0.0, ge=0, le=1)
    """In how many training problems, as a share, the model is told to answer at the look that shows the 0 or
    at one behind it, and may not before."""

    noise: float = Field(0.1, ge=0, le=0.5)
    """Noise of canvas and thumbnail, as a deviation."""

    max_steps: int = Field(9, ge=1, le=32)
    """Looks after which the model is told to answer."""

    step_price: float = Field(0.0, ge=0, le=1)
    """What each look takes off the reward of a right answer, for training."""

    marks: bool = False
    """Whether the thumbnail, of 32 pixels at least, has the cells' numbers on it."""

    tools: Literal["crop-zoom", "none"] = "crop-zoom"
    """What the model looks with. With `none` it answers at once, from the thumbnail alone."""

    think: Literal["way", "none"] = "way"
    """What stands before a call or an answer: the digit that is seen (with `tools: none` the digits on the
    way), or nothing, so that no words tell whether to look on."""

    results: Results = "shown"
    """What is shown of the images that tools make: themselves, one colour (`blanked`), or the same part of
    another problem's canvas (`swapped`)."""

    @model_validator(mode="after")
    def _check(self) -> DigitsFarConfig:
        within = {"near": (self.near, 2, 0), "far": (self.far, 2 ** (CLOSER + 1), FRAME)}
        for name, ((low, high), parts, margin) in within.items():
            most = self.cell // parts - margin
            if not 4 <= low <= high <= most:
                raise ValueError(
                    f"{name} {[low, high]} has to be [low, high] with 4 <= low <= high <= {most}, 1/{parts} "
                    "of a cell's side" + (" without its frame" if margin else "")
                )
        if self.end == "frame" and (self.far_share or self.think != "none" or self.tools == "none"):
            raise ValueError(
                "end: frame needs far_share: 0, think: none and tools, not "
                f"{self.far_share}, {self.think} and tools: {self.tools}"
            )
        if self.marks and self.thumbnail < 32:
            raise ValueError(f"marks need a thumbnail of 32 pixels at least, not {self.thumbnail}")
        if self.tools == "none":
            unused = {
                "stop": "never", "verifier": None, "on_stop": "run", "results": "shown", "step_price": 0.0
            }  # fmt: skip
            given = self.model_dump(include={*unused})
            if wrong := [name for name in unused if given[name] != unused[name]]:
                raise ValueError(f"{wrong[0]} needs tools to look with, and tools is none")
        return self


LONGEST_WANDER = 3
"""Looks at most behind the 0 in a demonstration that is not told when to answer."""
READABLE = 4.5
"""Pixels of a digit's side as it is shown from which on it can be read (`docs/results/vts-v.md`)."""


@dataclass(frozen=True, slots=True)
class Told:
    """When a model is told to answer, also where it would look on.

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
            results=c.results,
            step_price=c.step_price,
            **c.model_dump(include={*EndingConfig.model_fields}),
        )
        self.limits = RolloutLimits(turns=1 if c.tools == "none" else c.max_steps + 1)
        if c.think == "none":
            self.tags = ("answer",)
        self.toolbox, self.stopping = Toolbox([Crop(), ZoomIn()]), StoppingVerifier(self.settings)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        c = self.config
        way, digits = self.scene(split, seed, index)
        canvas = self.canvas(split, seed, index, framed=False).convert("L")
        small = canvas.resize((c.thumbnail, c.thumbnail), Image.Resampling.LANCZOS)
        # The canvas' own noise is averaged out in so small an image.
        noise = problem_rng(split, seed, index, 2)
        thumbnail = finish(np.asarray(small, dtype=np.float32) / 255, c.noise, noise)
        if c.marks:
            thumbnail = with_numbers(thumbnail, corners(c.thumbnail), c.thumbnail // 32)
        end = {"zero": "0", "frame": "frame"}[c.end]
        question = f"Start in cell {way[0]}. A digit names the next cell. Which cell has the {end}?"
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
        cells = rng.permutation(CELLS**2) + 1
        length = rng.integers(1, c.longest + 1) if c.ends is None else min(rng.geometric(c.ends), c.longest)
        way = [int(cell) for cell in cells[:length]]
        named = [int(digit) for digit in rng.integers(0, 10, CELLS**2)]
        followed = way if c.end == "zero" else [int(cell) for cell in cells]
        for cell, following in zip(followed, [*followed[1:], 0], strict=True):
            named[cell - 1] = following
        digits = []
        for digit in named:
            far = bool(rng.random() < c.far_share)
            digits.append(far_digit(digit, far, c.far if far else c.near, c.cell, rng))
        return way, digits

    def canvas(self, split: Split, seed: int, index: int, framed: bool = True) -> Image.Image:
        """The whole canvas, as tools see it, or without the frame that ends the way."""
        c = self.config
        way, digits = self.scene(split, seed, index)
        rng = problem_rng(split, seed, index, 1)
        pixels = draw(digits, c.cell, digit_bank(split), rng)
        if framed and c.end == "frame":
            top, left = (part * c.cell for part in divmod(way[-1] - 1, CELLS))
            whole = pixels[top : top + c.cell, left : left + c.cell]
            inside = np.zeros((c.cell - 2 * RIM, c.cell - 2 * RIM), dtype=np.float32)
            np.maximum(whole, np.pad(inside, RIM, constant_values=FRAME_INK), out=whole)
        return finish(pixels, c.noise, rng)

    def looks(self, way: Sequence[int], digits: Sequence[FarDigit]) -> int:
        """How many looks are needed: one for each cell on the way, and more where its digit is far."""
        return sum(1 + CLOSER * digits[cell - 1].far for cell in way)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward the number of the cell by 1 if it is right, else by 0."""
        return judge_integer(problem.target, tagged, largest=CELLS**2)

    def open(self, problem: Problem, seed: int) -> Episode:
        """Open a conversation of looks; without tools the first words are the answer."""
        if self.config.tools == "none":
            return SingleTurn(problem, self.tags, self.verdict)
        return super().open(problem, seed)

    def looking_by(self, changes: Mapping[str, Any]) -> Self:
        """Return the task with other settings of looking.

        Raises:
            ConfigError: There is nothing to look with.
        """
        if self.config.tools == "none":
            raise ConfigError(f"task {self.name} has no tools (task.tools=none), so the model cannot look")
        return super().looking_by(changes)

    def look(self, problem: Problem) -> VisualEpisode:
        split, seed, index = problem.meta["made_of"]
        originals = [self.canvas(split, seed, index + (self.settings.results == "swapped"))]
        settings, rule = self.settings, self.stopping.rule
        if told := self._told(problem):
            settings, rule = settings.model_copy(update={"terminate": "refuse"}), After(told.steps)
        return VisualEpisode(self, problem, settings, lambda size: (SIXTHS, SIXTHS), rule, originals, TERSE)

    def seen(self, problem: Problem, steps: Sequence[Mapping[str, Any]]) -> Sequence[float]:
        """Return after each step the share of the digits on the way that have been shown `READABLE`, and
        whole."""
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
        With ``think: none`` there are no thoughts, and cells not visited yet are looked at first, as one on
        the way would be.
        Where the model is `told` when to answer, it looks on until then, and may try to answer before.
        Without tools the digits on the way are named, as `think` says, before the answer.
        """
        way, digits = self.scene(*problem.meta["made_of"])
        if self.config.tools == "none":
            thought = " ".join(str(digits[cell - 1].digit) for cell in way)
            return [DemonstratedTurn(self._said(thought, f"<answer>{problem.target}</answer>"))]
        turns, boxes, thought, images, last = list[DemonstratedTurn](), list[Sixths](), str(way[0]), 1, 1
        for cell in way:
            turns.append(self._step(thought, 1, cell_box(cell)))
            images += 1
            last, one = images, digits[cell - 1]
            boxes = closer(one, self.config.cell) if one.far else []
            for box in boxes:
                turns.append(self._step("?", images, box))
                images += 1
            thought = str(one.digit)
        answer = DemonstratedTurn(self._said(thought, f"<answer>{problem.target}</answer>"))
        told, wander = self._told(problem), self.config.wander
        more = 0
        if told:
            more = told.steps - len(turns)
        elif wander and rng.random() < wander:
            more = min(int(rng.integers(1, LONGEST_WANDER + 1)), self.settings.max_steps - len(turns))
        # In one order: where each next square is a guess, a model at T = 0 looks at the likeliest one twice.
        others = [(last, box) for box in SQUARES if box not in boxes[:1]]
        if self.config.think == "none":
            onward, cell = list[int](), way[-1]
            if self.config.end == "frame":
                while cell := digits[cell - 1].digit:  # the last of all cells has a 0
                    onward.append(cell)
            else:
                left = [cell for cell in range(1, CELLS**2 + 1) if cell not in way]
                onward = [int(cell) for cell in rng.permutation(left)]
            others = [*((1, cell_box(cell)) for cell in onward), *others]
        vain = [self._step(thought, image, box) for image, box in others[:more]]
        if told and told.refused is not None:
            vain = [*vain[: told.refused], answer, *vain[told.refused : -1]]
        return [*turns, *vain, answer]

    def _told(self, problem: Problem) -> Told | None:
        """Return after how many steps the model is told to answer, for a share of the training problems."""
        split, seed, index = problem.meta["made_of"]
        rng = problem_rng(split, seed, index, 3)
        if split != "train" or rng.random() >= self.config.told:
            return None
        looks = problem.meta["looks"]
        more = int(rng.integers(max(self.settings.max_steps - looks, 0) + 1))
        # A refused look is a step, too, and another one has to follow it. With a frame nobody tries: a model
        # that learnt to would tell by its own words where the way has ended.
        tries = more >= 2 and self.config.end == "zero" and bool(rng.random() < 0.5)
        return Told(looks + more, int(rng.integers(min(LONGEST_WANDER + 1, more - 1))) if tries else None)

    def _step(self, thought: str, image: int, box: Sixths) -> DemonstratedTurn:
        """A step as terse as `read_look_call` takes one."""
        return DemonstratedTurn(self._said(thought, f"crop {image} {' '.join(map(str, box))}"))

    def _said(self, thought: str, words: str) -> str:
        return (f"<think>{thought}</think>" if "think" in self.tags else "") + words
