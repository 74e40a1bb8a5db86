"""Writes small data files as their owners write them, byte by byte where no library of ours does."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image


def png(width: int = 40, height: int = 30, shade: int = 0) -> bytes:
    """An image; ``shade`` makes it another one."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 100, 200)).save(buffer, "PNG")
    return buffer.getvalue()


def base64_png(width: int = 40, height: int = 30, shade: int = 0) -> str:
    return base64.b64encode(png(width, height, shade)).decode()


def huge_png(width: int, height: int) -> bytes:
    """A PNG file of a few bytes whose header promises so many pixels."""
    whole = png(1, 1)
    header = struct.pack(">II", width, height) + whole[24:29]
    import zlib

    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    return whole[:8] + chunk + whole[33:]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# CRC32C bit by bit (RFC 3720), so that what is tested does not check itself.


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
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


ANDROID_ACTIONS: list[dict[str, Any]] = [
    {"action_type": "open_app", "app_name": "Clock"},
    {"action_type": "click", "x": 540, "y": 1200},
    {"action_type": "scroll", "direction": "down"},
    {"action_type": "input_text", "text": "7:30"},
    {"action_type": "long_press", "x": 10, "y": 20},
    {"action_type": "navigate_back"},
    {"action_type": "navigate_home"},
    {"action_type": "wait"},
]


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


ODYSSEY_STEPS: list[dict[str, Any]] = [
    {"action": "CLICK", "info": [[500, 250]], "sam2_bbox": [400, 200, 600, 300]},
    {"action": "CLICK", "info": "KEY_HOME"},
    {"action": "SCROLL", "info": [[500, 800], [500, 200]]},
    {"action": "LONG_PRESS", "info": [[0, 1000]]},
    {"action": "TEXT", "info": "pizza"},
    {"action": "CLICK", "info": "KEY_BACK"},
    {"action": "CLICK", "info": "KEY_APPSELECT"},
    {"action": "INCOMPLETE", "info": ""},
    {"action": "COMPLETE", "info": ""},
]


def write_odyssey(
    folder: Path, episode: str = "0001", steps: Sequence[Mapping[str, Any]] = ODYSSEY_STEPS
) -> Path:
    """An episode of GUI-Odyssey with its screenshots; gives the data set's folder."""
    for name in ("annotations", "screenshots"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    record = {
        "episode_id": episode,
        "device_info": {"product": "Pixel", "w": 1080, "h": 2400, "device_name": "Pixel 7"},
        "task_info": {
            "category": "Shopping",
            "app": ["Maps"],
            "meta_task": "m",
            "task": "t",
            "instruction": "Eat",
        },
        "step_length": len(steps),
        "steps": [
            {
                "step": k,
                "screenshot": f"{episode}_{k}.png",
                "low_level_instruction": f"step {k}",
                "ps": "",
                **step,
            }
            for k, step in enumerate(steps)
        ],
    }
    for k in range(len(steps)):
        (folder / "screenshots" / f"{episode}_{k}.png").write_bytes(png(54, 120, shade=k))
    (folder / "annotations" / f"{episode}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    return folder


def write_reasonseg(folder: Path, name: str = "1", encoding: str = "utf-8", **changes: Any) -> Path:
    """One image of ReasonSeg with its JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jpg").write_bytes(png(100, 80))
    record = {
        "text": ["the thing one sits on", "what is the café's seat?"],
        "is_sentence": True,
        "shapes": [
            {"label": "target", "points": [[10, 10], [60, 10], [60, 50], [10, 50]], "shape_type": "polygon"},
            {"label": "ignore", "points": [[20, 20], [30, 20], [30, 30], [20, 30]]},
            {"label": "flag", "points": [[0, 0], [1, 1], [2, 2]]},
            {"label": "Target", "points": [[70, 60], [90, 60], [100, 80]]},
        ],
    }
    text = json.dumps(record | changes, ensure_ascii=False)
    (folder / f"{name}.json").write_bytes(text.encode(encoding))
    return folder
