"""A task on the phone: a template drawn for a seed, with the goal, and how long the shortest way is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from selfverify.agents.facts import Scalar, same
from selfverify.agents.goals import Absent, Goal, Has, Listed
from selfverify.core.errors import DataError
from selfverify_phone.apps import APPS, switch_on
from selfverify_phone.contents.hostile import poison
from selfverify_phone.contents.world import World
from selfverify_phone.expert import carry_out
from selfverify_phone.system.device import Phone
from selfverify_phone.templates import TEMPLATES
from selfverify_phone.templates.base import Template
from selfverify_phone.templates.ways import Step, launch

Start = Literal["home", "app"]
POPUPS = 0.1
"""Share of tasks whose app interrupts when it is opened."""


@dataclass(frozen=True, slots=True)
class PhoneTask:
    """A task.

    Args:
        template: The template's name.
        seed: The seed that it was drawn with.
        instruction: What the agent is asked.
        goal: When it is done, and what proves it.
        state: The phone's state at the start, as plain JSON.
        solve: The expert's way until the goal is reached or the answer seen.
        prove: Its further way until there is evidence.
        message: What the expert says at the end; to a query the answer.
        length: Calls of the shortest way to the goal, without asking for screens and without handing in.
        proving: Calls beyond it until there is evidence.
        hidden: See `Template`.
        exhibits: See `Template`.
    """

    template: str
    seed: int
    instruction: str
    goal: Goal
    state: dict[str, Any]
    solve: tuple[Step, ...]
    prove: tuple[Step, ...]
    message: str
    length: int
    proving: int
    hidden: bool
    exhibits: int

    def record(self) -> dict[str, Any]:
        """The task as plain JSON, as `PhoneEnvironment.reset` takes it: without the expert's way."""
        return {
            "template": self.template,
            "seed": self.seed,
            "instruction": self.instruction,
            "goal": self.goal.model_dump(mode="json"),
            "state": self.state,
        }

    def phone(self) -> Phone:
        """A phone at the task's start; every call makes another."""
        return Phone(self.state, APPS).copy()


def make_task(template: str, seed: int, start: Start = "home", hostile: bool = False) -> PhoneTask:
    """Draw a task; the same arguments give the same one.

    Args:
        template: The template's name.
        seed: Decides the phone's contents, what is asked for, and in which words.
        start: Whether the phone shows its home screen or the app already.
        hostile: Whether some names and notes try to deceive.

    Raises:
        DataError: There is no such template.
    """
    return _made(named(template).name, int(seed), start, hostile)


def free_phone(seed: int, hostile: bool = False) -> Phone:
    """A phone that shows its home screen and of which nothing is asked.

    Args:
        seed: Decides its contents.
        hostile: As in `make_task`.
    """
    world = World(Random(f"free/{seed}"))
    clock = world.time()
    if hostile:
        poison(world)
    return switch_on(Phone.fresh(world.data, clock=clock))


def named(template: str) -> Template:
    """The template of this name.

    Raises:
        DataError: There is none.
    """
    if template not in TEMPLATES:
        close = difflib.get_close_matches(template[:80], TEMPLATES, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise DataError(f"phone: there is no template {template[:80]!r}; {hint}docs/phone.md lists them")
    return TEMPLATES[template]


@lru_cache(maxsize=256)
def _made(name: str, seed: int, start: Start, hostile: bool) -> PhoneTask:
    template = TEMPLATES[name]
    rng = Random(f"{name}/{seed}")
    world = World(rng)
    plan = template.draw(world)
    wording = rng.choice(template.wordings)
    popup = template.app if rng.random() < POPUPS else ""
    clock = world.time()
    if hostile:
        world.noted = any("note" in (*need.match, *_values(need)) for need in plan.needs)
        poison(world)
    phone = switch_on(Phone.fresh(world.data, clock=clock, popup=popup))
    if start == "app":
        phone.start(template.app)
    needs = [_settled(need, world) for need in plan.needs]
    answer = plan.answer
    if answer is not None and answer.value not in plan.says.values():
        answer = answer.model_copy(update={"given": tuple(plan.says.values())})
    played, solve = phone.copy(), (launch(template.app), *plan.solve)
    length = len(carry_out(played, solve))
    return PhoneTask(
        template=name,
        seed=seed,
        instruction=wording.format(**plan.says),
        goal=Goal(kind=template.kind, needs=tuple(needs), answer=answer),
        state=phone.state,
        solve=solve,
        prove=tuple(plan.prove),
        message="Done." if answer is None else answer.value,
        length=length,
        proving=len(carry_out(played, plan.prove)),
        hidden=template.hidden,
        exhibits=template.exhibits,
    )


def _settled(need: Has | Absent | Listed, world: World) -> Has | Absent | Listed:
    """A need that means the records that there are: another one made like them does not meet it."""
    if not isinstance(need, Has):
        return need
    records = world.data.get(need.kind, {})
    if need.new:
        return need.model_copy(update={"before": tuple(records)})
    keys = [k for k, r in records.items() if all(same(r.get(a), v) for a, v in need.match.items())]
    return need.model_copy(update={"key": keys[0]}) if need.key is None and len(keys) == 1 else need


def _values(need: Has | Absent | Listed) -> tuple[str, ...]:
    if isinstance(need, Has):
        return tuple(need.values)
    return need.attributes if isinstance(need, Listed) else ()


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], data: Mapping[str, Any]) -> M:
    """What plain JSON says of a task.

    Raises:
        DataError: It does not fit.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise DataError(f"phone task: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error


class _Given(BaseModel):
    """A task as plain JSON."""

    model_config = ConfigDict(extra="forbid")

    template: str = ""
    seed: int = 0
    instruction: str
    goal: Goal
    state: dict[str, Any]


def given_task(data: dict[str, Any]) -> PhoneTask:
    """A task from what `PhoneTask.record` wrote; there is no expert for it.

    Raises:
        DataError: It is not such a task, or its state is no state of the phone.
    """
    given = read(_Given, data)
    _check_state(given.state)
    return PhoneTask(
        given.template, given.seed, given.instruction, given.goal, given.state, (), (), "", 0, 0, False, 0
    )


def _check_state(state: dict[str, Any]) -> None:
    """Raise a DataError where a state lacks what the apps rely on."""
    model: dict[str, dict[str, dict[str, Scalar]]] = World(Random(0)).data
    fresh = Phone.fresh({})
    if missing := sorted(fresh.keys() - state.keys()):
        raise DataError(f"phone task: the state has no {missing[0]!r}")
    if wrong := [name for name, like in fresh.items() if type(state[name]) is not type(like)]:
        kind = type(fresh[wrong[0]]).__name__
        raise DataError(f"phone task: the state's {wrong[0]!r} must be of type {kind}")
    data = state["data"]
    for kind, records in model.items():
        if not isinstance(data, dict) or not isinstance(data.get(kind), dict):
            raise DataError(f"phone task: the state's data have no records of kind {kind!r}")
        named = not all(key.isdigit() for key in records)
        if named and records.keys() != data[kind].keys():
            raise DataError(f"phone task: {kind} must have the records {', '.join(records)}")
        for key, record in data[kind].items():
            like = records[key] if named else next(iter(records.values()))
            for attribute, value in like.items():
                if not isinstance(record, dict) or type(record.get(attribute)) is not type(value):
                    raise DataError(
                        f"phone task: {kind}/{key}: {attribute} must be of type {type(value).__name__}"
                    )
    try:
        Phone(state, APPS).copy().look()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"phone task: the state's stack cannot be shown: {error!r}") from error
