"""WebDataset's archives: samples by their names, of any types, and nothing unpickled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from data_files import png, write_jsonl, write_tar
from selfverify.core.errors import DataError
from selfverify.data.rows import open_rows


def sample(**fields: object) -> bytes:
    return json.dumps({"question": "How many?", **fields}).encode()


def test_samples_are_rows(tmp_path: Path) -> None:
    """`datasets` refuses such an archive: the first answers are numbers, a later one is a text."""
    members = {
        "a/0.json": sample(answer=3), "a/0.png": png(8, 6), "a/0.txt": b"a caption",
        "a/1.0.png": png(4, 2), "a/1.1.PNG": png(2, 4), "a/1.json": sample(answer=4, image="gone.jpg"),
        "b/0.json": sample(answer="x + 1", id="own"), "b/0.pkl": pickle.dumps({}), "b/0.pth": b"no tensor",
        "b/1.json": b"[1]", "README": b"",
    }  # fmt: skip
    write_tar(tmp_path / "train-0000.tar", members)
    for path in (tmp_path / "train-0000.tar", tmp_path):
        rows = open_rows(path)
        assert rows.format == "webdataset"
        assert [row["id"] for row in rows] == [f"train-0000/{id}" for id in ("a/0", "a/1", "own")]
        assert [row["answer"] for row in rows] == ["3", "4", "x + 1"]
        assert [[image.size for image in row["images"]] for row in rows] == [[(8, 6)], [(4, 2), (2, 4)], []]
        assert [bad.line for bad in rows.bad] == [4, 5] and "a list and not an object" in rows.bad[0].reason
        assert str(rows.place(1)).endswith("train-0000.tar, sample 2")


@pytest.mark.parametrize("kept", [0.9, 0.4])
def test_a_truncated_archive_is_named(tmp_path: Path, kept: float) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{k}.json": sample(answer=k, pad="x" * 9000) for k in range(9)})
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(DataError, match=r"a\.tar: .*cut off"):
        open_rows(path)


def test_what_is_another_archive_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.tar", [{"question": "?", "answer": "1"}])
    assert open_rows(tmp_path / "a.tar").format == "jsonl"
    with pytest.raises(DataError, match=r"a\.tar: .*no whole TAR archive"):
        open_rows(tmp_path / "a.tar", format="webdataset")
