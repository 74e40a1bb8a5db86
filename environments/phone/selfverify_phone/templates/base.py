"""What a template is: what varies with the seed, how it is asked, when it is done, how an expert does it.

A template is a row of an app's table (`TASKS` in the app's file): a pattern of `patterns` or `questions`, or
a function of its own that draws. `wordings.yaml` has the ways to ask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from selfverify.agents.facts import Scalar
from selfverify.agents.goals import Absent, Answer, Has, Listed
from selfverify_phone.contents.world import World
from selfverify_phone.system.device import Record
from selfverify_phone.system.forms import option_id
from selfverify_phone.templates.ways import Step, tap, write

Kind = Literal["operation", "query"]


@dataclass(slots=True)
class Drawn:
    """What a template draws for one seed.

    Args:
        says: What the wordings' placeholders stand for.
        needs: What has to be so; for a query what its answer rests on.
        solve: The expert's way from the app's first page until the task is done or, for a query, until the
            answer has been seen.
        prove: Its further way until there is evidence; empty where there is evidence already.
        answer: What a query's message has to say.
    """

    says: dict[str, str]
    needs: Sequence[Has | Absent | Listed]
    solve: Sequence[Step]
    prove: Sequence[Step] = ()
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of task.

    Args:
        draw: Draws a plan, and puts into the world what it needs.
        kind: Operation or query.
        hidden: Whether the shortest way ends on a screen that does not show the result, so that the agent
            must go on to find evidence.
        exhibits: How many exhibits the smallest sufficient evidence has.
        wordings: Several ways to ask, with placeholders.
        held_out: Whether it is kept out of training.
        app: The app that it is mostly about, by which apps are held out.
        name: What it is called; the table's key with the app before it.
    """

    draw: Callable[[World], Drawn]
    kind: Kind = "operation"
    hidden: bool = False
    exhibits: int = 1
    wordings: tuple[str, ...] = ()
    held_out: bool = False
    app: str = ""
    name: str = ""

    def kept_for_tests(self) -> Template:
        """The template kept out of training."""
        return replace(self, held_out=True)


def by_row(world: World, key: str) -> list[Step]:
    """From a list to a record."""
    return [tap(f"r{key}")]


def only(key: str) -> Callable[[World], str]:
    """Draws nothing: the key is known."""
    return lambda world: key


@dataclass(frozen=True, slots=True)
class Thing:
    """What tasks are about: a record, how it is drawn, what people call it, and the way to it.

    Args:
        kind: The record's kind.
        says: The attribute that stands for each placeholder of the wordings; the first is the name that tells
            the record from others. An empty one stands for the key, where the key is the name.
        lead: From the app's first page to the page that lists them, where that is another.
        way: From there to it.
        draw: Draws its key; by default any record that no other has drawn.
        again: From the page of another one to it, where that is shorter than back and the way.
        called: What people call a key, where it is another word.
    """

    kind: str
    says: Mapping[str, str] = field(default_factory=dict)
    lead: Sequence[Step] = ()
    way: Callable[[World, str], list[Step]] = by_row
    draw: Callable[[World], str] | None = None
    again: Callable[[World, str], list[Step]] | None = None
    called: Mapping[str, str] = field(default_factory=dict)

    def drawn(self, world: World) -> str:
        """The key of one of them."""
        return world.pick(self.kind) if self.draw is None else self.draw(world)

    def to(self, world: World, key: str) -> list[Step]:
        """From the app's first page to it."""
        return [*self.lead, *self.way(world, key)]

    def said(self, world: World, key: str) -> dict[str, str]:
        """What the placeholders stand for."""
        record = world.get(self.kind, key)
        return {
            name: str(record[attribute]) if attribute else self.called.get(key, key)
            for name, attribute in self.says.items()
        }

    def name(self, world: World, key: str) -> str:
        """What people call it."""
        return next(iter(self.said(world, key).values()))

    def has(self, world: World, key: str, values: dict[str, Scalar]) -> Has:
        """It has to have values. It is named by its name, or by its key where the name is to change."""
        attribute = next(iter(self.says.values()), "")
        if not attribute or attribute in values:
            return Has(kind=self.kind, key=key, values=values)
        return Has(kind=self.kind, match={attribute: world.get(self.kind, key)[attribute]}, values=values)

    def shows(self, world: World, key: str, attribute: str) -> Has:
        """A value that it has: what an answer rests on."""
        return self.has(world, key, {attribute: world.get(self.kind, key)[attribute]})


@dataclass(frozen=True, slots=True)
class Field:
    """A value that is typed into a form or chosen there.

    Args:
        name: The attribute, and the field's id.
        values: What it is drawn from.
        chosen: Whether it is chosen in a dialog among ``values``.
        says: Its placeholder; by default the name.
        draw: Draws it, given the record as it is; by default one of ``values`` that it is not.
    """

    name: str
    values: Sequence[str] = ()
    chosen: bool = False
    says: str = ""
    draw: Callable[[World, Record], Scalar] | None = None

    def drawn(self, world: World, record: Record) -> Scalar:
        """A value that the record has not."""
        if self.draw is not None:
            return self.draw(world, record)
        return world.one(self.values, str(record[self.name]))

    def enter(self, value: Scalar) -> list[Step]:
        """From the form, how the value gets into it."""
        if self.chosen:
            return [tap(self.name), choice(self.values, str(value))]
        return [tap(self.name), write(str(value))]

    def said(self, value: Scalar) -> dict[str, str]:
        """What the placeholder stands for."""
        return {self.says or self.name: str(value)}


def choice(values: Sequence[str], value: str) -> Step:
    """In a dialog, one of the values that it shows."""
    return tap(option_id(value, values.index(value)))


def state(on: object) -> str:
    """What people call a switch's state."""
    return "on" if on else "off"
