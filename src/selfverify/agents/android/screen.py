"""The screen of a device: its screen in words, as a picture, and which app is in front."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from xml.etree import ElementTree

from PIL import Image

from selfverify.agents.android.device import AdbDevice, CommandFailed
from selfverify.agents.tools import Box, Element, Screen, describe, name_elements
from selfverify.core.episode import EnvironmentLost
from selfverify.core.images import to_rgb

MOST_BYTES = 16 * 2**20
"""Length of a dump beyond which it is not read."""
MOST_NODES = 20_000
"""Views of a dump beyond which it is not read."""

GROUPS = frozenset(
    ("View", "ViewGroup", "FrameLayout", "LinearLayout", "RelativeLayout", "ConstraintLayout", "ComposeView")
)
"""Classes that say nothing about what a view is."""

_BEGIN = re.compile(r"<\?xml\b|<hierarchy\b")
_DECLARATION = re.compile(r"<![A-Z]")
_BOUNDS = re.compile(r"\[(-?\d{1,6}),(-?\d{1,6})\]\[(-?\d{1,6}),(-?\d{1,6})\]")
_REFERENCE = re.compile(r"&#(\d{1,12}|x[0-9a-fA-F]{1,12});")
_REFERENCES = re.compile(rf"(?:{_REFERENCE.pattern})+")
# An & or < that some describer has not escaped stands for itself.
_BARE = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d{1,12}|#x[0-9a-fA-F]{1,12});)|<(?![\w/?!])|<(?=\d)")
_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ACTIONS = {
    "clickable": "click",
    "long-clickable": "long-click",
    "scrollable": "scroll",
    "checkable": "check",
}
_STATES = ("checked", "selected", "focused", "password")


class UnreadableScreen(Exception):
    """A dump that holds no hierarchy; the message says why."""


@dataclass(slots=True)
class _View:
    """A view that says or does something, and those in it."""

    element: Element
    inside: list[_View] = field(default_factory=list)


def read_hierarchy(dump: bytes, size: tuple[int, int], app: str = "") -> Screen:
    """The screen that a dump of ``uiautomator`` describes: the views with what can be read or used in them.

    Left out are views that are not visible or lie outside of those they are in, and views that neither say
    anything nor can be used. The contents of a view without an area are cut by the views around it.
    A view that says nothing and holds one other of the same extent is one with it.

    Args:
        dump: The printed text, with the file's text in it.
        size: Width and height of the display in its natural position; the dump says how it is held.
        app: The app of the screen; by default the package of the first view.

    Raises:
        UnreadableScreen: It is no hierarchy, or one that is too large.
    """
    root = _parse(dump)
    if root.get("rotation", "0") in ("1", "3"):
        size = (size[1], size[0])
    first = next(root.iter("node"), None)
    app = app or (first.get("package", "") if first is not None else "")
    views = _views(root, Box(0, 0, *size))
    return Screen(app, size, _in_order([_merged(view) for view in views]))


def _parse(dump: bytes) -> ElementTree.Element:
    if len(dump) > MOST_BYTES:
        raise UnreadableScreen(f"the dump has {len(dump):,} bytes, more than {MOST_BYTES:,}")
    text = dump.decode("utf-8", "replace")
    begin = _BEGIN.search(text)
    if begin is None:
        said = " ".join(text.split())[:200]
        raise UnreadableScreen(f"uiautomator gave no hierarchy, but said {said!r}" if said else "it is empty")
    text = text[begin.start() : text.rfind(">") + 1]
    if _DECLARATION.search(text):
        raise UnreadableScreen("it declares document types or entities, which no hierarchy does")
    text = _REFERENCES.sub(_joined, _BARE.sub(lambda bare: f"&#{ord(bare[0])};", text))
    try:
        root = ElementTree.fromstring(_ILLEGAL.sub("\ufffd", text))
    except ElementTree.ParseError as error:
        raise UnreadableScreen(f"it is broken XML: {error}") from None
    if root.tag != "hierarchy":
        raise UnreadableScreen(f"its root is <{root.tag[:60]}>, no <hierarchy>")
    if (nodes := sum(1 for _ in root.iter())) > MOST_NODES:
        raise UnreadableScreen(f"it has {nodes:,} views, more than {MOST_NODES:,}")
    return root


def _joined(references: re.Match[str]) -> str:
    """Numeric references as XML knows them: some versions of Android write emoji as two halves."""
    found = _REFERENCE.findall(references[0])
    codes = [int(one[1:], 16) if one[0] == "x" else int(one) for one in found]
    halves = "".join(chr(code) if code <= 0x10FFFF else "\ufffd" for code in codes)
    text = halves.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return "".join(f"&#{ord(character)};" for character in _ILLEGAL.sub("\ufffd", text))


def _views(tree: ElementTree.Element, screen: Box) -> list[_View]:
    """The views that say or do something, each in the one it stands in. Trees may be deep: no recursion."""
    found: list[_View] = []
    stack = [(node, place, screen, found) for node, place in _places(tree, "0")]
    while stack:
        node, place, around, siblings = stack.pop()
        if node.get("visible-to-user") == "false":
            continue
        view, box = None, _box(node)
        if box is not None:
            if (box := box.cut(around)) is None:
                continue
            view = _view(node, box, place)
        if view is not None:
            siblings.append(view)
        inside = siblings if view is None else view.inside
        stack += [(child, under, box or around, inside) for child, under in _places(node, place)]
    return found


def _places(parent: ElementTree.Element, place: str) -> list[tuple[ElementTree.Element, str]]:
    """The views in one, the last first, each with a hash of the way to it."""
    alike: Counter[str] = Counter()
    found = []
    for node in parent:
        own = f"{node.get('class', '')}#{node.get('resource-id', '')}"
        alike[own] += 1
        whole = f"{place}/{own}[{alike[own]}]".encode("utf-8", "replace")
        found.append((node, hashlib.blake2b(whole, digest_size=16).hexdigest()))
    return found[::-1]


def _box(node: ElementTree.Element) -> Box | None:
    """Where a view stands; None where it says none or has no area, so that it neither shows nor clips."""
    bounds = _BOUNDS.fullmatch(node.get("bounds", ""))
    box = None if bounds is None else Box(*map(int, bounds.groups()))
    return box and box.cut(box)


def _view(node: ElementTree.Element, box: Box, place: str) -> _View | None:
    """Return the words and the actions of a view; None where that is nothing."""
    actions = [name for key, name in _ACTIONS.items() if node.get(key) == "true"]
    states = [key for key in _STATES if node.get(key) == "true"]
    if "check" in actions and "checked" not in states:
        states.insert(0, "unchecked")
    said = [node.get("text", "").strip(), node.get("content-desc", "").strip()]
    texts = list(dict.fromkeys(filter(None, said))) or list(filter(None, [node.get("hint", "").strip()]))
    if not actions and not texts and not {"checked", "selected", "password"} & set(states):
        return None
    if actions and node.get("enabled") == "false":
        states.append("disabled")
    kind = node.get("class", "").rpartition(".")[2]
    kind = "" if kind in GROUPS else re.sub(r"\W+", "_", kind)[:60]  # one word, for all names that apps give
    return _View(Element(place, kind, box, tuple(actions), tuple(states), tuple(texts)))


def _merged(view: _View) -> _View:
    """Views that are one for the eye, as one: from the outside in, along chains of only children."""
    while len(view.inside) == 1 and not view.element.texts:
        outer, inner = view.element, view.inside[0].element
        if outer.box != inner.box:
            break
        element = replace(
            inner,
            id=outer.id,
            kind=inner.kind or outer.kind,
            actions=tuple(dict.fromkeys(outer.actions + inner.actions)),
            states=tuple(dict.fromkeys(outer.states + inner.states)),
        )
        view = _View(element, view.inside[0].inside)
    return view


def _in_order(views: list[_View]) -> list[Element]:
    """All elements, those inside others behind them, with ids."""
    elements: list[Element] = []
    stack = [(view, 0) for view in reversed(views)]
    while stack:
        view, depth = stack.pop()
        elements.append(replace(view.element, depth=depth))
        stack += [(_merged(inner), depth + 1) for inner in reversed(view.inside)]
    names = name_elements([element.id for element in elements])
    return [replace(element, id=name) for element, name in zip(elements, names, strict=True)]


DUMP = "/data/local/tmp/selfverify-0.xml"
"""Where uiautomator writes what it sees."""
_DESCRIBER = "com.example.android.xml_parser"
DESCRIBE = (
    "settings put secure enabled_accessibility_services "
    f"{_DESCRIBER}/.XMLParserAccessibilityService; settings put secure accessibility_enabled 1"
)
"""Switches AndroidLab's accessibility app on, which writes again and again what the screen shows."""
_DESCRIBED = f"find /sdcard/Android/data/{_DESCRIBER}/files/ui.xml -mmin -1 -exec cat {{}} +"
"""Prints what it has written last, unless that is older than a minute."""
TRIES = 3
"""How often a dump is tried; uiautomator refuses while a screen moves."""

