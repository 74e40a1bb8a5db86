"""The parts that all readers share: where a record stands, and reading fields so that errors name what is
wrong."""

from __future__ import annotations

import ast
import base64
import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from numbers import Integral
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from selfverify.core.errors import DataError
from selfverify.data.images import ImageRef

Record = dict[str, Any]
"""One record of a file: values by column."""
Row = dict[str, Any]
"""One problem in the form that tasks take; see `open_rows`."""

LONGEST, LONGEST_QUESTION = 10_000, 100_000
"""Limits in characters; a longer text means that the file is broken."""
SLACK = 1.0
"""Pixels by which a box may leave its image; annotations are rounded."""
_BASE64 = re.compile(r"(iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/\s]{40}|[A-Za-z0-9+/\s]{200}")
"""Matches base64: that of PNG, JPEG, GIF or WebP, or any long text without a dot, which no path is."""

_WEB = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_HALF = re.compile("[\ud800-\udfff]")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_NUMPY = re.compile(rf"\s*(?:array\(\[|\[\s*(?:{_QUOTED.pattern})\s+['\"])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands: the ``number``-th ``unit`` of a file; without a unit the file is the record."""

    file: Path
    number: int = 0
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}" if self.unit else str(self.file)


@dataclass(frozen=True, slots=True)
class Blob:
    """A field that stays on the disk until it is needed: bytes, or a text or path as `Images` takes them."""

    load: Callable[[], Any]


class Convert(Protocol):
    """Turns a record into its rows: one, or several for an episode. An error stands for a row that is wrong.

    A row's ``id`` is what the record says, None if nothing; `Rows` puts the file's name before it.
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
        """Return the images of a field, unread.

        The field holds a path, base64, bytes, a struct of ``bytes`` and ``path`` or of ``url``, an image in
        memory, or a list of these.

        Raises:
            DataError: A value is none of these, or an item of a list is empty.
        """
        if not filled(value) or value == b"":
            return []
        if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
            value = image_texts(value)
        if isinstance(value, list | tuple):
            found = [self.refs(item, place) for item in value]
            if [] in found:
                raise DataError(f"image {found.index([]) + 1} of {len(found)} is empty")
            return [ref for refs in found for ref in refs]
        if isinstance(value, ImageRef):
            return [value]
        if isinstance(value, Blob):
            return [ImageRef(place, lambda: self._found(value.load()))]
        return [ImageRef(place, value if isinstance(value, Image.Image) else self._found(value))]

    def size(self, ref: ImageRef) -> tuple[int, int]:
        """Return width and height; those of files are remembered."""
        if not isinstance(ref.source, Path):
            return ref.size
        if ref.source not in self._sizes:
            self._sizes[ref.source] = ref.size
        return self._sizes[ref.source]

    def _found(self, value: Any) -> bytes | Path:
        given = value
        if isinstance(value, dict):
            value = first(value, "bytes", "path", "url")
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, Path):
            return value
        if not isinstance(value, str) or not value:
            raise DataError(f"an image is {shown(given)}: neither a path nor base64 nor bytes")
        if value.startswith("data:") or _BASE64.match(value):
            try:
                return base64.b64decode("".join(value.rpartition(",")[2].split()), validate=True)
            except ValueError as error:
                raise DataError(f"the image's base64 text is damaged ({error})") from None
        value = value.removeprefix("file://")
        if _WEB.match(value):
            raise DataError(f"the image {shown(value)} is on the web: download it and name the file")
        if "\0" in value or len(value) > 4096 or _HALF.search(value):
            raise DataError(f"{shown(value)} is no path of an image")
        return self.root / value


def image_texts(cell: str) -> list[str]:
    """Return the images of a table's cell: one, or a list with or without quotes around its items."""
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return [cell] if cell else []
    try:
        return [str(image) for image in listed(cell, "image")]
    except DataError:
        return [part.strip() for part in cell[1:-1].split(",")]


def shown(value: Any, most: int = 60) -> str:
    """Return a value as errors show it, cut after ``most`` characters."""
    text = repr(value[: 2 * most]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= most else text[:most] + "..."


def filled(value: Any) -> bool:
    """Whether a field has a value: not None, an empty text, or what pandas has in an empty cell (NaN, NA)."""
    if value is None or isinstance(value, str | float):
        return bool(value == value and value not in (None, ""))
    return type(value).__name__ != "NAType"


def first(record: Record, *names: str) -> Any:
    """Return the first of these fields that is filled, None if none is."""
    return next((record[name] for name in names if filled(record.get(name))), None)


def text(value: Any, name: str, longest: int = LONGEST) -> str:
    """Return a text without spaces around it.

    Raises:
        DataError: The value is missing, empty, no text, longer than ``longest`` characters, or no Unicode.
    """
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"its {name} is {'missing' if value in (None, '') else shown(value)}")
    if len(value) > longest:
        raise DataError(f"its {name} has {len(value):,} characters, more than {longest:,}")
    if _HALF.search(value):
        raise DataError(f"its {name} holds half a character (a lone surrogate): {shown(value)}")
    return value.strip()


