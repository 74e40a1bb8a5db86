"""What an expert does, as plain data: the ways through the phone that templates are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Args:
        verb: A tool's name, ``see`` (scroll until a widget is to be seen) or ``either``.
        value: The widget's id, the text, the app or the direction.
        ways: For ``either``: several ways, of which the shortest is gone.
    """

    verb: str
    value: str = ""
    ways: tuple[tuple[Step, ...], ...] = ()


def launch(app: str) -> Step:
    """Open an app; nothing where it has just been opened."""
    return Step("launch", app)


def tap(id: str) -> Step:
    """Scroll to a widget and tap it."""
    return Step("tap", id)


def hold(id: str) -> Step:
    """Scroll to a widget and press it long."""
    return Step("long_press", id)


def write(text: str) -> Step:
    """Type into the field that has the focus."""
    return Step("type", text)


def see(id: str) -> Step:
    """Scroll to a widget."""
    return Step("see", id)


def swipe(direction: str) -> Step:
    """Swipe to the left or to the right."""
    return Step("swipe", direction)


BACK = Step("back")


def either(*ways: list[Step]) -> Step:
    """The shortest of several ways; of equals the first."""
    return Step("either", ways=tuple(map(tuple, ways)))
