"""Film strips: stored conversations as a page shows them, message by message or frame by frame.

A conversation in which a model has looked again has a frame for each step (`film_of_sample`). The first frame
has the question's images with all places that were looked at. A step's frame shows the image that was looked
at with the box in it, what the tool made of that, the plan, the call, and the verifier's Δr on a scale with
ε. The last one says what was answered, and why looking ended.

An agent's conversation has a frame for each round, then what was handed in and its votes (`agent_film`).
An environment's pictures are those of the store. A task that can play a session again from the problem's
target draws its screens (`Task.frames`), also where the agent has read text only.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from PIL import Image
from pydantic import BaseModel, ValidationError

from selfverify.agents.goals import Truth
from selfverify.agents.judges.case import Judgement
from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.images import to_rgb
from selfverify.core.trajectory import Finish
from selfverify.data.images import FORMATS, file_inside
from selfverify.evaluation.samples import StoredSample, StoredStep
from selfverify.tasks.base import Frame, Task
from selfverify.tasks.tool_calls import is_number, json_at
from selfverify.visual.calls import THOUGHT, read_look_call
from selfverify.visual.episode import step_of
from selfverify.visual.tools.gallery import ImagePart

_LONGEST_SIDE = 640
"""Larger images are scaled down to this many pixels, so that a report stays small enough to send."""
_COLOURS = 64
"""Colours of a screen that was drawn; so many keep letters smooth."""
MOST_STEPS = 200
"""A strip has at most so many messages or frames; a longer one loses its middle."""

T = TypeVar("T")
Shown = dict[str, Any]
"""The values that a template shows of one thing."""


class PageImages:
    """The images of a page. Each is in it once, before everything else; what shows it refers to its id."""

    def __init__(self) -> None:
        self.kept: dict[str, Shown] = {}
        """By id: ``id``, ``width``, ``height`` and ``data``, a PNG as a data URI."""
        self._files: dict[Path, Shown] = {}

    def of_file(self, folder: Path, name: object) -> Shown:
        """Return an image's ``id`` and size, or a ``note`` why there is none.

        Names that lead out of the folder are refused: a report is sent around, and must hold nothing but what
        it shows. Decoding and encoding again makes sure that what is embedded is a picture.
        """
        place = folder / str(name)
        if place not in self._files:
            self._files[place] = self._read(folder, str(name))
        return self._files[place]

    def of_files(self, folder: Path) -> Callable[[object], Shown]:
        """Return `of_file` for the files of one folder."""
        return lambda name: self.of_file(folder, name)

    def _read(self, folder: Path, name: str) -> Shown:
        missing = {"note": f"image {name[:80]} is missing or unreadable"}
        try:
            path = file_inside(folder, name)
        except DataError as error:
            return {"note": str(error)}
        if not path.is_file():
            return missing
        try:
            with Image.open(path, formats=FORMATS) as file:
                picture = to_rgb(file)
            picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        except Exception:  # PIL raises of many kinds for damaged files, also for images that are too large
            return missing
        return self.add(picture)

    def add(self, picture: Image.Image, colours: int | None = None) -> Shown:
        """Take an image in RGB, reduced to so many colours; return its ``id`` and size."""
        pixels = hashlib.blake2b(f"{picture.size}".encode() + picture.tobytes(), digest_size=8)
        key = f"image-{pixels.hexdigest()}"
        shown = {"id": key, "width": picture.width, "height": picture.height}
        if key not in self.kept:
            if colours is not None:
                picture = picture.quantize(colours, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            buffer = io.BytesIO()
            picture.save(buffer, "PNG", optimize=True)
            data = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
            self.kept[key] = shown | {"data": data}
        return shown | {"note": ""}


def strip(steps: Sequence[T], show: Callable[[T], Shown]) -> list[Shown]:
    """Return the first and the last of ``steps`` as ``show`` shows them.

    Between them stands one whose ``left_out`` says how many are not shown.
    """
    if len(steps) <= MOST_STEPS:
        return [show(step) for step in steps]
    last = MOST_STEPS // 4
    first = MOST_STEPS - 1 - last
    return [*map(show, steps[:first]), {"left_out": len(steps) - first - last}, *map(show, steps[-last:])]


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


def call_text(call: Call) -> str:
    """Return a call as people write one."""
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return f"{call.name}({', '.join(arguments)})"


def numbers(value: Any, count: int) -> TypeGuard[Sequence[float]]:
    """Whether a record's value is so many finite numbers."""
    return isinstance(value, (list, tuple)) and len(value) == count and all(map(is_finite, value))


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a record's value is a finite number."""
    return is_number(value) and math.isfinite(value)


