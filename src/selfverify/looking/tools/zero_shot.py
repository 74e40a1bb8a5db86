"""Detectors that find things by any phrase, from a folder or the hub: GroundingDINO, OWL-ViT, OWLv2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from PIL.Image import Image

from selfverify.looking.tools.finding import Detection, Detector, distinct
from selfverify.looking.tools.hub_models import missing_model, pipeline_of
from selfverify.looking.tools.shared import shared

Question = tuple[Image, tuple[str, ...]]


class ZeroShotDetector(Detector):
    """transformers' pipeline ``zero-shot-object-detection``.

    Args:
        model: A folder or a hub id; None is none.
        least: The lowest score that counts.
        device: Where it runs.
    """

    def __init__(self, model: str | None, least: float = 0.3, device: str = "cpu") -> None:
        self.model, self.least, self.device = model, least, device

    def missing(self) -> str:
        """See `Detector`."""
        return missing_model(self.model, "detector")

    def find(self, images: Sequence[Image], phrases: Sequence[str]) -> list[list[Detection]]:
        """See `Detector`."""
        ask = shared(("detector", self.model, self.least, self.device), self._load)
        return ask([(image, tuple(phrases)) for image in images])

    def _load(self) -> Callable[[list[Question]], list[list[Detection]]]:
        assert self.model is not None, "`missing` has said so"
        finder = pipeline_of("zero-shot-object-detection", self.model, self.device)

        def find(questions: list[Question]) -> list[list[Detection]]:
            asked = [{"image": image, "candidate_labels": [*phrases]} for image, phrases in questions]
            found = finder(asked, threshold=self.least)
            return [
                distinct(_detections(own, image)) for own, (image, _) in zip(found, questions, strict=True)
            ]

        return find


def _detections(found: Sequence[Any], image: Image) -> list[Detection]:
    """What was found within the image; boxes may stick out."""
    kept = []
    for one in found:
        box = one["box"]
        x1, x2 = (float(min(max(box[key], 0), image.width)) for key in ("xmin", "xmax"))
        y1, y2 = (float(min(max(box[key], 0), image.height)) for key in ("ymin", "ymax"))
        if x1 < x2 and y1 < y2:
            kept.append(Detection(str(one["label"]).rstrip("."), float(one["score"]), (x1, y1, x2, y2)))
    return kept
