"""The patterns of things to ask: a value, how many there are, what two have in common, which has more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from selfverify.agents.facts import Scalar
from selfverify.agents.goals import Answer, Listed
from selfverify_phone.contents.world import World
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


def same_value(one: Thing, two: Thing, attribute: str) -> Template:
    """Whether two things have the same value; in half of the tasks the second is given that of the first.

    Args:
        one: The first.
        two: The second.
        attribute: The value's attribute.
    """

    def draw(world: World) -> Drawn:
        first, second = one.drawn(world), two.drawn(world)
        mine, theirs = world.get(one.kind, first), world.get(two.kind, second)
        if world.flip():
            theirs[attribute] = mine[attribute]
        return Drawn(
            one.said(world, first) | two.said(world, second),
            [one.shows(world, first, attribute), two.shows(world, second, attribute)],
            both_seen(world, one, first, two, second),
            answer=yes(mine[attribute] == theirs[attribute]),
        )

    return Template(draw, "query", exhibits=2)


def both_on(
    one: Thing, two: Thing, attribute: str, draw_two: Callable[[World], tuple[str, str]] | None = None
) -> Template:
    """Whether two things are both on; in the other half of the tasks one of them is off.

    Args:
        one: The first.
        two: The second.
        attribute: What is on or off.
        draw_two: Draws both keys; by default one after the other.
    """

    def draw(world: World) -> Drawn:
        keys = (one.drawn(world), two.drawn(world)) if draw_two is None else draw_two(world)
        both = world.flip()
        for key in keys:
            world.get(one.kind, key)[attribute] = True
        if not both:
            world.get(one.kind, world.one(keys))[attribute] = False
        first, second = keys
        return Drawn(
            one.said(world, first) | two.said(world, second),
            [one.shows(world, first, attribute), two.shows(world, second, attribute)],
            both_seen(world, one, first, two, second),
            answer=yes(both),
        )

    return Template(draw, "query", exhibits=2)


def ranked(one: Thing, two: Thing, attribute: str, values: Sequence[Scalar], last: bool = False) -> Template:
    """Which of two things comes first; they are given different values, and named in any order.

    Args:
        one: The one that is right.
        two: The other one.
        attribute: What they are compared by.
        values: What it can be, in order.
        last: Whether the one that comes last is right.
    """

    def draw(world: World) -> Drawn:
        first, second = one.drawn(world), two.drawn(world)
        places = sorted(world.some(range(len(values)), 2), reverse=last)
        for key, place in zip((first, second), places, strict=True):
            world.get(one.kind, key)[attribute] = values[place]
        names = [one.name(world, first), two.name(world, second)]
        said = names if world.flip() else names[::-1]
        placeholders = [next(iter(thing.says)) for thing in (one, two)]
        return Drawn(
            dict(zip(placeholders, said, strict=True)),
            [one.shows(world, first, attribute), two.shows(world, second, attribute)],
            both_seen(world, one, first, two, second),
            answer=Answer(value=names[0], others=(names[1],)),
        )

    return Template(draw, "query", exhibits=2)


def more(
    one: Thing,
    two: Thing,
    attribute: str,
    draw_two: Callable[[World], tuple[str, str]] | None = None,
    instead: int = 0,
) -> Template:
    """Which of two things has more of something, as they are.

    Args:
        one: The first.
        two: The second.
        attribute: What they have more or less of.
        draw_two: Draws both keys; by default one after the other.
        instead: What the first is given where both have as much.
    """

    def draw(world: World) -> Drawn:
        first, second = (one.drawn(world), two.drawn(world)) if draw_two is None else draw_two(world)
        mine, theirs = world.get(one.kind, first), world.get(two.kind, second)
        if mine[attribute] == theirs[attribute]:
            mine[attribute] = instead
        names = [one.name(world, first), two.name(world, second)]
        if int(mine[attribute]) < int(theirs[attribute]):
            names.reverse()
        return Drawn(
            one.said(world, first) | two.said(world, second),
            [one.shows(world, first, attribute), two.shows(world, second, attribute)],
            both_seen(world, one, first, two, second),
            answer=Answer(value=names[0], others=(names[1],)),
        )

    return Template(draw, "query", exhibits=2)
