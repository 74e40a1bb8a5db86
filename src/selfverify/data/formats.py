"""Which files a data set consists of, what reads them, and which kind of rows their records are.

docs/data-formats.md shows what each format looks like.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import naming, open_regular, require_regular
from selfverify.data import conversations, grounding, gui_actions, preferences, questions, records, tables
from selfverify.data.fields import Convert, Images, Place, Record, Row

HEAD_BYTES = 2**16
"""The part of a file by which its format is recognised."""


def by_columns(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Return rows of the kind that the columns say: steps on a phone, boxes, questions, or others."""
    # The converter gets the record itself, which may note what is read of it.
    return _converter_of(dict(record))(record, place, images)


def _converter_of(record: Record) -> Convert:
    if "goal" in record and "action" in record:
        return gui_actions.convert_mobile
    if conversations.is_agent_task(record):
        return conversations.convert_agent_task
    if preferences.is_preference(record):
        return preferences.convert_preference
    if conversations.is_conversation(record):
        return conversations.convert_conversation
    if grounding.is_box(record):
        return grounding.convert_grounding
    if grounding.is_vstar_line(record):
        return grounding.convert_vstar
    return questions.convert_vqa


class Format(NamedTuple):
    """How files of one format are read.

    Args:
        source: Reads one file; None where what a file contains decides.
        suffixes: The ends of files' names by which a folder is searched.
        convert: Makes rows of records.
        keys: The keys that a JSON object of the format has, whose files are one object each.
    """

    source: Callable[[Path], records.RowSource] | None
    suffixes: tuple[str, ...]
    convert: Convert = by_columns
    keys: frozenset[str] = frozenset()


