"""Parquet and Arrow, written by `datasets` and by pyarrow: images stay on the disk, damage is named."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from datasets import Dataset, DatasetDict, Features, Image, List, Value

from data_files import png
from selfverify.core.errors import ConfigError, DataError
from selfverify.data.rows import open_rows

OPEN_R1 = {
    "image": {"bytes": png(40, 30), "path": None},
    "problem": "What is x?",
    "solution": "<think>It is\nthree.</think>\n\n<answer> $3$ </answer>",
    "original_question": "x?",
    "original_answer": "3",
}


def open_r1(count: int) -> Dataset:
    """The columns of multimodal-open-r1-8k-verified."""
    rows = [
        OPEN_R1 | {"problem": f"What is x{k}?", "image": {"bytes": png(40, 30, k), "path": None}}
        for k in range(count)
    ]
    features = Features(
        {"image": Image(decode=False)} | {name: Value("string") for name in list(OPEN_R1)[1:]}
    )
    return Dataset.from_list(rows, features=features)


def check_open_r1(rows: Any, count: int) -> None:
    assert len(rows) == count and not rows.bad
    for k in (count - 1, 0, count // 2):
        row = rows[k]
        assert row["question"] == f"What is x{k}?" and row["answer"] == "$3$" and row["options"] is None
        assert row["solution"] == "It is\nthree."
        assert row["images"][0].data() == png(40, 30, k) and row["images"][0].open().size == (40, 30)


def test_open_r1_as_parquet(tmp_path: Path) -> None:
    path = tmp_path / "data" / "train-00000-of-00001.parquet"
    path.parent.mkdir()
    open_r1(25).to_parquet(str(path), batch_size=10)
    assert parquet.ParquetFile(path).num_row_groups > 1
    rows = open_rows(path)
    check_open_r1(rows, 25)
    assert rows[3]["id"] == "train-00000-of-00001/3" and str(rows.place(3)).endswith(".parquet, row 4")
    check_open_r1(open_rows(tmp_path, split="train"), 25)


def test_the_scan_reads_no_image(tmp_path: Path) -> None:
    import tracemalloc

    big = random.Random(0).randbytes(10**6)
    rows = [{"question": "q", "answer": "1", "image": big, "images": [png(5, 4), big]}] * 8
    Dataset.from_list(rows).save_to_disk(str(tmp_path / "set"))
    open_rows(tmp_path / "set")  # imports what it needs
    tracemalloc.start()
    found = open_rows(tmp_path / "set")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10**6
    assert found[7]["images"][0].size == (5, 4) and found[7]["images"][1].data() == big


def test_open_r1_saved_by_datasets(tmp_path: Path) -> None:
    DatasetDict({"train": open_r1(7), "test": open_r1(3)}).save_to_disk(
        str(tmp_path / "set"), num_shards={"train": 2, "test": 1}
    )
    check_open_r1(open_rows(tmp_path / "set", split="test"), 3)
    rows = open_rows(tmp_path / "set" / "train")
    check_open_r1(rows, 7)
    assert rows[6]["id"] == "train/6" and rows.format == "arrow"
    with pytest.raises(ConfigError, match="has the splits test, train"):
        open_rows(tmp_path / "set")


@pytest.mark.parametrize("kind", ["parquet", "arrow-stream", "arrow-file"])
def test_lists_of_images_and_missing_ones(tmp_path: Path, kind: str) -> None:
    two = [{"bytes": png(8, 6), "path": None}, {"bytes": None, "path": "b.png"}]
    rows = [{"images": images, "question": "q", "answer": "a"} for images in (two, [], None)]
    image = {"image_1": Image(decode=False), "image_2": Image(decode=False)}
    rows = [
        row | {"image_1": {"bytes": png(3, 3), "path": "c.png"} if k == 2 else None, "image_2": None}
        for k, row in enumerate(rows)
    ]
    features = Features(
        {"images": List(Image(decode=False)), "question": Value("string"), "answer": Value("string"), **image}
    )
    table = Dataset.from_list(rows, features=features).data.table
    (tmp_path / "b.png").write_bytes(png(4, 2))
    path = tmp_path / "a.data"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        new = pa.ipc.new_stream if kind == "arrow-stream" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    found = open_rows(path)
    assert [[image.size for image in row["images"]] for row in found] == [[(8, 6), (4, 2)], [], [(3, 3)]]


def test_mmmu_columns(tmp_path: Path) -> None:
    both = {"question": "<image 1> Which?", "subfield": "Drawing"}
    letter = {"options": "['red', \"it's\"]", "answer": "B", "question_type": "multiple-choice"}
    open_ended = {"options": "[]", "answer": "['6', 'six']", "question_type": "open"}
    rows = [{"id": "validation_Art_1", **both, **letter}, {"id": "validation_Art_2", **both, **open_ended}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    choice, free = open_rows(tmp_path / "a.parquet")
    assert choice["options"] == {"A": "red", "B": "it's"} and choice["answer"] == "B"
    assert free["answer"] == "6" and free["alternatives"] == ["6", "six"] and free["category"] == "Drawing"


@pytest.mark.parametrize("kept", [0.99, 0.5, 0.01])
def test_a_truncated_file_is_named(tmp_path: Path, kept: float) -> None:
    open_r1(5).to_parquet(str(tmp_path / "b.parquet"))
    whole = (tmp_path / "b.parquet").read_bytes()
    cut = tmp_path / "a.parquet"
    cut.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(DataError, match=r"a\.parquet: .*was it cut off"):
        open_rows(cut)
    # Beside a whole one it is skipped and counted, or refused.
    rows = open_rows(tmp_path)
    assert len(rows) == 5 and [(Path(bad.file).name, bad.line) for bad in rows.bad] == [("a.parquet", 0)]
    with pytest.raises(DataError, match=r"1 broken rows.*\n.*a\.parquet"):
        open_rows(tmp_path, on_bad="refuse")


def test_damaged_arrow_files_end_in_an_error(tmp_path: Path) -> None:
    """pyarrow trusts the places of texts and images in a file; a wrong one would kill the process."""
    table = pa.table({"question": ["q"] * 5, "answer": ["1"] * 5, "image": [png(8, 8)] * 5})
    path = tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        # Another file each time: the one before is still mapped into memory.
        damaged = tmp_path / f"{place}.arrow"
        damaged.write_bytes(whole[:place] + b"\x7f" + whole[place + 1 :])
        with contextlib.suppress(DataError):
            rows = open_rows(damaged, check_images=True, note_bad=False)
            assert len(rows) + len(rows.bad) == 5


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"_data_files": 5}', '{"_data_files": [{"filename": "no.arrow"}]}']
)
def test_damaged_folders_of_datasets_are_named(tmp_path: Path, text: str) -> None:
    open_r1(5).save_to_disk(str(tmp_path / "set"))
    (tmp_path / "set" / "state.json").write_text(text)
    with pytest.raises(DataError, match=r"set: it cannot be read as a whole"):
        open_rows(tmp_path / "set")


def test_a_selection_that_is_saved_is_what_is_read(tmp_path: Path) -> None:
    """`datasets` writes all rows then, and the numbers of the chosen ones beside them."""
    open_r1(5).select([3, 1]).save_to_disk(str(tmp_path / "set"))
    assert [row["question"] for row in open_rows(tmp_path / "set")] == ["What is x3?", "What is x1?"]


def test_the_library_is_imported_when_a_file_needs_it(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("question\tanswer\nHow much?\t1.50\n")
    program = (
        "import sys; from selfverify.data.rows import open_rows; "
        "assert open_rows('a.tsv')[0]['answer'] == '1.50'; "
        "assert not {'datasets', 'pandas', 'pyarrow'} & sys.modules.keys()"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
