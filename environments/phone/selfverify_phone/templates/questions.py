"""The patterns of things to ask: a value, how many there are, what two have in common, which has more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from selfverify.agents.facts import Scalar
from selfverify.agents.goals import Answer, Listed
from selfverify_phone.contents.world import World
from selfverify_phone.system.device import Record
from selfverify_phone.templates.base import Drawn, Template, Thing
from selfverify_phone.templates.patterns import shorter
from selfverify_phone.templates.ways import Step

Form = Literal["text", "time", "digits"]


def yes(right: object) -> Answer:
    """The answer to whether something is so."""
    return Answer(form="yes-no", value="yes" if right else "no")


def number(value: int) -> Answer:
    """The answer to how many or how much."""
    return Answer(form="number", value=str(value))


def ask(
    thing: Thing, attribute: str, form: Form = "text", others: Sequence[str] = (), *then: Step
) -> Template:
    """What value something has.

    Args:
        thing: What has it.
        attribute: The value's attribute.
        form: How the answer is read where the value is a text.
        others: The values that it could have, of which the others are wrong.
        then: From the thing's page on to the value.
    """

    def draw(world: World) -> Drawn:
        key = thing.drawn(world)
        value = world.get(thing.kind, key)[attribute]
        if isinstance(value, bool):
            answer = yes(value)
        elif isinstance(value, int):
            answer = number(abs(value))
        else:
            answer = Answer(form=form, value=value, others=tuple(o for o in others if o != value))
        return Drawn(
            thing.said(world, key),
            [thing.shows(world, key, attribute)],
            [*thing.to(world, key), *then],
            answer=answer,
        )

    return Template(draw, "query")


def count(kind: str, attribute: str, value: Scalar, *way: Step) -> Template:
    """How many records have a value.

    Args:
        kind: The records' kind.
        attribute: The value's attribute.
        value: The value.
        way: From the app's first page to the list of them.
    """

    def draw(world: World) -> Drawn:
        found = sum(record[attribute] == value for record in world.data[kind].values())
        return Drawn({}, [Listed(kind=kind, match={attribute: value})], way, answer=number(found))

    return Template(draw, "query")


def both_seen(world: World, one: Thing, first: str, two: Thing, second: str) -> list[Step]:
    """From the app's first page to two things."""
    if two.again is not None:
        return [*one.to(world, first), *two.again(world, second)]
    return [*one.lead, shorter(one.way(world, first), two.way(world, second))]


TwoKeys = Callable[[World], tuple[str, str]]
"""Draws the keys of two things."""


def compare(
    one: Thing,
    two: Thing,
    attribute: str,
    decide: Callable[[World, Record, Record, list[str]], Answer],
    draw_two: TwoKeys | None = None,
) -> Template:
    """How two things compare.

    Args:
        one: The first.
        two: The second.
        attribute: What they are compared by.
        decide: Given both records and names, it settles their values and what the answer is.
        draw_two: Draws both keys; by default one after the other.
    """

    def draw(world: World) -> Drawn:
        first, second = (one.drawn(world), two.drawn(world)) if draw_two is None else draw_two(world)
        names = [thing.name(world, key) for thing, key in ((one, first), (two, second)) if thing.says]
        answer = decide(world, world.get(one.kind, first), world.get(two.kind, second), names)
        return Drawn(
            one.said(world, first) | two.said(world, second),
            [one.shows(world, first, attribute), two.shows(world, second, attribute)],
            both_seen(world, one, first, two, second),
            answer=answer,
        )

    return Template(draw, "query", exhibits=2)


def same_value(one: Thing, two: Thing, attribute: str) -> Template:
    """Whether two things have the same value; in half of the tasks the second is given that of the first."""

    def decide(world: World, mine: Record, theirs: Record, names: list[str]) -> Answer:
        if world.flip():
            theirs[attribute] = mine[attribute]
        return yes(mine[attribute] == theirs[attribute])

    return compare(one, two, attribute, decide)


def both_on(one: Thing, two: Thing, attribute: str, draw_two: TwoKeys | None = None) -> Template:
    """Whether two things are both on; in the other half of the tasks one of them is off."""

    def decide(world: World, mine: Record, theirs: Record, names: list[str]) -> Answer:
        both = world.flip()
        mine[attribute] = theirs[attribute] = True
        if not both:
            world.one((mine, theirs))[attribute] = False
        return yes(both)

    return compare(one, two, attribute, decide, draw_two)


def more(
    one: Thing, two: Thing, attribute: str, draw_two: TwoKeys | None = None, instead: int = 0
) -> Template:
    """Which of two things has more of something, as they are.

    Args:
        one: The first.
        two: The second.
        attribute: What they have more or less of.
        draw_two: Draws both keys; by default one after the other.
        instead: What the first is given where both have as much.
    """

    def decide(world: World, mine: Record, theirs: Record, names: list[str]) -> Answer:
        if mine[attribute] == theirs[attribute]:
            mine[attribute] = instead
        right = int(mine[attribute]) < int(theirs[attribute])
        return Answer(value=names[right], others=(names[not right],))

    return compare(one, two, attribute, decide, draw_two)


def ranked(one: Thing, two: Thing, attribute: str, values: Sequence[Scalar], last: bool = False) -> Template:
    """Which of two things comes first; they are given different values, and named in any order.

    Args:
        one: The one that is right.
        two: The other one.
        attribute: What they are compared by.
        values: What it can be, in order.
        last: Whether the one that comes last is right.
    """

    def decide(world: World, mine: Record, theirs: Record, names: list[str]) -> Answer:
        right, wrong = sorted(world.some(range(len(values)), 2), reverse=last)
        mine[attribute], theirs[attribute] = values[right], values[wrong]
        return Answer(value=names[0], others=(names[1],))

    def draw(world: World) -> Drawn:
        drawn = compare(one, two, attribute, decide).draw(world)
        assert drawn.answer is not None
        said = [drawn.answer.value, *drawn.answer.others]
        drawn.says = dict(zip(drawn.says, said if world.flip() else said[::-1], strict=True))
        return drawn

    return Template(draw, "query", exhibits=2)
