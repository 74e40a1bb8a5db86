"""A screen as text: compressed XML with places, or a few words without."""

from __future__ import annotations

from functools import lru_cache

from selfverify_phone.system.glass import Box, Layout
from selfverify_phone.system.widgets import Widget

_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"})


@lru_cache(maxsize=8192)
def escaped(text: str) -> str:
    """A text as an XML attribute's value.

    What XML cannot hold becomes U+FFFD, and line ends become spaces, so that nothing in a text begins a line.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
    return text.translate(_ESCAPED)


def xml(look: Layout) -> str:
    """One element a line, from the bottom of the screen up, with what can be done to it and its bounds."""
    screen = look.screen
    title = escaped(screen.title)
    counted = "" if screen.count is None else f' count="{screen.count}"'
    more = " ".join(["up"] * (look.scroll > 0) + ["down"] * (look.scroll < look.end))
    scrolls = f' scroll="{more}"' if more else ""
    kind = "" if screen.style in ("page", "home") else f' style="{screen.style}"'
    lines = [f'<screen app="{look.app}" title="{title}"{counted}{kind}{scrolls}>']
    lines += [_element(widget, box, look.focus) for widget, box in look.placed]
    if look.focus:
        lines.append("<keyboard/>")
    if look.toast:
        lines.append(f'<toast text="{escaped(look.toast)}"/>')
    lines.append("</screen>")
    return "\n".join(lines)


def _element(widget: Widget, box: Box, focus: str) -> str:
    said = f"<{widget.role}"
    if widget.id:
        said += f' id="{widget.id}"'
    if widget.text:
        said += f' text="{escaped(widget.text)}"'
    if widget.value or widget.role == "field":
        said += f' value="{escaped(widget.value)}"'
    if widget.on is not None:
        said += ' on="true"' if widget.on else ' on="false"'
    if not widget.enabled:
        said += ' enabled="false"'
    if widget.write is not None:
        said += ' do="type" focus="true"' if widget.id == focus else ' do="tap"'
    elif widget.hold is not None:
        said += ' do="tap hold"'
    elif widget.tap is not None:
        said += ' do="tap"'
    x1, y1, x2, y2 = box
    return f'{said} bounds="[{x1},{y1}][{x2},{y2}]"/>'


@lru_cache(maxsize=8192)
def one_line(text: str) -> str:
    """A text without line ends and without what cannot be printed."""
    return text if text.isprintable() else " ".join(
        "".join(c if c.isprintable() else " " for c in text).split()
    )  # fmt: skip


def terse(look: Layout) -> str:
    """The title, one line for each line of the screen, then what stands in bar, tabs and on the keyboard.

    All lines begin with a dash and a space, so that a word is the same token wherever it stands.

    A line names the label, the id where it is another word, the value and, of a switch, ``on`` or ``off``. Of
    options and tabs the one that is chosen has a ``*``. The id stands behind the words that it belongs to:
    small models learn first to copy what follows known words.
    """
    screen = look.screen
    lines = [one_line(screen.title) if screen.count is None else f"{one_line(screen.title)} {screen.count}"]
    loose: list[str] = []
    for widget, _ in look.placed:
        if widget.role in ("icon", "app", "tab"):
            chosen = "*" if widget.on else ""
            if widget.role == "icon" and widget.on is not None:
                chosen = " on" if widget.on else " off"
            loose.append(f"{widget.id}{chosen}" if widget.enabled else "")
        elif widget.role == "switch" and not widget.text:
            lines[-1] += f" {widget.id} {'on' if widget.on else 'off'}"
        else:
            lines.append(_line(widget))
    if any(loose):
        lines.append(" ".join(word for word in loose if word))
    if look.focus:
        lines.append(f"keyboard {look.focus}")
    if look.end:
        lines.append("more" + " above" * (look.scroll > 0) + " below" * (look.scroll < look.end))
    if look.toast:
        lines.append(one_line(look.toast))
    return "\n".join(f"- {line}" for line in lines)


def _line(widget: Widget) -> str:
    label = one_line(widget.text)
    if widget.role == "text" or label.casefold() == widget.id:
        label = label.casefold() if widget.value else label
    words = [label] if label.casefold() != widget.id else []
    if widget.id:
        words.append(widget.id)
    if widget.value:
        words.append(one_line(widget.value))
    if widget.on is not None:
        words.append(("on" if widget.on else "off") if widget.role == "switch" else "*" if widget.on else "")
    return " ".join(word for word in words if word)
