"""Tools whose models people name: tiny models of the real classes, loaded by their own `from_pretrained`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tiny_tool_models as tiny
from selfverify.core.errors import ConfigError
from selfverify.policy.loading import BUILTIN
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.config import VisualConfig
from selfverify.visual.task import all_tools, make_toolbox
from selfverify.visual.tools.base import Found, VisualTool
from selfverify.visual.tools.detect import GroundingTool, Similarity, ZeroShotDetector
from selfverify.visual.tools.gallery import Gallery
from selfverify.visual.tools.read import Depth, ImageCaptioner, depth_map
from selfverify.visual.tools.segment import ImageSegment, Sam


@pytest.fixture
def gallery() -> Gallery:
    """Two images of 90 x 60 pixels, the second with a bright corner."""
    images = [Image.new("RGB", (90, 60), "gray"), Image.new("RGB", (90, 60))]
    images[1].paste("white", (0, 0, 45, 30))
    seen = Gallery()
    seen.begin("p", images)
    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[Callable[[Path], Path]], str]:
    return lambda write: str(write(tmp_path / write.__name__))


Write = Callable[[Callable[[Path], Path]], str]


def run(tool: VisualTool, gallery: Gallery, **arguments: object) -> Found:
    """Call a tool with arguments as a model writes them."""
    assert tool.missing() == ""
    return tool.run(tool.read(arguments), gallery)


def test_zero_shot_detector(folder: Write, gallery: Gallery) -> None:
    """Boxes lie within the image and are told surest first, by the phrase that found them."""
    detector = ZeroShotDetector(folder(tiny.write_owlvit), least=0.0)
    found = run(GroundingTool(detector), gallery, image_index=2, text=["cat", "red cup"])
    lines = found.text.splitlines()
    assert lines and all("cat at [" in line or "red cup at [" in line for line in lines)
    [images] = [detector.find([gallery.picture(2).full], ["cat"])[0]]
    assert all(0 <= d.box[0] < d.box[2] <= 90 and 0 <= d.box[1] < d.box[3] <= 60 for d in images)
    scores = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert scores == sorted(scores, reverse=True) and found.images[0].image.size == (90, 60)
    assert ZeroShotDetector(detector.model, least=1.0).find([gallery.picture(2).full], ["cat"]) == [[]]


def test_depth(folder: Write, gallery: Gallery) -> None:
    """A map of the image's size, twice the same."""
    tool = Depth(folder(tiny.write_dpt))
    [first] = run(tool, gallery, image_index=2).images
    [again] = run(tool, gallery, image_index=2).images
    assert first.image.size == (90, 60) and first.image.tobytes() == again.image.tobytes()
    assert np.asarray(first.image).max() > 200


def test_depth_map() -> None:
    """The nearest is white, the farthest black, and a plain image is black."""
    shades = np.asarray(depth_map(np.array([[0.0, 2.0], [1.0, 4.0]]), (2, 2)))
    assert shades.tolist() == [[0, 128], [64, 255]]
    assert np.asarray(depth_map(np.full((2, 2), 3.0), (4, 4))).max() == 0


def test_similarity(folder: Write, gallery: Gallery) -> None:
    """An image is the same as itself; texts are compared with each image."""
    tool = Similarity(folder(tiny.write_clip))
    text = run(tool, gallery, image_indices=[1, 2], texts=["cat", "red cup"]).text
    assert [line.rsplit(":", 1)[0] for line in text.splitlines()] == [
        'image 1 and "cat"', 'image 1 and "red cup"', 'image 2 and "cat"', 'image 2 and "red cup"',
    ]  # fmt: skip
    same, other = run(tool, gallery, image_indices=[1], other_image_indices=[1, 2]).text.splitlines()
    assert same == "image 1 and image 1: 1.000" and float(other.split(": ")[1]) < 0.9999
    for arguments in ({}, {"texts": ["a"], "other_image_indices": [2]}):
        with pytest.raises(ToolError, match="give either texts or other_image_indices"):
            run(tool, gallery, image_indices=[1], **arguments)


def test_captions(folder: Write, gallery: Gallery) -> None:
    """A captioner, and a model that chats about images, which is any that the library loads."""
    found = run(ImageCaptioner(folder(tiny.write_blip)), gallery, image_index=1).text
    assert found.startswith("Image 1 shows: ") and len(found) > len("Image 1 shows: ")
    chatting = ImageCaptioner(str(BUILTIN / "digits"))
    assert run(chatting, gallery, image_index=2).text.startswith("Image 2 shows: ")


def test_sam(folder: Write, gallery: Gallery) -> None:
    """A mask for each box, of the image's size."""
    tool = ImageSegment(Sam(folder(tiny.write_sam)))
    masks = tool.segmenter.masks(gallery.picture(2).full, [(0, 0, 45, 30), (10, 10, 60, 50)])
    assert [mask.shape for mask in masks] == [(60, 90)] * 2 and masks[0].dtype == bool
    found = run(tool, gallery, image_index=2, bounding_boxes=[[0, 0, 45, 30]])
    assert found.text.startswith("1: the thing fills") and found.images[0].image.size == (90, 60)


def test_models_that_are_not_there(tmp_path: Path, gallery: Gallery) -> None:
    """None named, a folder without a model, and a damaged one each say so."""
    assert Depth().missing() == "no model is named: depth_model"
    assert "is no folder with a config.json" in Depth(str(tmp_path)).missing()
    assert Depth("some-org/some-model").missing() == ""
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ToolError, match="its model cannot be loaded"):
        run(Depth(str(tmp_path)), gallery, image_index=1)


def test_settings_name_models(folder: Write) -> None:
    """All of the paper's ten tools and `terminate` can be had."""
    assert len(all_tools(VisualConfig())) == 11
    settings = VisualConfig(depth_model=folder(tiny.write_dpt), tools=["depth"])
    assert [schema["function"]["name"] for schema in make_toolbox(settings).schemas()] == ["depth"]
    with pytest.raises(ConfigError, match=r"depth_model: /no/such is no folder with a config.json"):
        make_toolbox(VisualConfig(depth_model="/no/such"))
