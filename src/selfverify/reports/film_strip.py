"""Conversations as the page shows them: message by message, with each image embedded once."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image

from selfverify.core.errors import DataError
from selfverify.core.images import to_rgb
from selfverify.core.trajectory import Finish
from selfverify.data.images import FORMATS, file_inside
from selfverify.evaluation.samples import StoredSample, StoredStep

_LONGEST_SIDE = 640
"""Larger images are scaled down to this many pixels, so that a report stays small enough to send."""
_COLOURS = 64
"""Colours of a picture that was drawn."""
MOST_STEPS = 200
"""A strip has at most so many messages or frames; a longer one loses its middle."""

T = TypeVar("T")
Shown = dict[str, Any]
"""What the template shows of one message or frame."""


class Pictures:
    """The images that conversations show. Each is embedded in the page once, where it is shown first.

    Args:
        folder: Where their files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, dict[str, Any]] = {}

    def shown(self, name: str) -> dict[str, Any]:
        """An image's size and ``id``, with its ``data`` where it is new; or a ``note`` why there is none."""
        if name in self._known:
            return {**self._known[name], "data": None}
        data, note = embedded(self.folder, name)
        found: dict[str, Any] = {"note": note}
        if data is not None:
            with Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2]))) as picture:
                found["width"], found["height"] = picture.size
            # Names of folders tell runs apart that are shown on one page.
            digest = hashlib.blake2b(f"{self.folder.resolve()}/{name}".encode(), digest_size=8)
            found["id"] = f"shown-{digest.hexdigest()}"
        self._known[name] = found
        return {**found, "data": data}


class Drawings:
    """Pictures that a report draws itself. Each is in the page once; frames refer to it."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        """By content: size, ``id`` and ``data``."""

    def shown(self, image: Image.Image) -> dict[str, Any]:
        """An image's size and ``id``; `known` has its data."""
        pixels = hashlib.blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=8).digest()
        name = f"drawn-{pixels.hex()}"
        if name not in self.known:
            buffer = io.BytesIO()
            # Screens have few colours; so many keep letters smooth.
            few = image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.save(buffer, "PNG", optimize=True)
            self.known[name] = {"width": image.width, "height": image.height, "id": name} | {
                "data": f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
            }
        return {**self.known[name], "data": None, "note": None}


def strip(steps: Sequence[T], show: Callable[[T], Shown], left_out: Callable[[int], Shown]) -> list[Shown]:
    """The first and the last of ``steps`` as ``show`` shows them.

    Args:
        steps: What there is.
        show: Makes a message or a frame of a step; is called for those that are shown only.
        left_out: Says how many are not shown, between the others.
    """
    if len(steps) <= MOST_STEPS:
        return [show(step) for step in steps]
    last = MOST_STEPS // 4
    first = MOST_STEPS - 1 - last
    missing = left_out(len(steps) - first - last)
    return [*map(show, steps[:first]), missing, *map(show, steps[-last:])]


def sample_strip(sample: StoredSample, pictures: Pictures) -> list[Shown]:
    """The messages of a conversation as the page shows them."""

    def show(step: StoredStep) -> Shown:
        return {
            "own": step.author == "policy",
            "who": f"policy, turn {step.turn + 1}" if step.author == "policy" else _speaker(step),
            "notes": [],
            "text": step.text.strip(),
            "images": [pictures.shown(name) for name in step.images],
            "verdict": None if step.verdict is None else step.verdict.correct,
            "answer": None if step.verdict is None else answer_text(step.verdict.answer),
            "measured": [(name, f"{value:.3g}") for name, value in step.values.items()],
            "cut": step.finish not in (None, Finish.STOP),
        }

    return strip(sample.steps, show, messages_left_out)


def _speaker(step: StoredStep) -> str:
    """Who of the environment speaks: a tool, where the policy reads it as a tool's result."""
    return "tool" if (step.record or {}).get("role") == "tool" else "environment"


def messages_left_out(count: int) -> Shown:
    """What stands for messages that are not shown."""
    return {
        "own": False,
        "who": "left out",
        "notes": [],
        "text": f"{count:,} messages are not shown here",
        "images": [],
        "verdict": None,
        "answer": None,
        "measured": [],
        "cut": False,
    }


def embedded(folder: Path, name: Any) -> tuple[str | None, str | None]:
    """Return a picture as a PNG data URI, or a note why there is none.

    Names that lead out of the folder are refused: a report is sent around, and must hold nothing but what it
    shows. Decoding and encoding again makes sure that what is embedded is a picture.
    """
    if not name:
        return None, None
    try:
        path = file_inside(folder, str(name))
    except DataError as error:
        return None, str(error)
    if not path.is_file():
        return None, f"image {str(name)[:80]} is missing or unreadable"
    try:
        with Image.open(path, formats=FORMATS) as file:
            picture = to_rgb(file)
        picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        buffer = io.BytesIO()
        picture.save(buffer, "PNG", optimize=True)
    except Exception:  # PIL raises of many kinds for damaged files, also for images that are too large
        return None, f"image {str(name)[:80]} is missing or unreadable"
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}", None


def answer_text(value: Any) -> str:
    """Return an answer as text."""
    if value is None:
        return "unreadable"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, (int, float)) for item in value):
        return "[" + ", ".join(map(_number, value)) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _number(value: float) -> str:
    try:
        return f"{value:g}"
    except OverflowError:
        return str(value)  # an integer that no float holds
