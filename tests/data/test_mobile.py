"""AndroidControl's TFRecords and GUI-Odyssey's JSON files, and their actions in one form."""

from __future__ import annotations

import gzip
import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_files import (
    ANDROID_ACTIONS,
    ODYSSEY_STEPS,
    android_episode,
    base64_png,
    crc32c,
    example,
    forest,
    png,
    tfrecord,
    write_android_control,
    write_jsonl,
    write_odyssey,
)
from selfverify.core.errors import ConfigError, DataError
from selfverify.data import open_rows
from selfverify.data import tfrecord as reader
from selfverify.data.gui_actions import check_action
from selfverify.data.tfrecord import forest_boxes, parse_example

CANONICAL = [
    {"action": "open", "text": "Clock"},
    {"action": "click", "coordinate": [540, 1200]},
    {"action": "swipe", "coordinate": [540, 1800], "coordinate2": [540, 600]},  # the finger goes up
    {"action": "type", "text": "7:30"},
    {"action": "long_press", "coordinate": [10, 20]},
    {"action": "system_button", "button": "Back"},
    {"action": "system_button", "button": "Home"},
    {"action": "wait"},
    {"action": "terminate", "status": "success"},
]


def test_the_writers_checksum_is_crc32c() -> None:
    """RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283 and crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize("zipped", [True, False])
def test_android_control(tmp_path: Path, zipped: bool) -> None:
    path = write_android_control(
        tmp_path / "android_control-00000-of-00020", [android_episode(7), android_episode(8)], zipped
    )
    for where in (path, tmp_path):
        rows = open_rows(where)
        assert rows.format == "android-control" and len(rows) == 18 and not rows.bad
        assert [row["action"] for row in rows[:9]] == CANONICAL
        assert [row["history"] for row in rows[:9]] == [CANONICAL[:k] for k in range(9)]
    row = rows[10]
    assert row["id"] == "android_control-00000-of-00020/8/1" and row["goal"] == "Set an alarm for 7:30"
    assert row["step_instruction"] == "do step 1" and row["screen"] == (1080, 2400) and row["episode"] == "8"
    assert row["images"][0].data() == png(54, 120, shade=1) and row["ui_boxes"] == [[500, 1100, 600, 1300]]
    assert rows[13]["ui_boxes"] == [[0, 0, 1080, 2400]] and "ui_boxes" not in rows[9]
    last = rows[17]
    assert last["added"] and last["step_instruction"] is None and not rows[16]["added"]


@pytest.mark.parametrize(
    ("direction", "begin", "end"),
    [
        ("down", [540, 1800], [540, 600]),
        ("up", [540, 600], [540, 1800]),
        ("right", [810, 1200], [270, 1200]),
        ("left", [270, 1200], [810, 1200]),
    ],
)
def test_a_scroll_is_a_swipe_the_other_way(
    tmp_path: Path, direction: str, begin: list[int], end: list[int]
) -> None:
    episode = android_episode(1, [{"action_type": "scroll", "direction": direction}])
    [row, _] = open_rows(write_android_control(tmp_path / "a", [episode]))
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
        ],
    )  # fmt: skip
    rows = open_rows(path)
    assert [row["id"] for row in rows] == ["a/1/0", "a/5/0", "a/5/1"]
    assert [bad.line for bad in rows.bad] == [1, 1, 1, 2, 2, 3, 3, 4]
    assert (
        "step 1 of episode 1: its coordinate [5000, 5] is not on the screen (1080 x 2400)"
        in rows.bad[0].reason
    )
    assert "AndroidControl does not have" in rows.bad[3].reason and "not JSON" in rows.bad[5].reason
    assert "9 screenshots, 1 widths" in rows.bad[7].reason and rows.bad[7].place == f"{path}, record 4"


def test_a_tree_of_another_type_is_named(tmp_path: Path) -> None:
    """Trees are left out when a file is opened, and read with their step."""
    press = {"action_type": "click", "x": 540, "y": 1200}
    path = write_android_control(tmp_path / "a", [android_episode(1, [press], accessibility_trees=[5, 5])])
    rows = open_rows(path)
    with pytest.raises(DataError, match=r"record 1: step 0 of episode 1: its accessibility tree is 5, not"):
        rows[0]
    assert rows[1]["added"] is True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": [5]}, "its goal is 5"),
        ({"goal": ["a", "b"]}, r"its goal is \['a', 'b'\], not one value"),
        ({"episode_id": []}, "its episode_id is missing"),
        ({"step_instructions": [7]}, "step 0 of episode 1: its step_instruction is 7"),
        ({"screenshot_widths": ["a", "b"]}, "step 0 of episode 1: its screen's width is 'a', not a number"),
        ({"screenshot_heights": [0, 0]}, "step 0 of episode 1: its screen is 1080 x 0"),
    ],
)
def test_wrong_features_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_android_control(tmp_path / "a", [android_episode(1, [ANDROID_ACTIONS[0]], **changes)])
    with pytest.raises(DataError, match=rf"a, record 1: {message}"):
        open_rows(path, on_bad="refuse")


def test_damage_is_found_by_the_checksums(tmp_path: Path) -> None:
    whole = tfrecord([android_episode(k, ANDROID_ACTIONS[:1]) for k in range(3)])
    size = len(whole) // 3
    path = tmp_path / "android_control-00001-of-00020"

    def broken(content: bytes, zipped: bool = True) -> tuple[list[str], list[tuple[int, str]]]:
        path.write_bytes(gzip.compress(content) if zipped else content)
        rows = open_rows(path)
        return [row["episode"] for row in rows], [(bad.line, bad.reason) for bad in rows.bad]

    content = bytearray(whole)
    content[size + 500] ^= 1
    assert broken(bytes(content)) == (
        ["0", "0", "2", "2"],
        [(2, "its checksum is wrong: the file is damaged here")],
    )
    content = bytearray(whole)
    content[size] ^= 1
    episodes, [(line, reason)] = broken(bytes(content))
    assert episodes == ["0", "0"] and line == 2 and "checksum of its length" in reason
    for zipped in (True, False):
        episodes, [(line, reason)] = broken(whole[:-3], zipped)
        assert episodes == ["0", "0", "1", "1"] and line == 3 and "cut off" in reason
    path.write_bytes(gzip.compress(whole)[:-12])
    rows = open_rows(path)
    assert len(rows) == 4 and "cut off" in rows.bad[0].reason


def test_the_middle_of_a_gzip_file_is_read_without_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places are kept while scanning; several GZIP members in one file are one content."""
    monkeypatch.setattr(reader, "APART", 2000)
    monkeypatch.setattr(reader, "CHUNK", 512)
    noise = random.Random(0)  # does not get shorter by packing
    trees = [[forest([]), forest([]), noise.randbytes(900)] for _ in range(40)]
    episodes = [android_episode(k, ANDROID_ACTIONS[:2], accessibility_trees=trees[k]) for k in range(40)]
    whole = tfrecord(episodes)
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(whole[:30_000]) + gzip.compress(whole[30_000:]))
    rows = open_rows(path)
    for k in (119, 3, 60, 61, 0):
        assert rows[k]["episode"] == str(k // 3) and rows[k]["images"][0].data() == png(54, 120, shade=k % 3)


def test_features_of_all_kinds() -> None:
    features = {"b": [b"x", b""], "i": [0, 1, 300, -5, 2**62], "f": [0.5, -2.0], "none": [], "ü": ["ä"]}
    parsed = parse_example(example(features))
    assert parsed == features | {"ü": ["ä".encode()]}
    unpacked = b"\x0a\x0b\x0a\x09\x0a\x01u\x12\x04\x1a\x02\x08\x07"
    assert parse_example(unpacked) == {"u": [7]}


def test_forests() -> None:
    assert forest_boxes(forest([(0, 1, 20, 30), (5, 5, 5, 9)], [(1, 1, 2, 2)])) == [[0, 1, 20, 30]]
    assert forest_boxes(b"") == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_an_example_or_an_error(message: bytes) -> None:
    for parse in (parse_example, forest_boxes):
        try:
            parse(message)
        except DataError:
            continue


def test_any_cut_is_found() -> None:
    message = android_episode(1, ANDROID_ACTIONS[:1])
    for length in range(1, len(message)):
        with pytest.raises(DataError):
            parse_example(message[:length])


def test_gui_odyssey(tmp_path: Path) -> None:
    folder = write_odyssey(tmp_path / "odyssey")
    write_odyssey(folder, "0002", ODYSSEY_STEPS[:2])
    rows = open_rows(folder)
    actions = [
        {"action": "click", "coordinate": [540, 600]},
        {"action": "system_button", "button": "Home"},
        {"action": "swipe", "coordinate": [540, 1920], "coordinate2": [540, 480]},
        {"action": "long_press", "coordinate": [0, 2400]},
        {"action": "type", "text": "pizza"},
        {"action": "system_button", "button": "Back"},
        {"action": "system_button", "button": "Menu"},
        {"action": "terminate", "status": "failure"},
        {"action": "terminate", "status": "success"},
    ]
    assert rows.format == "gui-odyssey" and len(rows) == 11 and not rows.bad
    assert [row["action"] for row in rows[:9]] == actions and rows[4]["history"] == actions[:4]
    assert rows[0]["ui_boxes"] == [[432, 480, 648, 720]] and "ui_boxes" not in rows[1]
    assert (
        rows[2]["id"] == "odyssey/0001/2" and rows[2]["goal"] == "Eat" and rows[2]["category"] == "Shopping"
    )
    assert rows[2]["step_instruction"] == "step 2" and rows[2]["images"][0].data() == png(54, 120, shade=2)
    assert len(open_rows(folder / "annotations" / "0002.json")) == 2


def test_gui_odysseys_splits(tmp_path: Path) -> None:
    folder = write_odyssey(tmp_path)
    write_odyssey(folder, "0002", ODYSSEY_STEPS[:2])
    (folder / "splits").mkdir()
    for name, test in (("random_split", ["0002.json"]), ("app_split", ["0001"])):
        (folder / "splits" / f"{name}.json").write_text(json.dumps({"train": [], "test": test}))
    assert {row["episode"] for row in open_rows(folder, split="random_split/test")} == {"0002"}
    assert {row["episode"] for row in open_rows(folder, split="app_split/test")} == {"0001"}
    with pytest.raises(ConfigError, match="could be app_split/test, random_split/test"):
        open_rows(folder, split="test")


def test_broken_odyssey_steps_are_named(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"action": "CLICK", "info": [[500, 250]], "screenshot": ""},
        {"action": "CLICK", "info": [[500, 250]]},
        {"action": "CLICK", "info": [[1500, 250]]},
        {"action": "COMPLETE"},
    ]
    write_odyssey(tmp_path, "0001", steps)
    for k, info in enumerate(("KEY_POWER", [[1, 2], [3, 4]], [["a", 2]], [[1]])):
        write_odyssey(tmp_path, f"1{k}", [{"action": "CLICK", "info": info}])
    rows = open_rows(tmp_path)
    assert [row["id"].split("/", 1)[1] for row in rows] == ["0001/1"]
    reasons = [bad.reason for bad in rows.bad]
    assert len(reasons) == 7 and reasons[0] == "step 0 of episode 0001: its screenshot is missing"
    assert (
        reasons[1] == reasons[2]
        and "step 2 of episode 0001: its coordinate [1620, 600] is not on the screen" in reasons[1]
    )
    assert "KEY_POWER" in reasons[3] and "2 points, not 1" in reasons[4] and "not a number" in reasons[5]


