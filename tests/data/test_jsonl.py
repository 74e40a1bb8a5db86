"""JSON lines and JSON lists: every record found again by number, whatever stands around it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from data_files import base64_png, png, write_jsonl
from selfverify.core.errors import DataError
from selfverify.data.records import JsonList
from selfverify.data.rows import open_rows

ROW = {"question": "How many?", "answer": "3"}


def test_rows_are_read_by_number_with_their_images(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(40, 30))
    path = write_jsonl(
        tmp_path / "math.jsonl",
        [
            {**ROW, "id": "first", "image": "a.png", "category": "counting"},
            {**ROW, "images": ["a.png", base64_png(8, 6), f"data:image/png;base64,{base64_png(4, 2)}"]},
            {**ROW, "answer": 4.0, "options": ["4", "5"], "source": "mine", "precision": 2.0},
        ],
    )
    rows = open_rows(path)
    assert len(rows) == 3 and not rows.bad and rows.format == "jsonl"
    first = rows[0]
    assert first["id"] == "math/first" and first["source"] == "math" and first["category"] == "counting"
    assert first["images"][0].size == first["images"][0].open().size == (40, 30)
    assert [image.size for image in rows[1]["images"]] == [(40, 30), (8, 6), (4, 2)]
    assert rows[1]["id"] == "math/1" and rows[1]["options"] is None
    assert (
        rows[-1]["answer"] == "A" and rows[2]["options"] == {"A": "4", "B": "5"} and rows[2]["precision"] == 2
    )
    with pytest.raises(IndexError):
        rows[3]


def test_a_byte_order_mark_and_other_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    lines = [json.dumps({**ROW, "question": f"Wie groß ist {k}?"}, ensure_ascii=False) for k in range(3)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    rows = open_rows(path)
    assert [row["question"] for row in rows] == [f"Wie groß ist {k}?" for k in range(3)] and not rows.bad


@pytest.mark.parametrize("more", ['"answer": "4"', '"meta": {"a": 1, "b": [{"c": 1, "c": 2}]}'])
def test_a_key_that_stands_twice_is_broken(tmp_path: Path, more: str) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text(f"{json.dumps(ROW)}\n{json.dumps(ROW)[:-1]}, {more}}}\n")
    rows = open_rows(path)
    name = "answer" if "answer" in more else "c"
    assert len(rows) == 1
    assert [str(bad) for bad in rows.bad] == [
        f"{path}, line 2: its key '{name}' stands 2 times in one object"
    ]


def test_broken_lines_are_named_and_the_others_read(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    good = json.dumps(ROW).encode()
    bad = [
        b'{"question": "cut', b"[1]", b'{"question": "\xff"}', b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 9999 + b"}",
    ]  # fmt: skip
    path.write_bytes(b"\n".join([good, *bad, good]))
    rows = open_rows(path)
    assert [row["id"] for row in rows] == ["some/0", "some/6"]
    assert [entry.line for entry in rows.bad] == [2, 3, 4, 5, 6]
    assert str(rows.bad[0]).startswith(f"{path}, line 2: it is not JSON")
    assert "a list and not an object" in rows.bad[1].reason and "not utf-8" in rows.bad[2].reason
    with pytest.raises(DataError, match=r"5 broken rows.*\n.*some\.jsonl, line 2: it is not JSON"):
        open_rows(path, on_bad="refuse")


def strings(rng: random.Random) -> str:
    return "".join(rng.choice('{}[]",:\\\n ä1') for _ in range(rng.randrange(12)))


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_is_cut_where_a_parser_would(tmp_path: Path, indent: int | None) -> None:
    """Against the standard library, with strings made of what the cutting looks for."""
    rng = random.Random(0)
    records: list[dict[str, Any]] = [
        {strings(rng): strings(rng), "deep": [{"a": [strings(rng)]}, {}, []], "n": k} for k in range(200)
    ]
    path = tmp_path / "list.json"
    path.write_text(json.dumps(records, indent=indent, ensure_ascii=False), encoding="utf-8")
    source = JsonList(path)
    assert [*source.scan()] == records
    order = rng.sample(range(200), 200)
    assert [source.record(k) for k in order] == [records[k] for k in order]


def test_lines_of_a_list_are_those_on_which_records_begin(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps([ROW, {"question": "?", "answer": ""}, ROW], indent=1), encoding="utf-8")
    rows = open_rows(path)
    assert [rows.place(k).number for k in range(2)] == [2, 10]
    assert [(bad.line, bad.reason) for bad in rows.bad] == [(6, "its answer is missing")]


@pytest.mark.parametrize("kept", [1.0, 0.5])
def test_a_list_that_is_cut_off_is_named(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "list.json"
    whole = json.dumps([ROW] * 4)[:-1]
    path.write_text(whole[: int(len(whole) * kept)], encoding="utf-8")
    rows = open_rows(path)
    [bad] = rows.bad
    assert len(rows) == (4 if kept == 1 else 2)
    assert str(bad).startswith(f"{path}: it is not JSON from line 1 on") and "cut off" in bad.reason


def test_a_file_that_has_shrunk_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [ROW, ROW])
    rows = open_rows(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert rows[0]["answer"] == "3"
    with pytest.raises(DataError, match=r"a\.jsonl is shorter than it was"):
        rows[1]


def test_the_file_is_not_kept_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = write_jsonl(tmp_path / "big.jsonl", [{**ROW, "image": base64_png(), "pad": "x" * 20_000}] * 1000)
    tracemalloc.start()
    rows = open_rows(path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(rows) == 1000 and path.stat().st_size > 2e7 and held < 2e6
