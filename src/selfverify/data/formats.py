"""Which files a data set consists of, what reads them, and which kind of rows their records are.

docs/data-formats.md shows what each format looks like.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming, open_regular, read_regular, require_regular
from selfverify.data import conversations, grounding, gui_actions, preferences, questions, records, tables
from selfverify.data.fields import Convert, Images, Place, Record, Row, RowSource, filled, first
from selfverify.data.tables import Table

HEAD_BYTES = 2**16
"""What is looked at to recognise a file."""


class Format(NamedTuple):
    """How files of one format are read.

    Args:
        source: Reads one file; None where what a file contains decides.
        suffixes: The ends of files' names by which a folder is searched.
        convert: Makes rows of records; None where a record's columns decide (`by_columns`).
        described: The keys that a JSON object of the format has, whose files are one object each.
    """

    source: Callable[[Path], RowSource] | None
    suffixes: tuple[str, ...]
    convert: Convert | None = None
    described: frozenset[str] = frozenset()


FORMATS: dict[str, Format] = {
    "parquet": Format(Table, (".parquet",)),
    "arrow": Format(Table, (".arrow",)),
    "jsonl": Format(records.JsonLines, (".jsonl", ".ndjson")),
    "tsv": Format(partial(records.Delimited, delimiter="\t"), (".tsv",)),
    "csv": Format(partial(records.Delimited, delimiter=","), (".csv",)),
    "webdataset": Format(records.WebDataset, (".tar",)),
    "json": Format(records.JsonList, (".json",)),
    "open-r1": Format(Table, (".parquet",), questions.convert_vqa),
    "verl": Format(None, (".parquet", ".jsonl"), conversations.convert_conversation),
    "sharegpt": Format(None, (".json", ".jsonl"), conversations.convert_sharegpt),
    "refcoco": Format(None, (".json", ".jsonl", ".tsv", ".parquet"), grounding.convert_grounding),
    "reasonseg": Format(None, (".json",), grounding.convert_reasonseg, frozenset({"text", "shapes"})),
    "vstar": Format(
        None, (".json",), grounding.convert_vstar, frozenset({"question", "options", "bbox", "target_object"})
    ),
    "gui-odyssey": Format(
        None, (".json",), gui_actions.convert_gui_odyssey, frozenset({"steps", "task_info"})
    ),
}
_SUFFIXES = {suffix for form in FORMATS.values() for suffix in form.suffixes}
PLAIN = ("parquet", "arrow", "jsonl", "tsv", "csv", "webdataset")
"""Formats by which a folder is searched, the first that has a file."""


def by_columns(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Rows of whichever kind the record's columns say, such as steps on a phone, boxes, or questions."""
    return converter_of(record)(record, place, images)


def converter_of(record: Record) -> Convert:
    """Return what makes rows of records like this one."""
    if "goal" in record and "action" in record:
        return gui_actions.convert_mobile
    if conversations.is_agent_task(record):
        return conversations.convert_agent_task
    if preferences.is_preference(record):
        return preferences.convert_preference
    if conversations.is_conversation(record):
        return conversations.convert_conversation
    if any(filled(record.get(name)) for name in ("box", "bbox", "bbox_2d", "bbox_x1", "bbox_x1_norm")):
        return grounding.convert_grounding
    if grounding.is_vstar_line(record):
        return grounding.convert_vstar
    answer = first(record, "solution")
    if isinstance(answer, list) and len(answer) == 4 and not filled(record.get("answer")):
        return grounding.convert_grounding
    if grounding.ASKS_FOR_A_BOX.search(str(questions.spoken(record, questions.HUMAN))):
        return grounding.convert_grounding
    return questions.convert_vqa


class DataSources(NamedTuple):
    """What reads a data set.

    Args:
        root: The folder from which the files' names are counted in ids.
        sources: The sources in order.
        convert: What makes rows of their records.
        format: The name of the format.
        split: The value of the column ``split`` by which rows still have to be chosen; None for all rows.
    """

    root: Path
    sources: list[RowSource]
    convert: Convert
    format: str
    split: str | None


