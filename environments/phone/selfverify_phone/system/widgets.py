"""What screens are made of. Apps put widgets together; the renderers know nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from selfverify.agents.facts import COUNT, Fact

Act = Callable[[], None]
Write = Callable[[str], None]
Facts = tuple[Fact, ...]
Role = Literal["row", "switch", "field", "button", "icon", "tab", "option", "text", "app"]
Style = Literal["page", "dialog", "drawer", "home"]


@dataclass(slots=True)
class Widget:
    """One thing on a screen.

    Args:
        id: Its name, the same whenever the same thing is shown; empty for a text.
        role: What it looks like.
        text: Its label.
        value: What stands beside or below the label; a field's contents.
        on: Whether it is switched on or chosen; None where it is neither.
        enabled: Whether it can be tapped.
        tap: What a tap does.
        hold: What a long press does.
        write: What typing does while it has the focus; fields only.
        facts: What it shows.
        part: A switch at a row's right end.
        span: Its height in rows.
    """

    id: str
    role: Role
    text: str = ""
    value: str = ""
    on: bool | None = None
    enabled: bool = True
    tap: Act | None = None
    hold: Act | None = None
    write: Write | None = None
    facts: Facts = ()
    part: Widget | None = None
    span: int = 1


@dataclass(slots=True)
class View:
    """What an app shows.

    Args:
        title: The heading.
        body: What scrolls.
        bar: Icons at the heading's right; an icon with the id ``menu`` stands at its left.
        tabs: At the lower edge.
        floating: The round button over the body.
        style: A page fills the screen; a dialog stands in its middle and a drawer at its left, and what is
            below them is not shown.
        count: The number beside the title.
        facts: What title and count show.
        swipes: What a swipe to the ``left`` or to the ``right`` does.
    """

    title: str
    body: list[Widget]
    bar: list[Widget] = field(default_factory=list)
    tabs: list[Widget] = field(default_factory=list)
    floating: Widget | None = None
    style: Style = "page"
    count: int | None = None
    facts: Facts = ()
    swipes: dict[str, Act] = field(default_factory=dict)


def row(
    id: str, text: str, tap: Act | None = None, value: str = "", facts: Facts = (), **more: object
) -> Widget:
    """A line of a list that leads somewhere."""
    return Widget(id, "row", text, value, tap=tap, facts=facts, **more)  # type: ignore[arg-type]


def text(label: str, value: str = "", *facts: Fact, span: int = 1) -> Widget:
    """Something to read."""
    return Widget("", "text", label, value, facts=facts, span=span)


def switch(id: str, label: str, on: bool, tap: Act, *facts: Fact) -> Widget:
    """A switch with its label."""
    return Widget(id, "switch", label, on=on, tap=tap, facts=facts)


def button(id: str, label: str, tap: Act, enabled: bool = True) -> Widget:
    """A button in the body."""
    return Widget(id, "button", label, tap=tap, enabled=enabled)


def icon(id: str, tap: Act, on: bool | None = None, enabled: bool = True, facts: Facts = ()) -> Widget:
    """A picture in the bar, or the floating button."""
    return Widget(id, "icon", id.capitalize(), on=on, tap=tap, enabled=enabled, facts=facts)


def tab(id: str, label: str, on: bool, tap: Act) -> Widget:
    """A view to choose at the lower edge."""
    return Widget(id, "tab", label, on=on, tap=tap)


def option(id: str, label: str, on: bool, tap: Act, *facts: Fact) -> Widget:
    """One of several values, of which one is chosen."""
    return Widget(id, "option", label, on=on, tap=tap, facts=facts)


def counted(subject: str, number: int) -> Fact:
    """The fact that a list has so many records."""
    return (subject, COUNT, number)
