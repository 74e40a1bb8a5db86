"""Choosing the reader for a path: by the format the user names, else by what the files contain."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming, open_regular, read_regular, require_regular
from selfverify.data.actions import convert_mobile
from selfverify.data.agent_tasks import convert_agent_task, is_agent_task
from selfverify.data.android_control import convert_android_control
from selfverify.data.columnar import Arrow, Parquet
from selfverify.data.delimited import Table
from selfverify.data.fields import Convert, Images, Place, Record, Row, RowSource, filled, first
from selfverify.data.gui_odyssey import convert_gui_odyssey, is_gui_odyssey
from selfverify.data.jsonl import BYTE_ORDER_MARK, JsonFiles, JsonLines, JsonList, parse_object
from selfverify.data.preferences import convert_preference, is_preference
from selfverify.data.reasonseg import SUFFIXES, convert_reasonseg, is_reasonseg
from selfverify.data.referring import ASKS_FOR_A_BOX, convert_grounding
from selfverify.data.tfrecord import TFRecords, is_tfrecord
from selfverify.data.tool_conversations import convert_conversation, convert_sharegpt, is_conversation
from selfverify.data.vqa import HUMAN, convert_vqa, spoken
from selfverify.data.vstar import convert_vstar, is_vstar, is_vstar_line

HEAD_BYTES = 2**16


Open = Callable[[Path, list[Path]], list[RowSource]]
"""Makes the sources of a folder's files, which belong together."""


@dataclass(frozen=True, slots=True)
class Format:
    """How files of one format are read. docs/data.md shows what each format looks like.

    Args:
        open: Makes the sources of files; None where what a file contains decides.
        convert: Makes rows of records; None where a record's columns decide (`by_columns`).
        suffixes: The ends of files' names by which a folder is searched.
    """

    open: Open | None
    convert: Convert | None = None
    suffixes: tuple[str, ...] = ()


def _each(source: Callable[[Path], RowSource]) -> Open:
    return lambda folder, files: [source(file) for file in files]


def _beside_images(folder: Path, files: list[Path]) -> list[RowSource]:
    """Make one source of files beside images, named after the folder of all: a split's, or the data set's."""
    return [JsonFiles(Path(os.path.commonpath([f.parent for f in files])), files, ("utf-8-sig", "cp1252"))]


