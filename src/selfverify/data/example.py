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
