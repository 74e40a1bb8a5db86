"""TFRecord files, plain or GZIP, without TensorFlow: framing, checksums, and places to come back to.

A record is its length (uint64), the length's checksum (uint32), the content and its checksum, all little
endian; a checksum is a CRC32C, rotated and shifted (tensorflow/core/lib/hash/crc32c.h).
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
from selfverify.data.example import Feature, parse_example
from selfverify.data.fields import Blob, Place, Record, RowSource, read_at

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
