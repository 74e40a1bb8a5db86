"""g11: rows of every format of data files as problems: messages, targets, images, and the rows themselves."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from goldens.tree import CASES, Tree, image_digest


def png(shade: int, width: int = 40, height: int = 30) -> bytes:
    """Return an image as a file has it."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 100, 200)).save(buffer, "PNG")
    return buffer.getvalue()


def lines(path: Path, rows: list[Any]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def parquet(path: Path, rows: list[Any]) -> Path:
    """Write a Parquet file."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def files(tree: Tree, folder: Path) -> dict[str, tuple[Path, str | None, str]]:
    """Write a file of each format; returns path, format and task by name."""
    helpers: Any = tree.get("data_files")
    questions, actions = CASES["questions"], CASES["actions"]
    (folder / "red.png").write_bytes(png(250))
    (folder / "whole.json").write_text(json.dumps(questions))
    asked = [{k: str(v) for k, v in row.items() if k in ("question", "answer")} for row in questions]
    coded = base64.b64encode(png(7)).decode()
    for name, mark in (("table.tsv", "\t"), ("table.csv", ",")):
        head = mark.join(("index", "image", "question", "A", "B", "answer", "category"))
        row = mark.join(("1", coded, "Which?", "cat", "dog", "B", "animals"))
        (folder / name).write_text(f"{head}\n{row}\n")
    open_r1 = [{"problem": r["question"], "solution": f"<answer> {r['answer']} </answer>"} for r in asked]
    boxes = [
        {"image": "red.png", "problem": "the dog", "solution": [4, 5, 20, 25.5], "dataset": "refcoco"},
        {"image": "red.png", "question": "a cat", "bbox": [1, 2, 30, 20], "category": "cats"},
    ]
    (folder / "boxes.json").write_text(json.dumps(boxes))
    steps = [
        {"id": f"7/{n}", "goal": "Set it", "images": ["red.png"], "history": actions[:n], "action": action,
         "screen": [1080, 2400], "step_instruction": f"do {n}"}
        for n, action in enumerate(actions)
    ]  # fmt: skip
    talk = {"id": "c", "messages": CASES["said"], "tools": CASES["tools"]}
    shared = {"conversations": [{"from": "human", "value": "<image>Tap."}, {"from": "gpt", "value": "Ok."}],
              "images": ["red.png"], "system": "Be short."}  # fmt: skip
    (folder / "shared.json").write_text(json.dumps([shared]))
    v_star = folder / "vstar" / "direct_attributes"
    v_star.mkdir(parents=True)
    about = {"target_object": ["glove"], "bbox": [[4, 6, 10, 8]], "question": "Of what is it?",
             "options": ["rubber", "cotton", "wool", "silk"]}  # fmt: skip
    for number in range(3):
        (v_star / f"sa_{number}.jpg").write_bytes(png(number, 56, 42))
        (v_star / f"sa_{number}.json").write_text(json.dumps(about))
    talks = lines(folder / "talks.jsonl", [talk, {**talk, "id": "d", "taught": "last"}])
    return {
        "jsonl": (lines(folder / "questions.jsonl", questions), None, "math"),
        "json": (folder / "whole.json", None, "math"),
        "tsv": (folder / "table.tsv", None, "math"),
        "csv": (folder / "table.csv", None, "math"),
        "parquet": (parquet(folder / "asked.parquet", asked), None, "math"),
        "open-r1": (parquet(folder / "r1.parquet", open_r1), None, "math"),
        "refcoco": (folder / "boxes.json", None, "grounding"),
        "reasonseg": (helpers.write_reasonseg(folder / "seg"), "reasonseg", "grounding"),
        "vstar": (folder / "vstar", "vstar", "math"),
        "looking": (folder / "vstar", "vstar", "look"),
        "steps": (lines(folder / "steps.jsonl", steps), None, "mobile"),
        "gui-odyssey": (helpers.write_odyssey(folder / "odyssey"), "gui-odyssey", "mobile"),
        "verl": (parquet(folder / "verl.parquet", [talk]), None, "conversations"),
        "sharegpt": (folder / "shared.json", "sharegpt", "conversations"),
        "talks": (talks, None, "conversations"),
        "pairs": (lines(folder / "pairs.jsonl", [CASES["pair"]]), None, "pairs"),
    }  # fmt: skip


def run(tree: Tree) -> None:
    """Open each file as rows and as the problems of a task."""
    folder = tree.scratch / "files"
    folder.mkdir()
    open_rows = tree.get("selfverify.data:open_rows")
    make_task = tree.get("selfverify.experiments.registry:make_task")
    for name, (path, form, task_name) in files(tree, folder).items():
        rows = open_rows(path, format=form, images=folder)
        for number, row in enumerate(rows):
            tree.row(f"{name} row {number}", **{k: opened(v) for k, v in row.items()})
        tree.row(f"{name} bad", bad=[str(bad) for bad in rows.bad], format=rows.format)
        file = {"path": str(path), "images": str(folder)} | ({} if form is None else {"format": form})
        task = make_task(task_name, **{split: dict(file) for split in ("train", "test")})
        spaces: Callable[..., Any] = tree.attr(task, "use_space")
        spaces(lambda size: (1000, 1000))
        for split, number in (("test", len(rows)), ("train", min(len(rows), 3))):
            for index in range(number):
                store(tree, f"{name} {split} {index}", task, split, index)


def opened(value: Any) -> Any:
    """Return a field of a row with its images opened."""
    if isinstance(value, list) and value and hasattr(value[0], "open"):
        return [image_digest(image.open()) for image in value]
    return value


def store(tree: Tree, row: str, task: Any, split: str, index: int) -> None:
    """Store a problem, or why there is none, and what is demonstrated of it."""
    try:
        problem = task.problem(split, 0, index)
    except Exception as error:
        tree.row(row, refused=type(error).__name__)
        return
    tree.row(row, problem=problem, digest=problem.digest)
    for way in ("demonstrate", "demonstrate_turns"):
        try:
            more = (False,) if way == "demonstrate" else ()
            shown = tree.attr(task, way)(problem, np.random.default_rng(index), *more)
        except Exception as error:
            shown = type(error).__name__
        tree.row(f"{row} {way}", shown=shown)
