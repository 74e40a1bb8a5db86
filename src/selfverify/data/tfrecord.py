"""TFRecord files, plain or GZIP, and the examples in them, read without TensorFlow.

A record is its length (uint64), the length's checksum (uint32), the content and its checksum, all little
endian; a checksum is a CRC32C, rotated and shifted (tensorflow/core/lib/hash/crc32c.h). Places are kept at
which reading can begin again. Examples and accessibility forests are read from protocol buffers' wire format.
"""

from __future__ import annotations

import importlib.util
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import open_regular
from selfverify.data.fields import Blob, Place, Record, RowSource, read_at

Bytes = bytes | memoryview
Feature = list[bytes] | list[int] | list[float]


def wire_fields(message: Bytes) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of a message in order: the number and the value, an integer or the field's bytes.

    Raises:
        DataError: The bytes are no message, or are cut off.
    """
    view, place = memoryview(message), 0
    while place < len(view):
        tag, place = _varint(view, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(view, place)
            yield number, value
            continue
        if kind == 2:
            length, place = _varint(view, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise DataError(f"a protocol buffer has a field of wire type {kind}")
        if number == 0 or length > len(view) - place:
            raise DataError("a protocol buffer is cut off inside a field")
        yield number, view[place : place + length]
        place += length


def parse_example(message: Bytes) -> dict[str, Feature]:
    """Return the features of a `tf.train.Example` by name: lists of bytes, integers or floats.

    Raises:
        DataError: The bytes are no example, or are cut off.
    """
    found: dict[str, Feature] = {}
    for features in _parts(message, 1):
        for entry in _parts(features, 1):
            name, feature = (next(reversed(_parts(entry, number)), memoryview(b"")) for number in (1, 2))
            found[str(name, "utf-8", "replace")] = _feature(feature)
    return found


def forest_boxes(message: Bytes) -> list[list[int]]:
    """Return ``[left, top, right, bottom]`` of the visible nodes of an `AndroidAccessibilityForest`.

    Raises:
        DataError: The bytes are no forest, or are cut off.
    """
    trees = [tree for window in _parts(message, 1) for tree in _parts(window, 11)]
    boxes = []
    for node in (node for tree in trees for node in _parts(tree, 1)):
        for rect in _parts(node, 2)[-1:]:
            # A side of 0 is left out, as proto3 does.
            left, top, right, bottom = box = [(_integers(rect, side) or [0])[-1] for side in (1, 2, 3, 4)]
            if _integers(node, 23)[-1:] == [1] and left < right and top < bottom:
                boxes.append(box)
    return boxes


def _feature(message: Bytes) -> Feature:
    for values in _parts(message, 1):
        return [bytes(part) for part in _parts(values, 1)]
    for values in _parts(message, 2):
        packed = b"".join(_parts(values, 1))
        return [value for (value,) in struct.iter_unpack("<f", packed[: len(packed) // 4 * 4])]
    for values in _parts(message, 3):
        return _integers(values, 1)
    return []


def _parts(message: Bytes, wanted: int) -> list[memoryview]:
    """Return a field's values that are bytes: texts, messages, packed numbers."""
    return [v for number, v in wire_fields(message) if number == wanted and not isinstance(v, int)]


def _integers(message: Bytes, wanted: int) -> list[int]:
    """Return a field's integers, packed or not."""
    found = []
    for number, value in wire_fields(message):
        if number == wanted and isinstance(value, int):
            found.append(value)
        elif number == wanted and not isinstance(value, int):
            place = 0
            while place < len(value):
                integer, place = _varint(value, place)
                found.append(integer)
    return [value - 2**64 if value >= 2**63 else value for value in found]


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(view) or shift > 63:
            raise DataError("a protocol buffer is cut off inside a number")
        byte = view[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), place
        shift += 7


LONGEST_RECORD = 2**28
"""Bytes of a record, at most; one of AndroidControl has some screenshots of 1 MB."""
MOST_UNPACKED, MOST_FOLD = 2**25, 100
"""A GZIP file that unpacks to more bytes than the first may not unpack to more than the second times its own.
Screenshots are packed already: such a file is made to fill the memory."""
HEAD = struct.Struct("<QI")
CHUNK = 2**18
APART = 32 * 2**20
"""Bytes between two places of a GZIP file at which reading can begin. Each place takes 40 KB of memory."""

PICTURES = ("screenshots",)
"""Features that become blobs."""
HEAVY = ("accessibility_trees",)
"""Features that are read with a row, not when the file is opened."""


