"""Data of looking again as other trainers read them, with all images: LLaMA-Factory's files and TRL's.

    OUTPUT/                 for LLaMA-Factory (its ``dataset_dir``)
      dataset_info.json     names the two data sets below
      looks_sft.json        ``messages`` and ``images``, an image's place being ``<image>``
      looks_pairs.json      ``messages``, ``chosen``, ``rejected`` and ``images``
      images/

    OUTPUT/                 for TRL and `datasets`
      sft.parquet           ``messages`` and ``images``
      pairs.parquet         ``prompt``, ``chosen``, ``rejected`` and ``images``

A side of a pair is one message for LLaMA-Factory, and TRL's collator takes the images of the prompt only
(1.16). So the sides end with their first turns; the prompt has all that was shown before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import make_output_folder, read_regular, write_bytes, write_json, written_whole
from selfverify.evaluation.samples import IMAGES
from selfverify.experiments.visual_data import SFT, fault_in, read_lines, read_pairs, stands_twice
from selfverify.rollouts.wrappers import Message
from selfverify.visual.traces import is_image, parts_of

MARK = "<image>"
"""LLaMA-Factory's place for an image."""
Target = Literal["llama-factory", "trl"]
_BATCH = 64


def export_looks(folder: Path, output: Path, target: Target) -> tuple[int, int, int]:
    """Write a folder's ``sft.jsonl`` and ``pairs.jsonl`` for another trainer.

    Args:
        folder: See `looks_folder`.
        output: The folder that is written; files in it with the same names are replaced.
        target: Whose form.

    Returns:
        How many traces and pairs, and how many different images, were written.

    Raises:
        ConfigError: There are no such files, or `datasets` is not installed.
        DataError: A line is damaged, an image is gone, or a text has a place for an image of its own.
    """
    traces = _traces(folder)
    sides = [
        {"id": pair.id, "prompt": pair.prompt, "chosen": pair.chosen[:1], "rejected": pair.rejected[:1]}
        for pair in read_pairs(folder)
    ]
    shown = _ExportedImages(folder)
    make_output_folder(output)
    if target == "trl":
        _parquet(output / "sft.parquet", (_trl(row, shown) for row in traces), ("messages",))
        _parquet(output / "pairs.parquet", (_trl(row, shown) for row in sides), _SIDES)
    else:
        _write(output / "looks_sft.json", (_factory(row, shown) for row in traces))
        _write(output / "looks_pairs.json", (_factory(row, shown) for row in sides))
        for name in shown.names:
            path = output / IMAGES / name
            path.parent.mkdir(exist_ok=True)
            write_bytes(path, shown.content(f"{IMAGES}/{name}"))
        write_json(output / "dataset_info.json", _INFO)
    return len(traces), len(sides), len(shown.names)


_SIDES = ("prompt", "chosen", "rejected")
_TAGS = {
    "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
    "observation_tag": "tool", "system_tag": "system",
}  # fmt: skip
_SETS = {"looks_sft": ["messages", "images"], "looks_pairs": ["messages", "chosen", "rejected", "images"]}
_INFO = {
    name: {
        "file_name": f"{name}.json",
        **({"ranking": True} if "chosen" in columns else {}),
        "formatting": "sharegpt",
        "columns": {column: column for column in columns},
        "tags": _TAGS,
    }
    for name, columns in _SETS.items()
}


class _ExportedImages:
    """The images that are shown, by the names in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: set[str] = set()

    def content(self, name: str) -> bytes:
        """An image's bytes.

        Raises:
            DataError: It is gone, or its name leads elsewhere.
        """
        plain = Path(name).name
        if name != f"{IMAGES}/{plain}":
            raise DataError(f"{name[:80]!r} is no name of an image in {self.folder / IMAGES}")
        try:
            found = read_regular(self.folder / name)
        except OSError as error:
            raise DataError(f"the image {self.folder / name} is missing ({error.strerror})") from None
        self.names.add(plain)
        return found

    def packed(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """The images within messages, with their bytes, as `datasets` has them in Parquet."""
        names = [part["image"] for message in messages for part in parts_of(message) if is_image(part)]
        return [{"bytes": self.content(name), "path": Path(name).name} for name in names]

    def within(self, messages: Iterable[Message]) -> list[str]:
        """The names of the images within messages."""
        return [f"{IMAGES}/{image['path']}" for image in self.packed(messages)]


def _traces(folder: Path) -> list[dict[str, Any]]:
    path = folder / SFT
    found, lines = [], dict[str, int]()
    for number, line in read_lines(path):
        messages = line.get("messages")
        if not isinstance(messages, list) or not isinstance(line.get("id"), str):
            raise DataError(f"{path}, line {number}: it is no trace")
        why = fault_in([message if isinstance(message, dict) else {} for message in messages])
        if why := why or stands_twice(line["id"], number, lines):
            raise DataError(f"{path}, line {number}: {why}")
        found.append(line)
    return found


def _marked(messages: Iterable[Message], name: str) -> list[Message]:
    """Messages as texts in which images have places."""
    found = []
    for message in messages:
        words = ""
        for part in parts_of(message):
            if not is_image(part) and MARK in part["text"]:
                raise DataError(
                    f"{name}: a text has {MARK} in it, which LLaMA-Factory takes for an image's place"
                )
            words += MARK if is_image(part) else part["text"]
        found.append({"role": message["role"], "content": words})
    return found


def _factory(row: Mapping[str, Any], shown: _ExportedImages) -> dict[str, Any]:
    """A trace or a pair as LLaMA-Factory has it: a pair's prompt is its messages, a side one message."""
    name, talk = row["id"], row["messages" if "messages" in row else "prompt"]
    sides = {side: _marked(row[side], name)[0] for side in _SIDES[1:] if side in row}
    return {"id": name, "messages": _marked(talk, name), **sides, "images": shown.within(talk)}


def _places(messages: Iterable[Message]) -> list[Message]:
    """Messages whose contents are parts, with places for images."""
    return [
        {
            "role": message["role"],
            "content": [
                {"type": "image", "text": None} if is_image(part) else {"type": "text", "text": part["text"]}
                for part in parts_of(message)
            ],
        }
        for message in messages
    ]


def _trl(row: Mapping[str, Any], shown: _ExportedImages) -> dict[str, Any]:
    """A trace or a pair as TRL has it; the images are those of its first part."""
    talks = {name: row[name] for name in ("messages", *_SIDES) if name in row}
    images = shown.packed(next(iter(talks.values())))
    return {"id": row["id"], **{name: _places(talk) for name, talk in talks.items()}, "images": images}


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with written_whole(path) as partial:
        partial.write_text(
            json.dumps(list(rows), ensure_ascii=False, indent=1, allow_nan=False), "utf-8", "replace"
        )


def _parquet(path: Path, rows: Iterable[Mapping[str, Any]], talks: Sequence[str]) -> None:
    """Write Parquet whose columns of images `datasets` decodes."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
        from datasets import Features, Image, Value
    except ImportError:
        raise ConfigError(f"{path}: Parquet needs datasets; pip install 'selfverify[data]'") from None
    text = Value("string")
    talk = [{"role": text, "content": [{"type": text, "text": text}]}]
    schema = Features({"id": text, **dict.fromkeys(talks, talk), "images": [Image()]}).arrow_schema
    left = iter(rows)
    with written_whole(path) as partial, parquet.ParquetWriter(partial, schema) as writer:
        while batch := list(islice(left, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
