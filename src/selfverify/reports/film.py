"""Film strips: stored conversations as a page shows them, message by message or frame by frame.

Each image is in the page once (`Pictures`, `Drawings`).

A conversation in which a model has looked again has a frame for each step (`look_film`). The first frame has
the question's images with all places that were looked at. A step's frame shows the image that was looked at
with the box in it, what the tool made of that, the plan, the call, and the verifier's Δr on a scale with ε.
The last one says what was answered, and why looking ended.

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

from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.images import to_rgb
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Finish
from selfverify.data.images import FORMATS, file_inside
from selfverify.evaluation.samples import StoredSample, StoredStep
from selfverify.tasks.base import Frame, Mark, Task
from selfverify.tasks.tool_calls import is_number, json_at
from selfverify.tasks.tool_episode import shortened
from selfverify.visual.calls import THOUGHT, read_look_call
from selfverify.visual.episode import step_of
from selfverify.visual.tools.gallery import ImagePart
from selfverify.visual.traces import VisualTrace, is_image, parts_of

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


class SeenImages:
    """The images of a conversation by number, and which part of the question's images each shows.

    The page shows them with the places that were looked at drawn on them.
    """

    def __init__(self, first: Mapping[int, Shown]) -> None:
        self.shown = dict(first)
        self.sizes: dict[int, tuple[int, int]] = {}
        """Of each image as tools saw it."""
        self.parts: dict[int, tuple[int, ImagePart]] = {}
        """By image that of the question which it shows, and what part of it."""
        self.looks: dict[int, list[tuple[int, ImagePart]]] = {}
        """By image of the question the steps that looked at a part of it."""

    def take(self, number: int, shown: Shown, source: Mapping[str, Any], step: int) -> None:
        """Take an image that step ``step`` has made."""
        self.shown[number] = shown
        size, of = size_of(source.get("size")), source.get("source")
        if size is None:
            return
        self.sizes[number] = size
        region = source.get("region")
        if not isinstance(of, int) or not numbers(region, 4):
            return
        if of not in self.parts and of in self.shown and (full := self.size(of, source)) is not None:
            self.sizes[of] = full
            self.parts[of] = (of, ImagePart((0, 0, *full), full))
        if of in self.parts:
            root, whole = self.parts[of]
            self.parts[number] = (root, whole.part(region, size))
            self.looks.setdefault(root, []).append((step, self.parts[number][1]))

    def size(self, number: int, source: Mapping[str, Any]) -> tuple[int, int] | None:
        """Width and height of the image that another was made of, as tools saw it."""
        shown = self.shown.get(number, {})
        own = (shown.get("width"), shown.get("height"))
        return size_of(source.get("of")) or self.sizes.get(number) or size_of(own)

    def view(self, number: int, boxes: Sequence[tuple[Sequence[float], str]], of: Sequence[float]) -> Shown:
        """An image with boxes, whose places refer to a size ``of``."""
        image = self.shown.get(number, {"note": "it was not kept", "data": None})
        if image.get("note"):
            return {"number": number, "image": image, "boxes": [], "unit": 1}
        wide, high = image["width"] / of[0], image["height"] / of[1]
        unit = max(image["width"], image["height"]) / 100
        drawn = []
        for place, ((x1, y1, x2, y2), title) in enumerate(boxes):
            left, right = max(min(x1, x2), 0.0) * wide, min(max(x1, x2), of[0]) * wide
            top, bottom = max(min(y1, y2), 0.0) * high, min(max(y1, y2), of[1]) * high
            sides = max(right - left, 0.0), max(bottom - top, 0.0)
            # Boxes of later steps lie in those of earlier ones: their numbers stand at different corners.
            at_end, below = place % 4 in (1, 2), place % 2 == 1
            tag = {"x": right if at_end else left, "anchor": "end" if at_end else "start",
                   "y": bottom + 6 * unit if below else max(top - 1.5 * unit, 5 * unit)}  # fmt: skip
            drawn.append(
                {"x": left, "y": top, "width": sides[0], "height": sides[1], "title": title, "tag": tag}
            )
        return {"number": number, "image": image, "boxes": drawn, "unit": unit}

    def overview(self, numbers: Sequence[int]) -> list[Shown]:
        """The question's images, each with everything that was looked at in it."""
        found = []
        for number in numbers:
            size = self.sizes.get(number) or size_of((self.shown[number].get("width"),
                                                    self.shown[number].get("height"))) or (1, 1)  # fmt: skip
            boxes = [(part.box, str(step)) for step, part in self.looks.get(number, ())]
            found.append(self.view(number, boxes, size))
        # An image's data stand where it is shown first, which is here.
        return found