def written(value: Any, name: str) -> str:
    """Return a text as `text` does; a finite number is written out (5.0 as ``5``).

    Raises:
        DataError: The value is neither such a text nor a finite number.
    """
    if isinstance(value, Integral | Decimal) and not isinstance(value, bool):
        value = str(value)
    elif isinstance(value, float) and math.isfinite(value):
        value = str(int(value) if value.is_integer() else value)
    return text(value, name)


def optional(record: Record, *names: str) -> str | None:
    """Return the first of these fields that is filled as `written` does, None if none is.

    Raises:
        DataError: The field is neither a text nor a finite number.
    """
    found = first(record, *names)
    return None if found is None else written(found, next(n for n in names if record.get(n) is found))


def number(value: Any, name: str) -> float:
    """Return a finite number, which may be written as text.

    Raises:
        DataError: The value is something else.
    """
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise DataError(f"its {name} is {shown(value)}, not a number")
    return found


def decoded(value: Any, name: str, kind: str, *types: type) -> Any:
    """Return a value of one of these types, or a text of it in JSON or as Python or numpy prints it.

    Tables of benchmarks have such texts. ``kind`` is what errors call the value.

    Raises:
        DataError: The value is something else.
    """
    found = value
    if isinstance(value, str):
        for read in (json.loads, _printed_by_numpy, ast.literal_eval):
            with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                found = read(value)
                break
    if not isinstance(found, types):
        raise DataError(f"its {name} is {shown(value)}, not {kind}")
    return found


def _printed_by_numpy(value: str) -> list[str]:
    """Return the texts of ``['a' 'b']`` or ``array(['a', 'b'], dtype=object)``.

    Python reads the first as one text.

    Raises:
        ValueError: It is no such list.
    """
    if not (_NUMPY.match(value)):
        raise ValueError
    return [ast.literal_eval(text) for text in _QUOTED.findall(value)]


def listed(value: Any, name: str) -> list[Any]:
    """Return a list, which may be written as `decoded` reads it.

    Raises:
        DataError: The value is something else.
    """
    return list(decoded(value, name, "a list", list, tuple))


def mapped(value: Any, name: str) -> dict[str, Any]:
    """Return an object, which may be written as `decoded` reads it.

    Raises:
        DataError: The value is something else.
    """
    found: dict[str, Any] = decoded(value, name, "an object", dict)
    return found


def sides(value: Any, name: str) -> list[float]:
    """Return four finite numbers.

    Raises:
        DataError: The value is something else.
    """
    values = listed(value, name)
    if len(values) != 4:
        raise DataError(f"its {name} is {shown(value)}, not four numbers")
    return [number(v, name) for v in values]


def box(value: Any, size: tuple[int, int]) -> list[float]:
    """Return a box ``[x1, y1, x2, y2]`` within an image of ``size``; `SLACK` pixels outside are cut off.

    Raises:
        DataError: The value is not four numbers, has its corners in the wrong order, or reaches out further.
    """
    x1, y1, x2, y2 = sides(value, "box")
    if x1 >= x2 or y1 >= y2:
        which = "x1 >= x2" if x1 >= x2 else "y1 >= y2"
        raise DataError(f"its box {[x1, y1, x2, y2]} has {which}; it has to be [x1, y1, x2, y2]")
    width, height = size
    if max(x2, y2) <= 1 < min(size):
        raise DataError(
            f"its box {[x1, y1, x2, y2]} is not larger than a pixel: if these are parts of the sides, "
            "name them bbox_x1_norm, bbox_y1_norm, bbox_x2_norm, bbox_y2_norm"
        )
    if x1 < -SLACK or y1 < -SLACK or x2 > width + SLACK or y2 > height + SLACK:
        raise DataError(f"its box {[x1, y1, x2, y2]} reaches out of the image ({width} x {height})")
    return [max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))]


def polygon(value: Any, name: str = "polygon") -> list[list[float]]:
    """Return the points ``[[x, y], ...]`` of a polygon, three or more.

    Raises:
        DataError: The value is no polygon.
    """
    points = [[number(v, name) for v in listed(point, name)] for point in listed(value, name)]
    if len(points) < 3 or any(len(point) != 2 for point in points):
        raise DataError(f"its {name} needs three points [x, y] or more")
    return points


def one_image(refs: Sequence[ImageRef]) -> ImageRef:
    """Return a row's only image.

    Raises:
        DataError: The row has no image, or several.
    """
    if len(refs) != 1:
        raise DataError(f"it has {len(refs)} images where one is needed")
    return refs[0]
