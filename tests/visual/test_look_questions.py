"""`look`: questions of data files, crop hits, and every kind of question as often as the others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.data.test_vstar import write

from selfverify.core.episode import PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.visual.task import LookQuestions
from selfverify.visual.tools.gallery import SeenImage, crop_hit

LOOK = {"tools": ["crop", "zoom_in", "terminate"], "coordinates": "pixels"}


def seen(size: tuple[int, int], source: int | None = None, region: Any = None) -> SeenImage:
    image = Image.new("RGB", size)
    return SeenImage(image, image, source, region)


def test_what_hits() -> None:
    """A smaller part that shows all of a box, also through an enlargement of a part."""
    whole, box = seen((100, 100)), (40.0, 40.0, 50.0, 50.0)
    assert crop_hit([whole], [box]) == 0
    assert crop_hit([whole, seen((100, 100), 1, (0, 0, 100, 100))], [box]) == 0
    assert crop_hit([whole, seen((20, 20), 1, (35, 35, 55, 55))], [box]) == 1
    assert crop_hit([whole, seen((20, 20), 1, (45, 35, 65, 55))], [box]) == 0
    part = seen((100, 100), 1, (30, 30, 80, 80))  # enlarged twice
    assert crop_hit([whole, part, seen((30, 30), 2, (15, 15, 45, 45))], [box, (70.0, 70.0, 80.0, 80.0)]) == 1
    assert crop_hit([whole, seen((9, 9), 1, (40, 40, 49, 49))], [box]) == 0
    assert crop_hit([whole, part], [box, (0.0, 0.0, 9.0, 9.0)]) == 0.5
    # What was made of a second image of the question, or is no part, hits nothing.
    assert crop_hit([whole, seen((100, 100)), seen((20, 20), 2, (35, 35, 55, 55))], [box]) == 0


def test_a_question_of_vstar_is_looked_at(tmp_path: Path) -> None:
    """The answer is judged as in `math`; of two boxes one is hit."""
    write(tmp_path / "direct_attributes", "sa_1")
    task = make_task("look", test={"path": str(tmp_path), "format": "vstar"}, look=LOOK)
    assert isinstance(task, LookQuestions)
    problem = task.problem("test", 0, 0)
    assert "Of what is it?" in json.dumps(problem.messages) and "crop" in json.dumps(problem.messages)
    episode = task.look(problem)
    episode.reset()
    box = {"image_index": 1, "bounding_box": [2, 4, 20, 20]}
    call = json.dumps({"thought": "Closer.", "action_name": "crop", "action": box})
    episode.step(PolicyTurn(call, [], Finish.STOP, 0))
    answer = f"<think>Seen.</think><answer>{problem.target}</answer>"
    assert episode.step(PolicyTurn(answer, [], Finish.STOP, 1)).done
    rewards = episode.result().rewards
    assert (rewards["correct"], rewards["crop_hit"], rewards["steps"]) == (1, 0.5, 1)
    assert {metric.name for metric in task.metrics} == {"steps", "crop_hit"}
    assert task.count("test") == 1


def test_every_kind_is_as_frequent_as_the_others(tmp_path: Path) -> None:
    """VTS-V §4.1: in each round every source comes once, whatever its size; rows come again at the end."""
    lines = [
        {"question": f"q{n}?", "answer": "1", "source": source, "id": f"{source}{n}"}
        for source, count in (("large", 20), ("small", 2), ("one", 1))
        for n in range(count)
    ]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = make_task("math", train=str(path), uniform_over="source")
    drawn = [task.problem("train", 3, index) for index in range(60)]
    sources = [problem.meta["source"] for problem in drawn]
    assert Counter(sources) == {"large": 20, "small": 20, "one": 20}
    assert all(len(set(sources[n : n + 3])) == 3 for n in range(0, 60, 3))
    large = {p.meta["question"] for p in drawn if p.meta["source"] == "large"}
    assert len(large) == 20  # each of them once
    assert len({problem.id for problem in drawn}) == 60  # ids name the pass
    assert [p.id for p in drawn] == [task.problem("train", 3, n).id for n in range(60)]
    assert [task.problem("train", 4, n).id for n in range(60)] != [p.id for p in drawn]
    with pytest.raises(ValueError, match="uniform_over is for questions"):
        make_task("conversations", train=str(path), uniform_over="source")


def test_llava_onevisions_rows(tmp_path: Path) -> None:
    """Parquet with an image, what a human asks and what is answered; the source is its task type."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    from data_files import png

    for source, answer in (("ai2d(gpt4v)", "B"), ("clevr", "3")):
        talk = [{"from": "human", "value": "<image>\nHow many?"}, {"from": "gpt", "value": answer}]
        row = {"id": "1", "image": {"bytes": png(28, 28), "path": None}, "conversations": talk,
               "data_source": source}  # fmt: skip
        (tmp_path / source).mkdir()
        parquet.write_table(pa.Table.from_pylist([row]), tmp_path / source / "train-00000-of-00001.parquet")
    task = make_task("look", train=str(tmp_path), uniform_over="source", look=LOOK)
    problems = [task.problem("train", 0, index) for index in range(2)]
    assert {problem.meta["source"] for problem in problems} == {"ai2d(gpt4v)", "clevr"}
    assert all(len(problem.images) == 1 for problem in problems)
