"""Make AndroidControl's TFRecords one Parquet file of steps on a phone, which `selfverify.data` reads.

    python -m reproduce.convert_android_control android_control-00000-of-00020 00000.parquet

The files (google-research/android_control) are plain or packed by GZIP. TensorFlow is not needed: a record is
its length (uint64), the length's checksum (uint32), the content and its checksum, all little endian; a
checksum is a CRC32C, rotated and shifted (tensorflow/core/lib/hash/crc32c.h). Examples and accessibility
forests are read by their fields' numbers, with `protobuf` and `google-crc32c`.

Each screenshot of an episode is a row; at the last one, for which the file has no action, it is ``terminate``
with ``added: true``, as the published evaluators have it. A ``scroll`` names where the content goes on, so
the finger swipes the other way. ``ui_boxes`` is the smallest visible element around a press. A step that
cannot be read takes the later ones of its episode with it, since their history would lack it.
"""

from __future__ import annotations

import gzip
import itertools
import json
import struct
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import written_whole
from selfverify.data.gui_actions import check_action, screen_of

LONGEST_RECORD = 2**28
"""Bytes of a record, at most; one of AndroidControl has some screenshots of 1 MB."""
HEAD = struct.Struct("<QI")
BUTTONS = {"navigate_home": "Home", "navigate_back": "Back"}
SWIPES = {
    "down": ((2, 3), (2, 1)),
    "up": ((2, 1), (2, 3)),
    "right": ((3, 2), (1, 2)),
    "left": ((1, 2), (3, 2)),
}
"""Where the finger begins and ends for content that goes on there, in quarters of the screen's sides."""

Features = Mapping[str, list[Any]]


def parts(message: bytes, wanted: int) -> list[Any]:
    """Return a field's values in a protocol buffer: integers, or bytes (texts, messages, packed numbers).

    Raises:
        DataError: The bytes are no message, or are cut off.
    """
    try:
        read = UnknownFieldSet(Empty.FromString(message))
    except DecodeError as error:
        raise DataError(f"a protocol buffer is damaged or cut off ({error})") from None
    return [field.data for field in read if field.field_number == wanted]


def integers(message: bytes, wanted: int) -> list[int]:
    """Return a field's integers, packed or not."""
    found: list[int] = []
    for value in parts(message, wanted):
        if isinstance(value, int):
            found.append(value)
            continue
        number = shift = 0
        for byte in value:
            number, shift = number | (byte & 127) << shift, shift + 7
            if byte < 128:
                found.append(number)
                number = shift = 0
    return [value - 2**64 if value >= 2**63 else value for value in found]


def parse_example(message: bytes) -> dict[str, list[Any]]:
    """Return the features of a `tf.train.Example` by name: lists of bytes or integers (it has no others).

    Raises:
        DataError: The bytes are no example, or are cut off.
    """
    found: dict[str, list[Any]] = {}
    for entry in itertools.chain.from_iterable(parts(features, 1) for features in parts(message, 1)):
        name, feature = ((parts(entry, number) or [b""])[-1] for number in (1, 2))
        texts, numbers = parts(feature, 1), parts(feature, 3)
        found[str(name, "utf-8", "replace")] = [
            *(part for values in texts for part in parts(values, 1)),
            *(value for values in numbers for value in integers(values, 1)),
        ]
    return found


def forest_boxes(message: bytes) -> list[list[int]]:
    """Return ``[left, top, right, bottom]`` of the visible nodes of an `AndroidAccessibilityForest`.

    Raises:
        DataError: The bytes are no forest, or are cut off.
    """
    boxes = []
    trees = (tree for window in parts(message, 1) for tree in parts(window, 11))
    for node in (node for tree in trees for node in parts(tree, 1)):
        for rect in parts(node, 2)[-1:]:
            # A side of 0 is left out, as proto3 does.
            left, top, right, bottom = box = [(integers(rect, side) or [0])[-1] for side in (1, 2, 3, 4)]
            if integers(node, 23)[-1:] == [1] and left < right and top < bottom:
                boxes.append(box)
    return boxes