FORMATS: dict[str, Format] = {
    "parquet": Format(tables.Table, (".parquet",)),
    "arrow": Format(tables.Table, (".arrow",)),
    "jsonl": Format(records.JsonLines, (".jsonl", ".ndjson")),
    "tsv": Format(records.Delimited, (".tsv",)),
    "csv": Format(records.Delimited, (".csv",)),
    "webdataset": Format(records.WebDataset, (".tar",)),
    "json": Format(records.JsonList, (".json",)),
    "sharegpt": Format(None, (".json", ".jsonl"), conversations.convert_sharegpt),
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


def find_sources(
    name: str | Path, format: str | None, split: str | None, config: str | None, revision: str | None
) -> tuple[Path, list[records.RowSource], str, str | None]:
    """Find what reads a file, a folder, or a data set of the hub; a path that is there comes first.

    Returns:
        The folder from which the files' names are counted in ids, the sources in order, the name of the
        format, and the value of the column ``split`` by which rows still have to be chosen.

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
    root = path if path.is_dir() else path.parent
    if is_there and path.is_dir():
        files, split = _in_folder(path, format, split)
    elif is_there:
        files = [path]
    elif tables.HUB_ID.fullmatch(str(name)) and path.suffix not in _SUFFIXES:
        root, files = tables.download(str(name), config, split, revision)
        files, split = _of_one_kind(files, format), None
    else:
        raise ConfigError(f"there is no file or folder {name}; a data set of the hub is OWNER/NAME")
    if not files:
        raise DataError(f"{path} has no files of a format that is read: {', '.join(FORMATS)}")
    for file in files:
        if not file.is_dir():
            require_regular(file)  # some readers map a file into memory, and wait for a pipe
    kind = format if format and (FORMATS[format].source or FORMATS[format].keys) else detect(files[0])
    sources: list[records.RowSource]
    if FORMATS[kind].keys:
        files, split = _listed_split(path, files, split)
        # Named after the folder of all files: a split's, or the data set's.
        whole = kind == "gui-odyssey" and path.is_dir()
        folder = path if whole else Path(os.path.commonpath([f.parent for f in files]))
        sources = [records.JsonFiles(folder, files)]
    else:
        source = FORMATS[kind].source
        assert source is not None  # `detect` names only formats that have one, or keys
        sources = [source(file) for file in files]
    return root, sources, format or kind, split


_BEGINNINGS = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow"}
_OTHERS = {
    b"\x1f\x8b": "is a GZIP file: unpack it first (gunzip)",
    b"\xff\xfe": "is in UTF-16: save it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is in UTF-16: save it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"version https://git-lfs": "is a pointer of Git LFS: fetch the file itself (git lfs pull)",
}
_CONVERTER = "; `python -m reproduce.convert_android_control` makes AndroidControl's TFRecords Parquet"


def detect(file: Path) -> str:
    """Return the format of a file, judged by its first bytes, or of a folder that `datasets` has saved.

    Raises:
        DataError: The file is in none of `FORMATS`.
    """
    if file.is_dir():
        return "arrow"
    with open_regular(file) as opened:
        head = opened.read(HEAD_BYTES)
    for beginning, name in _BEGINNINGS.items():
        if head.startswith(beginning):
            return name
    if head[257:262] == b"ustar":
        return "webdataset"
    text = head.removeprefix(records.BYTE_ORDER_MARK).lstrip()
    if text.startswith(b"["):
        return "json"
    if text.startswith(b"{"):
        return _detect_object(file)
    line = text.partition(b"\n")[0]
    if b"\0" not in line and file.suffix not in (".json", ".jsonl") and re.search(rb"[\t,;]", line):
        return "tsv" if b"\t" in line else "csv"
    unknown = f"begins with {head[:16]!r}: it is in none of the formats {', '.join(FORMATS)}"
    reason = next((why for beginning, why in _OTHERS.items() if head.startswith(beginning)), unknown)
    hint = _CONVERTER if "android_control" in file.name else ""
    raise DataError(f"{file} {reason if text else 'is empty'}{hint}")


def _detect_object(file: Path) -> str:
    """Return the format of a file that begins with a JSON object: a line, or all there is."""
    with open_regular(file) as opened:
        line, more = opened.readline(), opened.read(HEAD_BYTES).strip()
    try:
        record, alone = json.loads(line.decode("utf-8-sig", "replace")), not more
    except ValueError:
        if file.suffix != ".json":
            return "jsonl"
        record, alone = records.read_object(file), True  # it is spread over many lines
    for name, form in FORMATS.items():
        if form.keys and form.keys <= record.keys():
            return name
    if alone and file.suffix == ".json":
        raise DataError(
            f"{file} is one JSON object, but of none of ReasonSeg, V* and GUI-Odyssey: save its rows as a "
            "list or as lines"
        )
    return "jsonl"


def _in_folder(folder: Path, format: str | None, split: str | None) -> tuple[list[Path], str | None]:
    """Return a folder's files of one kind, and ``split``, or None if choosing the files has settled it."""
    if split is not None and (folder / split).is_dir():
        folder, split = folder / split, None
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(file.parent.name for file in folder.glob("*/state.json"))
        raise ConfigError(f"{folder} has the splits {', '.join(splits)}: choose one with split")
    if (folder / "state.json").is_file():
        return [folder], split
    inside = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    seen = [f for f in inside if not any(part.startswith(".") for part in f.relative_to(folder).parts)]
    found = _of_one_kind(seen, format)
    if split is not None and (
        chosen := [f for f in found if re.match(rf"{re.escape(split)}([-_.]|$)", f.stem)]
    ):
        return chosen, None
    return found, split


def _of_one_kind(files: list[Path], format: str | None) -> list[Path]:
    """Return the files of a format; by default of the first of `PLAIN` that has one, or else objects."""
    files = [file for file in files if file.suffix != ".json" or file.parent.name != "splits"]
    for name in PLAIN if format is None else (format,):
        if chosen := [file for file in files if file.suffix.lower() in FORMATS[name].suffixes]:
            return chosen
    described = [file for file in files if file.suffix == ".json" and format is None]
    pictured = {file.with_suffix("") for file in files if file.suffix in grounding.SUFFIXES}
    # A file without its image is broken; an index in another folder is no record at all.
    folders = {file.parent for file in described if file.with_suffix("") in pictured}
    beside = [file for file in described if file.parent in folders]
    return beside or [file for file in described if file.parent.name == "annotations"] or described


def _listed_split(path: Path, files: list[Path], split: str | None) -> tuple[list[Path], str | None]:
    """Return the files of one of GUI-Odyssey's splits, and None for the settled split.

    The split ``random_split/test`` is the list ``test`` of ``splits/random_split.json``.
    """
    if split is None:
        return files, None
    name, _, part = split.rpartition("/")
    known = sorted(file for at in (path, path.parent) for file in at.glob("splits/*.json"))
    chosen = [file for file in known if file.stem == name] if name else known
    if len(chosen) != 1:
        names = ", ".join(f"{file.stem}/{part}" for file in known) or "none: there is no folder of splits"
        raise ConfigError(f"{path}: split {split!r} could be {names}")
    listed = records.read_object(chosen[0]).get(part)
    if not isinstance(listed, list):
        raise ConfigError(f"{chosen[0]} has no list {part!r}")
    wanted = {str(episode).removesuffix(".json") for episode in listed}
    if not (found := [file for file in files if file.stem in wanted]):
        raise DataError(f"{path} has none of the {len(wanted)} files of split {split!r}")
    return found, None
