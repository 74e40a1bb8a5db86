"""Rows of data files in the form that tasks take: which files a data set consists of, what reads them, and
which kind of rows their records are.

docs/data-formats.md shows what each format looks like.
"""

from __future__ import annotations

import json
import logging
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.files import naming, open_regular, require_regular
from selfverify.data import conversations, grounding, gui_actions, preferences, questions, records, tables
from selfverify.data.fields import Convert, Images, Place, Record, Row
from selfverify.data.records import RowSource

logger = logging.getLogger(__name__)

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

    source: Callable[[Path], RowSource] | None
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
) -> tuple[Path, list[RowSource], str, str | None]:
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
    sources: list[RowSource]
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
    b"\xfd7zXZ": "is an XZ file: unpack it first (unxz)",
    b"BZh": "is a BZIP2 file: unpack it first (bunzip2)",
    b"(\xb5/\xfd": "is a Zstandard file: unpack it first (unzstd)",
    b"PK\x03\x04": "is a ZIP archive: unpack it first (unzip)",
    b"\xff\xfe": "is in UTF-16: save it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"\xfe\xff": "is in UTF-16: save it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
    b"version https://git-lfs": "is a pointer of Git LFS: fetch the file itself (git lfs pull)",
}
_CONVERTER = "; AndroidControl's TFRecords become Parquet by `python -m reproduce.convert_android_control`"


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
    # The beginning of a file's name, or its folder.
    names = {name for f in found for name in (re.split("[-_.]", f.stem)[0], f.relative_to(folder).parts[0])}
    if split is None and len(names & _SPLITS) > 1:
        raise ConfigError(
            f"{folder} has files of the splits {', '.join(sorted(names & _SPLITS))}: choose one with split"
        )
    return found, split


_SPLITS = {"train", "validation", "valid", "val", "dev", "test"}
"""Names of files and folders that are never read together."""


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


LONGEST_REASON = 300
NAMED = 10
"""Broken rows that an error or a warning names."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that cannot be used.

    Args:
        file: The row's file.
        line: The row's line, row or record in the file, from 1; 0 where the file is the record, or all of it
            is bad.
        reason: The fault.
        place: The file and the line in words.
    """

    file: str
    line: int
    reason: str
    place: str

    @classmethod
    def of(cls, place: Place, error: Exception) -> BadRow:
        """Return the broken row at a place."""
        # Errors about images name their row already.
        reason = str(error).removeprefix(f"{place}: ")
        short = reason if len(reason) <= LONGEST_REASON else reason[:LONGEST_REASON] + "..."
        return cls(str(place.file), place.number, short, str(place))

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def validated(convert: Convert, record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Return the rows of a record; an error stands for a row that is wrong. Never raises on any record."""
    arrays = {name: value.tolist() for name, value in record.items() if isinstance(value, np.ndarray)}
    try:
        # Rows in memory may come from pandas; those of files may note what is read of them.
        return convert({**record, **arrays} if arrays else record, place, images)
    except DataError as error:
        return [error]
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        # No reader foresaw a field of this type; the error has to name the row all the same.
        return [DataError(f"it cannot be read ({type(error).__name__}: {error})")]


class Rows:
    """The rows of a data set by number, as `open_rows` makes them."""

    def __init__(
        self, path: Path, root: Path, sources: Sequence[RowSource], format: str, images: Images
    ) -> None:
        self.path, self.format = path, format
        self.bad: list[BadRow] = []
        self.repeated: dict[int, int] = {}
        """For each row whose id earlier rows have: how many ids like it are taken."""
        self._sources, self._convert, self._images = sources, FORMATS[format].convert, images
        self._stems = [_stem(source, root) for source in sources]
        self._source, self._record, self._part = array("i"), array("q"), array("i")

    def __len__(self) -> int:
        return len(self._record)

    def __getitem__(self, index: int) -> Row:
        """Return row ``index``, read anew; its images are read when they are opened.

        Raises:
            DataError: The file has changed.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} has {len(self)} rows, there is no row {index}")
        index %= len(self)
        place, part, source = self.place(index), self._part[index], self._source[index]
        found = validated(self._convert, self.record(index), place, self._images)
        row = found[min(part, len(found) - 1)] if found else DataError("the row is gone")
        if isinstance(row, DataError):
            raise DataError(f"{place}: {row}; the file has changed since it was opened")
        again = self.repeated.get(index, 0)
        id = self._id(row, source, self._record[index]) + (f"#{again + 1}" if again else "")
        return {**row, "id": id, "source": row["source"] or self._stems[source]}

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(len(self)))

    def place(self, index: int) -> Place:
        """Return where row ``index`` stands."""
        return self._sources[self._source[index]].place(self._record[index])

    def record(self, index: int) -> Record:
        """Return what the file says about row ``index``, by column.

        Raises:
            DataError: The file has changed.
        """
        return self._sources[self._source[index]].record(self._record[index])

    def columns_read(self, index: int) -> set[str]:
        """Return the columns of row ``index`` whose values were looked at to make it."""
        record = _Watched(self.record(index))
        validated(self._convert, record, self.place(index), self._images)
        return record.read

    def scan(self, split: str | None, limit: int | None, check_images: bool) -> None:
        """Read everything but the images once, and keep where the rows stand; `open_rows` calls this."""
        ids: Counter[str] = Counter()
        for source_number, source in enumerate(self._sources):
            try:
                for number, record in enumerate(source.scan()):
                    if len(self) == limit:
                        return
                    place = source.place(number)
                    for part, row in enumerate(self._rows_of(record, place, split, check_images)):
                        if isinstance(row, DataError):
                            self.bad.append(BadRow.of(place, row))
                        elif len(self) != limit:
                            self._keep(source_number, number, part, self._id(row, source_number, number), ids)
            except (DataError, OSError) as error:
                self.bad.append(BadRow.of(Place(source.file, unit=""), error))

    def _rows_of(
        self, record: Record | DataError, place: Place, split: str | None, check_images: bool
    ) -> Iterator[Row | DataError]:
        if isinstance(record, DataError):
            yield record
        elif split is None or str(record.get("split")) == split:
            for row in validated(self._convert, record, place, self._images):
                yield row if isinstance(row, DataError) or not check_images else _unseeable(row) or row

    def _keep(self, source: int, number: int, part: int, id: str, ids: Counter[str]) -> None:
        if again := ids[id]:
            while f"{id}#{again + 1}" in ids:  # a row may have such an id itself
                again += 1
            self.repeated[len(self)] = again
            ids[f"{id}#{again + 1}"] += 1
        ids[id] += 1
        self._source.append(source)
        self._record.append(number)
        self._part.append(part)

    def _id(self, row: Mapping[str, Any], source: int, number: int) -> str:
        return f"{self._stems[source]}/{number if row['id'] is None else row['id']}"


