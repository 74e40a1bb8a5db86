"""AndroidControl's TFRecords as Parquet: every action, what checksums find, and that our reader takes it."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from data_files import png
from reproduce.convert_android_control import convert, forest_boxes, parse_example
from selfverify.core.errors import DataError
from selfverify.data.rows import Rows, open_rows
from tables import read_tables


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord(records: Sequence[bytes]) -> bytes:
    framed = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        framed += length + masked(length) + record + masked(record)
    return framed


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def part(number: int, content: bytes | int) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(features: Mapping[str, Sequence[Any]]) -> bytes:
    """A `tf.train.Example` of bytes, texts and integers (packed, as TensorFlow writes them)."""
    entries = b""
    for name, values in features.items():
        if values and isinstance(values[0], int):
            feature = part(3, part(1, b"".join(map(varint, values))))
        elif values and isinstance(values[0], float):
            feature = part(2, part(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            texts = [v.encode() if isinstance(v, str) else v for v in values]
            feature = part(1, b"".join(part(1, text) for text in texts))
        entries += part(1, part(1, name.encode()) + part(2, feature))
    return part(1, entries)


def forest(
    boxes: Sequence[tuple[int, int, int, int]], hidden: Sequence[tuple[int, int, int, int]] = ()
) -> bytes:
    """An `AndroidAccessibilityForest` of one window, with visible and hidden nodes."""
    nodes = b""
    for shown, some in ((1, boxes), (0, hidden)):
        for number, box in enumerate(some):
            # Zeros are left out, as in proto3.
            rect = b"".join(part(side, value) for side, value in enumerate(box, 1) if value)
            node = part(1, number) + part(2, rect) + part(3, b"android.view.View") + part(14, 1)
            nodes += part(1, node + (part(23, 1) if shown else b""))
    return part(1, part(3, 7) + part(11, nodes))


ANDROID_ACTIONS: list[dict[str, Any]] = read_tables(Path(__file__).with_suffix(".yaml"))["android_actions"]


def android_episode(
    number: int = 7, actions: Sequence[Mapping[str, Any]] = ANDROID_ACTIONS, **changes: Any
) -> bytes:
    """An episode of AndroidControl, screenshots smaller than the screen they are said to be of."""
    steps = len(actions) + 1
    features: dict[str, Any] = {
        "episode_id": [number],
        "goal": ["Set an alarm for 7:30"],
        "screenshots": [png(54, 120, shade=step) for step in range(steps)],
        "accessibility_trees": [
            forest([(0, 0, 1080, 2400), (500, 1100, 600, 1300)], [(530, 1190, 550, 1210)])
            for _ in range(steps)
        ],
        "screenshot_widths": [1080] * steps,
        "screenshot_heights": [2400] * steps,
        "actions": [json.dumps(action) for action in actions],
        "step_instructions": [f"do step {step}" for step in range(len(actions))],
    }
    return example(features | changes)


def write_android_control(path: Path, episodes: Sequence[bytes], zipped: bool = True) -> Path:
    framed = tfrecord(episodes)
    path.write_bytes(gzip.compress(framed, mtime=0) if zipped else framed)
    return path


CANONICAL = read_tables(Path(__file__).with_suffix(".yaml"))["canonical"]


def converted(file: Path) -> tuple[Rows, list[str]]:
    """The rows of a file's steps, and what was left out."""
    target = file.with_suffix(".parquet")
    count, left = convert(file, target)
    rows = open_rows(target)
    assert len(rows) == count and not rows.bad
    return rows, left


@pytest.mark.parametrize("zipped", [True, False])
def test_every_step_is_a_row(tmp_path: Path, zipped: bool) -> None:
    name = "android_control-00000-of-00020"
    path = write_android_control(tmp_path / name, [android_episode(7), android_episode(8)], zipped)
    rows, left = converted(path)
    assert len(rows) == 18 and not left
    assert [row["action"] for row in rows][:9] == CANONICAL
    assert [row["history"] for row in rows][:9] == [CANONICAL[:k] for k in range(9)]
    row = rows[10]
    assert (
        row["id"] == f"{name}/8/1"
        and row["goal"] == "Set an alarm for 7:30"
        and row["source"] == "AndroidControl"
    )
    assert row["step_instruction"] == "do step 1" and row["screen"] == (1080, 2400) and row["episode"] == "8"
    assert row["images"][0].data() == png(54, 120, shade=1) and row["ui_boxes"] == [[500, 1100, 600, 1300]]
    assert rows[13]["ui_boxes"] == [[0, 0, 1080, 2400]] and not rows[9]["ui_boxes"]
    last = rows[17]
    assert last["added"] and last["step_instruction"] is None and not rows[16]["added"]
    with pytest.raises(DataError, match=r"reproduce\.convert_android_control"):
        open_rows(path)


