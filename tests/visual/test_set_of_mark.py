"""Numbers on images: where they stand, that they can be read, and what is asked about them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from tests.data.test_vstar import write

from selfverify.experiments.registry import make_task
from selfverify.visual.tools.crop import GLYPHS, MOST_MARKS, marked, spots_of, with_numbers


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
