"""The options of `digits-far`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from selfverify.looking.look_settings import Results
from selfverify.looking.tasks.far_canvas import CLOSER, FRAME
from selfverify.tasks.base import TaskConfig


class DigitsFarConfig(TaskConfig):
    """Difficulty of `digits-far`."""

    cell: int = Field(192, ge=48, le=384, multiple_of=16, description="Side of a cell in pixels.")
    thumbnail: int = Field(
        16, ge=16, le=256, multiple_of=16, description="Side of the canvas as shown first."
    )
    shown: int = Field(32, ge=16, le=256, multiple_of=16, description="Side of an image that a tool returns.")
    near: tuple[int, int] = Field(
        (60, 72), description="Smallest and largest side of a near digit in pixels."
    )
    far: tuple[int, int] = Field((12, 13), description="Smallest and largest side of a far digit in pixels.")
    far_share: float = Field(0.4, ge=0, le=1, description="How many of the digits are far, as a share.")
    longest: int = Field(3, ge=1, le=9, description="Cells on the longest way, the 0's included.")
    wander: float = Field(
        0.0,
        ge=0,
        le=1,
        description="How many demonstrations, as a share, look on after the 0 was seen: at one to three "
        "parts of its cell.",
    )
    told: float = Field(
        0.0,
        ge=0,
        le=1,
        description="In how many training problems, as a share, the model is told to answer at the look "
        "that shows the 0 or at one behind it, and may not before.",
    )
    noise: float = Field(0.1, ge=0, le=0.5, description="Noise of canvas and thumbnail, as a deviation.")
    max_steps: int = Field(9, ge=1, le=32, description="Looks after which the model is told to answer.")
    stop: str = Field(
        "never",
        description="When looking ends before that: `never`, `after:N` looks, or where the `verifier` has "
        "heard enough.",
    )
    verifier: str | None = Field(None, description="The verifier's folder, a model with an adapter.")
    rule: Literal["absolute", "signed"] | None = Field(
        None, description="Its rule, |Δr| < ε or Δr < ε; by default as its calibration says."
    )
    epsilon: float | None = Field(None, description="ε in nats; by default that of its calibration.")
    terminate: Literal["refuse", "accept"] = Field(
        "accept", description="Whether the model may end looking by itself."
    )
    on_stop: Literal["run", "skip"] = Field(
        "run",
        description="Whether the tool of the step that ends looking still runs, or the step is taken back.",
    )
    step_price: float = Field(
        0.0, ge=0, le=1, description="What each look takes off the reward of a right answer, for training."
    )
    marks: bool = Field(
        False, description="Whether the thumbnail, of 32 pixels at least, has the cells' numbers on it."
    )
    tools: Literal["crop-zoom", "none"] = Field(
        "crop-zoom",
        description="What the model looks with. With `none` it answers at once, from the thumbnail alone.",
    )
    think: Literal["way", "none"] = Field(
        "way",
        description="With `tools: none`, what stands before the answer: the digits on the way, or nothing.",
    )
    results: Results = Field(
        "shown",
        description="What is shown of the images that tools make: themselves, one colour (`blanked`), or the "
        "same part of another problem's canvas (`swapped`).",
    )

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
        if self.marks and self.thumbnail < 32:
            raise ValueError(f"marks need a thumbnail of 32 pixels at least, not {self.thumbnail}")
        if self.tools == "none":
            unused = {
                "stop": "never", "verifier": None, "on_stop": "run", "results": "shown", "step_price": 0.0
            }  # fmt: skip
            given = self.model_dump(include={*unused})
            if wrong := [name for name in unused if given[name] != unused[name]]:
                raise ValueError(f"{wrong[0]} needs tools to look with, and tools is none")
        elif self.think == "none":
            raise ValueError("think: none needs tools: none; who looks says why")
        return self
