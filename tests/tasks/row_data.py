"""Rows in memory for the tasks that read data files, and responses that are damaged at random."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from PIL import Image

from selfverify.core.tags import Tagged, parse_tagged
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.mobile import Mobile, MobileConfig
from selfverify.tasks.row_task import RowTaskConfig

SCREEN = (1080, 2400)
"""Its diagonal has 2631.8 pixels; 0.14 of that are 368.5."""


def grounding_row(**changes: Any) -> dict[str, Any]:
    """A dog at [20, 20, 60, 40] in an image of 100 x 50."""
    row = {
        "id": "dog",
        "question": "the dog",
        "images": [Image.new("RGB", (100, 50), "white")],
        "box": [20, 20, 60, 40],
    }
    return row | changes


def grounding(*rows: dict[str, Any], space: tuple[int, int] = (1000, 1000), **options: Any) -> Grounding:
    """The task over these rows in every split."""
    shown = rows or (grounding_row(),)
    task = Grounding(RowTaskConfig(**options), {"train": shown, "validation": shown, "test": shown})
    task.set_coordinate_space(lambda size: space)
    return task


def mobile_row(**changes: Any) -> dict[str, Any]:
    """A click in the middle of a small picture of a screen of 1080 x 2400."""
    row = {
        "id": "7/2",
        "goal": "Turn the alarm off",
        "images": [Image.new("RGB", (54, 120), "white")],
        "history": [{"action": "open", "text": "Clock"}, "scrolled <down>"],
        "action": {"action": "click", "coordinate": [540, 1200]},
        "screen": SCREEN,
    }
    return row | changes


def mobile(*rows: dict[str, Any], space: tuple[int, int] = (1000, 1000), **options: Any) -> Mobile:
    """The task over these rows in every split."""
    shown = rows or (mobile_row(),)
    task = Mobile(MobileConfig(**options), {"train": shown, "validation": shown, "test": shown})
    task.set_coordinate_space(lambda size: space)
    return task


def box_answer(text: str) -> Tagged:
    """A whole response with this answer."""
    return parse_tagged(f"<think>a dog</think><answer>{text}</answer><score>0.5</score>")


def call_answer(arguments: dict[str, Any] | str) -> Tagged:
    """A whole response with a call of these arguments, or with this text in the tag."""
    text = arguments
    if not isinstance(text, str):
        text = json.dumps({"name": "mobile_use", "arguments": text})
    return parse_tagged(f"<tool_call>\n{text}\n</tool_call><score>0.5</score>", ("tool_call", "score"))


def mutated(seeds: Sequence[str], pieces: Sequence[str], count: int, seed: int) -> Iterator[str]:
    """``count`` responses with one to four deletions, insertions, repetitions, swaps or changed bytes."""
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(seeds)
        for _ in range(rng.randint(1, 4)):
            i, j = sorted(rng.randint(0, len(text)) for _ in range(2))
            j = min(j, i + rng.choice((1, 2, 8, 40)))
            match rng.randrange(5):
                case 0:
                    text = text[:i] + text[j:]
                case 1:
                    text = text[:i] + rng.choice(pieces) + text[i:]
                case 2:
                    text = text[:j] + text[i:j] + text[j:]
                case 3:
                    text = text[:i] + rng.choice(pieces) + text[j:]
                case 4:
                    text = text[:i] + chr(rng.randrange(1, 128)) + text[i + 1 :]
        yield text
