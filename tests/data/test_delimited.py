"""VLMEvalKit's TSV files, written by pandas as there: base64, lists, references, quoting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from data_files import base64_png, png
from selfverify.core.errors import DataError
from selfverify.data.rows import open_rows


def write_tsv(path: Path, rows: list[dict[str, Any]], separator: str = "\t") -> Path:
    pd.DataFrame(rows).to_csv(path, sep=separator, index=False)
    return path


MATHVISTA = {
    "question_type": "free_form", "answer_type": "float", "choices": None, "answer_option": None,
    "precision": 1.0, "category": "math", "split": "testmini",
}  # fmt: skip


def test_a_table_is_read_as_it_is_written(tmp_path: Path) -> None:
    one = {"index": 1, "image": base64_png(40, 30, 1), "question": 'Say "5"\tor\nelse', "answer": "1.2"}
    two = {"index": 2, "image": "1", "question": "ü?", "answer": "red", **MATHVISTA, "answer_type": "text"}
    two |= {"choices": "['red', 'blue']", "answer_option": "A", "precision": None}
    images = (f"['{base64_png(8, 6)}', '{base64_png(4, 2)}']", f"[{base64_png(8, 6)},{base64_png(4, 2)}]")
    both = [{"index": k, "image": i, "question": "both?", "answer": 7} for k, i in enumerate(images, start=3)]
    path = write_tsv(
        tmp_path / "MathVista_MINI.tsv", [one | MATHVISTA, two, *(row | MATHVISTA for row in both)]
    )
    rows = open_rows(path)
    assert len(rows) == 4 and not rows.bad and rows.format == "tsv"
    assert rows[0]["question"] == 'Say "5"\tor\nelse' and rows[0]["precision"] == 1
    assert rows[0]["answer_type"] == "float" and rows[0]["id"] == "MathVista_MINI/1"
    assert rows[1]["images"][0].data() == png(40, 30, 1)
    assert rows[1]["options"] == {"A": "red", "B": "blue"} and rows[1]["answer"] == "A"
    assert [image.size for image in rows[2]["images"]] == [(8, 6), (4, 2)]
    assert [image.open().size for image in rows[3]["images"]] == [(8, 6), (4, 2)]
    assert rows.place(1).number == 4  # the first row takes two lines


def test_letters_are_options_and_a_reference_may_point_forwards(tmp_path: Path) -> None:
    choices = {"A": "cat", "B": 2, "C": None, "question": "Which?", "hint": "Look.", "l2-category": "fine"}
    path = write_tsv(
        tmp_path / "MMStar.tsv",
        [
            {"index": "x", "image": "y", "answer": "b", **choices},
            {"index": "y", "image": base64_png(), "answer": "cat", **choices},
        ],
    )
    rows = open_rows(path)
    assert rows[0]["images"][0].size == (40, 30) and rows[0]["options"] == {"A": "cat", "B": "2"}
    assert (rows[0]["answer"], rows[1]["answer"]) == ("B", "A")
    assert rows[0]["question"] == "Look.\nWhich?" and rows[0]["category"] == "fine"


def test_an_unknown_reference_is_named(tmp_path: Path) -> None:
    row = {"question": "?", "answer": "1"}
    path = write_tsv(
        tmp_path / "a.tsv",
        [
            {"index": 0, "image": base64_png(), **row},
            {"index": 1, "image": "999", **row},
            {"index": 2, "image": "1", **row},  # of a row that has none of its own
            {"index": 3, "image": "0", **row},
        ],
    )
    rows = open_rows(path)
    assert [row["id"] for row in rows] == ["a/0", "a/3"]
    assert [str(bad) for bad in rows.bad] == [
        f"{path}, line {line}: its image is '{index}', and no row of that index has an image of its own"
        for line, index in ((3, "999"), (4, "1"))
    ]
    with pytest.raises(DataError, match="line 3: its image is '999'"):
        open_rows(path, on_bad="refuse")
    assert [row["id"] for row in open_rows(path, limit=1)] == ["a/0"]


def test_rows_that_do_not_fit_their_header_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    good = "{}\tq\t1\n"
    path.write_bytes(
        b"\xef\xbb\xbfindex\tquestion\tanswer\n"
        + good.format(10).encode()
        + b"1\tq\n2\tq\xff\t1\n"
        + good.format(13).encode()
        + b'x\t"quoted"badly\t1\n'
        + b'4\t"never closed\t1\n'
        + good.format(5).encode()
    )
    rows = open_rows(path)
    assert [row["id"] for row in rows] == ["a/10", "a/13"]  # the mark is no part of the first column's name
    assert [bad.line for bad in rows.bad] == [3, 4, 6, 7]
    assert "2 cells, the first line names 3" in rows.bad[0].reason and "UTF-8" in rows.bad[1].reason
    assert "no row of a table" in rows.bad[2].reason and "is a quote never closed" in rows.bad[3].reason


def test_csv_and_image_paths(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "1.jpg").write_bytes(png(9, 9))
    path = write_tsv(
        tmp_path / "a.csv",
        [
            {"question": "a, b?", "answer": "1", "image": None, "image_path": "1.jpg"},
            {"question": "c", "answer": "2", "image": "1.jpg", "image_path": None},
            {"question": "d", "answer": "2", "image": None, "image_path": "['1.jpg', '1.jpg']"},
        ],
        ",",
    )
    rows = open_rows(path, images=tmp_path / "pictures")
    assert rows.format == "csv" and [len(row["images"]) for row in rows] == [1, 1, 2]
    assert all(image.size == (9, 9) for row in rows for image in row["images"])


def test_only_the_split_that_is_asked_for(tmp_path: Path) -> None:
    rows = [{"index": k, "question": "?", "answer": 1, "split": ["val", "test"][k % 2]} for k in range(5)]
    path = write_tsv(tmp_path / "a.tsv", rows)
    assert [row["id"] for row in open_rows(path, split="test")] == ["a/1", "a/3"]
    with pytest.raises(DataError, match="no rows of split 'train'"):
        open_rows(path, split="train")
