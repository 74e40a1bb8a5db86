"""Tools whose models people name: tiny models of the real classes, loaded by their own `from_pretrained`."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.sam2.processing_sam2 import Sam2Processor
from transformers.models.sam3_tracker.processing_sam3_tracker import Sam3TrackerProcessor

import tiny_tool_models as tiny
from selfverify.core.errors import ConfigError
from selfverify.policy.loading import BUILTIN
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.config import SpaceName, VisualConfig
from selfverify.visual.task import all_tools, make_toolbox
from selfverify.visual.tools import segment
from selfverify.visual.tools.base import Found, VisualTool, loaded, pipeline_of
from selfverify.visual.tools.detect import GroundingTool, Similarity, ZeroShotDetector
from selfverify.visual.tools.gallery import Gallery, space_named
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


@pytest.mark.parametrize("write", [tiny.write_owlvit, tiny.write_owlv2, tiny.write_grounding_dino])
@pytest.mark.parametrize("space", ["pixels", "thousandths"])
def test_zero_shot_detectors(
    folder: Write, gallery: Gallery, write: Callable[[Path], Path], space: SpaceName
) -> None:
    """Boxes lie within the image, as the model writes places, and are told surest first, by the phrase that
    found them; nothing is both found and not found."""
    gallery.space = space_named(space)
    detector = ZeroShotDetector(folder(write), least=0.0)
    tool = GroundingTool(detector)
    found = run(tool, gallery, image_index=2, text=["cat.", "Red cup", "red cup..", "cat"])
    lines = found.text.splitlines()
    assert lines and all(re.match(r"\d+: (cat|Red cup|red cup) at \[", line) for line in lines)
    scores = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert scores == sorted(scores, reverse=True) and found.images[0].image.size == (90, 60)
    [boxes] = detector.find([gallery.picture(2).full], ["cat"])
    assert all(0 <= d.box[0] < d.box[2] <= 90 and 0 <= d.box[1] < d.box[3] <= 60 for d in boxes)
    x, _, _, y = boxes[0].box
    left, _, _, low = (x, 0, 0, y) if space == "pixels" else (x / 0.09, 0, 0, y / 0.06)
    line = run(tool, gallery, image_index=2, text=["cat."]).text.splitlines()[0]
    assert line.startswith(f"1: cat at [{round(left)}, ") and f", {round(low)}], score" in line
    tool.detector = ZeroShotDetector(detector.model, least=1.1)
    told = run(tool, gallery, image_index=1, text=["a red cup.", "cat"])
    assert told.text == "Not found in image 1: a red cup, cat." and not told.images


def test_boxes_of_padded_images(folder: Write) -> None:
    """OWLv2 pads an image to a square, of whose sides boxes are shares, and boxes end with the image.

    Without weights the model's 16 boxes are a quarter of the square each, and begin at an eighth of it.
    """
    detector = ZeroShotDetector(folder(tiny.write_owlv2), least=0.0)
    [found] = detector.find([Image.new("RGB", (90, 60))], ["cat"])
    starts = [(11, 33), (33, 56), (56, 78), (78, 90)]
    expected = {(x1, y1, x2, min(y2, 60)) for x1, x2 in starts for y1, y2 in starts[:3]}
    assert {d.box for d in found} == expected


METRIC = {"depth_estimation_type": "metric", "max_depth": 1}


@pytest.mark.parametrize(
    ("write", "kind"),
    [(tiny.write_dpt, {}), (tiny.write_depth_anything, {}), (tiny.write_depth_anything, METRIC)],
)
def test_depth(folder: Write, gallery: Gallery, write: Callable[[Path], Path], kind: dict[str, Any]) -> None:
    """A map of the image's size, twice the same; metric models tell distances, and the nearest is white."""
    tool = Depth(folder(write))
    config = Path(tool.named) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | kind))
    [first] = run(tool, gallery, image_index=2).images
    [again] = run(tool, gallery, image_index=2).images
    assert first.image.size == (90, 60) and first.image.tobytes() == again.image.tobytes()
    assert np.asarray(first.image).max() > 200
    told = pipeline_of("depth-estimation", tool.named, "cpu")(gallery.picture(2).full)["predicted_depth"]
    values = Image.fromarray(told.numpy()).resize((90, 60), Image.Resampling.BILINEAR)
    alike = np.corrcoef(np.asarray(values).ravel(), np.asarray(first.image).ravel())[0, 1]
    assert alike == pytest.approx(-1 if kind else 1, abs=0.05)