_PNG = b"\x89PNG\r\n\x1a\n"
_SIZE = re.compile(r"(Physical|Override) size: (\d{1,5})x(\d{1,5})")
_FOCUS = re.compile(r"mCurrentFocus=Window\{\S+ \S+ ([^\s/}]+)(?:/([^\s}]+))?(?: EXITING)?\}")
_POPUP = re.compile(r"mCurrentFocus=Window\{\S+ \S+ PopupWindow:")
_IN_FRONT = re.compile(r"mFocusedApp=.*?ActivityRecord\{\S+ \S+ ([^\s/]+)/([^\s}]+)")


class Focus(NamedTuple):
    """The window that has the focus; empty where none has."""

    package: str
    activity: str


@dataclass(frozen=True, slots=True)
class Capture:
    """The screen of a device at one moment.

    Args:
        focus: Which app is in front.
        dump: The output of uiautomator; empty where it was not asked.
        screen: The screen that it describes; None where it cannot be read, or was not asked for.
        picture: A screenshot, where one was asked for and there is one.
        png: The same as the device has sent it.
        lacking: The parts that could not be shown and why, in words for the agent.
        size: Width and height in pixels, as the device is held.
    """

    focus: Focus
    dump: bytes
    screen: Screen | None
    picture: Image.Image | None
    png: bytes
    lacking: tuple[str, ...]
    size: tuple[int, int]

    @property
    def words(self) -> str:
        """The screen in words; empty where it cannot be read."""
        return "" if self.screen is None else describe(self.screen)

    def same(self, other: Capture) -> bool:
        """Whether both show the same."""
        pictures = [None if v.picture is None else v.picture.tobytes() for v in (self, other)]
        return self.focus == other.focus and self.words == other.words and pictures[0] == pictures[1]


