"""Traces: what is flattened and merged, and why one is dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.experiments.looks.looks_recipe import trace

from selfverify.evaluation.samples import IMAGES
from selfverify.visual.traces import Curation, Demands, VisualTrace, estimated_length, flattened


def dropped(folder: Path, one: VisualTrace, **demands: Any) -> str:
    """Why a trace is dropped."""
    curation = Curation(folder / IMAGES, Demands(**demands))
    kept = curation.take([one])
    assert len(kept) + curation.dropped.total() == 1
    return next(iter(curation.dropped), "")


def test_what_is_flattened_and_merged() -> None:
    """Nested lists are opened, texts joined, a user's messages merged; texts alone become a text."""
    image = {"type": "image", "image": "a.png"}
    messages = [
        {"role": "user", "content": [[{"type": "text", "text": "One "}, ["image:"]], image]},
        {"role": "user", "content": "Two."},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes"}, {"type": "text", "text": "."}]},
        {"role": "tool", "content": []},
        {"role": "assistant", "content": "No."},
    ]
    asked = [{"type": "text", "text": "One image:"}, image, {"type": "text", "text": "Two."}]
    assert flattened(messages) == [
        {"role": "user", "content": asked},
        {"role": "assistant", "content": "Yes."},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "No."},
    ]


def test_every_drop_has_its_reason(tmp_path: Path) -> None:
    def make(*said: str, **more: Any) -> VisualTrace:
        return trace(tmp_path, "t", *(said or ("a crop", "5")), **more)

    assert dropped(tmp_path, make()) == ""
    assert dropped(tmp_path, make(lost="the server is gone")) == "they broke off"
    assert dropped(tmp_path, make(finish="length")) == "their last turn was cut off"
    assert dropped(tmp_path, make("5")) == "no tool was used"
    assert dropped(tmp_path, make("5"), least_calls=0) == ""
    assert dropped(tmp_path, make(steps=[{"error": "outside"}]), errors=False) == "a call failed"
    assert dropped(tmp_path, make(steps=[{"error": "outside"}])) == ""
    assert dropped(tmp_path, make("x" * 400, "5"), most_tokens=100) == "they are longer than 100 tokens"
    assert dropped(tmp_path, make("x" * 360, "5"), most_tokens=100) == ""
    for name, value in (
        ("cuts", []), ("messages", []), ("cuts", [[["plan", 0]], [["action", 0]]]), ("cuts", [[], []]),
        ("cuts", [[[]], [[]]]),
    ):  # fmt: skip
        one = make()
        setattr(one, name, value)
        assert dropped(tmp_path, one).startswith("malformed: "), name
    for content in (None, 5, [{"type": "video", "video": "x"}], [{"type": "text"}], [7]):
        one = make()
        one.messages[0]["content"] = content
        assert dropped(tmp_path, one).startswith("malformed: "), content
    for place, role in ((0, "assistant"), (1, "robot"), (2, "assistant"), (3, "user")):
        one = make()
        one.messages[place]["role"] = role
        assert dropped(tmp_path, one).startswith("malformed: "), (place, role)
    assert dropped(tmp_path, make("  ", "5")) == "malformed: a turn is empty or shows images"


@pytest.mark.parametrize("damage", ["gone", "no image", "cut off", "elsewhere"])
def test_a_trace_whose_image_is_gone(tmp_path: Path, damage: str) -> None:
    """It is dropped, whatever became of the file; no name leads out of the folder."""
    one = trace(tmp_path, "t", "a crop", "5")
    path = tmp_path / IMAGES / one.images[1]
    if damage == "gone":
        path.unlink()
    elif damage == "elsewhere":
        one.messages[2]["content"][1]["image"] = f"../{IMAGES}/{one.images[0]}"
    else:
        path.write_bytes(b"no image" if damage == "no image" else path.read_bytes()[:40])
    assert dropped(tmp_path, one) == "an image is missing or cannot be read"


def test_one_problem_is_asked_in_one_way_and_answered_once_alike(tmp_path: Path) -> None:
    curation = Curation(tmp_path / IMAGES, Demands())
    other = trace(tmp_path, "d", "b crop", "5")
    other.messages[0] = {"role": "user", "content": "Something else?"}
    traces = [trace(tmp_path, name, "a crop", "5") for name in ("a", "b")]
    kept = curation.take([*traces, trace(tmp_path, "c", "b crop", "5"), other])
    assert [one.id for one in kept] == ["a", "c"]
    assert [*curation.dropped.values()] == [1, 1]


def test_the_estimated_length() -> None:
    """A token for four bytes, rounded up for each text, and one for 28 x 28 pixels."""
    messages = [
        {"role": "user", "content": [{"type": "image", "image": "a"}, {"type": "text", "text": "12345"}]},
        {"role": "assistant", "content": "äö"},
    ]
    assert estimated_length(messages, {"a": (280, 56)}) == 20 + 2 + 1
    assert estimated_length(messages[:1], {"a": (3, 3)}) == 1 + 2