def masked_crc(data: bytes) -> int:
    """Return TFRecord's checksum of ``data``."""
    import google_crc32c

    crc = google_crc32c.value(data)
    return int(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def records(opened: BinaryIO) -> Iterator[bytes | DataError]:
    """Yield the contents of a file's records. They go on only after an error in a content's checksum."""
    while head := opened.read(HEAD.size):
        if len(head) < HEAD.size:
            yield DataError("the file ends inside a record's head: it is cut off")
            return
        length, check = HEAD.unpack(head)
        if check != masked_crc(head[:8]) or length > LONGEST_RECORD:
            yield DataError(f"its length, {length:,} bytes, is wrong; nothing from here on can be read")
            return
        content, last = opened.read(length), opened.read(4)
        if len(last) < 4:
            yield DataError("the file ends inside it: it is cut off")
            return
        damaged = DataError("its checksum is wrong: the file is damaged here")
        yield content if struct.pack("<I", masked_crc(content)) == last else damaged


def _place(screen: tuple[int, int], quarters: tuple[int, int]) -> list[int]:
    far = [side - side // 4 for side in screen]
    return [far[axis] if n == 3 else screen[axis] * n // 4 for axis, n in enumerate(quarters)]


def action_of(action: Any, screen: tuple[int, int]) -> dict[str, Any]:
    """Return one of AndroidControl's actions as `check_action` does.

    Raises:
        DataError: AndroidControl has no such action, or the action is not on the screen.
    """
    about = action if isinstance(action, dict) else {}
    match about.get("action_type"):
        case "click" | "long_press" as kind:
            found = {"action": kind, "coordinate": [about.get("x"), about.get("y")]}
        case "scroll" if about.get("direction") in SWIPES:
            begin, end = (_place(screen, quarters) for quarters in SWIPES[about["direction"]])
            found = {"action": "swipe", "coordinate": begin, "coordinate2": end}
        case "input_text" | "type":
            found = {"action": "type", "text": about.get("text")}
        case "open_app":
            found = {"action": "open", "text": about.get("app_name")}
        case "navigate_home" | "navigate_back" as kind:
            found = {"action": "system_button", "button": BUTTONS[kind]}
        case "wait":
            found = {"action": "wait"}
        case _:
            raise DataError(f"its action is {action!r}, which AndroidControl does not have")
    return check_action(found, screen)


def steps(features: Features) -> Iterator[dict[str, Any] | DataError]:
    """Yield the rows of an episode, up to the first step that cannot be read, and its error.

    Raises:
        DataError: The episode's lists do not fit each other.
    """
    [episode], [goal] = features["episode_id"], features["goal"]
    images, actions, asked = (features[name] for name in ("screenshots", "actions", "step_instructions"))
    sizes = list(zip(features["screenshot_widths"], features["screenshot_heights"], strict=True))
    if not len(images) == len(sizes) == len(actions) + 1 == len(asked) + 1:
        raise DataError(f"{len(images)} screenshots, {len(sizes)} sizes, {len(actions)} actions")
    history: list[dict[str, Any]] = []
    for step, (image, size) in enumerate(zip(images, sizes, strict=True)):
        added = step == len(images) - 1
        try:
            screen = screen_of(*size)
            done: dict[str, Any] = {"action": "terminate", "status": "success"}
            if not added:
                done = action_of(json.loads(actions[step]), screen)
            boxes = forest_boxes((features.get("accessibility_trees") or [b""] * len(images))[step])
        except (DataError, ValueError, TypeError, IndexError) as error:
            yield DataError(f"step {step} of episode {episode}: {error}")
            return
        x, y = done["coordinate"] if done["action"] in ("click", "long_press") else (-1, -1)
        around = [box for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
        yield {
            "id": f"{episode}/{step}", "source": "AndroidControl", "category": done["action"],
            "goal": str(goal, "utf-8", "replace"),
            "step_instruction": None if added else str(asked[step], "utf-8", "replace") or None,
            "history": list(history), "action": done, "screen": list(screen), "image": image,
            "ui_boxes": sorted(around, key=lambda box: (box[2] - box[0]) * (box[3] - box[1]))[:1],
            "episode": str(episode), "step": step, "added": added,
        }  # fmt: skip
        history.append(done)


def convert(source: Path, target: Path) -> tuple[int, list[str]]:
    """Convert a file; return the number of rows, and what is left out and why.

    Raises:
        DataError: No row can be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    action = pa.struct([
        ("action", pa.string()), ("coordinate", pa.list_(pa.int64())), ("coordinate2", pa.list_(pa.int64())),
        *((name, pa.string()) for name in ("text", "button", "status")), ("time", pa.float64()),
    ])  # fmt: skip
    text, whole = pa.string(), pa.list_(pa.int64())
    schema = pa.schema([
        ("id", text), ("source", text), ("category", text), ("goal", text), ("step_instruction", text),
        ("history", pa.list_(action)), ("action", action), ("screen", whole), ("episode", text),
        ("step", pa.int64()), ("added", pa.bool_()), ("image", pa.binary()), ("ui_boxes", pa.list_(whole)),
    ])  # fmt: skip
    count, left = 0, list[str]()
    with source.open("rb") as opened:
        zipped = opened.read(2) == b"\x1f\x8b"
    with (
        gzip.open(source) if zipped else source.open("rb") as opened,
        written_whole(target) as partial,
        parquet.ParquetWriter(partial, schema) as writer,
    ):
        for number, found in enumerate(_rows(opened), start=1):
            rows = [row for row in found if isinstance(row, dict)]
            left += [f"{source}, record {number}: {row}" for row in found if isinstance(row, DataError)]
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
        if not count:
            raise DataError("\n".join([f"{source} has no episode that can be read", *left[:10]]))
    return count, left


def _rows(opened: Any) -> Iterator[list[dict[str, Any] | DataError]]:
    """Yield each record's rows; what cannot be unpacked any further is an error of the next record."""
    try:
        for record in records(opened):
            try:
                yield [record] if isinstance(record, DataError) else list(steps(parse_example(record)))
            except (DataError, KeyError, ValueError, TypeError) as error:
                yield [DataError(f"it is no episode ({type(error).__name__}: {error})")]
    except (zlib.error, OSError, EOFError) as error:
        yield [DataError(f"the file cannot be unpacked from here on ({error})")]


if __name__ == "__main__":
    try:
        rows, left_out = convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (SelfVerifyError, OSError, ImportError, IndexError) as fault:
        sys.exit(f"{fault}\nuse: python -m reproduce.convert_android_control FILE OUTPUT.parquet")
    print(f"{rows} steps: {sys.argv[2]}", *left_out, sep="\n")
    sys.exit(1 if left_out else 0)
