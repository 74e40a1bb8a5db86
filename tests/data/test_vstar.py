"""V*: its two forms, and that the right option stands anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_files import png, write_jsonl
from selfverify.core.errors import DataError
from selfverify.data.rows import open_rows
from tables import yaml_cases


def write(folder: Path, name: str, **changes: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jpg").write_bytes(png(56, 42))
    about = {
        "target_object": ["glove", "hat"],
        "bbox": [[4, 6, 10, 8], [30, 20, 26, 22]],
        "question": "Of what is it?",
        "options": ["rubber", "cotton", "wool", "silk"],
    }
    (folder / f"{name}.json").write_text(json.dumps(about | changes))


def test_options_are_shuffled_by_the_images_name(tmp_path: Path) -> None:
    """Whoever always says A is right by chance only; each opening shuffles alike."""
    for number in range(40):
        write(tmp_path / "direct_attributes", f"sa_{number}")
    rows = open_rows(tmp_path, format="vstar")
    answers = [row["answer"] for row in rows]
    assert {row["options"][row["answer"]] for row in rows} == {"rubber"}
    assert all(3 <= answers.count(letter) <= 20 for letter in "ABCD")
    assert [row["answer"] for row in open_rows(tmp_path)] == answers
    assert rows[0]["target_boxes"] == [[4, 6, 14, 14], [30, 20, 56, 42]]
    assert rows[0]["category"] == "direct_attributes" and rows[0]["id"].endswith("sa_0")


def test_the_list_of_questions(tmp_path: Path) -> None:
    """Options stand in the text, in the file's order; boxes are found beside the image."""
    write(tmp_path / "relative_position", "sa_7")
    line = {
        "image": "relative_position/sa_7.jpg", "category": "relative_position", "label": "B",
        "question_id": 0,
        "text": "Is it left or right?\n(A) left\n(B) right\nAnswer with the option's letter.",
    }  # fmt: skip
    path = write_jsonl(tmp_path / "test_questions.jsonl", [line, line | {"image": "gone.jpg"}])
    rows = open_rows(path)
    assert rows[0]["question"] == "Is it left or right?" and rows[0]["answer"] == "B"
    assert rows[0]["options"] == {"A": "left", "B": "right"}
    assert rows[0]["target_boxes"] == [[4, 6, 14, 14], [30, 20, 56, 42]]
    assert rows[1]["target_boxes"] == [] and rows[0]["category"] == "relative_position"


def test_a_question_of_the_list_without_options(tmp_path: Path) -> None:
    write(tmp_path, "sa_7")
    line = {"image": "sa_7.jpg", "label": "B", "text": "Is it left or right?"}
    path = write_jsonl(tmp_path / "test_questions.jsonl", [line])
    with pytest.raises(DataError, match=r"line 1.*its text has no options.*'Is it left or right\?'"):
        open_rows(path)[0]


@yaml_cases
def test_damage(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    write(tmp_path / "direct_attributes", "sa_1")
    write(tmp_path / "direct_attributes", "sa_2", **changes)
    with pytest.raises(DataError, match=rf"sa_2\.json: .*{reason}"):
        open_rows(tmp_path, on_bad="refuse")
    (tmp_path / "direct_attributes" / "sa_2.jpg").unlink()
    with pytest.raises(DataError, match="there is no image sa_2 beside it"):
        open_rows(tmp_path, format="vstar", on_bad="refuse")