class SeenImages:
    """The images of a conversation by number, and which part of the question's images each shows.

    Args:
        shown: The question's images, as far as they were kept.
    """

    def __init__(self, shown: Mapping[int, Shown]) -> None:
        self.shown = dict(shown)
        self.sizes: dict[int, Sequence[float]] = {}
        """Of each image as tools saw it."""
        self.parts: dict[int, tuple[int, ImagePart]] = {}
        """By image that of the question which it shows, and what part of it."""
        self.looks: dict[int, list[tuple[Sequence[float], str]]] = {}
        """By image of the question the parts of it that steps looked at, and the steps."""

    def take(self, number: int, shown: Shown, source: Mapping[str, Any], step: int) -> None:
        """Take an image that step ``step`` has made."""
        self.shown[number] = shown
        size, of, region = source.get("size"), source.get("source"), source.get("region")
        if not _is_size(size):
            return
        self.sizes[number] = size
        if not isinstance(of, int) or not numbers(region, 4) or (full := self.size(of, source)) is None:
            return
        self.sizes[of] = full
        wide, high = int(full[0]), int(full[1])
        root, whole = self.parts.setdefault(of, (of, ImagePart((0, 0, wide, high), (wide, high))))
        self.parts[number] = (root, whole.part(region, [int(side) for side in size]))
        self.looks.setdefault(root, []).append((self.parts[number][1].box, str(step)))

    def size(self, number: int, source: Mapping[str, Any] | None = None) -> Sequence[float] | None:
        """Return width and height of an image as tools saw it, which the ``source`` of another may tell."""
        shown = self.shown.get(number, {})
        known = ((source or {}).get("of"), self.sizes.get(number), (shown.get("width"), shown.get("height")))
        return next((size for size in known if _is_size(size)), None)

    def view(self, number: int, boxes: Sequence[tuple[Sequence[float], str]] = ()) -> Shown:
        """Return an image with boxes and their titles, whose places refer to its ``size``."""
        image = self.shown.get(number, {"note": "it was not kept"})
        drawn = [
            {
                "x": min(x1, x2),
                "y": min(y1, y2),
                "width": abs(x2 - x1),
                "height": abs(y2 - y1),
                "title": title,
            }
            for (x1, y1, x2, y2), title in boxes
        ]
        return {"number": number, "image": image, "boxes": drawn, "size": self.size(number)}


def _is_size(value: Any) -> TypeGuard[Sequence[float]]:
    return numbers(value, 2) and min(value) >= 1


_SPECIAL = re.compile(r"<\|[^<>|]{1,40}\|>|</?think>|</s>|<end_of_turn>")
_ENDS = re.compile(r"<\|[^<>|]{1,40}\|>|</s>|<end_of_turn>")
WHY = {
    "cap": "the most steps were made",
    "errors": "too many calls in a row found nothing",
    "visual": "no visual tokens were left",
}
"""Why looking ended, by `VisualStep.stopped`."""


@dataclass(frozen=True, slots=True)
class LookTurn:
    """A turn of the model, and what it was shown after it.

    Args:
        text: The model's words.
        step: The record of it (`VisualStep`); None for an answer.
        read: The words that it was shown.
        images: Names of the images that it was shown.
    """

    text: str
    step: Mapping[str, Any] | None
    read: str
    images: Sequence[str]


