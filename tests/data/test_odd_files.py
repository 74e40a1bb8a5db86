"""Files as strangers save them: each is a row with the right values, or an error that says what to do."""

from __future__ import annotations

import gzip
import lzma
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from data_files import base64_png, png, write_jsonl
from selfverify.core.errors import ConfigError, DataError
from selfverify.data.rows import open_rows
from selfverify.tasks.math import Math
from tables import read_tables, yaml_cases

ROW = {"question": "How many?", "answer": "3"}


@yaml_cases
def test_files_that_hold_no_rows_say_what_to_do(
    tmp_path: Path, name: str, way: str, content: str, said: str
) -> None:
    pack = {"gzip": partial(gzip.compress, mtime=0), "lzma": lzma.compress}.get(way)
    (tmp_path / name).write_bytes(pack(content.encode()) if pack else content.encode(way))
    with pytest.raises(DataError, match=f"{name}.*{said}|(?s:{name}.*has no usable row.*{said})"):
        open_rows(tmp_path / name)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder\.jsonl has no files of a format that is read"):
        open_rows(tmp_path / "folder.jsonl")
    for name in ("https://huggingface.co/datasets/a/b", "a/b/c"):
        with pytest.raises(ConfigError, match=f"no file or folder {name}; .*OWNER/NAME"):
            open_rows(name)


