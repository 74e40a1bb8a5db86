"""A phone behind the fake adb server: a home screen and two apps, in memory.

It answers the shell commands that adb clients send, with `;`, `&&` and `| grep`, and runs nothing here.
"""

from __future__ import annotations

import base64
import io
import shlex
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

from PIL import Image

from agents.android.hierarchies import SAID, hierarchy, view

SETTINGS, NOTES = "com.android.settings", "org.example.notes"
HOME, SECRET = "com.android.launcher", "com.bank"
IME = "default_input_method"
KEYS = {"KEYCODE_BACK": "back", "KEYCODE_HOME": "home", "KEYCODE_ENTER": "enter"}
REAL = {"ro.kernel.qemu": "", "ro.hardware": "qcom", "sys.boot_completed": "1", "ro.product.locale": "en-US"}


@lru_cache
def png(size: tuple[int, int], colour: tuple[int, int, int], corner: tuple[int, int, int]) -> bytes:
    """A picture of one colour with one other pixel."""
    image = Image.new("RGB", size, colour)
    image.putpixel((0, 0), corner)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


class Phone:
    """A phone.

    Args:
        emulator: Whether it says that it is one.
        adbkeyboard: Whether the app ADBKeyboard is installed.
    """

    def __init__(self, emulator: bool = True, adbkeyboard: bool = True) -> None:
        self.state = "device"
        self.deaf = 0.0
        """Seconds for which it does not answer before it closes the connection."""
        self.cut_off = False
        self.commands: list[str] = []
        self.properties = dict(REAL) | ({"ro.hardware": "ranchu"} if emulator else {})
        self.settings = {"global airplane_mode_on": "0", "global auto_time": "1"}
        self.installed = {SETTINGS, NOTES, SECRET}
        self.broken: set[str] = set()
        self.adbkeyboard = adbkeyboard
        self.size, self.override, self.rotation = (1080, 2400), "", 0
        self.displays = 1
        self.dumps: list[bytes] = []
        """What the next dumps give instead of the screen."""
        self.picture: Callable[[], bytes] = self._photo
        self.described = b""
        """What the accessibility app has written lately."""
        self.is_root = False
        self.may_be_root = True
        self.now = "2026-11-22 10:00:00"
        self.focus: str | None = HOME
        self.window = ""
        """The window in front, where it is a menu of the app in front."""
        self.wifi, self.field, self.notes, self.focused = False, "old text", [], False
        self.typed: list[str] = []
        self.on_command: Callable[[str], None] = lambda command: None

    # The shell

    def run(self, command: str) -> tuple[bytes, int]:
        """What a command line prints, and its code."""
        self.commands.append(command)
        self.on_command(command)
        lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        output, code, words, pipe, skip = b"", 0, [], None, False
        for word in [*lexer, ";"]:
            if word not in (";", "&&", "|"):
                words.append(word.replace("$?", str(code)))
                continue
            if words and not skip:
                quiet = "2>/dev/null" in words
                printed, code = self._program([w for w in words if w != "2>/dev/null"], pipe)
                printed = b"" if code and quiet else printed
                output, pipe = (output, printed) if word == "|" else (output + printed, None)
            skip = word == "&&" and code != 0
            words = []
        return output, code

    def _program(self, words: list[str], pipe: bytes | None) -> tuple[bytes, int]:
        name, *rest = words
        if name == "grep" and pipe is not None:
            lines = [line for line in pipe.decode().splitlines() if rest[0] in line]
            return "".join(f"{line}\n" for line in lines).encode(), 0 if lines else 1
        method = getattr(self, f"_{name}", None)
        if method is None:
            return f"/system/bin/sh: {name}: inaccessible or not found\n".encode(), 127
        said = method(*rest)
        return said if isinstance(said, tuple) else (said if isinstance(said, bytes) else said.encode(), 0)

    def _echo(self, *words: str) -> str:
        return " ".join(words) + "\n"

    def _rm(self, *words: str) -> str:
        return ""

    def _getprop(self, name: str) -> str:
        return self.properties.get(name, "") + "\n"

    def _setprop(self, name: str, value: str) -> str:
        if self.is_root:
            self.properties[name] = value
        return ""

    def _stop(self) -> str:
        return ""

    def _start(self) -> str:
        self.properties["sys.boot_completed"] = "1"
        return ""

    def _settings(self, what: str, *rest: str) -> str:
        if what == "put":
            self.settings[" ".join(rest[:2])] = rest[2]
            return ""
        return self.settings.get(" ".join(rest), "null") + "\n"

    def _date(self, *words: str) -> str | tuple[bytes, int]:
        if words[0].startswith("+"):
            return datetime.strptime(self.now, "%Y-%m-%d %H:%M:%S").strftime(words[0][1:]) + "\n"
        if not self.is_root:
            return b"date: cannot set date: Operation not permitted\n", 1
        self.now = words[0]
        return words[0] + "\n"

    def _ime(self, what: str, method: str) -> str | tuple[bytes, int]:
        if not self.adbkeyboard:
            return f"Error: Unknown input method {method} cannot be selected for user #0\n".encode(), 255
        self.settings["secure default_input_method"] = method
        return f"Input method {method} selected for user #0\n"

    def _pm(self, what: str, *rest: str) -> str | tuple[bytes, int]:
        if what == "clear":
            if rest[0] not in self.installed:
                return b"Failed\n", 1
            if rest[0] == SETTINGS:
                self.wifi = False
            else:
                self.notes, self.field = [], ""
            return "Success\n"
        return "".join(f"package:{name}\n" for name in sorted(self.installed))

    def _am(self, what: str, *rest: str) -> str:
        if what != "broadcast":
            return ""
        own = "adbkeyboard" in self._settings("get", "secure", IME)
        if own and rest[:2] == ("-p", "com.android.adbkeyboard"):
            if rest[3] == "ADB_INPUT_B64":
                self.field += base64.b64decode(rest[-1]).decode()
                self.typed.append(self.field)
            self.field = "" if rest[3] == "ADB_CLEAR_TEXT" else self.field
        return (
            "Broadcasting: Intent { act=x }\nBroadcast completed: result=0\n"  # also where nothing hears it
        )

    def _monkey(self, *words: str) -> str | tuple[bytes, int]:
        package = words[words.index("-p") + 1]
        if words[:2] != ("--pct-syskeys", "0"):  # it has no hardware keys
            return b"** SYS_KEYS has no physical keys but with factor 2.0%.\n", 251
        if package in self.broken:
            return b"** Error: Unable to connect to activity manager; is the system running?\n", 1
        if package not in self.installed:
            return b"** No activities found to run, monkey aborted.\n", 252
        self.focus, self.focused = package, False
        return "Events injected: 1\n"

    def _dumpsys(self, *what: str) -> str:
        name = f"{self.focus}/{self.focus}.Main"
        window = "null" if self.focus is None else f"Window{{1a2b u0 {self.window or name}}}"
        record = f"ActivityRecord{{5c u0 {name} t7}}"
        return f"  mSomething=1\n  mCurrentFocus={window}\n  mFocusedApp={record}\n"

    def _wm(self, what: str) -> str | tuple[bytes, int]:
        if not self.displays:
            return b"Error: Display not found\n", 255
        return f"Physical size: {self.size[0]}x{self.size[1]}\n{self.override}"

    # Fingers and keys

    def _input(self, *words: str) -> str:
        kind, *rest = words
        if kind == "tap":
            self._tap(int(rest[0]), int(rest[1]))
        elif kind == "text":
            self.field += rest[0].replace("%s", " ")
            self.typed.append(self.field)
        elif kind == "keyevent":
            deleted = len(self.field) - rest.count("67") * self.focused
            self.field = self.field[: max(deleted, 0)]
            self._key(KEYS.get(rest[-1], ""))
        return ""

    def _tap(self, x: int, y: int) -> None:
        if self.focus == SETTINGS and 200 <= y < 300:
            self.wifi = not self.wifi
        self.focused = self.focus == NOTES and 100 <= y < 200

    def _key(self, key: str) -> None:
        if key in ("home", "back"):
            self.focus, self.focused = HOME, False
        if key == "enter" and self.focus == NOTES and self.focused:
            self.notes.append(self.field)
            self.field = ""

    # What is seen

    def views(self) -> list[str]:
        """The screen of the app in front."""
        if self.focus == SETTINGS:
            flags = ["clickable", "checkable", *(["checked"] if self.wifi else [])]
            return [
                view("TextView", (40, 200, 400, 280), text="Wi-Fi", package=SETTINGS),
                view("Switch", (900, 200, 1040, 280), name="switch", flags=flags, package=SETTINGS),
            ]
        if self.focus == NOTES:
            flags = ["clickable", "focusable", *(["focused"] if self.focused else [])]
            field = view("EditText", (40, 100, 1040, 200), text=self.field, flags=flags, package=NOTES)
            return [
                field,
                *(
                    view("TextView", (40, 300 + 90 * i, 1040, 380 + 90 * i), text=note, package=NOTES)
                    for i, note in enumerate(self.notes)
                ),
            ]
        if self.focus == SECRET:
            return [view("TextView", (0, 0, 500, 500), text="balance 12,345", package=SECRET)]
        return [view("TextView", (40, 40, 200, 100), text="Home", package=HOME)]

    def _uiautomator(self, dump: str, *where: str) -> str | tuple[bytes, int]:
        if self.dumps and not self.dumps[0]:
            return self.dumps.pop(0) + b"ERROR: could not get idle state.\n", 1
        return SAID

    def _find(self, *words: str) -> bytes:
        on = self.settings.get("secure enabled_accessibility_services", "")
        return self.described if on.startswith("com.example.android.xml_parser/") else b""

    def _cat(self, path: str) -> bytes:
        return self.dumps.pop(0) if self.dumps else hierarchy(*self.views(), rotation=self.rotation).encode()

    def _screencap(self, *words: str) -> bytes | tuple[bytes, int]:
        warned = b"[Warning] Multiple displays were found, but no display id was specified!\n"
        return warned * (self.displays > 1) + self.picture()

    def _photo(self) -> bytes:
        size = self.size[::-1] if self.rotation in (1, 3) else self.size
        colour = {SETTINGS: (200, 220, 255), NOTES: (255, 250, 200)}.get(self.focus or "", (90, 90, 90))
        return png(size, colour, (255, 255, 255) if self.wifi else (1, 1, 1))

    def restart_as_root(self) -> str:
        """What ``adb root`` says."""
        if not self.may_be_root:
            return "adbd cannot run as root in production builds\n"
        said = "adbd is already running as root\n" if self.is_root else "restarting adbd as root\n"
        self.is_root = True
        return said