def film_of_sample(
    sample: StoredSample, asked: Mapping[int, Shown], image: Callable[[object], Shown]
) -> Shown | None:
    """Return a stored conversation as the page shows it; None where the model did not look.

    Args:
        sample: The conversation.
        asked: The question's images by number, as far as they were kept.
        image: Shows those beside the store.
    """
    replies = {step.turn: (step.text, step.images) for step in sample.steps if step.author == "environment"}
    turns = [
        LookTurn(step.text, step_of(step.record), *replies.get(step.turn + 1, ("", ())))
        for step in sample.steps
        if step.author == "policy"
    ]
    if not any(turn.step for turn in turns):
        return None
    steps = [(turn, turn.step) for turn in turns if turn.step is not None][:MOST_STEPS]
    seen = SeenImages(asked)
    scale = max((abs(v) for _, step in steps for v in _measured(step)), default=0.0) * 1.15
    frames = [_look_frame(turn, step, seen, image, scale) for turn, step in steps]
    said = [turn.text for turn in turns if turn.step is None][-1:]
    return {
        "asked": [seen.view(number, seen.looks.get(number, ())) for number in sorted(asked)],
        "frames": frames,
        "why": _why(steps[-1][1] if steps else None, bool(said)),
        "said": _ENDS.sub("", "".join(said)).strip(),
        "answer": None if sample.answer is None else answer_text(sample.answer),
        "correct": None if sample.lost else sample.correct,
    }


def _look_frame(
    turn: LookTurn, step: Mapping[str, Any], seen: SeenImages, image: Callable[[object], Shown], scale: float
) -> Shown:
    boxes: dict[int, list[tuple[Sequence[float], str]]] = {}
    made = []
    shown = step["images"] if isinstance(step["images"], list) else []
    sources = step["sources"] if isinstance(step["sources"], list) else []
    arguments = step["arguments"] if isinstance(step["arguments"], Mapping) else {}
    for own, name, source in zip(shown, turn.images, sources, strict=False):
        if not isinstance(source, Mapping) or not isinstance(own, int):
            continue
        seen.take(own, image(name), source, step["step"])
        made.append(seen.view(own))
        of, region = source.get("source"), source.get("region")
        if isinstance(of, int) and of in seen.shown and (size := seen.size(of, source)) is not None:
            drawn = boxes.setdefault(of, [])
            if numbers(region, 4) and [*region] != [0, 0, *size]:
                drawn.append((region, ""))
    called = arguments.get("image_index")
    if not boxes and not step["error"] and isinstance(called, int) and called in seen.shown:
        boxes[called] = []
    return {
        "step": step,
        "plan": plan_of(turn.text, bool(step["tool"])),
        "call": call_text(Call(step["tool"], arguments)) if step["tool"] else "",
        "from": [seen.view(of, own) for of, own in boxes.items()],
        "made": made,
        "read": _SPECIAL.sub("", turn.read).strip(),
        "gauge": _gauge(step, scale),
    }


def plan_of(text: str, called: bool) -> str:
    """Return what a turn says besides its call; all of it where no call was read."""
    words = _ENDS.sub("", text).strip()
    if not called:
        return _SPECIAL.sub("", words).strip()
    start = read_look_call(PolicyTurn(words, [], Finish.STOP, 0)).action_start
    plan = words[:start]
    if (thought := THOUGHT.search(plan)) is not None:
        try:
            value = json_at(words, thought.end())[0]
        except ValueError:
            value = ""
        before = plan[: thought.start()].rstrip().removesuffix("```json")
        plan = before + (value if isinstance(value, str) else "")
    return _SPECIAL.sub("", plan).strip()


def _measured(step: Mapping[str, Any]) -> list[float]:
    """Return Δr and ε of a step, where they were measured."""
    found = [step.get("delta_r"), step.get("epsilon")]
    return [] if not is_finite(found[0]) else [value for value in found if is_finite(value)]


def _test(step: Mapping[str, Any]) -> str:
    return "|Δr|" if step.get("rule") == "absolute" else "Δr"


def _gauge(step: Mapping[str, Any], scale: float) -> Shown | None:
    """Return where Δr stands on a scale of ``scale`` nats to both sides, in percent, and where it stops."""
    values = _measured(step)
    if not values or scale <= 0:
        return None
    delta, *epsilon = values
    shown: Shown = {"delta": delta, "at": 50 + 50 * delta / scale, "test": _test(step), "zone": None}
    for end in epsilon:
        absolute, reach = step.get("rule") == "absolute", 50 * end / scale
        shown["zone"] = (50 - reach, max(2 * reach, 0.0)) if absolute else (0.0, 50 + reach)
        shown |= {"epsilon": end, "inside": (abs(delta) if absolute else delta) < end}
    return shown


