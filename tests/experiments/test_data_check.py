"""`selfverify data check`: one pass, a summary for people and programs, problems as a model sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commands import command
from data_files import END, base64_png, png, write_jsonl, write_odyssey, write_reasonseg, write_steps
from selfverify.core.policy_config import PolicyConfig
from selfverify.data.rows import open_rows
from selfverify.experiments.data_check import check_rows, summary
from selfverify.policy.policy import Policy
from selfverify.tasks.math import Math

ROW = {"question": "How many?", "answer": "3"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "text.png").write_text("no picture")
    return write_jsonl(
        tmp_path / "a.jsonl",
        [
            {**ROW, "id": "one", "image": base64_png(32, 32), "category": "x"},
            {**ROW, "id": "same", "image": base64_png(32, 32), "category": "y"},
            {**ROW, "id": "two", "images": [base64_png(32, 32), base64_png(64, 48)], "category": "x"},
            {**ROW, "id": "other", "image": base64_png(32, 32, 9)},
            {**ROW, "id": "words", "options": ["3", "4"]},
            {**ROW, "image": "text.png"},
            {"question": "?"},
            {**ROW, "question": "what is <|image_pad|>?"},
        ],
    )


def run(*arguments: object, code: int = 0) -> str:
    return command("data", "check", *arguments, code=code).stdout


def test_what_is_counted(file: Path, tiny_folder: Path) -> None:
    checked = check_rows(open_rows(file, note_bad=False), PolicyConfig(path=str(tiny_folder)), samples=1)
    assert (checked.rows, checked.kinds) == (5, {"question": 4, "options": 1})
    assert checked.categories == {"x": 2, "(none)": 2, "y": 1} and checked.images == {0: 1, 1: 3, 2: 1}
    different = (png(32, 32), png(64, 48), png(32, 32, 9))
    assert checked.distinct_images == 3 and checked.image_bytes == sum(map(len, different))
    assert checked.width is not None and (checked.width.min, checked.width.max) == (32, 64)
    assert (checked.duplicate_count, checked.duplicates) == (1, [("a/same", "a/one")])
    reasons = {bad.line: bad.reason.split(":")[0] for bad in checked.broken}
    assert reasons == {6: "the image cannot be read", 7: "its answer is missing", 8: "problem a/7"}


def test_tokens_are_those_of_the_model(file: Path, tiny_folder: Path, policy: Policy) -> None:
    """Counted without weights, and the same as a policy with weights encodes."""
    rows = open_rows(file, note_bad=False)
    checked = check_rows(rows, PolicyConfig(path=str(tiny_folder)))
    prompt = policy.encoder.prompt(Math(rows={"test": rows}).problem("test", 0, 2))
    tokens = [entry["tokens"] for entry in checked.longest]
    assert tokens == sorted(tokens, reverse=True)
    [longest] = [entry for entry in checked.longest if entry["id"] == "a/two"]
    assert longest["place"].endswith("a.jsonl, line 3")
    assert longest["tokens"] == len(prompt.ids)
    assert longest["image_tokens"] == sum(image.placeholders for image in prompt.images)
    first = checked.samples[0]
    marks = checked.samples[0].text.count("image tokens]")
    assert (first.id, first.images, first.target, marks) == ("a/one", [(32, 32)], "3", 1)
    assert "How many?" in first.text and "image_pad" not in first.text


def test_json_is_for_programs(file: Path, tmp_path: Path) -> None:
    found = json.loads(run(file, "--json", "--limit", 3))
    assert found["rows"] == 3 and found["broken"] == [] and len(found["samples"]) == 3
    assert found["prompt_tokens"]["max"] == found["longest"][0]["tokens"]
    found = json.loads(run(file, "--json", code=1))
    assert [bad["line"] for bad in found["broken"]] == [6, 7, 8]


def test_every_kind_of_file(tmp_path: Path) -> None:
    """It is counted; one without a usable row is an error."""
    box, screens = write_reasonseg(tmp_path / "r"), write_odyssey(tmp_path / "o")
    steps = write_steps(tmp_path / "steps.parquet", [{"action": "wait"}, END])
    told = [json.loads(run(path, "--json")) for path in (box, screens, steps)]
    assert {one["format"]: (one["kinds"], one["distinct_images"]) for one in told} == {
        "reasonseg": ({"box": 2}, 1),
        "gui-odyssey": ({"step": 9}, 9),
        "parquet": ({"step": 2}, 2),
    }
    (tmp_path / "a.parquet").write_bytes(b"PAR1cut")
    assert "was it cut off" in command("data", "check", tmp_path / "a.parquet", code=2).output


def test_sizes_that_the_file_says_wrongly_are_named(tmp_path: Path, tiny_folder: Path) -> None:
    box = {"question": "it", "image": base64_png(64, 48), "box": [0, 0, 60, 40]}
    step = {"goal": "g", "image": base64_png(64, 48), "action": {"action": "wait"}}
    sizes = [box | {"width": width, "height": 3 * width // 4} for width in (64, 128)]
    screens = [step | {"screen": screen} for screen in ([640, 480], [480, 640])]
    path = write_jsonl(tmp_path / "a.jsonl", [*sizes, *screens])
    checked = check_rows(open_rows(path), PolicyConfig(path=str(tiny_folder)))
    assert [bad.line for bad in checked.broken] == [2, 4] and checked.rows == 2
    assert "is 64 x 48, the file says 128 x 96" in checked.broken[0].reason
    assert "one is turned" in checked.broken[1].reason


def test_columns_and_what_looks_wrong(tmp_path: Path) -> None:
    """Letters without options, answers that cannot be read back, boxes out of the screen, ids that repeat."""
    asked = {"problem": "How many?", "solution": "3", "mystery": "x"}
    step = {"goal": "g", "image": base64_png(64, 48), "action": {"action": "wait"}}
    path = write_jsonl(
        tmp_path / "a.jsonl",
        [
            {**asked, "pid": "same"},
            {**asked, "pid": "same"},
            {**asked, "solution": "B"},
            {**asked, "solution": "B", "problem": "Which?\nA. one\nB. two"},
            {**asked, "solution": "B", "options": ["one", "two"]},
            {**asked, "solution": "it is what one would say of it if one had to say it, which nobody has"},
            {**step, "ui_boxes": [[0, 0, 64, 48]]},
            {**step, "ui_boxes": [[0, 0, 65, 48]]},
            *({**asked, "solution": None, "pid": k} for k in (7, 8)),
        ],
    )
    found = json.loads(run(path, "--json", code=1))
    assert found["columns"] == {"id": "pid", "question": "problem", "answer": "solution", "images": "image"}
    assert found["unread"] == ["mystery"] and found["rows"] == 8
    assert sorted(found["odd"].values()) == [["a/2"], ["a/5"], ["a/7"], ["a/same#2"]]
    out = run(path, code=1)
    assert "columns: " in out and "question from problem" in out and "not read: mystery" in out
    assert "  1 row: the answer is a letter, and neither the row nor its question has options (a/2)" in out
    assert "left out:\n  2 rows: its answer is missing\n" in out and out.count("\n--- ") == 3


def test_prompts_longer_than_the_model_reads_are_counted(tmp_path: Path, tiny_folder: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [ROW, {**ROW, "question": "word " * 5000}])
    checked = check_rows(open_rows(path), PolicyConfig(path=str(tiny_folder)))
    assert checked.rows == 2 and checked.too_long == 1 and not checked.broken
    assert any(f"longer than the {checked.model_reads} that it reads: 1" in line for line in summary(checked))
