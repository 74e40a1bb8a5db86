"""Images as the model sees them: numbers, places, and boxes that cannot be."""

from __future__ import annotations

import pytest
from PIL import Image

from selfverify.core.errors import DataError
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.tools.gallery import Gallery, Made, SpaceName, smaller, space_named
from tables import yaml_cases


def gallery(size: tuple[int, int] = (200, 100), space: SpaceName = "pixels", shown: int = 10**6) -> Gallery:
    """A gallery with one image that is shown in at most so many pixels."""
    full = Image.new("RGB", size)
    made = Gallery(space=space_named(space), most_shown=shown)
    made.begin("p", [smaller(full, shown)], [full])
    return made


@pytest.mark.parametrize(
    ("space", "box"),
    [("pixels", [20, 10, 60, 30]), ("unit", [0.1, 0.1, 0.3, 0.3]), ("thousandths", [100, 100, 300, 300])],
)
def test_places_are_converted(space: SpaceName, box: list[float]) -> None:
    """Pixels, fractions and thousandths of the same box name the same pixels, and are written back."""
    seen = gallery(space=space)
    region, note = seen.region(1, box)
    assert (region, note) == ((20, 10, 60, 30), "")
    assert seen.written(1, region) == pytest.approx(box)


def test_places_are_those_of_the_shown_image() -> None:
    """A model that sees a thumbnail writes the thumbnail's pixels; tools work on the original's."""
    seen = gallery((400, 200), shown=5000)
    assert seen.picture(1).shown.size == (100, 50)
    region, _ = seen.region(1, [10, 10, 30, 20])
    assert region == (40, 40, 120, 80) and seen.written(1, region) == [10, 10, 30, 20]


@yaml_cases
def test_boxes_that_cannot_be(boxes: list[list[float]], said: str) -> None:
    """Each is refused with its reason; none is put right."""
    for box in boxes:
        with pytest.raises(ToolError, match=said):
            gallery().region(1, box)
    with pytest.raises(ToolError, match="too slim"):
        gallery((2000, 2000)).region(1, [0, 0, 2000, 5])


def test_a_box_that_sticks_out_is_cut_and_that_is_said() -> None:
    """The rest of it is looked at."""
    region, note = gallery().region(1, [150, 50, 260, 140])
    assert region == (150, 50, 200, 100) and "cut at the image's edges" in note


def test_no_such_image() -> None:
    """Counting begins at 1, and nothing counts from the end; each original needs an image of its own."""
    for number in (0, -1, 2, 99):
        with pytest.raises(ToolError, match=f"no image {number}; the images are 1 to 1"):
            gallery().picture(number)
    image = Image.new("RGB", (8, 8))
    with pytest.raises(DataError, match="2 images are shown, and 1 originals"):
        Gallery().begin("p", [image, image], [image])


def test_an_image_of_100_megapixels_is_refused() -> None:
    """The question's own is named by the problem's id, one that a tool has made is a fault."""
    huge = Image.new("L", (10_000, 10_000))
    with pytest.raises(DataError, match=r"problem p: image 1 has 10000 x 10000 pixels, more than 50,000,000"):
        Gallery().begin("p", [huge])
    with pytest.raises(ToolError, match="10000 x 10000"):
        gallery().add(Made(huge))


def test_made_images_are_numbered_and_capped() -> None:
    """What a tool makes gets the next number, is shown small, and there is an end to it."""
    seen = gallery(shown=5000)
    seen.most = 2
    assert seen.add(Made(Image.new("L", (400, 400)), 1, (0, 0, 9, 9), "part")) == 2
    added = seen.picture(2)
    assert added.full.size == (400, 400) and added.shown.size == (70, 70) and added.full.mode == "RGB"
    assert (added.source, added.region, added.label) == (1, (0, 0, 9, 9), "part")
    with pytest.raises(ToolError, match="2 images already"):
        seen.add(Made(Image.new("RGB", (9, 9))))
