"""What holds for every format: recognised, in a reproducible order, and no bad input goes unnamed."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from data_files import (
    END,
    base64_png,
    huge_png,
    png,
    write_jsonl,
    write_odyssey,
    write_reasonseg,
    write_steps,
    write_tar,
)
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import EventLog, read_events
from selfverify.data.rows import FORMATS, detect, open_rows
from selfverify.reports.run_data import story

ROW = {"question": "How many?", "answer": "3"}
SHAPES: dict[str, Any] = {"text": "café", "shapes": []}
SAMPLE = {"json": json.dumps(ROW).encode(), "png": png()}


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "numbers.jsonl", [{"id": k, **ROW} for k in range(50)])


def test_what_a_file_is_says_its_content(tmp_path: Path) -> None:
    rows = json.dumps([ROW])
    episode = write_odyssey(tmp_path / "o") / "annotations" / "0001.json"
    for name, content, format in (
        ("a", rows.encode(), "json"),
        ("b", json.dumps(ROW).encode(), "jsonl"),
        ("c.json", (json.dumps(ROW) + "\n" + json.dumps(ROW)).encode(), "jsonl"),
        ("d", b"\xef\xbb\xbfquestion\tanswer\nq\ta\n", "tsv"),
        ("e", b"question,answer\nq,a\n", "csv"),
        ("f.json", episode.read_bytes(), "gui-odyssey"),
        ("g.json", json.dumps(json.loads(episode.read_bytes())).encode(), "gui-odyssey"),
        ("l.json", "\ufeff{}\n{}".encode(), "jsonl"),
        ("m.json", json.dumps(SHAPES, indent=1, ensure_ascii=False).encode("utf-8-sig"), "reasonseg"),
        ("n.json", json.dumps(SHAPES, indent=1, ensure_ascii=False).encode("cp1252"), "reasonseg"),
    ):
        (tmp_path / name).write_bytes(content)
        assert detect(tmp_path / name) == format
    for name, content in (("h", b"PK\x03\x04"), ("i", b""), ("j", b"\x1f\x8bnot"), ("k.json", b'{"a": 1}')):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=str(tmp_path / name)):
            detect(tmp_path / name)


def test_what_is_not_there_is_said(tmp_path: Path, numbers: Path) -> None:
    with pytest.raises(ConfigError, match="no file or folder"):
        open_rows(tmp_path / "gone")
    with pytest.raises(ConfigError, match=r"no format 'xml'; formats: parquet, arrow, jsonl"):
        open_rows(numbers, format="xml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no files of a format"):
        open_rows(tmp_path / "empty")
    for format in FORMATS:
        with pytest.raises((DataError, ConfigError)):
            open_rows(tmp_path / "empty", format=format)
    with pytest.raises(DataError, match=r"no usable row; 50 broken rows"):
        open_rows(numbers, format="sharegpt")


def test_a_folder_of_files_is_one_set(tmp_path: Path) -> None:
    for name in ("train-0", "train-1", "test-0"):
        write_jsonl(tmp_path / f"{name}.jsonl", [{"id": 1, **ROW}, ROW])
    (tmp_path / "README.md").write_text("# About")
    (tmp_path / ".cache").mkdir()
    write_jsonl(tmp_path / ".cache" / "x.jsonl", [ROW])
    with pytest.raises(ConfigError, match="has files of the splits test, train: choose one with split"):
        open_rows(tmp_path)
    ids = ["train-0/1", "train-0/1#2", "train-1/1", "train-1/1#2"]
    assert [row["id"] for row in open_rows(tmp_path, split="train")] == ids
    (tmp_path / "test-0.jsonl").rename(tmp_path / "testimony.jsonl")
    assert [row["id"] for row in open_rows(tmp_path)] == ["testimony/1", "testimony/1#2", *ids]
    assert [row["id"] for row in open_rows(tmp_path, limit=3)] == ["testimony/1", "testimony/1#2", ids[0]]
    (tmp_path / "val").mkdir()
    (tmp_path / "testimony.jsonl").rename(tmp_path / "val" / "a.jsonl")
    with pytest.raises(ConfigError, match="splits train, val"):
        open_rows(tmp_path)


def test_rows_are_the_same_at_every_opening(tmp_path: Path) -> None:
    """In any order of access, whatever has been read before."""
    paths = [
        write_steps(
            tmp_path / "a.parquet", [{"action": "wait"}, {"action": "click", "coordinate": [5, 6]}, END]
        ),
        write_odyssey(tmp_path / "o"),
        write_reasonseg(tmp_path / "r"),
    ]
    for path in paths:
        rows, again = open_rows(path), open_rows(path)
        for k in reversed(range(len(rows))):
            one, other = dict(rows[k]), dict(again[k])
            images = [ref.data() for ref in one.pop("images")], [ref.data() for ref in other.pop("images")]
            assert one == other and images[0] == images[1]


# The list of bad input; what else belongs to it stands with the formats.


def test_an_answer_of_a_million_characters(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl", [ROW, {**ROW, "answer": "9" * 10**6}, {**ROW, "question": "?" * 10**6}]
    )
    rows = open_rows(path)
    assert len(rows) == 1
    assert [str(bad) for bad in rows.bad] == [
        f"{path}, line 2: its answer has 1,000,000 characters, more than 10,000",
        f"{path}, line 3: its question has 1,000,000 characters, more than 100,000",
    ]
    with pytest.raises(DataError, match="line 2: its answer has 1,000,000"):
        open_rows(path, on_bad="refuse")


BAD_IMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda folder: write(folder / "a.png", b"<svg>not a picture</svg>"), "in none of the formats"),
    "cut": (lambda folder: write(folder / "a.png", png()[:60]), "cannot be read"),
    "huge": (lambda folder: write(folder / "a.png", huge_png(20_000, 15_000)), "300000000 pixels"),
    "base64": (lambda folder: base64_png()[:-3], "base64 text is damaged"),
}


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return path.name


@pytest.mark.parametrize("kind", BAD_IMAGES)
def test_a_bad_image_is_named_by_its_row(tmp_path: Path, kind: str) -> None:
    make, said = BAD_IMAGES[kind]
    image = make(tmp_path)
    path = write_jsonl(tmp_path / "a.jsonl", [{**ROW, "image": base64_png()}, {**ROW, "image": image}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for check in (True, False):
            rows = open_rows(path, check_images=check)
            if len(rows) == 2:
                with pytest.raises(DataError, match=said) as error:
                    rows[1]["images"][0].open(tries=1)
                assert str(error.value).startswith(f"{path}, line 2: ") and not check
            else:
                [bad] = rows.bad
                assert str(bad).startswith(f"{path}, line 2: ") and said in bad.reason
        with pytest.raises(DataError, match=rf"1 broken rows.*\n.*line 2: .*{said}"):
            open_rows(path, on_bad="refuse", check_images=True)


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    """It is refused by its header: what follows the header is missing."""
    import tracemalloc

    path = write_jsonl(
        tmp_path / "a.jsonl", [{**ROW, "image": write(tmp_path / "a.png", huge_png(20_000, 15_000))}]
    )
    image = open_rows(path)[0]["images"][0]
    tracemalloc.start()
    with pytest.raises(DataError, match="exceeds limit"):
        image.open()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**20


def test_one_bad_screenshot_costs_one_step(tmp_path: Path) -> None:
    folder = write_odyssey(tmp_path / "o")
    (folder / "screenshots" / "0001_4.png").write_bytes(b"text")
    rows = open_rows(folder, check_images=True)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 5, 6, 7, 8] and len(rows.bad) == 1
    assert len(rows[4]["history"]) == 5


def test_fields_of_types_that_nobody_foresaw(tmp_path: Path) -> None:
    strange: list[Any] = [{}, [], 5, {"a": [1]}, [[["x"]]], True, "\ud800"]
    names = "question answer image images options id conversations box polygons width category hint unit goal"
    rows = [{**ROW, name: value} for name in names.split() for value in strange]
    rows += [
        {"goal": "g", "action": value, "image": base64_png(), "screen": other}
        for value in strange
        for other in strange
    ]
    path = write_jsonl(tmp_path / "a.jsonl", [ROW, *rows])
    found = open_rows(path, check_images=True)
    assert len(found) + len(found.bad) == len(rows) + 1
    assert all(bad.line and bad.reason for bad in found.bad)
    json.dumps([dict(row, images=[]) for row in found], ensure_ascii=False).encode()  # no half characters


def test_skipped_rows_are_told_of_once_in_a_run(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [ROW, *[{"question": "?"}] * 12])
    with EventLog(tmp_path / "events.jsonl"):
        open_rows(path)
    [event] = read_events(tmp_path / "events.jsonl")
    assert (
        event["event"] == "rows_skipped" and event["rows"] == 12 and "line 2: its answer" in event["message"]
    )
    assert story([event]) == ["data files with broken rows: 1"]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """With a bit turned, bytes lost or put in, or cut off."""
    at = rng.randrange(len(content))
    match rng.randrange(4):
        case 0:
            return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
        case 1:
            return content[:at] + content[at + rng.randrange(1, 50) :]
        case 2:
            return content[:at] + rng.randbytes(rng.randrange(1, 9)) + content[at:]
    return content[:at]


@pytest.mark.parametrize(
    "format", ["jsonl", "json", "csv", "parquet", "webdataset", "gui-odyssey", "reasonseg"]
)
def test_any_damage_ends_in_rows_or_in_an_error_of_ours(tmp_path: Path, format: str) -> None:
    rows = [{**ROW, "id": k, "image": base64_png()} for k in range(6)]
    file = tmp_path / "file"
    match format:
        case "json":
            file.write_text(json.dumps(rows))
        case "csv":
            file.write_text("index,question,answer\n" + '1,"a, b","1"\n' * 5)
        case "parquet":
            parquet.write_table(pa.Table.from_pylist([{**ROW, "image": png()}] * 6), file, row_group_size=2)
        case "webdataset":
            write_tar(file, {f"{k}.{kind}": part for k in range(6) for kind, part in SAMPLE.items()})
        case "gui-odyssey":
            file = write_odyssey(tmp_path / "o") / "annotations" / "0001.json"
        case "reasonseg":
            file = write_reasonseg(tmp_path / "r") / "1.json"
        case _:
            write_jsonl(file, rows)
    whole, rng = file.read_bytes(), random.Random(0)
    for _ in range(40):
        file.write_bytes(damaged(whole, rng))
        try:
            for row in open_rows(file, format=format, check_images=True, note_bad=False):
                assert row["id"] and row["images"] is not None
        except (DataError, ConfigError):
            continue