def size_of(value: Any) -> tuple[int, int] | None:
    """Width and height, where a record holds them."""
    if numbers(value, 2) and min(value) >= 1:
        return (int(value[0]), int(value[1]))
    return None


def numbers(value: Any, count: int) -> TypeGuard[Sequence[float]]:
    """Whether a record's value is so many finite numbers."""
    return isinstance(value, (list, tuple)) and len(value) == count and all(map(is_finite, value))


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a record's value is a finite number."""
    return is_number(value) and math.isfinite(value)


LONGEST = 6_000
"""Characters of a text that a frame shows; longer ones lose their middle."""
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
        text: What it said.
        step: What was kept of it (`VisualStep`); None for an answer.
        read: What it was shown, in words.
        images: Names of the images that it was shown.
    """

    text: str
    step: Mapping[str, Any] | None
    read: str
    images: Sequence[str]


def film_of_sample(
    sample: StoredSample, entry: Mapping[str, Any], asked: Pictures, pictures: Pictures
) -> Shown | None:
    """A stored conversation as the page shows it; None where nobody looked.

    Args:
        sample: The conversation.
        entry: Its problem, as in a gallery; it keeps one of the question's images.
        asked: The gallery's images.
        pictures: Those beside the store.
    """
    replies = {step.turn: step for step in sample.steps if step.author == "environment"}
    turns = []
    for step in sample.steps:
        if step.author == "policy":
            reply = replies.get(step.turn + 1)
            words, images = ("", ()) if reply is None else (reply.text, tuple(reply.images))
            turns.append(LookTurn(step.text, step_of(step.record), words, images))
    if not any(turn.step for turn in turns):
        return None
    name = entry.get("image")
    first = {1: asked.shown(str(name))} if name else {}
    answer = None if sample.answer is None else answer_text(sample.answer)
    return look_film(turns, first, pictures, answer, None if sample.lost else sample.correct)


def film_of_trace(trace: VisualTrace, pictures: Pictures) -> Shown:
    """A trace of the data of looking again as the page shows it."""
    spoken = [n for n, message in enumerate(trace.messages) if message["role"] == "assistant"]
    begun = trace.messages[: spoken[0]] if spoken else trace.messages
    first = {n: pictures.shown(name) for n, name in enumerate(_images(begun), start=1)}
    turns = []
    for number, place in enumerate(spoken):
        end = spoken[number + 1] if number + 1 < len(spoken) else len(trace.messages)
        after = trace.messages[place + 1 : end]
        step = step_of(trace.steps[number]) if number < len(trace.steps) else None
        turns.append(LookTurn(_words([trace.messages[place]]), step, _words(after), _images(after)))
    last = turns[-1].text if turns and turns[-1].step is None else ""
    answer = parse_tagged(last).fields.get("answer")
    return look_film(turns, first, pictures, answer, None if trace.lost else trace.correct, trace.lost)


def look_film(
    turns: Sequence[LookTurn],
    first: Mapping[int, Shown],
    pictures: Pictures,
    answer: str | None = None,
    correct: bool | None = None,
    lost: str = "",
) -> Shown:
    """A conversation as the template shows it.

    Args:
        turns: The model's turns; steps, and then an answer, if there is one.
        first: The question's images by number, as far as they were kept.
        pictures: Shows the other images.
        answer: The answer as its judge reads it; None shows what was said.
        correct: Whether it is right; None where nobody knows.
        lost: Why the conversation broke off; empty where it did not.
    """
    steps = [turn for turn in turns if turn.step is not None][:MOST_STEPS]
    seen = SeenImages(first)
    scale = max((abs(v) for turn in steps for v in _measured(turn.step or {})), default=0.0) * 1.15
    frames = [_step_frame(turn, seen, pictures, scale) for turn in steps]
    last = [turn for turn in turns if turn.step is None][-1:]
    said = shortened(_ENDS.sub("", last[0].text).strip(), LONGEST) if last else ""
    final = steps[-1].step if steps else None
    return {
        "asked": seen.overview(sorted(first)),
        "frames": frames,
        "why": _why(final, bool(last), lost),
        "said": said,
        "answer": answer,
        "correct": correct,
        "steps": len(steps),
        "measured": scale > 0,
    }


def _step_frame(turn: LookTurn, seen: SeenImages, pictures: Pictures, scale: float) -> Shown:
    step = turn.step or {}
    number = int(step["step"])
    boxes: dict[int, list[tuple[Sequence[float], str]]] = {}
    sizes: dict[int, Sequence[float]] = {}
    made = []
    shown = step["images"] if isinstance(step["images"], list) else []
    sources = step["sources"] if isinstance(step["sources"], list) else []
    for own, name, source in zip(shown, turn.images, sources, strict=False):
        if not isinstance(source, Mapping) or not isinstance(own, int):
            continue
        seen.take(own, pictures.shown(name), source, number)
        made.append(seen.view(own, [], (1, 1)))
        of, region = source.get("source"), source.get("region")
        if isinstance(of, int) and of in seen.shown and (size := seen.size(of, source)) is not None:
            sizes[of], drawn = size, boxes.setdefault(of, [])
            if numbers(region, 4) and [*region] != [0, 0, *size]:
                drawn.append((region, ""))
    called = step["arguments"].get("image_index") if isinstance(step["arguments"], Mapping) else None
    if not boxes and not step["error"] and isinstance(called, int) and called in seen.shown:
        boxes[called], sizes[called] = [], (1, 1)
    return {
        "number": number,
        "plan": shortened(plan_of(turn.text, bool(step["tool"])), LONGEST),
        "call": _call(step),
        "error": shortened(str(step["error"]), LONGEST),
        "duplicate": step.get("duplicate", 0),
        "from": [_again(seen.view(of, own, sizes[of])) for of, own in boxes.items()],
        "made": made,
        "read": shortened(_SPECIAL.sub("", turn.read).strip(), LONGEST),
        "stopped": bool(step["stopped"]),
        "gauge": _gauge(step, scale),
    }


def _again(view: Shown) -> Shown:
    """An image that the page has shown already: its data are not put in again."""
    return view | {"image": {**view["image"], "data": None}}


def plan_of(text: str, called: bool) -> str:
    """What a turn says besides its call; all of it where no call was read."""
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


def _call(step: Mapping[str, Any]) -> str:
    """A call as people write one."""
    if not step["tool"]:
        return ""
    given = step["arguments"] if isinstance(step["arguments"], Mapping) else {}
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
    return shortened(f"{step['tool']}({', '.join(arguments)})", LONGEST)


def _measured(step: Mapping[str, Any]) -> list[float]:
    """Δr and ε of a step, where they were measured."""
    if not is_finite(step.get("delta_r")):
        return []
    epsilon = step.get("epsilon")
    return [step["delta_r"], *([epsilon] if is_finite(epsilon) else [])]


def _gauge(step: Mapping[str, Any], scale: float) -> Shown | None:
    """Where Δr stands on a scale of ``scale`` nats to both sides, in percent, and where it would stop."""
    values = _measured(step)
    if not values or scale <= 0:
        return None
    delta, epsilon = values[0], values[1] if len(values) > 1 else None

    def at(value: float) -> float:
        return 50 + 50 * max(min(value / scale, 1.0), -1.0)

    shown: Shown = {"delta": _signed(delta), "at": at(delta), "zone": None, "epsilon": None, "test": "Δr"}
    if epsilon is not None:
        low = at(-epsilon) if step.get("rule") == "absolute" else 0.0
        inside = (abs(delta) if step.get("rule") == "absolute" else delta) < epsilon
        shown |= {"zone": (low, max(at(epsilon) - low, 0.0)), "epsilon": f"{epsilon:.2f}", "inside": inside}
        shown["test"] = "|Δr|" if step.get("rule") == "absolute" else "Δr"
    return shown


def _why(final: Mapping[str, Any] | None, answered: bool, lost: str) -> str:
    """Why looking ended."""
    if lost:
        return f"It broke off: {shortened(lost, LONGEST)}."
    if final is None:
        return "The model answered at first sight."
    at = f"after step {final['step']}"
    if final["stopped"] == "rule":
        taken = final.get("dropped_delta_r")
        if is_finite(taken):
            final = {**final, "delta_r": taken}
        if len(values := _measured(final)) == 2:
            test = "|Δr|" if final.get("rule") == "absolute" else "Δr"
            which = " of the next step, which was taken back," if is_finite(taken) else ""
            figures = f"{_signed(values[0])} and {values[1]:.2f}"
            return f"The verifier stopped it {at}: {test}{which} is below ε, {figures}."
        return f"Its rule stopped it {at}."
    if final["stopped"] in WHY:
        return f"It was stopped {at}: {WHY[final['stopped']]}."
    return f"The model answered of its own accord {at}." if answered else f"It broke off {at}."


def _images(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(part["image"]) for message in messages for part in parts_of(message) if is_image(part)]


def _words(messages: Sequence[Mapping[str, Any]]) -> str:
    return "".join(str(part.get("text", "")) for message in messages for part in parts_of(message))


def _signed(value: float) -> str:
    """With its sign, as it is printed."""
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


class CallRecord(BaseModel):
    """A call as it was read."""

    name: str
    arguments: dict[str, Any]


class TurnRecord(BaseModel):
    """A turn: the call, the round that it made, and why it was refused."""

    call: CallRecord | None = None
    round: int | None = None
    error: str = ""


class VoteRecord(BaseModel):
    """A vote with its words."""

    valid: bool
    success: bool
    words: str = ""


class BallotRecord(BaseModel):
    """A request for a vote; without one there is a reason."""

    vote: VoteRecord | None
    missing: str = ""


class JudgementRecord(BaseModel):
    """What the votes come to."""

    valid: bool | None
    success: bool | None
    why: str = ""
    ballots: list[BallotRecord] = []


class TruthRecord(BaseModel):
    """The ground truth."""

    complete: bool
    subgoals: list[bool] = []


class EndRecord(TurnRecord):
    """The last turn: what was handed in, and what it is worth."""

    outcome: str
    why: str = ""
    message: str = ""
    evidence: list[int]
    judgement: JudgementRecord | None
    reward: dict[str, float] | None = None
    truth: TruthRecord | None = None


def end_of(sample: StoredSample) -> EndRecord | None:
    """How an agent's conversation ended, as `agents.episode.ending_of_agent` wrote it for the store.

    None for a sample that is no agent's.
    """
    own = [step for step in sample.steps if step.author == "policy"]
    if not own or own[-1].record is None:
        return None
    try:
        return EndRecord.model_validate(own[-1].record)
    except ValidationError:
        return None


def turns_of(sample: StoredSample) -> dict[int, TurnRecord]:
    """What became of each turn, by its number."""
    found = {}
    for step in sample.steps:
        if step.author == "policy":
            try:
                found[step.turn] = TurnRecord.model_validate(step.record or {})
            except ValidationError:
                found[step.turn] = TurnRecord()
    return found


def calls_of(turns: dict[int, TurnRecord]) -> list[Call]:
    """The calls that the environment has answered, in their order."""
    return [
        Call(turn.call.name, turn.call.arguments)
        for _, turn in sorted(turns.items())
        if turn.call is not None and turn.round is not None
    ]


"""Characters of a text that a frame shows; longer ones lose their middle."""
_CALL = re.compile(r"<tool_call>.*", re.DOTALL)
_TERMS = (("format", "format"), ("validity", "relevant"), ("complete", "done"), ("concise", "concise"))


def agent_film(
    sample: StoredSample,
    target: Any,
    task: type[Task] | None,
    pictures: Pictures,
    drawings: Drawings,
    open: bool = False,
) -> Shown | None:
    """A conversation as the page shows it; None for a sample that is no agent's.

    Args:
        sample: The conversation.
        target: The problem's, as the gallery keeps it.
        task: Draws its screens; None where nobody knows how to.
        pictures: Those that the store has.
        drawings: Takes those that are drawn.
        open: Whether the page shows it at once.
    """
    end = end_of(sample)
    if end is None:
        return None
    turns = turns_of(sample)
    screens = None if task is None else task.frames(target, calls_of(turns)[:MOST_STEPS])
    judgement = end.judgement
    return {
        "open": open,
        "truth": None if end.truth is None else end.truth.complete,
        "subgoals": [] if end.truth is None else end.truth.subgoals,
        "judged": None if judgement is None else judgement.success,
        "valid": None if judgement is None else judgement.valid,
        "why": " ".join(part for part in (end.why, judgement.why if judgement else "") if part),
        "outcome": end.outcome.replace("_", " "),
        "message": shortened(end.message, LONGEST),
        "evidence": end.evidence,
        "reward": None if end.reward is None else sum(end.reward.values()),
        "terms": [(title, (end.reward or {}).get(name, 0.0)) for name, title in _TERMS],
        "calls": len(calls_of(turns)),
        "votes": [
            {
                "success": None if ballot.vote is None else ballot.vote.success,
                "valid": None if ballot.vote is None else ballot.vote.valid,
                "words": shortened(ballot.missing if ballot.vote is None else ballot.vote.words, LONGEST),
            }
            for ballot in (judgement.ballots if judgement else ())
        ],
        "frames": _frames(sample.steps, turns, end, screens, pictures, drawings),
    }


def _frames(
    steps: Sequence[StoredStep],
    turns: dict[int, TurnRecord],
    end: EndRecord,
    screens: Sequence[Frame] | None,
    pictures: Pictures,
    drawings: Drawings,
) -> list[Shown]:
    replies = {step.turn: step for step in steps if step.author == "environment"}
    last = max(turns)
    frames: list[tuple[Shown, StoredStep | None, int | None]] = []  # told, and what is seen with it
    rounds = 0
    if 0 in replies:
        first = {"title": "Round 0", "said": "", "call": "", "error": "", "exhibit": 0 in end.evidence}
        frames.append((first, replies[0], 0))
    for step in steps:
        if step.author != "policy":
            continue
        turn, reply = turns[step.turn], replies.get(step.turn + 1)
        counted = turn.round is not None
        rounds += counted
        frame = {
            "title": f"Round {turn.round}" if counted else "Refused",
            "said": shortened(_spoken(step.text, turn), LONGEST),
            "call": _written(turn.call),
            "error": turn.error,
            "exhibit": turn.round in end.evidence if counted else False,
        }
        if step.turn == last and not counted:
            frame["title"] = "Handed in" if end.outcome == "submitted" else "The end"
        frames.append((frame, reply, rounds if counted else None))

    def show(frame: tuple[Shown, StoredStep | None, int | None]) -> Shown:
        told, reply, number = frame
        return told | _seen(reply, screens, number, pictures, drawings)

    return strip(frames, show, _left_out)


def _left_out(count: int) -> Shown:
    told = {"title": "Left out", "said": f"{count:,} frames are not shown here", "call": "", "error": ""}
    return told | {"exhibit": False, "images": [], "mark": None, "read": ""}


def _seen(
    reply: StoredStep | None,
    screens: Sequence[Frame] | None,
    number: int | None,
    pictures: Pictures,
    drawings: Drawings,
) -> Shown:
    """What came of a call: its picture with what is touched next, and what the agent read.

    ``number`` is its round, None where the call was refused.
    """
    images: list[Shown] = []
    mark = None
    if screens is not None and number is not None and number < len(screens):
        images = [drawings.shown(screens[number].image)]
        mark = _drawn_mark(screens[number].mark)
    elif reply is not None:
        images = [pictures.shown(name) for name in reply.images]
    read = _SPECIAL.sub("", reply.text).strip() if reply is not None else ""
    return {"images": images, "mark": mark, "read": shortened(read, LONGEST)}


def _drawn_mark(mark: Mark | None) -> Shown | None:
    if mark is None:
        return None
    box = None if mark.box is None else (*mark.box[:2], mark.box[2] - mark.box[0], mark.box[3] - mark.box[1])
    return {"kind": mark.kind, "x": mark.x, "y": mark.y, "to": mark.to, "box": box}


def _spoken(text: str, turn: TurnRecord) -> str:
    """What was said besides the call; all of it where no call was read."""
    words = _SPECIAL.sub("", text).strip()
    if turn.call is None:
        return words
    without = _CALL.sub("", words).strip()
    # A message that is nothing but JSON is the call itself.
    return "" if without.startswith(("{", "[", "```")) else without


def _written(call: CallRecord | None) -> str:
    """A call as people write one."""
    if call is None:
        return ""
    arguments = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    return shortened(f"{call.name}({', '.join(arguments)})", LONGEST)