def by_columns(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Rows of whichever kind the record's columns say, such as steps on a phone, boxes, or questions."""
    return converter_of(record)(record, place, images)


def converter_of(record: Record) -> Convert:
    """Return what makes rows of records like this one."""
    if "goal" in record and "action" in record:
        return convert_mobile
    if is_agent_task(record):
        return convert_agent_task
    if is_preference(record):
        return convert_preference
    if is_conversation(record):
        return convert_conversation
    if any(filled(record.get(name)) for name in ("box", "bbox", "bbox_2d", "bbox_x1", "bbox_x1_norm")):
        return convert_grounding
    if is_vstar_line(record):
        return convert_vstar
    answer = first(record, "solution")
    if isinstance(answer, list) and len(answer) == 4 and not filled(record.get("answer")):
        return convert_grounding
    if ASKS_FOR_A_BOX.search(str(spoken(record, HUMAN))):
        return convert_grounding
    return convert_vqa


FORMATS: dict[str, Format] = {
    "jsonl": Format(_each(JsonLines), None, (".jsonl", ".ndjson")),
    "json": Format(_each(JsonList), None, (".json",)),
    "parquet": Format(_each(Parquet), None, (".parquet",)),
    "arrow": Format(_each(Arrow), None, (".arrow",)),
    "tsv": Format(_each(lambda file: Table(file, "\t")), None, (".tsv",)),
    "csv": Format(_each(lambda file: Table(file, ",")), None, (".csv",)),
    "open-r1": Format(_each(Parquet), convert_vqa, (".parquet",)),
    "verl": Format(_each(Parquet), convert_conversation, (".parquet",)),
    "sharegpt": Format(None, convert_sharegpt, (".json", ".jsonl")),
    "refcoco": Format(None, convert_grounding, (".json", ".jsonl", ".tsv")),
    "reasonseg": Format(_beside_images, convert_reasonseg, (".json",)),
    "vstar": Format(_beside_images, convert_vstar, (".json",)),
    "android-control": Format(_each(TFRecords), convert_android_control),
    "gui-odyssey": Format(lambda folder, files: [JsonFiles(folder, files)], convert_gui_odyssey, (".json",)),
}


def find_sources(
    path: Path, format: str | None, split: str | None
) -> tuple[list[RowSource], Convert, str, str | None]:
    """Find what reads a path.

    Returns:
        The sources in order, their converter, their format, and the value of the column ``split`` by which
        rows still have to be chosen (None for all rows).

    Raises:
        ConfigError: There is nothing at the path, or no such format.
        DataError: The format cannot be recognised.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; formats: {', '.join(FORMATS)}")
    with naming(path):
        if not path.exists():
            raise ConfigError(f"there is no file or folder {path}")
    folder, files, left = path.parent, [path], split
    if path.is_dir():
        folder, (files, left) = path, _files(path, format, split)
    for file in files:
        require_regular(file)  # some readers map a file into memory, and wait for a pipe
    name = format if format and FORMATS[format].open else detect(files[0])
    if name == "vstar" and files[0].suffix in FORMATS["jsonl"].suffixes:
        name = "jsonl"  # its list in place of the files beside its images
    if name in ("reasonseg", "gui-odyssey"):
        files, left = _listed_split(path, files, left)
    make = FORMATS[name].open
    assert make is not None  # `detect` finds none of those that are None
    return make(folder, files), FORMATS[format or name].convert or by_columns, format or name, left


def detect(file: Path) -> str:
    """Return the format of one file, judged by its first bytes.

    Raises:
        DataError: The file is in none of `FORMATS`.
    """
    with open_regular(file) as opened:
        head = opened.read(HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return "arrow"
    if head.startswith(b"\x1f\x8b"):
        try:
            head = zlib.decompressobj(31).decompress(head, HEAD_BYTES)
        except zlib.error:
            head = b""
        if is_tfrecord(head):
            return "android-control"
        raise DataError(f"{file} is a GZIP file, but not of TFRecords; unpack it first")
    if is_tfrecord(head):
        return "android-control"
    return _detect_text(file, head)


def _detect_text(file: Path, head: bytes) -> str:
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"["):
        return "json"
    if text.startswith(b"{"):
        line, _, more = text.partition(b"\n")
        try:
            record = json.loads(line.decode("utf-8", "replace"))
            alone = not more.strip() and file.stat().st_size <= len(head)
        except ValueError:
            if file.suffix != ".json":
                return "jsonl"
            # The object is spread over many lines, or its line is longer than what was read.
            record, alone = _object_in(file, "replace"), True
        if isinstance(record, dict) and is_reasonseg(record):
            return "reasonseg"
        if isinstance(record, dict) and is_vstar(record):
            return "vstar"
        if isinstance(record, dict) and is_gui_odyssey(record):
            return "gui-odyssey"
        if alone and file.suffix == ".json":
            raise DataError(f"{file} is one JSON object, but of none of ReasonSeg, V* and GUI-Odyssey")
        return "jsonl"
    line = text.partition(b"\n")[0]
    for separator, name in ((b"\t", "tsv"), (b",", "csv")):
        if separator in line and b"\0" not in line:
            return name
    raise DataError(
        f"{file} begins with {head[:16]!r}: none of the formats {', '.join(FORMATS)}; if it is one, name it"
    )


def _files(folder: Path, format: str | None, split: str | None) -> tuple[list[Path], str | None]:
    """Return a folder's files of one kind, and ``split``, or None if choosing the files has settled it."""
    folder_split = split is not None and (folder / split).is_dir()
    if split is not None and folder_split:
        folder, split = folder / split, None
    if (folder / "dataset_dict.json").is_file():
        splits = _list_in(folder / "dataset_dict.json", "splits")
        raise ConfigError(f"{folder} has the splits {', '.join(map(str, splits))}: choose one with split")
    if (folder / "state.json").is_file():
        return _saved_by_datasets(folder), split
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and not _hidden(file, folder)]
    if format == "android-control":
        found = [f for f in found if f.suffix not in (".json", ".md", ".txt")]
        return _some(folder, found), split
    if format is not None:
        found = [f for f in found if f.suffix.lower() in FORMATS[format].suffixes]
        if format == "gui-odyssey":
            found = [f for f in found if f.parent.name != "splits"]
    else:
        found = _of_one_kind(folder, found)
    if split is not None and (chosen := [f for f in found if _named_for(f, split)]):
        return chosen, None
    return _some(folder, found), split


