"""Parquet and Arrow files, and data sets of the Hugging Face hub, by way of the library `datasets`.

It is imported here when such a file is opened. Parquet is copied into its cache as Arrow
(``HF_DATASETS_CACHE``), Arrow is read where it stands; both are mapped into memory, and images are read when
they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError, needs
from selfverify.data.fields import Blob, Record
from selfverify.data.records import RowSource, read_at

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""A data set of the hub: ``owner/name``."""


class Table(RowSource):
    """Rows of a Parquet or Arrow file, or of a folder that ``save_to_disk`` has written."""

    _rows: Any = None

    def scan(self) -> Iterator[Record | DataError]:
        with _datasets(self.file) as library:
            try:
                self._rows = _opened(library, self.file).with_format("arrow")
            except Exception as error:  # that of `datasets`, pyarrow, or the disk
                raise DataError(f"it cannot be read as a whole; was it cut off? ({_cause(error)})") from None
        return self.records(len(self._rows))

    def record(self, number: int) -> Record:
        found: Record = {}
        row = self._rows[number]
        for name in row.column_names:
            try:
                found[name] = _unread(row.column(name)[0], partial(self._again, number, name))
            except Exception as error:  # pyarrow raises many kinds
                raise DataError(f"its column {name} cannot be read ({error})") from None
        return found

    def _again(self, number: int, name: str) -> Any:
        return self._rows[number].column(name)[0].as_py()


def _opened(library: Any, file: Path) -> Any:
    """Return a file or a folder as a `datasets.Dataset`."""
    beginning = b"" if file.is_dir() else read_at(file, 0, 6)
    if beginning.startswith(b"PAR1"):
        return library.Dataset.from_parquet(escape(str(file)), batch_size=100)  # by default 0 without rows
    if file.is_dir():
        found = library.load_from_disk(str(file))
    elif beginning == b"ARROW1":
        import pyarrow as pa

        found = library.Dataset(pa.ipc.open_file(pa.memory_map(str(file))).read_all())
    else:
        found = library.Dataset.from_file(str(file))
    # Offsets that point out of the file would end the process. Images' bytes are not read for this.
    found.data.validate(full=True)
    return found


def _cause(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _cause(error.__cause__)


def _unread(cell: Any, again: Callable[[], Any]) -> Any:
    """Return a cell's value, in which `Blob`s stand for images, which ``again`` reads.

    Images are bytes, the struct of ``bytes`` and ``path`` that `datasets` uses, or lists of these.
    """
    import pyarrow as pa

    if not cell.is_valid:
        return None
    kind = cell.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_unread(item, partial(_item, again, at)) for at, item in enumerate(cell)]
    is_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if is_struct or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Blob(again)
    return cell.as_py()


def _item(again: Callable[[], Any], at: int) -> Any:
    return again()[at]


@contextmanager
def _datasets(what: object) -> Iterator[Any]:
    """Give the library, which neither draws bars nor prints errors meanwhile.

    Raises:
        ConfigError: It is not installed.
    """
    with needs(f"{what}: reading this needs datasets", "data"):
        import datasets
    level, bars = datasets.logging.get_verbosity(), not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()


def download(
    name: str, config: str | None, split: str | None, revision: str | None
) -> tuple[Path, list[Path]]:
    """Download the files of a split of a data set of the hub into the cache of `huggingface_hub`.

    Which files these are says `datasets` by the repository's description or by their names; its own readers
    are not asked, so that a row of a repository and of its copy on the disk are the same.

    Returns:
        The folder of this revision, and the files.

    Raises:
        ConfigError: The hub has no such data set, config, split or revision, cannot be reached, or several
            splits could be meant.
    """
    with _datasets(name) as library:
        try:
            builder = library.load_dataset_builder(name, config, revision=revision)
            by_split = {str(key): list(urls) for key, urls in (builder.config.data_files or {}).items()}
        except Exception as error:  # of any of the libraries between here and the network
            raise ConfigError(f"there is no file or folder {name}, and of the hub: {error}") from None
        if split is None and len(by_split) == 1:
            [split] = by_split
        if split not in by_split:
            raise ConfigError(f"{name} has the splits {', '.join(by_split)}: choose one with split")
        from huggingface_hub import snapshot_download

        places = [url.removeprefix(f"hf://datasets/{name}@").partition("/") for url in by_split[split]]
        commit, inside = places[0][0], [file for _, _, file in places]
        try:
            root = Path(
                snapshot_download(
                    name,
                    repo_type="dataset",
                    revision=commit,
                    allow_patterns=[escape(file) for file in inside],
                )
            )
        except Exception as error:
            raise ConfigError(f"{name}: the files of split {split} cannot be downloaded: {error}") from None
        return root, [root / file for file in inside]