def test_depth_map() -> None:
    """The nearest is white, the farthest black, and a plain image is black."""
    shades = np.asarray(depth_map(np.array([[0.0, 2.0], [1.0, 4.0]]), (2, 2)))
    assert shades.tolist() == [[0, 128], [64, 255]]
    assert np.asarray(depth_map(np.full((2, 2), 3.0), (4, 4))).max() == 0
    odd = np.array([[np.nan, 2.0], [0.0, 4.0], [np.inf, -np.inf]])
    assert np.asarray(depth_map(odd, (2, 3))).tolist() == [[0, 128], [0, 255], [255, 0]]
    assert np.asarray(depth_map(np.full((2, 2), np.nan), (2, 2))).max() == 0


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
    """Captioners, of which one finds no words, and a model that chats about images: any that is loaded."""
    found = run(ImageCaptioner(folder(tiny.write_blip)), gallery, image_index=1).text
    assert found.startswith("Image 1 shows: ") and len(found) > len("Image 1 shows: ")
    found = run(ImageCaptioner(folder(tiny.write_florence2)), gallery, image_index=2).text
    assert found == "No words were found for image 2."
    chatting = ImageCaptioner(str(BUILTIN / "digits"))
    assert run(chatting, gallery, image_index=2).text.startswith("Image 2 shows: ")


BOXES = [(0, 0, 45, 30), (10, 10, 60, 50)]


@pytest.mark.parametrize("write", [tiny.write_sam, tiny.write_sam2, tiny.write_sam3])
def test_sam(folder: Write, gallery: Gallery, write: Callable[[Path], Path]) -> None:
    """A mask for each box, of the image's size, and as it is alone; nothing needs torchvision."""
    tool = ImageSegment(Sam(folder(write)))
    masks = tool.segmenter.masks(gallery.picture(2).full, BOXES)
    assert [mask.shape for mask in masks] == [(60, 90)] * 2 and masks[0].dtype == bool
    alone = [tool.segmenter.masks(gallery.picture(2).full, [box])[0] for box in BOXES]
    assert all(np.mean(mask == own) > 0.99 for mask, own in zip(masks, alone, strict=True))
    found = run(tool, gallery, image_index=2, bounding_boxes=[[0, 0, 45, 30]])
    assert found.text.startswith("1: the thing fills") and found.images[0].image.size == (90, 60)
    assert "torchvision" not in sys.modules


def own_masks(name: str, logits: torch.Tensor, size: tuple[int, int]) -> Any:
    """Masks by transformers' own image processor, whose module cannot be imported without torchvision."""
    package = importlib.util.find_spec(f"transformers.models.{name}")
    source = ast.parse(Path(package.submodule_search_locations[0], f"image_processing_{name}.py").read_text())
    method = next(node for node in ast.walk(source) if getattr(node, "name", "") == "post_process_masks")
    names: dict[str, Any] = {"torch": torch, "np": np, "F": torch.nn.functional}
    exec(compile(ast.Module([method], []), name, "exec"), names)  # noqa: S102 - transformers' own lines
    [masks] = names["post_process_masks"](None, [logits], [size])
    return masks[:, 0].numpy()


@pytest.mark.parametrize(
    ("write", "name", "processor", "side", "black"),
    [
        (tiny.write_sam2, "sam2", Sam2Processor, 64, -0.485 / 0.229),
        (tiny.write_sam3, "sam3", Sam3TrackerProcessor, 56, -1.0),
    ],
)
def test_sam_2_and_3_read_a_square(
    folder: Write,
    gallery: Gallery,
    write: Callable[[Path], Path],
    name: str,
    processor: Any,
    side: int,
    black: float,
    monkeypatch: Any,
) -> None:
    """Pixels and boxes are stretched to the model's square, and its masks back to the image, as there."""
    seen: dict[str, Any] = {}
    logits = torch.full((1, 2, 1, 16, 16), -1.0)
    logits[0, 0, 0, :8, :8] = 1.0
    logits += torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) - 0.5

    def load(kind: Any, name: str, device: str) -> Any:
        model = loaded(kind, name, device)
        model.register_forward_pre_hook(lambda _, __, given: seen.update(given), with_kwargs=True)
        model.register_forward_hook(lambda _, __, made: setattr(made, "pred_masks", logits))
        return model

    monkeypatch.setattr(segment, "loaded", load)
    tool = ImageSegment(Sam(folder(write)))
    found = run(tool, gallery, image_index=2, bounding_boxes=[[*box] for box in BOXES])
    boxes = processor._normalize_coordinates(None, side, torch.tensor(BOXES), (60, 90), is_bounding_box=True)
    assert torch.allclose(seen["input_boxes"][0], boxes)
    masks = tool.segmenter.masks(gallery.picture(2).full, BOXES)
    assert np.array_equal(np.stack(masks), own_masks(name, logits[0], (60, 90)))
    pixels = seen["pixel_values"]
    assert pixels.shape == (1, 3, side, side) and pixels[0, 0, -1, -1] == pytest.approx(black, abs=1e-4)
    assert (pixels[0, :, : side // 2 - 2, : side // 2 - 2] > 0).all() and pixels[0, 0, 1, -1] < 0
    # The first mask is the upper left quarter, which is its box; the second is empty.
    lines = found.text.splitlines()
    assert int(lines[0].split("fills ")[1].split("%")[0]) > 95
    assert lines[1] == "2: nothing was found in its box"
    shown = folder(write)
    (Path(shown) / "processor_config.json").unlink()
    with pytest.raises(ToolError, match="settings say no image_mean and no image_std and no size"):
        Sam(shown, "cpu:0").masks(gallery.picture(2).full, BOXES)


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
