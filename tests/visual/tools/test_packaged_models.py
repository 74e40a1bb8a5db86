"""OCR and segmentation with what packages carry, and what tools do with findings: no network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.tools.crop import boxes_drawn
from selfverify.visual.tools.detect import (
    Detection,
    GroundingTool,
    VisualSearch,
    ZeroShotDetector,
    distinct,
    windows,
)
from selfverify.visual.tools.gallery import Gallery, space_named
from selfverify.visual.tools.read import Ocr, OcrArguments
from selfverify.visual.tools.segment import GrabCut, ImageSegment, SegmentArguments


def gallery(image: Image.Image) -> Gallery:
    """A gallery of one image, with places in thousandths."""
    seen = Gallery(space=space_named("thousandths"))
    seen.begin("p", [image])
    return seen


@pytest.mark.skipif(bool(Ocr().missing()), reason=Ocr().missing())
def test_ocr() -> None:
    """Text is read exactly, and each word's place is where it was written."""
    image = Image.new("RGB", (220, 160), "white")
    draw = ImageDraw.Draw(image)
    draw.text((80, 80), "Total: 1,234", fill="black", font=ImageFont.load_default(size=22))
    found = Ocr().run(OcrArguments(image_index=1), gallery(image)).text.splitlines()
    assert found[0] == "Text in image 1:" and found[1].startswith('"Total: 1,234" at [')
    words = {line.split('"')[1]: box_at_end(line) for line in found[2:]}
    assert [*words] == ["Total:", "1,234"]
    assert abs(words["Total:"][0] - 364) < 40 and words["1,234"][0] > words["Total:"][2] - 20
    blank = Ocr().run(OcrArguments(image_index=1), gallery(Image.new("RGB", (64, 64)))).text
    assert blank == "No text was found in image 1."
    with pytest.raises(ToolError, match="image 1 has 20000 x 4 pixels, which is too slim to be read"):
        Ocr().run(OcrArguments(image_index=1), gallery(Image.new("RGB", (20_000, 4))))


def box_at_end(line: str) -> list[float]:
    """The four numbers at a line's end."""
    return [float(value) for value in line.rsplit("[", 1)[1].rstrip("]").split(",")]


@pytest.mark.parametrize("box", [(99.5, 10, 100, 20), (0, 49.7, 1, 50), (0, 0, 100, 50), (-3, -3, 2, 2)])
def test_boxes_at_the_edge(box: tuple[float, float, float, float]) -> None:
    """A finding within the last pixel is drawn there."""
    marked = boxes_drawn(Image.new("RGB", (100, 50)), [box])
    assert marked.size == (100, 50) and np.asarray(marked).any()


@pytest.mark.skipif(bool(GrabCut().missing()), reason=GrabCut().missing())
def test_grabcut() -> None:
    """A disc is told from its background; twice the same."""
    image = Image.new("RGB", (300, 200), (30, 90, 40))
    ImageDraw.Draw(image).ellipse((100, 50, 199, 149), fill=(220, 60, 50))
    tool, seen = ImageSegment(GrabCut()), gallery(image)
    [mask] = tool.segmenter.masks(image, [(90, 40, 210, 160)])
    yy, xx = np.mgrid[:200, :300]
    truth = (xx - 149.5) ** 2 + (yy - 99.5) ** 2 <= 50**2
    assert (mask & truth).sum() / (mask | truth).sum() > 0.97
    found = tool.run(SegmentArguments(image_index=1, bounding_boxes=[[300, 200, 700, 800]]), seen)
    assert found.text.startswith("1: the thing fills 5") and found.images[0].image.size == (300, 200)
    with pytest.raises(ToolError, match="box 1 is the whole image"):
        tool.run(SegmentArguments(image_index=1, bounding_boxes=[[0, 0, 1000, 1000]]), seen)


class Spots(ZeroShotDetector):
    """Finds white spots, as boxes around all that is white."""

    def find(self, images: Sequence[Image.Image], phrases: Sequence[str]) -> list[list[Detection]]:
        self.seen = [image.size for image in images]
        boxes = [image.convert("L").point(lambda v: 255 * (v > 128)).getbbox() for image in images]
        return [
            [] if box is None else [Detection("spot", 0.5 + 0.01 * i, box)] for i, box in enumerate(boxes)
        ]


def test_search_looks_into_every_part() -> None:
    """All parts go to the detector at once; boxes are those of the whole image; doubles are told once."""
    image = Image.new("RGB", (900, 600))
    image.paste("white", (820, 30, 830, 45))
    detector, seen = Spots(None), gallery(image)
    tool = VisualSearch(detector)
    asked = tool.arguments.model_validate({"image_index": 1, "objects": ["spot", "cat"]})
    found = tool.run(asked, seen)
    assert detector.seen == [(900, 600)] + [(300, 200)] * 16
    assert found.text.splitlines() == [
        "Not found in image 1: cat.",
        "1: spot at [911, 50, 922, 75], score 0.54",
    ]
    marked, closer = found.images
    assert marked.image.size == (900, 600) and closer.region is not None
    assert closer.region[0] <= 820 and closer.region[2] >= 830 and closer.image.width > 800


def test_windows_cover_the_image() -> None:
    """Parts begin every two ninths of its sides, and reach its edges."""
    parts = windows((900, 450))
    assert parts[0] == (0, 0, 900, 450) and len(parts) == 17
    assert {part[0] for part in parts} == {0, 200, 400, 600} and max(part[3] for part in parts) == 450


def test_distinct() -> None:
    """Half of a thing is no second thing, and things of other labels stay."""
    whole, half = Detection("a", 0.9, (0, 0, 10, 10)), Detection("a", 0.5, (5, 0, 10, 10))
    other, apart = Detection("b", 0.4, (0, 0, 10, 10)), Detection("a", 0.3, (20, 0, 30, 10))
    assert distinct([half, other, apart, whole]) == [whole, other, apart]


def test_no_detector_says_how_to_get_one() -> None:
    """Without a detector the tool says which setting names one."""
    assert GroundingTool(ZeroShotDetector(None)).missing() == "no model is named: detector"