def masked_crc(data: bytes) -> int:
    """Return TFRecord's checksum of ``data``."""
    import google_crc32c

    crc = google_crc32c.value(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def is_tfrecord(beginning: bytes) -> bool:
    """Whether a file's first bytes (those within, of a GZIP file) are a record's head."""
    if len(beginning) < HEAD.size or importlib.util.find_spec("google_crc32c") is None:
        return False
    return bool(HEAD.unpack_from(beginning)[1] == masked_crc(beginning[:8]))


class TFRecords(RowSource):
    """The `tf.train.Example`s of one file, packed by GZIP or not. Texts are decoded, all values are lists.

    AndroidControl is the one data set that is read from such files; its features are named here.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self._offsets, self._lengths = array("q"), array("q")
        self._content: _Plain | _Gzip | None = None
        self._last: tuple[int, dict[str, Feature]] | None = None

    def walk(self) -> Iterator[dict[str, Feature] | DataError]:
        """See `RowSource.walk`. After a record whose length cannot be trusted nothing can be read."""
        if importlib.util.find_spec("google_crc32c") is None:
            raise ConfigError(f"{self.file}: reading this needs a package; pip install 'selfverify[data]'")
        with open_regular(self.file) as opened:
            zipped = opened.read(2) == b"\x1f\x8b"
        self._content = content = _Gzip(self.file) if zipped else _Plain(self.file)
        offset = 0
        for length, found in _frames(content.walk()):
            self._offsets.append(offset + HEAD.size)
            self._lengths.append(length)
            offset += HEAD.size + length + 4
            try:
                if isinstance(found, DataError):
                    raise found
                yield {name: v for name, v in parse_example(found).items() if name not in HEAVY}
            except DataError as error:
                yield error

    def stored(self, number: int) -> dict[str, Feature]:
        """See `RowSource.stored`."""
        # A step and its screenshot are asked for one after the other.
        if self._last is None or self._last[0] != number:
            assert self._content is not None
            raw = self._content.read(self._offsets[number], self._lengths[number])
            self._last = number, parse_example(raw)
        return self._last[1]

    def parsed(self, stored: dict[str, Feature], number: int) -> Record:
        """See `RowSource.parsed`."""
        record: Record = {}
        for name, values in stored.items():
            if name in PICTURES:
                record[name] = [Blob(partial(self._picture, number, name, k)) for k in range(len(values))]
            elif name in HEAVY:
                record[name] = values
            else:
                record[name] = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in values]
        return record

    def place(self, number: int) -> Place:
        """See `RowSource.place`."""
        return Place(self.file, number + 1, "record")

    def _picture(self, number: int, name: str, k: int) -> Any:
        return self.stored(number)[name][k]


def _frames(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes | DataError]]:
    """Yield the records' lengths and contents. Records go on only after an error in a content's checksum."""
    buffer = bytearray()

    def fill(count: int) -> bool:
        while len(buffer) < count:
            chunk = next(chunks, None)
            if chunk is None:
                return False
            buffer.extend(chunk)
        return True

    while True:
        try:
            if not fill(HEAD.size):
                if buffer:
                    yield 0, DataError("the file ends inside a record's head: it is cut off")
                return
            length, check = HEAD.unpack_from(buffer)
            if check != masked_crc(bytes(buffer[:8])) or length > LONGEST_RECORD:
                yield 0, DataError(_bad_head(length, check))
                return
            if not fill(HEAD.size + length + 4):
                yield 0, DataError("the file ends inside it: it is cut off")
                return
        except (zlib.error, OSError) as error:
            yield 0, DataError(f"the file cannot be unpacked from here on ({error})")
            return
        with memoryview(buffer) as whole, whole[HEAD.size : HEAD.size + length] as part:
            content = bytes(part)
        [check] = struct.unpack_from("<I", buffer, HEAD.size + length)
        del buffer[: HEAD.size + length + 4]
        damaged = DataError("its checksum is wrong: the file is damaged here")
        yield length, content if check == masked_crc(content) else damaged


def _bad_head(length: int, check: int) -> str:
    if check != masked_crc(struct.pack("<Q", length)):
        return "the checksum of its length is wrong; nothing from here on can be read"
    return f"it has {length:,} bytes, more than {LONGEST_RECORD:,}; nothing from here on can be read"


class _Plain:
    def __init__(self, file: Path) -> None:
        self.file = file

    def walk(self) -> Iterator[bytes]:
        with open_regular(self.file) as opened:
            while chunk := opened.read(CHUNK):
                yield chunk

    def read(self, offset: int, length: int) -> bytes:
        return read_at(self.file, offset, length)


class _Gzip:
    """A GZIP file that can be read from its middle: the state of unpacking is kept every `APART` bytes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._begins: list[int] = []
        self._states: list[tuple[int, Any]] = []

    def walk(self) -> Iterator[bytes]:
        """Yield the whole content, and remember places at which reading can begin."""
        with open_regular(self.file) as opened:
            yield from self._unpack(opened, zlib.decompressobj(31), 0, remember=True)

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of the content that `walk` has passed.

        Raises:
            DataError: The file has changed.
        """
        place = bisect_right(self._begins, offset) - 1
        begin, (position, state) = self._begins[place], self._states[place]
        found = bytearray()
        with open_regular(self.file) as opened:
            opened.seek(position)
            try:
                for chunk in self._unpack(opened, state.copy(), begin, remember=False):
                    found.extend(chunk[max(0, offset - begin) :])
                    begin += len(chunk)
                    if len(found) >= length:
                        return bytes(found[:length])
            except zlib.error as error:
                raise DataError(f"{self.file} has changed since it was opened ({error})") from None
        raise DataError(f"{self.file} is shorter than it was when it was opened")

    def _unpack(self, opened: BinaryIO, state: Any, begin: int, remember: bool) -> Iterator[bytes]:
        waiting = b""
        while True:
            if state.eof:  # more files may follow inside this one
                waiting = state.unused_data or opened.read(CHUNK)
                if not waiting.strip(b"\0"):
                    return
                state = zlib.decompressobj(31)
            elif not waiting:
                if remember and (not self._begins or begin - self._begins[-1] >= APART):
                    self._begins.append(begin)
                    self._states.append((opened.tell(), state.copy()))
                waiting = opened.read(CHUNK)
                if not waiting:
                    raise zlib.error("the GZIP file ends too early: it is cut off")
            chunk = state.decompress(waiting, 16 * CHUNK)
            waiting = state.unconsumed_tail
            begin += len(chunk)
            if begin > max(MOST_UNPACKED, MOST_FOLD * opened.tell()):
                raise zlib.error(f"it unpacks to more than {MOST_FOLD} times its size, as no screenshots do")
            yield chunk
