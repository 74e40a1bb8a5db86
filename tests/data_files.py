"""Writes small data files as their owners write them, byte by byte where no library of ours does."""

from __future__ import annotations

import base64
import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from tables import read_tables


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


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    """A TAR archive, as WebDataset has its samples."""
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


END = {"action": "terminate", "status": "success"}


def write_steps(path: Path, actions: Sequence[Mapping[str, Any]]) -> Path:
    """An episode on a phone in our own columns, as `reproduce/convert_android_control.py` writes it."""
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "id": f"1/{step}", "goal": "Set an alarm", "category": action["action"],
            "history": list(actions[:step]), "action": action, "screen": [1080, 2400], "added": action == END,
            "image": png(54, 120, shade=step), "episode": "1", "step": step,
        }
        for step, action in enumerate(actions)
    ]  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


TABLES: dict[str, Any] = read_tables(Path(__file__).with_suffix(".yaml"))
ODYSSEY_STEPS: list[dict[str, Any]] = TABLES["odyssey_steps"]


def write_odyssey(
    folder: Path, episode: str = "0001", steps: Sequence[Mapping[str, Any]] = ODYSSEY_STEPS
) -> Path:
    """An episode of GUI-Odyssey with its screenshots; gives the data set's folder."""
    for name in ("annotations", "screenshots"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    record = {
        "episode_id": episode,
        **TABLES["odyssey"],
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
    text = json.dumps(TABLES["reasonseg"] | changes, ensure_ascii=False)
    (folder / f"{name}.json").write_bytes(text.encode(encoding))
    return folder
