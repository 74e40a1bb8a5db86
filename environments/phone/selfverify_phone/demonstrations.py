"""What an expert would say on the phone, turn by turn, with the smallest evidence at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field, model_validator

from selfverify.agents.evidence import SUBMIT, Exhibit, Source
from selfverify.agents.goals import minimal_evidence
from selfverify.core import event_loop
from selfverify.core.config import Config
from selfverify.core.episode import Call
from selfverify.core.errors import DataError
from selfverify.tasks.base import DemonstratedTurn
from selfverify.tasks.tool_calls import CallForm, written_call
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import PhoneTask

COUNTING = ("save", "delete", "star", "start", "connect", "forget")
"""Buttons without which what was chosen or written before does not count."""

Share = Annotated[float, Field(ge=0, le=1)]


class Teacher(Config):
    """How well a demonstration does its work and chooses its evidence. Its way is always the shortest."""

    least: int = Field(0, ge=0)
    """Exhibits that are handed in at least, as far as there are any."""

    most: int = Field(0, ge=0)
    """How many at most; 0 is the smallest sufficient set."""

    omits: Share = 0.0
    """Share of demonstrations that leave an exhibit out which is needed."""

    smallest: Share = 0.0
    """Share of demonstrations that hand in the smallest sufficient set and nothing else; rewards can only
    teach what is sampled now and then."""

    stops_early: Share = 0.0
    """Share of demonstrations that hand in at the goal, without going on to a screen that proves it."""

    unfinished: Share = 0.0
    """Share of demonstrated operations that hand in on the way, before they are done."""

    forgets: Share = 0.0
    """Share of demonstrated operations that hand in without the last tap, where that is on a button which
    makes them count, such as save."""

    @model_validator(mode="after")
    def _ordered(self) -> Teacher:
        if self.most < self.least:
            raise ValueError(f"most is {self.most}, and least is {self.least}")
        return self

    def chosen(self, needed: Sequence[int], rounds: Sequence[int], rng: np.random.Generator) -> list[int]:
        """The rounds that are handed in, in order; never none.

        Args:
            needed: A smallest sufficient set, possibly empty.
            rounds: All that can be handed in.
            rng: Draws what is omitted and what is added.
        """
        kept = [*needed]
        if kept and self.smallest and rng.random() < self.smallest:
            return kept
        if kept and len(rounds) > 1 and rng.random() < self.omits:
            kept.remove(kept[int(rng.integers(len(kept)))])
        spare = [number for number in rounds if number not in needed]
        wanted = int(rng.integers(self.least, self.most + 1)) if self.most else 0
        more = min(max(wanted - len(kept), not kept), len(spare))
        return sorted(kept + [spare[i] for i in rng.permutation(len(spare))[:more].tolist()])


def can_be_forgotten(task: PhoneTask, way: Sequence[Call]) -> bool:
    """Whether an operation ends with a tap on one of `COUNTING`, which a teacher may leave out.

    Args:
        task: What is to be done.
        way: The calls to the goal, which name what they touch by ids.
    """
    return task.goal.kind == "operation" and len(way) > 1 and way[-1].arguments.get("id") in COUNTING


def demonstrated(
    task: PhoneTask,
    options: PhoneConfig,
    source: Source,
    react: bool,
    form: CallForm,
    teacher: Teacher,
    rng: np.random.Generator,
) -> list[DemonstratedTurn]:
    """The expert's turns: its way to the goal, its way to evidence, and the submission.

    Args:
        task: What is to be done.
        options: How the phone is shown and touched.
        source: Whose evidence is judged; the expert chooses where the agent does.
        react: Whether a reason stands before each call.
        form: How calls are written.
        teacher: How evidence is chosen.
        rng: Draws what the teacher gets wrong.

    Raises:
        DataError: No evidence proves what the expert has done.
    """
    phone = task.phone()
    calls = [Call("get_current_xml")] * (options.first_screen == "asked")
    way = carry_out(phone, task.solve, options.address)
    operation = len(way) > 1 and task.goal.kind == "operation"
    unfinished = operation and rng.random() < teacher.unfinished
    if unfinished:
        way = way[: int(rng.integers(1, len(way)))]
    elif teacher.forgets and can_be_forgotten(task, way):
        unfinished = rng.random() < teacher.forgets
        way = way[:-1] if unfinished else way
    calls += way
    early = unfinished or rng.random() < teacher.stops_early
    if not early:
        calls += carry_out(phone, task.prove, options.address)
    arguments: dict[str, Any] = {"message": task.message}
    shown: list[str] = []
    if source == "chosen":
        seen = _carried_out(task, options, calls)
        rounds = minimal_evidence(seen, task.goal, task.message)
        if rounds is None and not early:
            raise DataError(f"phone: nothing proves what the expert does in {task.template}/{task.seed}")
        numbers = [exhibit.seen.round for exhibit in seen if not exhibit.seen.error]
        arguments["evidences"] = teacher.chosen(rounds or (), numbers, rng)
        shown = [f"round {number}" for number in arguments["evidences"]]
    last = f"Proven by {' and '.join(shown)}." if shown else "It is done."
    said = [(_reason(call), call) for call in calls] + [(last, Call(SUBMIT, arguments))]
    return [DemonstratedTurn(written_call(call, form, why if react else "")) for why, call in said]


def _carried_out(task: PhoneTask, options: PhoneConfig, calls: list[Call]) -> list[Exhibit]:
    """What the agent is shown of these calls."""
    phone = PhoneEnvironment(options)
    first = event_loop.finish_inline(phone.reset({"task": task.record()}, 0))
    seen = [Exhibit(None, first)] if options.first_screen == "given" else []
    return seen + [Exhibit(call, event_loop.finish_inline(phone.step(call))) for call in calls]


_REASONS = {
    "get_current_xml": "First I look at the screen.",
    "launch": "I open {app}.",
    "tap": "I tap {id}.",
    "long_press": "I hold {id}.",
    "type": "I type {text_input}.",
    "swipe": "I swipe {direction} to see more.",
    "back": "I go back.",
}


def _reason(call: Call) -> str:
    """A few words before a call, which say what it is for."""
    try:
        return _REASONS[call.name].format(**call.arguments)
    except KeyError:
        return f"I call {call.name}."
