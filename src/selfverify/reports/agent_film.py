"""An agent's conversation as a film strip: a frame for each round, then what was handed in and its votes.

An environment's pictures are those of the store. A task that can play a session again from the problem's
target draws its screens (`Task.frames`), also where the agent has read text only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from selfverify.evaluation.samples import StoredSample, StoredStep
from selfverify.reports.agent_records import CallRecord, EndRecord, TurnRecord, calls_of, end_of, turns_of
from selfverify.reports.film_strip import MOST_STEPS, Drawings, Pictures, Shown, strip
from selfverify.tasks.base import Frame, Mark, Task
from selfverify.tasks.tool_episode import shortened

LONGEST = 6_000
"""Characters of a text that a frame shows; longer ones lose their middle."""
_CALL = re.compile(r"<tool_call>.*", re.DOTALL)
_SPECIAL = re.compile(r"<\|[^<>|]{1,40}\|>|</?think>|</s>|<end_of_turn>")
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