def test_a_scroll_is_a_swipe_the_other_way(tmp_path: Path) -> None:
    top, bottom, left, right = [540, 600], [540, 1800], [270, 1200], [810, 1200]
    ways = {"down": (bottom, top), "up": (top, bottom), "right": (right, left), "left": (left, right)}
    episode = android_episode(1, [{"action_type": "scroll", "direction": way} for way in ways])
    rows, _ = converted(write_android_control(tmp_path / "a", [episode]))
    for row, (begin, end) in zip(rows, ways.values(), strict=False):
        assert row["action"] == {"action": "swipe", "coordinate": begin, "coordinate2": end}


def test_a_broken_step_ends_its_episode(tmp_path: Path) -> None:
    far = {"action_type": "click", "x": 5000, "y": 5}
    path = write_android_control(
        tmp_path / "a",
        [
            android_episode(1, [ANDROID_ACTIONS[0], far, ANDROID_ACTIONS[1]]),
            android_episode(2, [{"action_type": "fly"}]),
            android_episode(3, [{"action_type": "wait"}]).replace(b'"wait"}', b'"wait"!'),
            android_episode(4, screenshot_widths=[1080]),
            android_episode(5, [ANDROID_ACTIONS[0]]),
            android_episode(6, ANDROID_ACTIONS[:1], episode_id=[]),
            android_episode(7, ANDROID_ACTIONS[:1], screenshot_heights=[0, 0]),
        ],
    )
    rows, left = converted(path)
    assert [row["id"] for row in rows] == ["a/1/0", "a/5/0", "a/5/1"]
    assert [int(text.split("record ")[1][0]) for text in left] == [1, 2, 3, 4, 6, 7]
    assert "step 1 of episode 1: its coordinate [5000, 5] is not on the screen (1080 x 2400)" in left[0]
    assert "AndroidControl does not have" in left[1] and "step 0 of episode 3" in left[2]
    assert "it is no episode" in left[3] and "1080 x 0" in left[5]


def test_damage_is_found_by_the_checksums(tmp_path: Path) -> None:
    whole = tfrecord([android_episode(k, ANDROID_ACTIONS[:1]) for k in range(3)])
    size = len(whole) // 3
    path = tmp_path / "a"

    def broken(content: bytes) -> tuple[list[str], list[str]]:
        path.write_bytes(content)
        rows, left = converted(path)
        return [row["episode"] for row in rows], left

    content = bytearray(whole)
    content[size + 500] ^= 1
    episodes, [reason] = broken(gzip.compress(content))
    assert episodes == ["0", "0", "2", "2"] and "record 2: its checksum is wrong" in reason
    content = bytearray(whole)
    content[size] ^= 1
    episodes, [reason] = broken(bytes(content))
    assert episodes == ["0", "0"] and "record 2: its length" in reason
    length = struct.pack("<Q", 2**60)
    episodes, [reason] = broken(whole[:size] + length + masked(length) + b"rest")
    assert episodes == ["0", "0"] and "nothing from here on can be read" in reason
    for packed in (gzip.compress(whole[:-3]), whole[:-3], gzip.compress(whole)[:-12]):
        episodes, [reason] = broken(packed)
        assert episodes[:4] == ["0", "0", "1", "1"] and ("cut off" in reason or "unpacked" in reason)
    path.write_bytes(b"\0" * 40)
    with pytest.raises(DataError, match="no episode that can be read"):
        convert(path, tmp_path / "b.parquet")
    assert not (tmp_path / "b.parquet").exists()


def test_features_and_forests() -> None:
    features = {"b": [b"x", b""], "i": [0, 1, 300, -5, 2**62], "none": [], "ü": ["ä"]}
    assert parse_example(example(features)) == features | {"ü": ["ä".encode()]}
    assert parse_example(b"\x0a\x0b\x0a\x09\x0a\x01u\x12\x04\x1a\x02\x08\x07") == {"u": [7]}
    assert forest_boxes(forest([(0, 1, 20, 30), (5, 5, 5, 9)], [(1, 1, 2, 2)])) == [[0, 1, 20, 30]]
    assert forest_boxes(b"") == []
    message = android_episode(1, ANDROID_ACTIONS[:1])
    for length in range(1, len(message), 7):
        with pytest.raises(DataError):
            parse_example(message[:length])
