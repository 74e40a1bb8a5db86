"""`look`: questions of data files, crop hits, and every kind of question as often as the others."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tests.data.test_vstar import write

from selfverify.core.episode import PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.visual.task import LookQuestions
from selfverify.visual.tools.crop import GLYPHS, MOST_MARKS, marked, spots_of, with_numbers
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


def street() -> Image.Image:
    """Grey, with a red box on the left and a blue one on the right."""
    image = Image.new("RGB", (200, 120), (128, 128, 128))
    draw = ImageDraw.Draw(image)
    draw.rectangle((20, 30, 70, 90), fill=(220, 20, 20))
    draw.rectangle((130, 20, 180, 60), fill=(20, 20, 220))
    return image


def test_every_part_has_a_number_in_its_middle() -> None:
    """The two boxes, and what is around them; always the same."""
    spots = spots_of(street())
    assert len(spots) == 3 and spots == spots_of(street())
    inside = [[20 < x < 70 and 30 < y < 90, 130 < x < 180 and 20 < y < 60] for x, y in spots]
    assert [sum(column) for column in zip(*inside, strict=True)] == [1, 1]
    boxes = {tuple(flags): spot for flags, spot in zip(inside, spots, strict=True)}
    assert boxes[True, False] == pytest.approx((45, 60), abs=8)
    assert boxes[False, True] == pytest.approx((155, 40), abs=8)
    image = street()
    made = marked(image)
    assert made.size == image.size and image.tobytes() == street().tobytes()
    changed = (np.asarray(made) != np.asarray(image)).any(2).mean()
    assert 0 < changed < 0.05


def test_odd_images() -> None:
    """Of one colour, of one pixel, noise, with a palette."""
    assert len(spots_of(Image.new("RGB", (50, 40), "white"))) == 1
    assert marked(Image.new("L", (1, 1))).size == (1, 1)
    noise = np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)
    assert len(spots_of(Image.fromarray(noise))) <= MOST_MARKS
    assert marked(street().convert("P")).mode == "RGB"


def test_a_number_can_be_read() -> None:
    """Its digits' pixels stand on the image, whole also at its edge, and larger by the scale."""
    plain = Image.new("L", (40, 40), 100)
    made = np.asarray(with_numbers(plain, [(0, 0)] * 11 + [(40, 40)], 2))
    twelve = [np.array([*GLYPHS[digit]], dtype=int).reshape(5, 3) for digit in (1, 2)]
    shown = np.hstack([np.pad(digit, ((0, 0), (0, 1))) for digit in twelve])
    assert (made[-12:-2:2, -16::2] == 255 * shown).all()
    assert made[20, 20] == 100


def test_questions_about_marked_images(tmp_path: Path) -> None:
    """As in `math`, with numbers on the image, of which the question tells."""
    write(tmp_path / "direct_attributes", "sa_1")
    options = {"test": {"path": str(tmp_path), "format": "vstar"}}
    task, plain = make_task("marked", **options), make_task("math", **options, score=False)
    mine, theirs = task.problem("test", 0, 0), plain.problem("test", 0, 0)
    assert mine.images[0].size == theirs.images[0].size and mine.target == theirs.target
    assert mine.images[0].tobytes() != theirs.images[0].convert("RGB").tobytes()
    assert "name its parts" in json.dumps(mine.messages) and "name its parts" not in json.dumps(
        theirs.messages
    )
    assert task.tags == ("think", "answer") and mine.id.startswith("marked/")


def test_cells_of_a_thumbnail() -> None:
    """Each has its number in its corner; nothing else changes, and smaller thumbnails are refused."""
    task, plain = (make_task("digits-far", thumbnail=32, marks=marks) for marks in (True, False))
    made, without = (np.asarray(one.problem("test", 0, 3).images[0]).astype(int) for one in (task, plain))
    changed = (made != without).any(2)
    assert changed[:7, :5].any() and changed[22:28, 22:26].any() and changed.mean() < 9 * 35 / 32**2
    assert set(np.unique(made[1:6, 1:4])) <= {0, 255}
    with pytest.raises(ValueError, match="marks need a thumbnail of 32"):
        make_task("digits-far", marks=True, thumbnail=16)