def test_tables_with_semicolons_and_parquet_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfid;question;answer\n7;What, now?;4,5\n")
    [row] = open_rows(tmp_path / "a.csv")
    assert (row["id"], row["question"], row["answer"]) == ("a/7", "What, now?", "4,5")
    parquet.write_table(pa.table({"question": pa.array([], pa.string())}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: .*no data"):
        open_rows(tmp_path / "a.parquet")


def check(tmp_path: Path, rows: list[dict[str, Any]], wanted: list[Any], field: str = "answer") -> None:
    """Compare a field of each row behind a plain one, or what its error says."""
    (tmp_path / "a.png").write_bytes(png())
    found = open_rows(write_jsonl(tmp_path / "a.jsonl", [ROW, *rows]), check_images=True, note_bad=False)
    values = {found.place(n).number: row.get(field) for n, row in enumerate(found)}
    reasons = {bad.line: bad.reason for bad in found.bad}
    for line, want in enumerate(wanted, start=2):
        if isinstance(want, str) and want.startswith("! "):
            assert want[2:] in reasons.get(line, ""), (line, values.get(line), reasons.get(line))
        else:
            assert values.get(line, reasons.get(line)) == want, line


def test_a_column_of_mixed_types(tmp_path: Path) -> None:
    answers = {
        "x": "x", 3: "3", 3.5: "3.5", 10**30: "1" + "0" * 30, 1e16: "1" + "0" * 16,
        None: "! answer is missing", False: "! answer is False", float("nan"): "! answer is missing",
        float("inf"): "! answer is inf",
    }  # fmt: skip
    check(tmp_path, [{**ROW, "answer": answer} for answer in answers], list(answers.values()))
    lists = [{**ROW, "answer": [[1]]}, {**ROW, "answer": {"value": 1}}, {**ROW, "question": ["a"]}]
    check(tmp_path, lists, ["! answer is [1]", "! answer is {'value': 1}", "! question is ['a']"])
    table = {"question": ["q"], "answer": [Decimal("1.50")], "id": [2**62]}
    parquet.write_table(pa.table(table), tmp_path / "a.parquet")
    [row] = open_rows(tmp_path / "a.parquet")
    assert (row["answer"], row["id"]) == ("1.50", f"a/{2**62}")


def test_options_of_many_forms(tmp_path: Path) -> None:
    forms = read_tables(Path(__file__).with_suffix(".yaml"))["options"]
    rows = [{**ROW, "options": options, "answer": "A"} for options, _ in forms]
    check(tmp_path, rows, [wanted for _, wanted in forms], "options")


def test_targets_of_many_forms(tmp_path: Path) -> None:
    options = ["red", "blue", "green"]
    right = [1, "1", 1.0, "B", "b", "(B)", "B.", "B)", "blue", " blue ", "B. blue", "(B) blue", ["B"]]
    wrong = [3, -1, "D", "B. red", "A,B", "option B", True, "Blue"]
    rows = [{**ROW, "options": options, "answer": answer} for answer in right + wrong]
    check(tmp_path, rows, ["B"] * len(right) + ["! its answer "] * len(wrong))
    pairs: list[tuple[Any, str, str]] = [
        ({"A": "B.", "B": "x"}, "B.", "A"),  # a text before a mark
        (["1", "2", "3"], "3", "C"),  # the text, and no number of an option
        (["B", "A"], "A", "A"),
        (["2", "1", "0"], "2", "! could be A or C"),  # text of A, number of C
        (["red", "blue"], "fish", "! is none of the options"),
    ]
    check(tmp_path, [{**ROW, "options": o, "answer": a} for o, a, _ in pairs], [want for *_, want in pairs])
    # MathVista's answers to choices are texts, even where these are letters or numbers.
    texts = [
        (["2", "1", "0"], "2", "A"),
        (["B", "A"], "A", "B"),
        (["red", "blue"], "B", "B"),
        ([], "free", "free"),
    ]
    check(tmp_path, [{**ROW, "choices": o, "answer": a} for o, a, _ in texts], [want for *_, want in texts])
    odd = [{"precision": 1.5}, {"precision": "some"}, {"alternatives": "one"}, {"question": None}]
    names = ["precision", "precision", "alternatives", "question"]
    check(tmp_path, [ROW | more for more in odd], [f"! its {name} is " for name in names])


def test_images_of_many_forms(tmp_path: Path) -> None:
    coded = base64_png()
    url = f"data:image/png;base64,{coded}"
    right = ["a.png", "./a.png", str(tmp_path / "a.png"), f"file://{tmp_path}/a.png", coded, url]
    right += [
        '["a.png"]',
        "[a.png]",
        {"path": "a.png"},
        {"bytes": coded},
        {"url": url},
        {"bytes": None, "path": "a.png"},
    ]
    none = [None, "", []]
    wrong = {
        "s3://b/a.png": "is on the web", "data:image/png,no": "base64 text is damaged",
        "no.png": "cannot be read",
    }  # fmt: skip
    strange = [[None], ["a.png", None], {"url": None}, {"array": [[0]]}, 5]
    rows = [{**ROW, "id": f"x{n}", "image": v} for n, v in enumerate([*right, *none, *wrong, *strange])]
    values = [f"a/x{n}" for n in range(len(right) + len(none))]
    reasons = ["! " + reason for reason in wrong.values()] + ["! image"] * len(strange)
    check(tmp_path, rows, values + reasons, "id")
    found = open_rows(tmp_path / "a.jsonl", note_bad=False)
    assert [len(row["images"]) for row in found][1 : 1 + len(right)] == [1] * len(right)


def test_boxes_of_many_forms(tmp_path: Path) -> None:
    box = [1.0, 2.0, 30.0, 20.0]
    right = ["[1, 2, 30, 20]", "1, 2, 30, 20", "(1, 2, 30, 20)", ["1", "2", "30", "20"], box]
    edges = [[-0.5, 0, 40.9, 30]]  # less than a pixel outside
    wrong = {
        "[30, 2, 1, 20]": "x1 >= x2", "[1, 20, 30, 20]": "y1 >= y2", "[1, 2, 60, 20]": "image (40 x 30)",
        "[-5, 2, 30, 20]": "out of the image", "[1, 2, 30, NaN]": "is nan", "[1, 2, 30]": "not four numbers",
        "1 2 30 20": "not a list", "[1, 2, 30": "not a list", "[[1, 2], [30, 20]]": "not four numbers",
        "[0.1, 0.1, 0.5, 0.5]": "bbox_x1_norm", "[1, 2, 30, null]": "is None, not a number",
    }  # fmt: skip
    rows = [{"image": "a.png", "question": "dog", "box": value} for value in [*right, *edges, *wrong]]
    wanted = [*[box] * len(right), [0, 0, 40, 30], *(f"! {reason}" for reason in wrong.values())]
    check(tmp_path, rows, wanted, "box")


def test_ids_stay_apart(tmp_path: Path) -> None:
    """Also where a row has the id that a repeated one would get."""
    for ids in (["a", "a#2", "a", "a", 1, "1", 1.0], ["a", "a", "a#2", "a#2"]):
        path = write_jsonl(tmp_path / "a.jsonl", [{**ROW, "id": id} for id in ids])
        found = [row["id"] for row in open_rows(path)]
        assert found[0] == "a/a" and len(set(found)) == len(ids)


def test_rows_of_pandas_are_taken(tmp_path: Path) -> None:
    """Arrays, as which it reads the lists of Parquet, numpy's numbers, and its NA."""
    row = {"question": "Which?", "options": np.array(["red", "blue"]), "answer": np.int64(1), "hint": pd.NA}
    rows = [row, row | {"image": pd.NA, "images": np.array([base64_png()], dtype=object)}]
    task = Math(rows={"test": rows})
    problems = [task.problem("test", 0, n) for n in range(2)]
    assert [problem.target for problem in problems] == ["B", "B"]
    assert [len(problem.images) for problem in problems] == [0, 1]


def test_image_folders_of_the_hub(tmp_path: Path) -> None:
    """A table `metadata` beside the pictures, whose files it names."""
    (tmp_path / "a.png").write_bytes(png())
    (tmp_path / "metadata.csv").write_text("file_name,question,answer\na.png,q,1\nreport.pdf,q,1\n")
    assert [len(row["images"]) for row in open_rows(tmp_path)] == [1, 0]


def test_messages_as_openai_writes_them(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    parts = [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "q"}]
    talk = {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "b"}]}
    path = write_jsonl(tmp_path / "a.jsonl", [talk])
    [row] = open_rows(path, check_images=True)
    assert row["messages"][0]["content"][0]["image"].size == (40, 30)
    (tmp_path / "a.png").unlink()
    with pytest.raises(DataError, match=r"line 1: .*cannot be read"):
        open_rows(path, check_images=True)
