"""What the first image of `digits-far` tells, against ways worked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from reproduce.looking_ceiling import cells_of, told_by_first_image, way_chances
from reproduce.vts_v import app

NOTHING = np.ones((9, 10))


def read(digits: str) -> np.ndarray:
    """Likelihoods of digits that are read for certain; nothing is known of a cell with ``?``."""
    return np.array([np.eye(10)[int(one)] if one != "?" else np.ones(10) for one in digits])


def test_a_way_is_followed_where_digits_are_read() -> None:
    assert way_chances(1, read("0????????"), 3)[0] == 1
    assert way_chances(4, read("???7??0??"), 3)[6] == 1
    assert way_chances(4, read("???7??2??"), 3)[1] == 1  # of three cells, so that the last one has the 0
    # Nothing is read: a third of the ways end at once, the others in any of eight cells alike.
    assert way_chances(5, NOTHING, 3) == pytest.approx([*[1 / 12] * 4, 1 / 3, *[1 / 12] * 4])
    # Cell 1 names cell 2, of which nothing is known: one in 8 ways of two cells, and seven in 56 of three.
    assert way_chances(1, read("2????????"), 3) == pytest.approx([0, 1 / 2, *[1 / 14] * 7])


def test_cells_are_cut_in_reading_order() -> None:
    image = np.arange(36.0).reshape(6, 6)
    assert cells_of(image)[0].tolist() == [0, 1, 6, 7] and cells_of(image)[5].tolist() == [16, 17, 22, 23]
    assert cells_of(np.zeros((16, 16))).shape == (9, 36) and cells_of(np.zeros((80, 80))).shape == (
        9,
        27 * 27,
    )


def test_a_readable_image_shows_the_answer(tmp_path: Path) -> None:
    told = told_by_first_image(80, fitted=120, problems=60)
    assert told["near"] > told["far"] and told["interval"][0] < told["right"] < told["interval"][1]
    done = CliRunner().invoke(app, ["ceiling", str(tmp_path / "c.json"), "--problems", "8", "--fitted", "12"])
    assert done.exit_code == 0, done.output
    assert sorted(json.loads((tmp_path / "c.json").read_text())) == ["16", "80", "96"]
