"""Sessions in the form that AndroidLab's evaluator reads.

A session's folder is named ``TASK_SEED`` and holds ``traces/trace.jsonl``, ``xml/N.xml`` and
``Screen/screenshot-N-before.png``. Each line is a screen together with what was then done on it; the last one
is the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfverify.agents.android.androidlab import AndroidTask
from selfverify.agents.android.views import Capture
from selfverify.agents.screen_tools import (
    LaunchApp,
    LongPress,
    PressKey,
    ScreenAction,
    Swipe,
    Tap,
    TypeText,
    WaitFor,
)
from selfverify.core.errors import ConfigError
from selfverify.core.jsonl_store import JsonlStore

_BEGIN = re.compile(rb"<\?xml|<hierarchy|<displays")


@dataclass
class Trace:
    """Writes one session.

    Args:
        folder: Where sessions lie.
        task: The session's task.
        seed: The session's seed.

    Raises:
        ConfigError: The folder cannot be made.
    """

    folder: Path
    task: AndroidTask
    seed: int
    steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        first = self.folder / f"{self.task.task_id}_{self.seed}"
        number = 1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                self.home = first if number == 1 else first.with_name(f"{first.name}-{number}")
                try:
                    self.home.mkdir()
                    break
                except FileExistsError:
                    number += 1
            for name in ("xml", "Screen"):
                (self.home / name).mkdir()
        except OSError as error:
            raise ConfigError(
                f"traces: {first} cannot be made ({error.strerror}); name another folder"
            ) from None
        self._journal = JsonlStore(self.home / "traces" / "trace.jsonl")
        self._line: dict[str, Any] = {}

    def seen(self, view: Capture, answers: dict[str, str]) -> None:
        """Keep what is shown, before anything is done on it. Seen again, a screen replaces the one before.

        Args:
            view: The screen, with its dump.
            answers: What the device has answered to the task's questions.
        """
        image = self.home / "Screen" / f"screenshot-{self.steps}-before.png"
        xml = self.home / "xml" / f"{self.steps}.xml"
        if view.png:
            image.write_bytes(view.png)
        begin = _BEGIN.search(view.dump)
        if begin is not None:
            xml.write_bytes(view.dump[begin.start() :])
        self._line = {
            "trace_id": self.home.name,
            "index": self.steps,
            "prompt": "** XML **" if self.steps else self.task.instruction,
            "image": str(image),
            "xml": str(xml) if begin is not None else "ERROR",
            "ac_xml": None,
            "current_activity": view.focus.package,
            "window": list(view.size),
            "target": self.task.instruction,
            **({"command": answers} if answers else {}),
        }

    def done(self, action: ScreenAction) -> None:
        """Add what was done on the screen seen last."""
        name, details = _named(action)
        self._add({"operation": "do", "action": name, **({"kwargs": details} if details else {})})

    def finished(self, message: str) -> None:
        """Add the end, on the screen seen last."""
        self._add({"operation": "finish", "action": "finish", "kwargs": {"message": message}})

    def _add(self, parsed: dict[str, Any]) -> None:
        given = ", ".join(f"{key}={value!r}" for key, value in parsed.get("kwargs", {}).items())
        response = f"{parsed['operation']}(action={parsed['action']!r}{', ' * bool(given)}{given})"
        self._journal.append({**self._line, "parsed_action": parsed, "current_response": response})
        self.steps += 1


def _named(action: ScreenAction) -> tuple[str, dict[str, Any]]:
    """An action as AndroidLab's programs name it."""
    match action:
        case Tap(box):
            return "Tap", {"element": list(box)}
        case LongPress(box):
            return "Long Press", {"element": list(box)}
        case Swipe(box, direction, distance):
            return "Swipe", {"element": list(box), "direction": direction, "dist": distance}
        case TypeText(text):
            return "Type", {"text": text}
        case PressKey(key):
            return f"Press {key.capitalize()}", {}
        case LaunchApp(app):
            return "Launch", {"package": app}
        case WaitFor():
            return "Wait", {}
    raise AssertionError(action)
