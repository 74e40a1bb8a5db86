"""RefCOCO in both forms, ReasonSeg, and boxes that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_files import base64_png, png, write_jsonl, write_reasonseg
from selfverify.data.grounding import draw_mask
from selfverify.data.rows import open_rows

ASKED = "Please provide the bounding box coordinate of the region this sentence describes: the lady in blue."


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    (tmp_path / "coco" / "train2014").mkdir(parents=True)
    (tmp_path / "coco" / "train2014" / "1.jpg").write_bytes(png(100, 80))
    return tmp_path / "coco"


def vlm_r1(**changes: Any) -> dict[str, Any]:
    return {
        "image": "train2014/1.jpg",
        "problem": ASKED,
        "solution": [10.5, 20, 60, 70.25],
        "dataset": "refcoco",
    } | changes


def test_vlm_r1_json(tmp_path: Path, coco: Path) -> None:
    path = tmp_path / "refcoco_train.json"
    path.write_text(json.dumps([vlm_r1(), vlm_r1(normal_caption="a lady")]), encoding="utf-8")
    first, second = open_rows(path, images=coco)
    assert first["question"] == "the lady in blue" and second["question"] == "a lady"
    assert first["box"] == [10.5, 20, 60, 70.25] and first["size"] == (100, 80)
    assert first["source"] == "refcoco" and first["id"] == "refcoco_train/0"
    assert first["images"][0].open().size == (100, 80)


def test_vlm_r1_conversations(tmp_path: Path, coco: Path) -> None:
    said = [{"from": "human", "value": "<image>" + ASKED}, {"from": "gpt", "value": "[10, 20, 60, 70]"}]
    path = write_jsonl(tmp_path / "a.jsonl", [{"id": 5, "image": "train2014/1.jpg", "conversations": said}])
    [row] = open_rows(path, images=coco)
    assert (row["id"], row["question"], row["box"]) == ("a/5", "the lady in blue", [10, 20, 60, 70])


def test_vlmevalkit_table(tmp_path: Path) -> None:
    sides = dict(zip(("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"), (10, 20, 60, 70), strict=True))
    row = {"index": 0, "image": base64_png(100, 80), "question": "lady", "split": "RefCOCO_val"}
    row |= {"width": 100, "height": 80}
    norm = {
        f"{side}_norm": value / of
        for (side, value), of in zip(sides.items(), (100, 80, 100, 80), strict=True)
    }
    other = row | {"split": "RefCOCO+_val", "image": "0"}
    pd.DataFrame([row | sides, other | norm]).to_csv(tmp_path / "RefCOCO.tsv", sep="\t", index=False)
    rows = open_rows(tmp_path / "RefCOCO.tsv")
    assert [r["box"] for r in rows] == [[10, 20, 60, 70]] * 2 and not rows.bad
    assert [r["id"] for r in rows] == ["RefCOCO/RefCOCO_val_0", "RefCOCO/RefCOCO+_val_0"]
    assert rows[1]["category"] == "RefCOCO+_val"
    [chosen] = open_rows(tmp_path / "RefCOCO.tsv", split="RefCOCO+_val")
    assert chosen["id"] == "RefCOCO/RefCOCO+_val_0" and chosen["images"][0].size == (100, 80)


def test_a_missing_image_is_named_where_its_size_is_needed(tmp_path: Path) -> None:
    path = write_jsonl(
        tmp_path / "a.jsonl", [vlm_r1(box=[1, 2, 3, 4]), vlm_r1(box=[1, 2, 3, 4], width=9, height=9)]
    )
    rows = open_rows(path)
    assert len(rows) == 1 and rows.bad[0].line == 1 and "train2014/1.jpg cannot be read" in rows.bad[0].reason


def test_our_own_columns_with_a_mask(tmp_path: Path, coco: Path) -> None:
    row: dict[str, Any] = {"image": "train2014/1.jpg", "question": "it", "box": [0, 0, 9, 9]}
    row |= {"polygons": [[[0, 0], [9, 0], [9, 9]]]}
    path = write_jsonl(tmp_path / "a.jsonl", [row, row | {"polygons": [[[0, 0], [1, 1]]]}])
    rows = open_rows(path, images=coco)
    assert rows[0]["polygons"] == [[[0, 0], [9, 0], [9, 9]]] and "three points" in rows.bad[0].reason


def test_reasonseg(tmp_path: Path) -> None:
    folder = write_reasonseg(tmp_path / "ReasonSeg" / "val", encoding="utf-8-sig")
    write_reasonseg(folder, "2", "cp1252", is_sentence=False, text="café chair")
    rows = open_rows(tmp_path / "ReasonSeg", split="val")
    assert rows.format == "reasonseg" and [row["id"] for row in rows] == ["val/1/0", "val/1/1", "val/2/0"]
    assert [row["category"] for row in rows] == ["long", "long", "short"]
    assert rows[1]["question"] == "what is the café's seat?" and rows[2]["question"] == "café chair"
    assert (
        rows[0]["box"] == [10, 10, 100, 80] and len(rows[0]["polygons"]) == 2 and len(rows[0]["ignored"]) == 1
    )
    assert open_rows(folder / "1.json", format="reasonseg")[0]["box"] == rows[0]["box"]


def test_smaller_shapes_lie_upon_larger_ones(tmp_path: Path) -> None:
    row = open_rows(write_reasonseg(tmp_path / "val"))[0]
    mask = draw_mask(row["polygons"], row["ignored"], row["size"])
    assert mask.shape == (80, 100) and set(np.unique(mask)) == {0, 1, 255}
    assert mask[15, 15] == 1 and mask[25, 25] == 255 and mask[0, 0] == 0 and mask[75, 97] == 1
    # 51 x 41 points with their edges, 11 x 11 of them ignored.
    assert (mask[:55] == 1).sum() == 51 * 41 - 11 * 11 and (mask == 255).sum() == 11 * 11


def test_broken_reasonseg_files_are_named(tmp_path: Path) -> None:
    folder = write_reasonseg(tmp_path / "val", "1")
    write_reasonseg(folder, "2", shapes=[{"label": "flag", "points": []}])
    write_reasonseg(folder, "3", shapes=[{"label": "target", "points": [[200, 10], [300, 10], [300, 50]]}])
    write_reasonseg(folder, "4")
    (folder / "4.jpg").unlink()
    (folder / "5.json").write_text('{"text": ["cut', encoding="utf-8")
    write_reasonseg(folder, "6", text=["fine", ""])
    rows = open_rows(folder)
    assert [row["id"] for row in rows] == ["val/1/0", "val/1/1", "val/6/0"]
    named = {Path(bad.file).name: bad.reason for bad in rows.bad}
    assert list(named) == ["2.json", "3.json", "4.json", "5.json", "6.json"]
    assert "none of its shapes is a target" in named["2.json"] and "x1 >= x2" in named["3.json"]
    assert "there is no image 4 beside it" in named["4.json"] and "not JSON" in named["5.json"]
    assert named["6.json"] == "its text is missing"
