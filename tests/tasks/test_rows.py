"""Which row is which problem."""

from __future__ import annotations

from typing import Any

import pytest
from tests.tasks.row_data import grounding, grounding_row

from selfverify.errors import ConfigError, DataError
from selfverify.tasks import make_task
from selfverify.tasks.rows import Splits

ROWS = [{"id": f"r{i}"} for i in range(5)]


def splits(rows: list[dict[str, Any]] = ROWS) -> Splits:
    return Splits({}, {"train": rows, "test": rows})


def order(seed: int, epoch: int, given: Splits | None = None) -> list[Any]:
    given = given or splits()
    return [given.row("train", seed, epoch * 5 + i)[0]["id"] for i in range(5)]


def test_every_epoch_passes_all_rows_in_an_order_of_its_own() -> None:
    orders = [order(seed, epoch) for seed in (0, 1) for epoch in range(4)]
    assert all(sorted(found) == ["r0", "r1", "r2", "r3", "r4"] for found in orders)
    assert len({tuple(found) for found in orders}) > 4


def test_order_depends_on_seed_and_index_alone() -> None:
    given = splits()
    backwards = [given.row("train", 3, i)[0]["id"] for i in reversed(range(40))]
    assert backwards[::-1] == [splits().row("train", 3, i)[0]["id"] for i in range(40)]


def test_problems_of_a_step_have_different_ids() -> None:
    """Also where one epoch ends and the next begins with the same row."""
    given = splits()
    assert len({given.row("train", 0, i)[1] for i in range(50)}) == 50
    assert given.row("test", 0, 3)[1] == "test/r3"


def test_evaluation_keeps_the_files_order() -> None:
    given = splits()
    assert [given.row("test", 9, i)[0]["id"] for i in range(5)] == ["r0", "r1", "r2", "r3", "r4"]
    with pytest.raises(DataError, match=r"has 5 rows, not 6"):
        given.row("test", 0, 5)


def test_missing_and_empty_data() -> None:
    with pytest.raises(ConfigError, match=r"no validation data; set task\.validation"):
        splits().row("validation", 0, 0)
    with pytest.raises(DataError, match="no rows"):
        splits([]).row("train", 0, 0)
    with pytest.raises(ConfigError, match="no train data"):
        make_task("grounding").problem("train", 0, 0)


class Reference:
    """As data files give an image: opened when needed."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self) -> Any:
        self.opened += 1
        return grounding_row()["images"][0]


def test_images_open_when_their_problem_is_made() -> None:
    image = Reference()
    task = grounding(grounding_row(images=[image]))
    assert image.opened == 0
    assert task.problem("test", 0, 0).images[0].size == (100, 50)
    assert image.opened == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": []}, "one image"),
        ({"images": ["dog.png", "dog.png"]}, "one image"),
        ({"images": [7]}, "an image is int"),
        ({"images": None}, "one image"),
        ({"question": ""}, "question has to be text"),
        ({"question": 3}, "question has to be text"),
        ({"box": None}, "has to be"),
        ({"box": [1, 2, 3]}, "has to be"),
        ({"box": [1, 2, 3, "4"]}, "has to be"),
        ({"box": [60, 20, 20, 40]}, "has no area"),
        ({"box": [20, 20, 60, 20]}, "has no area"),
        ({"box": [20, 20, 102, 40]}, "not within its image of 100 x 50"),
        ({"box": [200, 20, 300, 40]}, "not within its image"),
        ({"box": [float("nan"), 20, 60, 40]}, ""),
    ],
)
def test_broken_rows_are_named(changes: dict[str, Any], message: str) -> None:
    task = grounding(grounding_row(), grounding_row(**changes))
    with pytest.raises(DataError, match=rf"grounding/test/dog: .*{message}"):
        task.problem("test", 0, 1)


def test_a_target_rounded_out_of_the_image_is_clipped() -> None:
    task = grounding(grounding_row(box=[20, 20, 100.6, 50.2]))
    assert task.problem("test", 0, 0).target == [20, 20, 100, 50]