def _of_one_kind(folder: Path, files: list[Path]) -> list[Path]:
    for suffixes in ((".parquet",), (".arrow",), (".jsonl", ".ndjson"), (".tsv",), (".csv",)):
        if chosen := [f for f in files if f.suffix.lower() in suffixes]:
            return chosen
    if records := [f for f in files if "tfrecord" in f.name or f.name.startswith("android_control-")]:
        return records
    described = [f for f in files if f.suffix == ".json" and f.parent.name != "splits"]
    pictured = {f.with_suffix("") for f in files if f.suffix in SUFFIXES}
    if beside := [f for f in described if f.with_suffix("") in pictured]:
        # A file without its image is broken; an index in another folder is no record at all.
        return [f for f in described if f.parent in {b.parent for b in beside}]
    episodes = [f for f in described if f.parent.name == "annotations"]
    return episodes or described


def _listed_split(path: Path, files: list[Path], split: str | None) -> tuple[list[Path], str | None]:
    """Return the files of one of GUI-Odyssey's splits, and None for the settled split.

    The split ``random_split/test`` is the list ``test`` of ``splits/random_split.json``.
    """
    if split is None:
        return files, None
    name, _, part = split.rpartition("/")
    folder = next((f / "splits" for f in (path, path.parent) if (f / "splits").is_dir()), None)
    known = sorted(folder.glob("*.json")) if folder is not None else []
    chosen = [f for f in known if f.stem == name] if name else known
    if len(chosen) != 1:
        names = ", ".join(f"{f.stem}/{part}" for f in known) or "none: there is no folder of splits"
        raise ConfigError(f"{path}: split {split!r} could be {names}")
    wanted = {str(episode).removesuffix(".json") for episode in _list_in(chosen[0], part)}
    return _some(path, [f for f in files if f.stem in wanted]), None


def _saved_by_datasets(folder: Path) -> list[Path]:
    state = folder / "state.json"
    if _object_in(state).get("_indices_data_files"):
        raise DataError(f"{folder} holds a selection by index; save it again after flatten_indices()")
    entries = [entry for entry in _list_in(state, "_data_files") if isinstance(entry, dict)]
    files = [folder / str(entry.get("filename")) for entry in entries]
    if gone := [file for file in files if not file.is_file()]:
        raise DataError(f"{state} names {gone[0]}, which is no file")
    return _some(folder, files)


def _object_in(file: Path, errors: str = "strict") -> Record:
    try:
        return parse_object(read_regular(file).decode("utf-8-sig", errors).encode())
    except (DataError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from None


def _list_in(file: Path, name: str) -> list[Any]:
    found = _object_in(file).get(name)
    if not isinstance(found, list):
        raise ConfigError(f"{file} has no list {name!r}")
    return found


def _some(folder: Path, files: list[Path]) -> list[Path]:
    if not files:
        raise DataError(f"{folder} has no files of a format that is read: {', '.join(FORMATS)}")
    return files


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _named_for(file: Path, split: str) -> bool:
    return file.stem == split or file.stem.startswith((f"{split}-", f"{split}_", f"{split}."))