class Viewer:
    """Looks at a device's default display.

    Args:
        device: The device.
        pause: Seconds between two tries.
        accessible: Packages whose screens AndroidLab's accessibility app describes.
    """

    def __init__(self, device: AdbDevice, pause: float, accessible: Collection[str] = ()) -> None:
        self.device, self.pause, self.accessible = device, pause, accessible
        self.size = (0, 0)
        """Width and height in the display's natural position."""

    async def measure(self) -> None:
        """Ask how large the display is.

        Raises:
            EnvironmentLost: The device does not say it.
        """
        try:
            said = await self.device.shell("wm size")
        except CommandFailed as error:
            said = error.output
        sizes = {kind: (int(width), int(height)) for kind, width, height in _SIZE.findall(said)}
        if not sizes:
            raise EnvironmentLost(f"{self.device} has no display: {' '.join(said.split())}")
        self.size = sizes.get("Override") or sizes["Physical"]

    async def focus(self) -> Focus:
        """Which app is in front."""
        try:
            said = await self.device.shell("dumpsys window | grep Focus")
        except CommandFailed:
            return Focus("", "")
        # A menu is a window of its own, without a name.
        found = (_IN_FRONT if _POPUP.search(said) else _FOCUS).findall(said)
        return Focus(*found[0]) if found else Focus("", "")

    async def look(self, words: bool, picture: bool | None) -> Capture:
        """Return the screen of this moment.

        Args:
            words: Whether the screen is read.
            picture: Whether a screenshot is taken; None takes one where the screen cannot be read.
        """
        focus = await self.focus()
        screen, dump, lacking = await self._read(focus) if words else (None, b"", [])
        picture = screen is None if picture is None else picture
        image, png = await self._photograph() if picture else (None, b"")
        if picture and image is None:
            lacking.append("no screenshot: the device gives none, as of apps that forbid them")
        elif image is not None and image.getbbox() is None:
            lacking.append("the screenshot is black: the app forbids screenshots, or the screen is off")
        held = image.size if image is not None else self.size
        size = screen.size if screen is not None else held
        return Capture(focus, dump, screen, image, png, tuple(lacking), size)

    async def _read(self, focus: Focus) -> tuple[Screen | None, bytes, list[str]]:
        """The screen, the dump, and what is wrong with it."""
        commands = [f"rm -f {DUMP}; uiautomator dump {DUMP} && cat {DUMP}"] * TRIES
        if focus.package in self.accessible:
            commands = [_DESCRIBED] * TRIES + commands
        dump, wrong = b"", ""
        for attempt, command in enumerate(commands):
            if attempt:
                await asyncio.sleep(self.pause)
            dump = await self.device.output(command)
            try:
                # In a thread, as are pictures: large ones take long to read.
                return await asyncio.to_thread(read_hierarchy, dump, self.size, focus.package), dump, []
            except UnreadableScreen as error:
                wrong = str(error)
        return None, dump, [f"the screen cannot be described: {wrong}"]

    async def _photograph(self) -> tuple[Image.Image | None, bytes]:
        """A screenshot, also as it was sent; None where the device gives none."""
        # A device with several displays says so before the picture.
        _, mark, rest = (await self.device.output("screencap -p 2>/dev/null")).partition(_PNG)
        try:
            return await asyncio.to_thread(_decoded, mark + rest), mark + rest
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            return None, b""


def _decoded(png: bytes) -> Image.Image:
    return to_rgb(Image.open(io.BytesIO(png), formats=["PNG"]))
