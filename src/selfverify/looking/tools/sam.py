"""Segment Anything: segmentation by a model of the SAM class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from selfverify.looking.tools.hub_models import loaded, missing_model, processor_of
from selfverify.looking.tools.pictures import Region
from selfverify.looking.tools.segment import Mask, Segmenter
from selfverify.looking.tools.shared import shared

Question = tuple[Image.Image, tuple[Region, ...]]


class Sam(Segmenter):
    """A model that segments what is in boxes.

    Args:
        model: A folder or a hub id of transformers' ``mask-generation`` (SAM).
        device: Where it runs.
    """

    def __init__(self, model: str, device: str = "cpu") -> None:
        self.model, self.device = model, device

    def missing(self) -> str:
        """See `Segmenter`."""
        return missing_model(self.model, "segment_model")

    def masks(self, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
        """See `Segmenter`."""
        [found] = shared(("sam", self.model, self.device), self._load, most=1)([(image, tuple(regions))])
        return found

    def _load(self) -> Callable[[list[Question]], list[list[Mask]]]:
        import torch
        from transformers import AutoModelForMaskGeneration

        model = loaded(AutoModelForMaskGeneration, self.model, self.device)
        processor = processor_of(self.model)

        @torch.inference_mode()
        def segment(questions: list[Question]) -> list[list[Mask]]:
            return [_masks(model, processor, *question) for question in questions]

        return segment


def _masks(model: Any, processor: Any, image: Image.Image, regions: Sequence[Region]) -> list[Mask]:
    boxes = [[[float(value) for value in region] for region in regions]]
    inputs = processor(images=image, input_boxes=boxes, return_tensors="pt").to(model.device)
    found = model(**inputs, multimask_output=False).pred_masks.cpu()
    sizes = inputs["original_sizes"].cpu(), inputs["reshaped_input_sizes"].cpu()
    # [boxes, 1, height, width]
    whole = processor.post_process_masks(found, *sizes)[0]
    return [np.asarray(mask[0], dtype=bool) for mask in whole]
