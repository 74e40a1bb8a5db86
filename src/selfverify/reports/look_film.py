"""A conversation in which a model has looked again, as a film strip: a frame for each step.

The first frame has the question's images with all places that were looked at. A step's frame shows the image
that was looked at with the box in it, what the tool made of that, the plan, the call, and the verifier's Δr
on a scale with ε. The last one says what was answered, and why looking ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfverify.core.episode import PolicyTurn
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Finish
from selfverify.evaluation.samples import StoredSample
from selfverify.reports.film_strip import MOST_STEPS, Pictures, Shown, answer_text
from selfverify.reports.seen_images import SeenImages, is_finite, numbers
from selfverify.tasks.tool_calls import json_at
from selfverify.tasks.tool_episode import shortened
from selfverify.visual.calls import read_look_call
from selfverify.visual.episode import step_of
from selfverify.visual.traces import VisualTrace, is_image, parts_of

LONGEST = 6_000
"""Characters of a text that a frame shows; longer ones lose their middle."""
_SPECIAL = re.compile(r"<\|[^<>|]{1,40}\|>|</?think>|</s>|<end_of_turn>")
_ENDS = re.compile(r"<\|[^<>|]{1,40}\|>|</s>|<end_of_turn>")
_THOUGHT = re.compile(r'\{\s*"thought"\s*:\s*')
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
    if (thought := _THOUGHT.search(plan)) is not None:
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