def find_sources(
    name: str | Path, format: str | None, split: str | None, config: str | None, revision: str | None
) -> DataSources:
    """Find what reads a file, a folder, or a data set of the hub; a path that is there comes first.

    Raises:
        ConfigError: There is nothing of this name, no such format, or no such split.
        DataError: The format cannot be recognised.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(f"there is no format {format!r}; formats: {', '.join(FORMATS)}")
    path = Path(name).expanduser()
    with naming(path):
        is_there = path.exists()
    if is_there and (config is not None or revision is not None):
        raise ConfigError(f"{path} is on the disk: config and revision are for data sets of the hub")
    if is_there and path.is_dir():
        root, (files, left) = path, _in_folder(path, format, split)
    elif is_there:
        root, files, left = path.parent, [path], split
    elif tables.HUB_ID.fullmatch(str(name)) and path.suffix not in _SUFFIXES:
        root, files = tables.download(str(name), config, split, revision)
        files, left = _of_one_kind(files) if format is None else files, None
    else:
        raise ConfigError(f"there is no file or folder {path}")
    files = _some(path, files)
    for file in files:
        require_regular(file)  # some readers map a file into memory, and wait for a pipe
    found = format if format and (FORMATS[format].source or FORMATS[format].described) else detect(files[0])
    if found == "vstar" and files[0].suffix in FORMATS["jsonl"].suffixes:
        found = "jsonl"  # its list in place of the files beside its images
    how = FORMATS[found]
    if how.described:
        files, left = _listed_split(path, files, left)
        # Named after the folder of all files: a split's, or the data set's.
        folder = (
            path
            if found == "gui-odyssey" and path.is_dir()
            else os.path.commonpath([f.parent for f in files])
        )
        sources: list[RowSource] = [records.JsonFiles(Path(folder), files)]
    else:
        assert how.source is not None  # `detect` names only formats that have one
        sources = [how.source(file) for file in files]
    return DataSources(root, sources, FORMATS[format or found].convert or by_columns, format or found, left)


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
    if head[257:262] == b"ustar":
        return "webdataset"
    if head.startswith(b"\x1f\x8b") or _is_tfrecord(head):
        try:
            inside = zlib.decompressobj(31).decompress(head, HEAD_BYTES) if head[:1] == b"\x1f" else head
        except zlib.error:
            inside = b""
        if _is_tfrecord(inside):
            raise DataError(
                f"{file} has TFRecords, as AndroidControl's files: make them Parquet in a checkout with "
                f"`python -m reproduce.convert_android_control {file} OUTPUT.parquet`"
            )
        raise DataError(f"{file} is a GZIP file; unpack it first")
    text = head.removeprefix(records.BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"["):
        return "json"
    if text.startswith(b"{"):
        return _detect_object(file, text, whole=file.stat().st_size <= len(head))
    line = text.partition(b"\n")[0]
    for separator, name in ((b"\t", "tsv"), (b",", "csv")):
        if separator in line and b"\0" not in line:
            return name
    raise DataError(
        f"{file} begins with {head[:16]!r}: none of the formats {', '.join(FORMATS)}; if it is one, name it"
    )


def _is_tfrecord(head: bytes) -> bool:
    """Whether bytes are the length of a record, its checksum, and the tag with which an example begins."""
    return len(head) > 12 and head[4:8] == b"\0\0\0\0" != head[:4] and head[12:13] == b"\n"


def _detect_object(file: Path, text: bytes, whole: bool) -> str:
    """Return the format of a file that begins with a JSON object: a line, or all there is."""
    line, _, more = text.partition(b"\n")
    try:
        record = json.loads(line.decode("utf-8", "replace"))
        alone = whole and not more.strip()
    except ValueError:
        if file.suffix != ".json":
            return "jsonl"
        # The object is spread over many lines, or its line is longer than what was read.
        record, alone = _object_in(file, "replace"), True
    for name, form in FORMATS.items():
        if form.described and isinstance(record, dict) and form.described <= record.keys():
            return name
    if alone and file.suffix == ".json":
        raise DataError(f"{file} is one JSON object, but of none of ReasonSeg, V* and GUI-Odyssey")
    return "jsonl"


def _in_folder(folder: Path, format: str | None, split: str | None) -> tuple[list[Path], str | None]:
    """Return a folder's files of one kind, and ``split``, or None if choosing the files has settled it."""
    if split is not None and (folder / split).is_dir():
        folder, split = folder / split, None
    if (folder / "dataset_dict.json").is_file():
        splits = _list_in(folder / "dataset_dict.json", "splits")
        raise ConfigError(f"{folder} has the splits {', '.join(map(str, splits))}: choose one with split")
    if (folder / "state.json").is_file():
        return _saved_by_datasets(folder), split
    inside = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    found = [f for f in inside if not any(part.startswith(".") for part in f.relative_to(folder).parts)]
    if format is None:
        found = _of_one_kind(found)
    else:
        suffixes = FORMATS[format].suffixes
        found = [f for f in found if f.suffix.lower() in suffixes and f.parent.name != "splits"]
    if split is not None and (
        chosen := [f for f in found if re.match(rf"{re.escape(split)}([-_.]|$)", f.stem)]
    ):
        return chosen, None
    return found, split


def _of_one_kind(files: list[Path]) -> list[Path]:
    for name in PLAIN:
        if chosen := [f for f in files if f.suffix.lower() in FORMATS[name].suffixes]:
            return chosen
    described = [f for f in files if f.suffix == ".json" and f.parent.name != "splits"]
    pictured = {f.with_suffix("") for f in files if f.suffix in grounding.SUFFIXES}
    if beside := [f for f in described if f.with_suffix("") in pictured]:
        # A file without its image is broken; an index in another folder is no record at all.
        return [f for f in described if f.parent in {b.parent for b in beside}]
    episodes = [f for f in described if f.parent.name == "annotations"]
    return (
        episodes
        or described
        or [f for f in files if "tfrecord" in f.name or f.name.startswith("android_control-")]
    )


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
    return files


def _object_in(file: Path, errors: str = "strict") -> Record:
    try:
        return records.parse_object(read_regular(file).decode("utf-8-sig", errors).encode())
    except (DataError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: {error}") from None


def _list_in(file: Path, name: str) -> list[Any]:
    found = _object_in(file).get(name)
    if not isinstance(found, list):
        raise ConfigError(f"{file} has no list {name!r}")
    return found


def _some(path: Path, files: list[Path]) -> list[Path]:
    if not files:
        raise DataError(f"{path} has no files of a format that is read: {', '.join(FORMATS)}")
    return files