def _why(final: Mapping[str, Any] | None, answered: bool) -> str:
    """Return why looking ended."""
    if final is None:
        return "The model answered at first sight."
    at = f"after step {final['step']}"
    if final["stopped"] == "rule":
        taken = is_finite(final.get("dropped_delta_r"))
        values = _measured({**final, "delta_r": final["dropped_delta_r"]} if taken else final)
        if len(values) < 2:
            return f"Its rule stopped it {at}."
        which = " of the next step, which was taken back," if taken else ""
        figures = f"{signed(values[0])} and {values[1]:.2f}"
        return f"The verifier stopped it {at}: {_test(final)}{which} is below ε, {figures}."
    if final["stopped"] in WHY:
        return f"It was stopped {at}: {WHY[final['stopped']]}."
    return f"The model answered of its own accord {at}." if answered else f"It broke off {at}."


def signed(value: float, digits: int = 2) -> str:
    """Return a number with its sign, as it is printed."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


class TurnRecord(BaseModel):
    """A turn of an agent: the call that was read, the round that it made, and why it was refused."""

    call: Call | None = None
    round: int | None = None
    error: str = ""


class EndRecord(TurnRecord):
    """The last turn: what was handed in, and what it is worth."""

    outcome: str
    why: str = ""
    message: str = ""
    evidence: list[int]
    judgement: Judgement | None
    reward: dict[str, float] | None = None
    truth: Truth | None = None


def end_of(sample: StoredSample) -> EndRecord | None:
    """Return how an agent's conversation ended, as `agents.episode.ending_of_agent` wrote it for the store.

    None for a sample that is no agent's.
    """
    own = [step.record for step in sample.steps if step.author == "policy"]
    try:
        return EndRecord.model_validate(own[-1]) if own else None
    except ValidationError:
        return None


def _turn_of(step: StoredStep) -> TurnRecord:
    try:
        return TurnRecord.model_validate(step.record or {})
    except ValidationError:
        return TurnRecord()


_CALL = re.compile(r"<tool_call>.*", re.DOTALL)


def agent_film(
    sample: StoredSample,
    target: Any,
    task: type[Task] | None,
    images: PageImages,
    folder: Path,
    open: bool = False,
) -> Shown | None:
    """Return a conversation as the page shows it; None for a sample that is no agent's.

    Args:
        sample: The conversation.
        target: The problem's, as the gallery keeps it.
        task: Draws its screens; None where it is not known how to draw them.
        images: Takes what is shown.
        folder: Where the store's images are.
        open: Whether the page shows it at once.
    """
    end = end_of(sample)
    if end is None:
        return None
    replies = {step.turn: step for step in sample.steps if step.author == "environment"}
    said = [(step, _turn_of(step)) for step in sample.steps if step.author == "policy"]
    calls = [turn.call for _, turn in said if turn.call is not None and turn.round is not None]
    screens = iter((None if task is None else task.frames(target, calls[:MOST_STEPS])) or ())
    begun = {"title": "Round 0", "said": "", "turn": TurnRecord(round=0)}
    frames = [(begun, replies.get(0), next(screens, None))]  # told, and what is seen with it
    for step, turn in said:
        title = "Refused" if turn.round is None else f"Round {turn.round}"
        if step is said[-1][0] and turn.round is None:
            title = "Handed in" if end.outcome == "submitted" else "The end"
        told = {"title": title, "said": _spoken(step.text, turn), "turn": turn}
        frames.append((told, replies.get(step.turn + 1), None if turn.round is None else next(screens, None)))

    def show(frame: tuple[Shown, StoredStep | None, Frame | None]) -> Shown:
        told, reply, screen = frame
        shown = [] if reply is None else [images.of_file(folder, name) for name in reply.images]
        return told | {
            "images": shown if screen is None else [images.add(screen.image, _COLOURS)],
            "mark": screen and screen.mark,
            "read": "" if reply is None else _SPECIAL.sub("", reply.text).strip(),
        }

    return {"open": open, "end": end, "calls": len(calls), "frames": strip(frames[0 not in replies :], show)}


def _spoken(text: str, turn: TurnRecord) -> str:
    """Return what was said besides the call; all of it where no call was read."""
    words = _SPECIAL.sub("", text).strip()
    if turn.call is None:
        return words
    without = _CALL.sub("", words).strip()
    # A message that is nothing but JSON is the call itself.
    return "" if without.startswith(("{", "[", "```")) else without
