"""What is kept of the steps of a conversation in which a model looks again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from selfverify.core.trajectory import Trajectory


@dataclass(slots=True)
class StepAnswer:
    """An answer beside the conversation.

    Args:
        answer: The answer as its judge reads it; None where there is none.
        correct: Whether it is right; None where nobody can tell, as in an outage of the judge.
        tokens: How many tokens the model wrote.
    """

    answer: Any
    correct: bool | None
    tokens: int


@dataclass(slots=True)
class VisualStep:
    """What came of one step, as evaluations and pages keep it.

    Args:
        step: h, from 1.
        tool: The tool that was called; empty where no call could be read.
        arguments: Its arguments.
        error: Why nothing was found; empty where something was.
        images: The numbers of the images that it made.
        sources: For each of them the image it was made of (``source``), the region in that image's pixels, if
            any, its own width and height (``size``), and those of the image it was made of (``of``).
        duplicate: The step that made the same call; 0 without one.
        stopped: Why looking ended with this step: `rule`, `cap`, `errors` or `visual` (no more tokens); empty
            where it went on.
        delta_r: The verifier's Δr, nats; None where there is no verifier.
        delta_r_plan: The plan's part of it.
        rule: The rule that the verifier was asked by, `absolute` or `signed`; empty where it only measured.
        epsilon: That rule's ε, nats.
        dropped_delta_r: Where the rule has ended looking with the next step, and that was taken back
            (``on_stop: skip``): its Δr.
        asked: What the model answers when it is told to after this step (`VisualConfig.answer_each_step`).
        own: With the same setting the answer with which it would have ended looking, if that was refused.
    """

    step: int
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    images: list[int] = field(default_factory=list)
    sources: list[Any] = field(default_factory=list)
    duplicate: int = 0
    stopped: str = ""
    delta_r: float | None = None
    delta_r_plan: float | None = None
    rule: str = ""
    epsilon: float | None = None
    dropped_delta_r: float | None = None
    asked: StepAnswer | None = None
    own: StepAnswer | None = None


def steps_of(trajectory: Trajectory) -> list[Mapping[str, Any]]:
    """What a conversation looked at, step by step; nothing for conversations of other kinds."""
    return [step for segment in trajectory.segments if (step := step_of(segment.parsed)) is not None]


def step_of(record: Any) -> Mapping[str, Any] | None:
    """What is kept of a turn, where it is a `VisualStep`; older files may lack some of its fields."""
    if not isinstance(record, Mapping) or not _FIRST <= record.keys() <= _NAMES:
        return None
    return record if type(record["step"]) is int and isinstance(record["stopped"], str) else None


_NAMES = {field.name for field in fields(VisualStep)}
_FIRST = {"step", "tool", "arguments", "error", "images", "sources", "stopped"}