def test_steps_in_our_own_form(tmp_path: Path) -> None:
    row = {"goal": "g", "image": base64_png(108, 240), "action": {"action": "click", "coordinate": [5, 6]}}
    lines = [
        {**row, "history": [{"action": "wait"}], "screen": [1080, 2400], "step_instruction": "tap"},
        row,
        {**row, "action": {"action": "click", "coordinate": [500, 6]}},
        {**row, "action": {"action": "click"}},
        {**row, "history": [{"action": "fly"}]},
        {**row, "history": ["scrolled down", {"action": "click", "coordinate": [2000, 1]}]},
        *({**row, "ui_boxes": boxes} for boxes in ([[1, 2, 3, 4]], [[1, 2]])),
        {**row, "screen": [1, 2, 3]},
    ]
    rows = open_rows(write_jsonl(tmp_path / "a.jsonl", lines))
    assert rows[3]["ui_boxes"] == [[1, 2, 3, 4]]
    assert rows[0]["screen"] == (1080, 2400) and rows[0]["history"] == [{"action": "wait"}]
    assert rows[1]["screen"] == (108, 240) and rows[1]["history"] == []
    assert rows[2]["history"][0] == "scrolled down"
    assert [bad.line for bad in rows.bad] == [3, 4, 5, 8, 9] and "misses ['coordinate']" in rows.bad[1].reason


