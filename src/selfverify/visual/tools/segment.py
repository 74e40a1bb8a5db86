"""Segmentation: what is inside a box, set off from what surrounds it, by Segment Anything or GrabCut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.tools.base import (
    Box,
    Found,
    OnImage,
    VisualTool,
    loaded,
    missing_model,
    place_of,
    processor_of,
    shared,
)
from selfverify.visual.tools.crop import COLOURS, number_at
from selfverify.visual.tools.gallery import Gallery, Made, Region, smaller

Mask = NDArray[np.bool_]
"""``[height, width]``, True inside."""


class SegmentArguments(OnImage):
    """Arguments of `ImageSegment`."""

    bounding_boxes: Annotated[list[Box], Field(min_length=1, max_length=8)]
    """One box around each thing, each as x_min, y_min, x_max, y_max."""


class ImageSegment(VisualTool[SegmentArguments]):
    """Marks the exact outlines of the things inside boxes.

    Args:
        segmenter: Finds them.
    """

    name = "segment"
    also = ("segment_action", "ImageSegment")
    arguments = SegmentArguments

    def __init__(self, segmenter: Sam | GrabCut) -> None:
        self.segmenter = segmenter

    def missing(self) -> str:
        return self.segmenter.missing()

    def run(self, asked: SegmentArguments, gallery: Gallery) -> Found:
        full = gallery.picture(asked.image_index).full
        chosen = [gallery.region(asked.image_index, box) for box in asked.bounding_boxes]
        masks = self.segmenter.masks(full, [region for region, _ in chosen])
        told = []
        for number, (mask, (region, note)) in enumerate(zip(masks, chosen, strict=True), start=1):
            area = (region[2] - region[0]) * (region[3] - region[1])
            share = mask[region[1] : region[3], region[0] : region[2]].sum() / area
            fills = f"the thing fills {share:.0%} of its box" if share else "nothing was found in its box"
            told.append(f"{number}: {fills} {note}".rstrip())
        marked = tinted(full, masks, [region for region, _ in chosen])
        label = f"image {asked.image_index} with outlined things"
        return Found("\n".join(told), [Made(marked, asked.image_index, (0, 0, *full.size), label)])


def tinted(image: Image.Image, masks: Sequence[Mask], regions: Sequence[Region]) -> Image.Image:
    """An image whose masked parts are tinted, outlined and numbered, from 1."""
    pixels, width = np.asarray(image).astype(np.float32), max(2, min(image.size) // 200)
    for number, mask in enumerate(masks):
        colour = np.asarray(COLOURS[number % len(COLOURS)], np.float32)
        pixels[mask] = 0.6 * pixels[mask] + 0.4 * colour
        pixels[mask & ~inner(mask, width)] = colour
    marked = Image.fromarray(pixels.round().astype(np.uint8))
    for number, region in enumerate(regions):
        number_at(marked, number, region)
    return marked


def inner(mask: Mask, width: int) -> Mask:
    """The part of a mask that is ``width`` pixels or more away from its edge, along rows and columns."""
    found = mask.copy()
    for axis in (0, 1):
        for step in range(1, width + 1):
            found &= np.roll(mask, step, axis) & np.roll(mask, -step, axis)
    return found


Question = tuple[Image.Image, tuple[Region, ...]]


class Sam:
    """A model that segments what is in boxes.

    Args:
        model: A folder or a hub id of transformers' ``mask-generation`` (SAM, SAM 2, SAM 3).
        device: Where it runs.
    """

    def __init__(self, model: str, device: str = "cpu") -> None:
        self.model, self.device = model, device

    def missing(self) -> str:
        return missing_model(self.model, "segment_model")

    def masks(self, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
        """The mask of what is inside each region."""
        [found] = shared(("sam", self.model, self.device), self._load, most=1)([(image, tuple(regions))])
        return found

    def _load(self) -> Callable[[list[Question]], list[list[Mask]]]:
        import torch
        from transformers import AutoModelForMaskGeneration
        from transformers.models.auto.image_processing_auto import get_image_processor_config

        model = loaded(AutoModelForMaskGeneration, self.model, self.device)
        first = model.config.model_type in ("sam", "sam_hq")
        prepared = processor_of(self.model) if first else get_image_processor_config(place_of(self.model))
        if not first and (missing := {"size", "image_mean", "image_std"} - {*prepared}):
            raise ValueError(f"its image processor's settings say no {' and no '.join(sorted(missing))}")

        @torch.inference_mode()
        def segment(questions: list[Question]) -> list[list[Mask]]:
            masks = _masks if first else _masks_of_square
            return [masks(model, prepared, *question) for question in questions]

        return segment


def _masks_of_square(
    model: Any, prepared: Mapping[str, Any], image: Image.Image, regions: Sequence[Region]
) -> list[Mask]:
    """The masks of SAM 2 or 3, whose own processors need torchvision.

    As in `Sam2Processor` and `Sam3TrackerProcessor` of transformers 5.23 the image is stretched to a square,
    boxes with it, and masks are stretched back and cut at 0. Pillow stretches here, and torchvision there.
    """
    from torch import as_tensor
    from torch.nn.functional import interpolate

    wide, high = prepared["size"]["width"], prepared["size"]["height"]
    small = np.asarray(image.resize((wide, high), Image.Resampling.BILINEAR), np.float32) / 255
    pixels = (small - np.array(prepared["image_mean"])) / np.array(prepared["image_std"])
    boxes = np.array(regions) * np.tile([wide / image.width, high / image.height], 2)
    found = model(
        pixel_values=as_tensor(pixels.transpose(2, 0, 1)[None], dtype=model.dtype, device=model.device),
        input_boxes=as_tensor(boxes[None], dtype=model.dtype, device=model.device),
        multimask_output=False,
    ).pred_masks
    # [boxes, 1, height, width]
    whole = interpolate(found[0].float(), (image.height, image.width), mode="bilinear", align_corners=False)
    return [np.asarray(mask[0]) for mask in (whole > 0).cpu()]


def _masks(model: Any, processor: Any, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
    """The masks of the first SAM."""
    boxes = [[[float(value) for value in region] for region in regions]]
    inputs = processor(images=image, input_boxes=boxes, return_tensors="pt").to(model.device)
    found = model(**inputs, multimask_output=False).pred_masks.cpu()
    sizes = inputs["original_sizes"].cpu(), inputs["reshaped_input_sizes"].cpu()
    # [boxes, 1, height, width]
    whole = processor.post_process_masks(found, *sizes)[0]
    return [np.asarray(mask[0], dtype=bool) for mask in whole]


WORKING_PIXELS = 250_000
"""GrabCut works on an image of at most so many pixels; its time grows with them."""


class GrabCut:
    """GrabCut (Rother et al. 2004) in OpenCV: it tells things by their colours from what is around them."""

    def missing(self) -> str:
        return "" if find_spec("cv2") else "OpenCV is not installed: pip install 'selfverify[looking]'"

    def masks(self, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
        """The mask of what is inside each region.

        Raises:
            ToolError: A region fills the image, so that nothing is around it.
        """
        import cv2

        small = smaller(image, WORKING_PIXELS)
        pixels = np.ascontiguousarray(np.asarray(small)[:, :, ::-1])
        scale = small.width / image.width, small.height / image.height
        found = []
        for number, region in enumerate(regions, start=1):
            if region == (0, 0, *image.size):
                raise ToolError(f"box {number} is the whole image; leave something around the thing")
            x1, y1, x2, y2 = (round(value * scale[i % 2]) for i, value in enumerate(region))
            marks = np.zeros(pixels.shape[:2], np.uint8)
            cv2.setRNGSeed(0)  # its clusters begin at random
            rectangle = (x1, y1, max(x2 - x1, 1), max(y2 - y1, 1))
            models = np.zeros((1, 65)), np.zeros((1, 65))
            cv2.grabCut(pixels, marks, rectangle, *models, 5, cv2.GC_INIT_WITH_RECT)
            inside = Image.fromarray(np.isin(marks, (cv2.GC_FGD, cv2.GC_PR_FGD)))
            found.append(np.asarray(inside.resize(image.size, Image.Resampling.NEAREST)))
        return found
