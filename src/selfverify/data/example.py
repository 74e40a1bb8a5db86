"""Reading `tf.train.Example` and Android's accessibility forests from protocol buffers' wire format."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from selfverify.core.errors import DataError

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
            name, feature = b"", b""
            for number, value in wire_fields(entry):
                if number == 1 and not isinstance(value, int):
                    name = bytes(value)
                elif number == 2 and not isinstance(value, int):
                    feature = value  # type: ignore[assignment]
            found[name.decode("utf-8", "replace")] = _feature(feature)
    return found


def forest_boxes(message: Bytes) -> list[list[int]]:
    """Return ``[left, top, right, bottom]`` of the visible nodes of an `AndroidAccessibilityForest`.

    Raises:
        DataError: The bytes are no forest, or are cut off.
    """
    boxes = []
    for window in _parts(message, 1):
        for tree in _parts(window, 11):
            for node in _parts(tree, 1):
                box, visible = [0, 0, 0, 0], False
                for number, value in wire_fields(node):
                    if number == 2 and not isinstance(value, int):
                        for side, place in wire_fields(value):
                            if 1 <= side <= 4 and isinstance(place, int):
                                box[side - 1] = _signed(place)
                    elif number == 23:
                        visible = value == 1
                if visible and box[0] < box[2] and box[1] < box[3]:
                    boxes.append(box)
    return boxes


def _feature(message: Bytes) -> Feature:
    for number, value in wire_fields(message):
        if isinstance(value, int):
            continue
        if number == 1:
            return [bytes(part) for part in _parts(value, 1)]
        if number == 2:
            parts = b"".join(bytes(part) for part in _parts(value, 1))
            return [v for (v,) in struct.iter_unpack("<f", parts[: len(parts) // 4 * 4])]
        if number == 3:
            return list(_integers(value))
    return []


def _integers(message: Bytes) -> Iterator[int]:
    for number, value in wire_fields(message):
        if number != 1:
            continue
        if isinstance(value, int):
            yield _signed(value)
            continue
        place = 0
        while place < len(value):
            found, place = _varint(value, place)
            yield _signed(found)


def _parts(message: Bytes, wanted: int) -> Iterator[memoryview]:
    for number, value in wire_fields(message):
        if number == wanted and not isinstance(value, int):
            yield value


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


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