class _Watched(dict[str, Any]):
    """A record that notes which of its columns are read."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def _stem(source: RowSource, root: Path) -> str:
    if source.file.is_dir():
        return source.file.resolve().name
    return source.file.relative_to(root).with_suffix("").as_posix()


def _unseeable(row: Row) -> DataError | None:
    """Return why an image of a row cannot be decoded."""
    turns = [turn for name in ("messages", "prompt", "chosen", "rejected") for turn in row.get(name, ())]
    parts = [part for turn in turns if isinstance(turn["content"], list) for part in turn["content"]]
    try:
        for image in [*row["images"], *(part["image"] for part in parts if part["type"] == "image")]:
            image.open(tries=1)
    except DataError as error:
        return error
    return None


def open_rows(
    path: str | Path,
    *,
    format: str | None = None,
    split: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    images: str | Path | None = None,
    limit: int | None = None,
    on_bad: Literal["skip", "refuse"] = "skip",
    check_images: bool = False,
    note_bad: bool = True,
) -> Rows:
    """Open a data set: read everything but the images once, and check every row on the way.

    A row of any format is a dictionary with

    - ``id`` (unique, the same at every opening), ``images`` (a list of `ImageRef`, whose ``open()`` decodes),
      ``source``, ``category`` (or None), ``categories`` ({column: [values]}, what results are broken down
      by), and
    - of a question: ``question``, ``answer`` (a letter where there are ``options``), ``options`` ({letter:
      text} or None), ``answer_type`` and ``precision`` (or None), ``alternatives`` where several answers are
      right, ``unit`` and ``solution`` (how the answer is found) where the file has them;
    - of a box: ``question``, ``box`` [x1, y1, x2, y2] in pixels of the image as it is stored, ``size``
      (width, height), with a mask ``polygons`` and ``ignored`` [[[x, y], ...], ...];
    - of a step on a phone: ``goal``, ``step_instruction`` (or None), ``history`` and ``action``
      (`selfverify.data.gui_actions`), ``screen`` (width, height), where the file says ``ui_boxes`` (of
      the target element), ``episode`` and ``step``.

    In memory remain some 40 bytes per row.

    Args:
        path: A file, or a folder whose files belong together; where there is none of this name and it looks
            like ``owner/name``, a data set of the Hugging Face hub.
        format: One of `FORMATS`; by default what the files contain.
        split: A subfolder, files whose names begin with it, or the value of a column ``split``; for
            GUI-Odyssey a list of ``splits``, such as ``random_split/test``; of the hub a split.
        config: Of the hub: which of its configurations (subsets).
        revision: Of the hub: a branch, tag or commit.
        images: The folder that relative paths of images start from; by default the file's.
        limit: The most rows to read.
        on_bad: Whether rows that cannot be used are left out and listed in `Rows.bad`, or end in an error.
        check_images: Whether every image is decoded, too. Otherwise a broken image is found when a run
            wants it, and its problem is left out then.
        note_bad: Whether to warn of rows that are left out.

    Raises:
        ConfigError: There is nothing at the path, or no such format or split.
        DataError: A row is broken and ``on_bad`` is ``refuse``, or no row can be used.
    """
    root, sources, format, split = find_sources(path, format, split, config, revision)
    path = Path(path).expanduser()
    rows = Rows(path, root, sources, format, Images(root if images is None else Path(images).expanduser()))
    rows.scan(split, limit, check_images)
    if rows.bad:
        more = f"\n  and {len(rows.bad) - NAMED} more" if len(rows.bad) > NAMED else ""
        said = "\n  ".join([f"{len(rows.bad)} broken rows in {path}:", *map(str, rows.bad[:NAMED])]) + more
        if on_bad == "refuse":
            raise DataError(f"{said}\nRepair them, or leave them out with on_bad='skip'")
        if not len(rows):
            raise DataError(f"{path} has no usable row; {said}")
        if note_bad:
            note(logger, "rows_skipped", f"skipped {said}", path=str(path), rows=len(rows.bad))
    if not len(rows):
        raise DataError(f"{path} ({format}) has no rows" + ("" if split is None else f" of split {split!r}"))
    return rows
