"""The phone itself: its state, its screens one over another, and what touching it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from selfverify.agents.facts import Fact, Scalar
from selfverify_phone.system.glass import Layout, place
from selfverify_phone.system.widgets import View, Widget, counted

Record = dict[str, Scalar]
Data = dict[str, dict[str, Record]]
"""Records by kind and key."""
Frame = dict[str, Any]
"""One screen of the back stack: app, screen, args (what it is about), form (what was typed and not saved),
scroll, focus (the field that is typed into), reveal (a row to be scrolled to)."""

HOME = "home"
LONGEST_TEXT = 120
"""Characters that a field takes."""
DIRECTIONS = ("up", "down", "left", "right")
DISTANCES = ("short", "medium", "long")


class Refused(Exception):
    """What was tried cannot be done; the message tells the agent why."""


@dataclass(frozen=True, slots=True)
class App:
    """An app: its screens, each made from the phone and what the screen is about, and facts that it derives.

    Args:
        name: What it is launched by.
        title: What people read.
        colour: Its colour in pictures.
        kinds: The kinds of records that are its own.
        screens: By name; the one called ``root`` comes first.
        derived: Facts that follow from the records, such as totals.
    """

    name: str
    title: str
    colour: str
    kinds: tuple[str, ...]
    screens: Mapping[str, Callable[[Phone, Frame], View]]
    derived: Callable[[Data], list[Fact]] = lambda data: []


class Phone:
    """A phone that is switched on.

    Args:
        state: Plain JSON, as `fresh` makes it; it is changed in place.
        apps: The apps by name, the home screen among them.
    """

    def __init__(self, state: dict[str, Any], apps: Mapping[str, App]) -> None:
        self.state, self.apps = state, apps
        self.data: Data = state["data"]
        self._layout: Layout | None = None

    @staticmethod
    def fresh(data: Data, clock: str = "09:41", popup: str = "") -> dict[str, Any]:
        """The state of a phone that shows its home screen.

        Args:
            data: Records by kind and key; keys are numbers from 1 on where records can be added.
            clock: The time in the status line.
            popup: The app that asks to be rated when it is first opened.
        """
        keys = {kind: [int(key) for key in records if key.isdigit()] for kind, records in data.items()}
        return {
            "data": data,
            "next": {kind: max(found, default=0) + 1 for kind, found in keys.items()},
            "stack": [_frame(HOME, "root", {})],
            "toast": "",
            "clock": clock,
            "popup": popup,
        }

    def copy(self) -> Phone:
        """Another phone in the same state."""
        state = dict(self.state)
        state["data"] = {k: {key: dict(r) for key, r in rs.items()} for k, rs in self.data.items()}
        state["next"] = dict(state["next"])
        state["stack"] = [
            {**frame, "args": dict(frame["args"]), "form": dict(frame["form"])} for frame in state["stack"]
        ]
        return Phone(state, self.apps)

    # What apps use.

    @property
    def stack(self) -> list[Frame]:
        """The screens, the one that is seen last."""
        stack: list[Frame] = self.state["stack"]
        return stack

    @property
    def frame(self) -> Frame:
        """The screen that is seen."""
        return self.stack[-1]

    def open(self, screen: str, focus: str = "", **args: Any) -> None:
        """Show a screen of the same app over this one."""
        self.stack.append(_frame(self.frame["app"], screen, args, focus))

    def close(self, screens: int = 1) -> None:
        """Go back by so many screens, home at most."""
        del self.stack[max(len(self.stack) - screens, 1) :]

    def toast(self, message: str) -> None:
        """Show a message until the next action."""
        self.state["toast"] = message

    def add(self, kind: str, record: Record) -> str:
        """Add a record and return its key."""
        key = str(self.state["next"][kind])
        self.state["next"][kind] += 1
        self.data[kind][key] = record
        return key

    def reveal(self, id: str) -> None:
        """Scroll to a row of the screen that is seen."""
        self.frame["reveal"] = id

    # What is seen.

    def look(self) -> Layout:
        """What is on the glass."""
        if self._layout is None:
            frame = self.frame
            screen = self.apps[frame["app"]].screens[frame["screen"]](self, frame)
            made = place(
                frame["app"], screen, frame["scroll"], frame["reveal"], frame["focus"], self.state["toast"]
            )
            frame["scroll"], frame["reveal"] = made.scroll, ""
            self._layout = made
        return self._layout

    def beneath(self) -> Layout | None:
        """The page under a dialog or a drawer, for pictures; None where a page is seen."""
        under: list[tuple[Frame, View]] = []
        for frame in reversed(self.stack):
            screen = self.apps[frame["app"]].screens[frame["screen"]](self, frame)
            under.append((frame, screen))
            if screen.style in ("page", "home"):
                break
        if len(under) < 2:
            return None
        frame, screen = under[-1]
        return place(frame["app"], screen, frame["scroll"], "", "", "")

    def facts(self) -> list[Fact]:
        """Everything that is so: every record's values, the counts of all records, and what apps derive."""
        found: list[Fact] = []
        for kind, records in self.data.items():
            found.append(counted(kind, len(records)))
            for key, record in records.items():
                subject = f"{kind}/{key}"
                found += [(subject, attribute, value) for attribute, value in record.items()]
        for app in self.apps.values():
            found += app.derived(self.data)
        return found

    # What a finger does.

    def tap(self, id: str) -> None:
        """Touch a widget."""
        self._touch(self._find(id))

    def hold(self, id: str) -> None:
        """Press a widget for a while; where that does nothing of its own, nothing happens."""
        self._touch(self._find(id), held=True)

    def tap_at(self, x: float, y: float) -> None:
        """Touch a point. Beside a dialog or a drawer that closes it."""
        widget = self._under(x, y)
        if widget is None:
            self._act(self.close)
        else:
            self._touch(widget)

    def hold_at(self, x: float, y: float) -> None:
        """Press a point for a while."""
        widget = self._under(x, y)
        if widget is not None:
            self._touch(widget, held=True)

    def swipe(self, direction: str, distance: str = "medium") -> None:
        """Push what is on the glass.

        Up and down scroll: two rows, what is seen at once, or all the way. Left and right do what the screen
        says, if anything.
        """
        look = self.look()
        if direction in ("left", "right"):
            act = look.screen.swipes.get(direction)
            self._act(act if act is not None else _nothing)
            return
        rows = {"short": 2, "medium": max(look.room, 1), "long": len(look.screen.body)}[distance]
        frame = self.frame
        frame["scroll"] = max(0, min(look.scroll + (rows if direction == "up" else -rows), look.end))
        self._act(_nothing)

    def type(self, text: str) -> None:
        """Replace what the field holds and press enter, which puts the keyboard away."""
        frame = self.frame
        if not frame["focus"]:
            raise Refused("no keyboard is shown: tap a field first")
        clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        if len(clean) > LONGEST_TEXT:
            raise Refused(f"a field takes at most {LONGEST_TEXT} characters")
        widget = next((w for w in self.look().screen.body if w.id == frame["focus"]), None)
        frame["focus"] = ""
        write = widget.write if widget is not None else None
        self._act(_nothing if write is None else partial(write, clean))

    def enter(self) -> None:
        """Press enter, which puts the keyboard away."""
        if not self.frame["focus"]:
            raise Refused("no keyboard is shown, so that there is no enter key")
        self.frame["focus"] = ""
        self._act(_nothing)

    def back(self) -> None:
        """Put the keyboard away, or go back to the screen before; on the home screen nothing happens."""
        if self.frame["focus"]:
            self.frame["focus"] = ""
            self._act(_nothing)
        else:
            self._act(self.close)

    def home(self) -> None:
        """Show the home screen; the app forgets what was not saved."""
        del self.stack[1:]
        self._act(_nothing)

    def launch(self, app: str) -> None:
        """Open an app at its first screen.

        Raises:
            Refused: There is no such app.
        """
        wanted = app.strip().casefold()
        for name, known in self.apps.items():
            if name != HOME and wanted in (name, known.title.casefold()):
                self._act(partial(self.start, name))
                return
        raise Refused(f"there is no such app; there are {', '.join(n for n in self.apps if n != HOME)}")

    def start(self, app: str) -> None:
        """Put an app's first screen on the home screen, and its question over it, if it has one."""
        del self.stack[1:]
        self.stack.append(_frame(app, "root", {}))
        if self.state["popup"] == app:
            self.state["popup"] = ""
            self.stack.append(_frame(HOME, "popup", {}))

    def wait(self) -> None:
        """Let time pass: a message goes away, and nothing else happens."""
        self._act(_nothing)

    def _act(self, act: Callable[[], None]) -> None:
        self.state["toast"] = ""
        act()
        self._layout = None

    def _touch(self, widget: Widget, held: bool = False) -> None:
        if not widget.enabled:
            raise Refused(f"{widget.id} is disabled")
        if held:
            self._act(widget.hold or _nothing)
            return
        self.frame["focus"] = ""
        if widget.write is not None:
            self.frame["focus"] = widget.id
            self.frame["reveal"] = widget.id
        self._act(widget.tap or _nothing)

    def _find(self, id: str) -> Widget:
        found = self.look().find(id)
        if found is None:
            hidden = any(widget.id == id for widget in self.look().screen.body)
            raise Refused(f"{id} is not in view: swipe" if hidden else f"there is no {id} on this screen")
        return found[0]

    def _under(self, x: float, y: float) -> Widget | None:
        """The widget at a point; None beside a dialog or a drawer."""
        look = self.look()
        found = look.at(x, y)
        if found is not None:
            return found[0]
        x1, y1, x2, y2 = look.frame
        outside = not (x1 <= x < x2 and y1 <= y < y2)
        if outside and look.screen.style in ("dialog", "drawer") and not look.focus:
            return None
        raise Refused(f"there is nothing to touch at [{x:g},{y:g}]")


def _frame(app: str, screen: str, args: dict[str, Any], focus: str = "") -> Frame:
    return {
        "app": app, "screen": screen, "args": args, "form": {}, "scroll": 0, "focus": focus, "reveal": ""
    }  # fmt: skip


def _nothing() -> None:
    pass
