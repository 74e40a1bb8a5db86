"""What all readers share: where a record stands, and reading fields so that whatever is wrong is named."""

from __future__ import annotations

import ast
import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from selfverify.data.images import ImageRef
from selfverify.errors import DataError

Record = dict[str, Any]
"""What a file says about one thing, by column."""
Row = dict[str, Any]
"""One problem in the form that tasks take; see `open_rows`."""

LONGEST_QUESTION = 100_000
LONGEST_ANSWER = 10_000
"""In characters. What is longer is taken for a broken file."""
SLACK = 1.0
"""Pixels by which a box may leave its image; annotations are rounded."""
_BASE64 = re.compile(r"(iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/\s]{40}|[A-Za-z0-9+/\s]{200}")
"""What no path begins with: PNG, JPEG, GIF or WebP in base64, or any long text without a dot."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands. ``unit`` is what ``number`` counts from 1; empty if the record is the file."""

    file: Path
    number: int = 0
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}" if self.unit else str(self.file)


@dataclass(frozen=True, slots=True)
class Blob:
    """A field that stays on the disk until it is needed: bytes, or a text or path as `Images` takes them."""

    load: Callable[[], Any]


class Source(Protocol):
    """The records of one file, or of many small ones."""

    file: Path
    late: dict[int, str]
    """Records that turn out to be broken only when the whole file has been read, and why."""

    def scan(self) -> Iterator[tuple[int, Place, Record | DataError]]:
        """Every record in order, with its number from 0, in one pass that remembers where they stand.

        Raises:
            DataError: Nothing can be read from here on.
        """
        ...

    def record(self, number: int) -> tuple[Place, Record]:
        """A record that `scan` has passed.

        Raises:
            DataError: It cannot be read any more.
        """
        ...


class Convert(Protocol):
    """From a record to its rows, several for an episode. What is wrong with a row stands in its place.

    Of a row's ``id`` only what the record says, None if nothing; the file's name is put before it.
    """

    def __call__(self, record: Record, place: Place, images: Images) -> Sequence[Row | DataError]: ...


class Images:
    """Finds the images that records mention.

    Args:
        root: The folder that relative paths start from.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._sizes: dict[Path, tuple[int, int]] = {}

    def refs(self, value: Any, place: Place) -> list[ImageRef]:
        """The images of a field: a path, base64, bytes, a struct of ``bytes`` and ``path``, or a list of
        these."""
        if value is None or value == "" or value == b"":
            return []
        if isinstance(value, list | tuple):
            return [ref for item in value for ref in self.refs(item, place)]
        if isinstance(value, Blob):
            return [ImageRef(place, load=lambda: self._found(value.load()))]
        found = self._found(value)
        if isinstance(found, Path):
            return [ImageRef(place, path=found)]
        return [ImageRef(place, load=lambda: found)]

    def size(self, ref: ImageRef) -> tuple[int, int]:
        """Width and height; those of files are remembered."""
        if ref.path is None:
            return ref.size
        if ref.path not in self._sizes:
            self._sizes[ref.path] = ref.size
        return self._sizes[ref.path]

    def _found(self, value: Any) -> bytes | Path:
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, Path):
            return value
        if not isinstance(value, str) or not value:
            raise DataError(f"an image is {shown(value)}: neither a path nor base64 nor bytes")
        if value.startswith("data:"):
            return unbase64(value.partition(",")[2])
        if value.startswith(("http://", "https://")):
            raise DataError(f"the image {shown(value)} is on the web: download it and name the file")
        if _BASE64.match(value):
            return unbase64(value)
        if "\0" in value or len(value) > 4096:
            raise DataError(f"{shown(value)} is no path of an image")
        return self.root / value


def unbase64(text: str) -> bytes:
    """The bytes that ``text`` stands for.

    Raises:
        DataError: It is damaged.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the image's base64 text is damaged ({error})") from None


def read_at(file: Path, offset: int, length: int) -> bytes:
    """Some bytes of a file.

    Raises:
        DataError: It is shorter by now, or away.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            found = opened.read(length)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    if len(found) < length:
        raise DataError(f"{file} is shorter than it was when it was opened")
    return found


def shown(value: Any, most: int = 60) -> str:
    """A value in an error."""
    text = repr(value[: 2 * most]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= most else text[:most] + "..."


def filled(value: Any) -> bool:
    """Whether a field says anything. Tables written by pandas leave missing cells empty."""
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def first(record: Record, *names: str) -> Any:
    """The first of these fields that is filled, else None."""
    for name in names:
        if filled(value := record.get(name)):
            return value
    return None


def text(value: Any, name: str, longest: int) -> str:
    """A text that is not empty; numbers are written out.

    Raises:
        DataError: It is missing, something else, too long, or no Unicode.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"its {name} is {'missing' if not filled(value) else shown(value)}")
    if len(value) > longest:
        raise DataError(f"its {name} has {len(value):,} characters, more than {longest:,}")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f"its {name} holds half a character (a lone surrogate): {shown(value)}")
    return value.strip()


def number(value: Any, name: str) -> float:
    """A finite number, also written as text.

    Raises:
        DataError: It is none.
    """
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"its {name} is {shown(value)}, not a number") from None
    if not math.isfinite(found):
        raise DataError(f"its {name} is {found}")
    return found


def listed(value: Any, name: str) -> list[Any]:
    """A list, also one written as JSON or as a Python literal, as benchmark files have it.

    Raises:
        DataError: It is none.
    """
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            try:
                found = read(value)
                break
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
        else:
            raise DataError(f"its {name} is {shown(value)}, not a list")
        value = found
    if not isinstance(value, list | tuple):
        raise DataError(f"its {name} is {shown(value)}, not a list")
    return list(value)


def box(value: Any, size: tuple[int, int], name: str = "box") -> list[float]:
    """``[x1, y1, x2, y2]`` inside an image of ``size``; up to `SLACK` pixels outside are cut off.

    Raises:
        DataError: Not four numbers, corners in the wrong order, or out of the image.
    """
    values = listed(value, name)
    if len(values) != 4:
        raise DataError(f"its {name} has {len(values)} numbers, not 4")
    x1, y1, x2, y2 = (number(v, name) for v in values)
    if x1 >= x2 or y1 >= y2:
        which = "x1 >= x2" if x1 >= x2 else "y1 >= y2"
        raise DataError(f"its {name} {[x1, y1, x2, y2]} has {which}; it has to be [x1, y1, x2, y2]")
    width, height = size
    if x1 < -SLACK or y1 < -SLACK or x2 > width + SLACK or y2 > height + SLACK:
        raise DataError(f"its {name} {[x1, y1, x2, y2]} reaches out of the image ({width} x {height})")
    return [max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))]


def polygon(value: Any, name: str = "polygon") -> list[list[float]]:
    """``[[x, y], ...]``, three points or more.

    Raises:
        DataError: It is none.
    """
    points = [[number(v, name) for v in listed(point, name)] for point in listed(value, name)]
    if len(points) < 3 or any(len(point) != 2 for point in points):
        raise DataError(f"its {name} needs three points [x, y] or more")
    return points


def one_image(refs: Sequence[ImageRef]) -> ImageRef:
    """The only image.

    Raises:
        DataError: There are none or several.
    """
    if len(refs) != 1:
        raise DataError(f"it has {len(refs)} images where one is needed")
    return refs[0]
