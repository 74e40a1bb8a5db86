"""Data of looking again as other trainers read them, with all images.

    OUTPUT/                 for LLaMA-Factory (its ``dataset_dir``)
      dataset_info.json     names the two data sets below
      looks_sft.jsonl       ``messages`` and ``images``, an image's place being ``<image>``
      looks_pairs.jsonl     ``messages``, ``chosen``, ``rejected`` and ``images``
      images/

    OUTPUT/                 for ms-swift (its ``ROOT_IMAGE_DIR``)
      sft.jsonl             ``messages`` and ``images``
      pairs.jsonl           ``messages`` and ``images``, ``rejected_messages`` and ``rejected_images``
      images/

    OUTPUT/                 for TRL and `datasets`
      sft.parquet           ``messages`` and ``images``
      pairs.parquet         ``prompt``, ``chosen``, ``rejected`` and ``images``

ms-swift's pairs are whole conversations with images anywhere. Each turn of the model says in ``loss`` whether
it is learnt: all of a trace's, and of a pair those behind what both sides have in common (Eq. 11), whose
log-ratios would cancel.

A side of a pair is one message for LLaMA-Factory. TRL's `DPOTrainer` (1.16) takes the images of the prompt
only, and learns every token of a completion, also what a tool has said. So for these two the sides end with
their first turns; the prompt has all that was shown before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import (
    make_folder,
    read_regular,
    write_bytes,
    write_json,
    written_whole,
)
from selfverify.core.jsonl_store import json_line
from selfverify.evaluation.samples import IMAGES
from selfverify.experiments.visual_data import read_lines
from selfverify.experiments.visual_sets import SFT, fault_in, read_pairs, stands_twice
from selfverify.rollouts.wrappers import Message
from selfverify.visual.pairs import Pair
from selfverify.visual.traces import is_image, parts_of

MARK = "<image>"
"""The place of an image in a text."""
RESERVED = (MARK, "<video>", "<audio>")
"""The texts that LLaMA-Factory takes for places."""
OF_SWIFT = (*RESERVED, "<bbox>", "<ref-object>")
"""Those that ms-swift does."""
Target = Literal["llama-factory", "ms-swift", "trl"]
_BATCH = 64


def export_looks(folder: Path, output: Path, target: Target) -> tuple[int, int, int]:
    """Write a folder's ``sft.jsonl`` and ``pairs.jsonl`` for another trainer.

    Args:
        folder: A folder of data of looking again (`visual_data`).
        output: The folder that is written; files in it with the same names are replaced.
        target: Whose form.

    Returns:
        How many traces and pairs, and how many different images, were written.

    Raises:
        ConfigError: There are no such files, or `datasets` is not installed.
        DataError: A line is damaged, an image is gone, or a text has a place for an image of its own.
    """
    traces = sum(1 for _ in _traces(folder))  # nothing is written of what is damaged
    pairs = sum(1 for _ in read_pairs(folder))
    make_folder(output)
    shown = _ExportedImages(folder, None if target == "trl" else output)
    match target:
        case "trl":
            _parquet(output / "sft.parquet", (_trl(row, shown) for row in _traces(folder)), ("messages",))
            _parquet(output / "pairs.parquet", (_trl(row, shown) for row in _short_sides(folder)), _SIDES)
        case "ms-swift":
            _write(
                output / "sft.jsonl", (_swift(row["messages"], shown, row["id"]) for row in _traces(folder))
            )
            _write(output / "pairs.jsonl", (_swift_pair(pair, shown) for pair in read_pairs(folder)))
        case "llama-factory":
            _write(output / "looks_sft.jsonl", (_factory(row, shown) for row in _traces(folder)))
            _write(output / "looks_pairs.jsonl", (_factory(row, shown) for row in _short_sides(folder)))
            write_json(output / "dataset_info.json", _INFO)
    return traces, pairs, len(shown.names)


def _short_sides(folder: Path) -> Iterator[dict[str, Any]]:
    """The pairs whose sides are their first turns."""
    for pair in read_pairs(folder):
        sides = {"chosen": pair.chosen[:1], "rejected": pair.rejected[:1]}
        yield {"id": pair.id, "prompt": pair.prompt, **sides}


_SIDES = ("prompt", "chosen", "rejected")
_TAGS = {
    "role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant",
    "observation_tag": "tool", "system_tag": "system",
}  # fmt: skip
_SETS = {"looks_sft": ["messages", "images"], "looks_pairs": ["messages", "chosen", "rejected", "images"]}
_INFO = {
    name: {
        "file_name": f"{name}.jsonl",
        **({"ranking": True} if "chosen" in columns else {}),
        "formatting": "sharegpt",
        "columns": {column: column for column in columns},
        "tags": _TAGS,
    }
    for name, columns in _SETS.items()
}


class _ExportedImages:
    """The images that are shown, by the names in a folder; with an output they are copied into it."""

    def __init__(self, folder: Path, output: Path | None) -> None:
        self.folder, self.output = folder, output
        self.names: set[str] = set()

    def content(self, name: str) -> bytes:
        """An image's bytes.

        Raises:
            DataError: It is gone or damaged, or its name leads elsewhere.
        """
        plain = Path(name).name
        if name != f"{IMAGES}/{plain}":
            raise DataError(f"{name[:80]!r} is no name of an image in {self.folder / IMAGES}")
        try:
            found = read_regular(self.folder / name)
        except OSError as error:
            raise DataError(f"the image {self.folder / name} is missing ({error.strerror})") from None
        if plain not in self.names:
            try:
                Image.open(BytesIO(found)).verify()
            except Exception as error:  # PIL raises of many kinds for damaged files
                raise DataError(f"the image {self.folder / name} is damaged ({error})") from None
        if self.output is not None and plain not in self.names:
            make_folder(self.output / IMAGES)
            write_bytes(self.output / IMAGES / plain, found)
        self.names.add(plain)
        return found

    def packed(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """The images within messages, with their bytes, as `datasets` has them in Parquet."""
        names = [part["image"] for message in messages for part in parts_of(message) if is_image(part)]
        return [{"bytes": self.content(name), "path": Path(name).name} for name in names]

    def within(self, messages: Iterable[Message]) -> list[str]:
        """The names of the images within messages."""
        return [f"{IMAGES}/{image['path']}" for image in self.packed(messages)]


def _traces(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / SFT
    lines = dict[str, int]()
    for number, line in read_lines(path):
        messages = line.get("messages")
        if not isinstance(messages, list) or not isinstance(line.get("id"), str):
            raise DataError(f"{path}, line {number}: it is no trace")
        why = fault_in([message if isinstance(message, dict) else {} for message in messages])
        if why := why or stands_twice(line["id"], number, lines):
            raise DataError(f"{path}, line {number}: {why}")
        yield line


def _marked(messages: Iterable[Message], name: str, reserved: Sequence[str] = RESERVED) -> list[Message]:
    """Messages as texts in which images have places."""
    found = []
    for message in messages:
        words = ""
        for part in parts_of(message):
            if not is_image(part) and (
                taken := next((mark for mark in reserved if mark in part["text"]), None)
            ):
                raise DataError(f"{name}: a text has {taken} in it, which the trainer takes for a place")
            words += MARK if is_image(part) else part["text"]
        found.append({"role": message["role"], "content": words})
    return found


def _swift(messages: Sequence[Message], shown: _ExportedImages, name: str, before: int = 0) -> dict[str, Any]:
    """A conversation as ms-swift has it; turns behind the first ``before`` messages are learnt."""
    found = _marked(messages, name, OF_SWIFT)
    for place, message in enumerate(found):
        if message["role"] == "assistant":
            message["loss"] = place >= before
    return {"messages": found, "images": shown.within(messages)}


def _swift_pair(pair: Pair, shown: _ExportedImages) -> dict[str, Any]:
    before = len(pair.prompt)
    chosen = _swift([*pair.prompt, *pair.chosen], shown, pair.id, before)
    rejected = _swift([*pair.prompt, *pair.rejected], shown, pair.id, before)
    return chosen | {f"rejected_{name}": value for name, value in rejected.items()}


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
    with written_whole(path) as partial, partial.open("wb") as file:
        file.writelines(map(json_line, rows))


def _parquet(path: Path, rows: Iterable[Mapping[str, Any]], talks: Sequence[str]) -> None:
    """Write Parquet whose columns of images `datasets` decodes."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
        from datasets import Features, Value
        from datasets import Image as ImageFeature
    except ImportError:
        raise ConfigError(f"{path}: Parquet needs datasets; pip install 'selfverify[data]'") from None
    text = Value("string")
    talk = [{"role": text, "content": [{"type": text, "text": text}]}]
    schema = Features({"id": text, **dict.fromkeys(talks, talk), "images": [ImageFeature()]}).arrow_schema
    left = iter(rows)
    with written_whole(path) as partial, parquet.ParquetWriter(partial, schema) as writer:
        while batch := list(islice(left, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
