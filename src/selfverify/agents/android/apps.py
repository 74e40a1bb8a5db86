"""Which package an app's name means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

PACKAGE = re.compile(r"[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+")
"""What the name of a package looks like."""

KNOWN = {
    "bluecoins": "com.rammigsoftware.bluecoins",
    "calendar": "com.skuld.calendario",
    "cantook": "com.aldiko.android",
    "chrome": "com.android.chrome",
    "clock": "com.google.android.deskclock",
    "contacts": "com.google.android.contacts",
    "gmail": "com.google.android.gm",
    "maps.me": "com.mapswithme.maps.pro",
    "map.me": "com.mapswithme.maps.pro",
    "pi music player": "com.Project100Pi.themusicplayer",
    "settings": "com.android.settings",
    "setting": "com.android.settings",
    "youtube": "com.google.android.youtube",
    "zoom": "us.zoom.videomeetings",
}
"""The apps of AndroidLab and some that most phones have, in lower case."""


class Apps:
    """Names of apps.

    Args:
        more: Packages by further names, which win over `KNOWN`.
    """

    def __init__(self, more: Mapping[str, str]) -> None:
        self._known = {_plain(name): package for name, package in {**KNOWN, **more}.items()}
        self._names = sorted({**KNOWN, **more})

    def package(self, name: str) -> str | None:
        """The package that a name means: a known app's, or the name itself where it is one; else None."""
        if found := self._known.get(_plain(name)):
            return found
        return name if PACKAGE.fullmatch(name) else None

    def like(self, name: str) -> list[str]:
        """Known names, those most like ``name`` first, a few."""
        close = difflib.get_close_matches(name[:200].lower(), self._names, n=3)
        return (close + [known for known in self._names if known not in close])[:12]


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name.casefold())
