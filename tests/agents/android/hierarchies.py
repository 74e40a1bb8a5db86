"""Hierarchies as ``uiautomator dump`` prints them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import quoteattr

FLAGS = (
    "checkable", "checked", "clickable", "enabled", "focusable", "focused", "scrollable", "long-clickable",
    "password", "selected",
)  # fmt: skip
SAID = "UI hierchary dumped to: /data/local/tmp/x.xml\n"
"""What uiautomator says first; the spelling is its own."""


def view(
    kind: str,
    box: tuple[int, int, int, int],
    *inside: str,
    text: str = "",
    name: str = "",
    about: str = "",
    flags: Sequence[str] = (),
    package: str = "com.example.app",
    **more: str,
) -> str:
    """One view. ``flags`` says what is true of it; it is always enabled unless ``-enabled`` is there."""
    left, top, right, bottom = box
    attributes = {
        "index": "0",
        "text": text,
        "resource-id": f"{package}:id/{name}" if name else "",
        "class": f"android.widget.{kind}",
        "package": package,
        "content-desc": about,
        **{flag: "true" if flag in flags or (flag == "enabled" and "-enabled" not in flags) else "false"
           for flag in FLAGS},
        "bounds": f"[{left},{top}][{right},{bottom}]",
        **{key.replace("_", "-"): value for key, value in more.items()},
    }  # fmt: skip
    listed = " ".join(f"{key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<node {listed}>{''.join(inside)}</node>"


def hierarchy(*views: str, rotation: int = 0) -> str:
    """A whole dump, as the file has it."""
    return (
        "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>"
        f'<hierarchy rotation="{rotation}">{"".join(views)}</hierarchy>'
    )
