"""The patterns of things to do: a switch, a choice, a form's field, a new record, a record to delete, and two
of them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from selfverify.agents.facts import Scalar
from selfverify.agents.goals import Absent, Has
from selfverify_phone.contents.world import World
from selfverify_phone.system.device import Record
from selfverify_phone.templates.base import Drawn, Field, Template, Thing, choice, state
from selfverify_phone.templates.ways import BACK, Step, either, tap, write


def switch(
    thing: Thing,
    attribute: str,
    to: bool | Literal["drawn", "other"],
    button: str | None = None,
    *then: Step,
    seek: bool = False,
    hidden: bool = False,
) -> Template:
    """Switch something on or off.

    Args:
        thing: What has the switch.
        attribute: What is switched.
        to: What it is to be: what is said here, what is drawn, or what it is not now.
        button: What is tapped; none where the way ends with it, by default the attribute.
        then: What is done afterwards.
        seek: Whether one is drawn that has the other value already, rather than given it.
        hidden: Whether the result is seen only where the thing is opened again.
    """

    def draw(world: World) -> Drawn:
        key = world.pick(thing.kind, **{attribute: not to}) if seek else thing.drawn(world)
        record = world.get(thing.kind, key)
        wanted = not record[attribute] if to == "other" else world.flip() if to == "drawn" else to
        record[attribute] = not wanted
        tapped = _button(key, attribute) if button is None else button
        way = thing.to(world, key)
        return Drawn(
            thing.said(world, key) | ({} if isinstance(to, bool) else {"state": state(wanted)}),
            [thing.has(world, key, {attribute: wanted})],
            [*way, *([tap(tapped)] if tapped else []), *then],
            way if hidden else (),
        )

    return Template(draw, hidden=hidden)


def choose(
    thing: Thing,
    attribute: str,
    values: Sequence[str] | Mapping[str, Sequence[str]],
    says: str = "value",
    hidden: bool = True,
) -> Template:
    """Choose another value in a dialog, which mostly is opened again as only it shows the value.

    Args:
        thing: What has the value.
        attribute: The value's attribute.
        values: What can be chosen, or that by the thing's key.
        says: The value's placeholder.
        hidden: Whether only the dialog shows the value.
    """

    def draw(world: World) -> Drawn:
        key = thing.drawn(world)
        options = values[key] if isinstance(values, Mapping) else values
        wanted = world.one(options, str(world.get(thing.kind, key)[attribute]))
        dialog = tap(_button(key, attribute))
        return Drawn(
            {**thing.said(world, key), says: wanted},
            [thing.has(world, key, {attribute: wanted})],
            [*thing.to(world, key), dialog, choice(options, wanted)],
            [dialog] if hidden else (),
        )

    return Template(draw, hidden=hidden)


def _button(key: str, attribute: str) -> str:
    """The id of what changes an attribute: a setting, whose one attribute is its value, has its own name."""
    return key if attribute == "value" else attribute


def edit(
    thing: Thing, field: Field, opener: str = "edit", hidden: bool = False, prove: Sequence[Step] = ()
) -> Template:
    """Change a field in a thing's form.

    Args:
        thing: What is changed.
        field: Its field.
        opener: What opens the form from the thing's page; empty where the page is the form.
        hidden: Whether the result is seen only where the thing is opened again.
        prove: How it is seen where that takes something else.
    """

    def draw(world: World) -> Drawn:
        key = thing.drawn(world)
        new = field.drawn(world, world.get(thing.kind, key))
        way = thing.to(world, key)
        return Drawn(
            thing.said(world, key) | field.said(new),
            [thing.has(world, key, {field.name: new})],
            [*way, *([tap(opener)] if opener else []), *field.enter(new), tap("save")],
            way if hidden else prove,
        )

    return Template(draw, hidden=hidden or bool(prove))


def add(
    thing: Thing,
    name: Callable[[World], str],
    empty: Record,
    *fields: Field,
    given: Mapping[str, Scalar] | None = None,
) -> Template:
    """Make a new record with a name and other fields, which are seen where it is opened.

    Args:
        thing: What is made.
        name: Draws its name, into whose field a new form lets one type.
        empty: What a new form holds.
        fields: The other fields.
        given: Values that it has without further ado.
    """

    def draw(world: World) -> Drawn:
        called = name(world)
        values = {field.name: field.drawn(world, empty) for field in fields}
        says = dict.fromkeys(thing.says, called)
        for field in fields:
            says |= field.said(values[field.name])
        typed = [step for field in fields for step in field.enter(values[field.name])]
        match: dict[str, Scalar] = dict.fromkeys(thing.says.values(), called)
        return Drawn(
            says,
            [Has(kind=thing.kind, match=match, values={**values, **(given or {})}, new=True)],
            [*thing.lead, tap("add"), write(called), *typed, tap("save")],
            [tap(f"r{world.next(thing.kind)}")] if fields else (),
        )

    return Template(draw, hidden=bool(fields))


def delete(thing: Thing, *then: str, searched: bool = False) -> Template:
    """Delete a record.

    Args:
        thing: What is deleted.
        then: What is tapped after the way to it.
        searched: Whether only a search for its name shows that it is gone.
    """

    def draw(world: World) -> Drawn:
        key = thing.drawn(world)
        record = world.get(thing.kind, key)
        return Drawn(
            thing.said(world, key),
            [Absent(kind=thing.kind, key=key, match={a: record[a] for a in thing.says.values()})],
            [*thing.to(world, key), *map(tap, then)],
            [tap("search"), write(thing.name(world, key))] if searched else (),
        )

    return Template(draw, hidden=searched)


def both(one: Drawn, two: Drawn, solve: Sequence[Step], prove: Sequence[Step] = ()) -> Drawn:
    """Two things that are drawn already, and the way to both."""
    return Drawn(one.says | two.says, [*one.needs, *two.needs], solve, prove)


def in_turn(one: Template, two: Template, *between: Step) -> Template:
    """Two things to do, the second after the first.

    Args:
        one: The first.
        two: The second, whose page or list proves it.
        between: From where the first ends to where the second begins.
    """

    def draw(world: World) -> Drawn:
        first, second = one.draw(world), two.draw(world)
        return both(first, second, [*first.solve, *between, *second.solve], second.prove)

    return Template(draw, hidden=two.hidden, exhibits=2)


def in_any_order(one: Template, two: Template) -> Template:
    """Two things to do, in the order that takes fewer calls, with a step back between them."""

    def draw(world: World) -> Drawn:
        first, second = one.draw(world), two.draw(world)
        return both(first, second, [shorter(first.solve, second.solve)])

    return Template(draw, exhibits=2)


def shorter(one: Sequence[Step], two: Sequence[Step]) -> Step:
    """Two ways from the same page, with a step back between them, in the order that takes fewer calls."""
    return either([*one, BACK, *two], [*two, BACK, *one])
