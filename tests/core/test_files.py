"""Reading and writing: errors name the file and say what to do, and nothing waits for a pipe; digests."""

from __future__ import annotations

import copy
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core import files, ranks
from selfverify.core.errors import DataError, FileError, IrregularFileError, SelfVerifyError
from selfverify.core.files import file_digests, naming, open_regular, read_regular, write_json, write_text
from selfverify.core.jsonl_store import JsonlStore
from selfverify.data.conversations import write_conversations
from selfverify.data.images import ImageRef, read_image
from selfverify.data.rows import open_rows
from selfverify.evaluation.samples import written_images
from selfverify.policy.policy import Policy
from selfverify.selection.calibration import Calibration


@contextmanager
def full_disk(room: int = 100) -> Iterator[None]:
    """No file can become longer than ``room`` bytes, as on a full disk; the error names no file either."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


NOISE = Image.frombytes("RGB", (40, 40), os.urandom(4800))
WRITERS: dict[str, Callable[[Path], object]] = {
    "text": lambda path: write_text(path, "x" * 1000),
    "json": lambda path: write_json(path, ["x" * 1000]),
    "journal": lambda path: JsonlStore(path).append(["x" * 1000]),
    "calibration": lambda path: Calibration("temperature", fitted_on={"x": "x" * 1000}).save(path),
    "conversations": lambda path: write_conversations(path, [{"messages": "x" * 1000}]),
}


@pytest.mark.parametrize("case", WRITERS)
def test_a_full_disk_names_the_file_and_leaves_what_was_there(case: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("[]\n")
    with full_disk(), pytest.raises(SelfVerifyError) as caught:
        WRITERS[case](path)
    assert str(path) in str(caught.value)
    assert case == "calibration" or "larger than this system allows" in str(caught.value)
    assert path.read_text() == "[]\n"
    assert os.listdir(tmp_path) == ["out.jsonl"]


def test_a_full_disk_is_named_for_images_and_models(
    tmp_path: Path, load_policy: Callable[[], Policy]
) -> None:
    with full_disk(), pytest.raises(FileError, match=str(tmp_path / "images")):
        written_images(tmp_path / "images", [NOISE])
    assert not list((tmp_path / "images").iterdir())
    policy = load_policy()
    with full_disk(3000), pytest.raises(FileError, match=str(tmp_path / "model")):
        policy.save(tmp_path / "model")


def test_an_error_of_the_system_that_names_no_file_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("selfverify.experiments.recipe.builtin_recipes", full)
    result = CliRunner().invoke(app, ["recipes"])
    assert (result.exit_code, "the disk is full; free some space" in result.stderr) == (2, True)


def test_a_processs_error_about_a_file_reaches_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []

    def gather(value: object) -> list[object]:
        sent.append(copy.copy(value))  # as pickle does, by `__reduce__`
        return [value]

    def fail() -> None:
        with naming("metrics.jsonl"):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(ranks, "gather", gather)
    with pytest.raises(FileError, match=r"metrics\.jsonl: the disk is full"):
        ranks.everywhere(fail)
    assert str(sent[0]).startswith("metrics.jsonl: the disk is full")


def irregular(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(folder / "pipe")
    (folder / "inside").mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(folder)  # the path of a socket is short
        made.bind("socket")
    kinds = {"a pipe": "pipe", "a folder": "inside", "a socket": "socket", "a device": "/dev/zero"}
    return {kind: folder / name for kind, name in kinds.items()} | {"link": folder / "link"}


def test_only_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good").write_bytes(b"x")
    (tmp_path / "good-link").symlink_to(tmp_path / "good")
    assert read_regular(tmp_path / "good-link") == b"x"
    for kind, path in irregular(tmp_path).items():
        said = "a pipe" if kind == "link" else kind
        for read in (read_regular, open_regular, JsonlStore):
            with pytest.raises(FileError):
                read(path)
        with pytest.raises(IrregularFileError, match=f"this is {said}, and a regular file is needed"):
            read_regular(path)
        with pytest.raises(DataError, match=f"cannot be read, at 1 try: this is {said}"):
            read_image(path)
        with pytest.raises(DataError, match=f"this is {said}"):
            _ = ImageRef("row 1", path).size
        for format in ("parquet", "arrow", "jsonl", "tsv", "webdataset", None):
            if kind != "a folder":
                with pytest.raises(IrregularFileError, match=f"this is {said}"):
                    open_rows(path, format=format)


def test_every_byte_and_the_length_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 10)
    content = bytes(range(35))
    contents = [content, content[:-1], b"", content + b"\0"]
    contents += [content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in range(35)]
    paths = [tmp_path / str(i) for i in range(len(contents))]
    for path, written in zip(paths, contents, strict=True):
        path.write_bytes(written)
    found = file_digests(paths)
    assert len(set(found.values())) == len(contents)
    assert file_digests([paths[0]]) == {paths[0]: found[paths[0]]}
    assert len(found[paths[0]]) == 32