@pytest.mark.parametrize(
    "action",
    [
        None,
        {"action": "fly"},
        {"action": "wait", "text": "a"},
        {"action": "type", "text": ""},
        {"action": "system_button", "button": "Power"},
        {"action": "terminate", "status": "maybe"},
        {"action": "long_press", "coordinate": [1, 2], "time": "long"},
        {"action": "long_press", "coordinate": [1, 2], "time": -1},
        {"action": "swipe", "coordinate": [1, 2], "coordinate2": [1, 2, 3]},
        {"action": "swipe", "coordinate": [1, 2]},
        {"action": "swipe", "direction": "up"},
        {"action": "click", "coordinate": [float("nan"), 1]},
    ],
)
def test_actions_that_are_none(action: Any) -> None:
    with pytest.raises(DataError):
        check_action(action, (10, 10))
    for form in ({"action": "wait", "time": 2}, {"arguments": {"action": "wait", "time": 2}}):
        assert check_action(form, (10, 10)) == {"action": "wait", "time": 2.0}


def test_lengths_beyond_reason_are_refused(tmp_path: Path) -> None:
    """A head whose checksum is right but whose length would take all memory."""
    from data_files import masked

    length = struct.pack("<Q", 2**60)
    (tmp_path / "a").write_bytes(tfrecord([android_episode(1)]) + length + masked(length) + b"rest")
    rows = open_rows(tmp_path / "a")
    assert len(rows) == 9 and "nothing from here on can be read" in rows.bad[0].reason


def test_a_small_file_that_unpacks_to_much_is_refused_early(tmp_path: Path) -> None:
    """200 MB of zeros in 200 KB: no more than a quarter of it is unpacked."""
    path = tmp_path / "android_control-00001-of-00020"
    length = 200 * 2**20
    head = struct.pack("<Q", length)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head + struct.pack("<I", reader.masked_crc(head)))
        for _ in range(200):
            file.write(bytes(2**20))
    tracemalloc.start()
    with pytest.raises(DataError, match="unpacks to more than 100 times its size"):
        open_rows(path)
    assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    tracemalloc.stop()
