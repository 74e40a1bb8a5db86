"""Tools that find things by name in images, and compare images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from pydantic import Field

from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.tools.base import (
    Arguments,
    Found,
    ImageIndex,
    ModelTool,
    OnImage,
    Phrase,
    VisualTool,
    loaded,
    missing_model,
    pipeline_of,
    processor_of,
    shared,
)
from selfverify.visual.tools.crop import boxes_drawn, enlarged, widened
from selfverify.visual.tools.gallery import Gallery, Made


@dataclass(frozen=True, slots=True)
class Detection:
    """A thing that was found in an image.

    Args:
        label: The phrase that it was found by.
        score: How sure the detector is, from 0 to 1.
        box: x1, y1, x2, y2 in pixels.
    """

    label: str
    score: float
    box: tuple[float, float, float, float]


class GroundingArguments(OnImage):
    """Arguments of `GroundingTool`."""

    text: Annotated[list[Phrase], Field(min_length=1, max_length=8)]
    """The things to look for: one phrase for each kind of thing."""


class SearchArguments(OnImage):
    """Arguments of `VisualSearch`."""

    objects: Annotated[list[Phrase], Field(min_length=1, max_length=8)]
    """The things to look for: one phrase for each kind of thing."""


G = TypeVar("G", bound=OnImage)


class _Finding(VisualTool[G], Generic[G]):
    """The base of grounding and search.

    Args:
        detector: Finds things.
        most: How many findings are told.
    """

    def __init__(self, detector: ZeroShotDetector, most: int = 20) -> None:
        self.detector, self.most = detector, most

    def missing(self) -> str:
        return self.detector.missing()

    @staticmethod
    def told(
        index: int, phrases: Sequence[str], found: Sequence[Detection], gallery: Gallery
    ) -> tuple[str, list[Made]]:
        """The findings in words, and the image with their boxes."""
        lacking = [phrase for phrase in phrases if not any(d.label == phrase for d in found)]
        words = [f"Not found in image {index}: {', '.join(lacking)}."] if lacking else []
        for number, d in enumerate(found, start=1):
            place = ", ".join(f"{value:g}" for value in gallery.written(index, d.box))
            words.append(f"{number}: {d.label} at [{place}], score {d.score:.2f}")
        full = gallery.picture(index).full
        marked = boxes_drawn(full, [d.box for d in found])
        label = f"image {index} with numbered boxes"
        return "\n".join(words), [Made(marked, index, (0, 0, *full.size), label)] if found else []


class GroundingTool(_Finding[GroundingArguments]):
    """Finds things in an image by their names and draws numbered boxes around them."""

    name = "grounding"
    arguments = GroundingArguments

    def run(self, asked: GroundingArguments, gallery: Gallery) -> Found:
        full, phrases = gallery.picture(asked.image_index).full, plain(asked.text)
        [found] = self.detector.find([full], phrases)
        return Found(*self.told(asked.image_index, phrases, found[: self.most], gallery))


class VisualSearch(_Finding[SearchArguments]):
    """Searches an image for small things, part by part, and shows where they are and the surest one closely.

    Each part is a third of the image's sides wide and high, and parts begin every two ninths, as in VTS-V's
    release. The whole image is searched, too. A thing found in two parts is told once.
    """

    name = "visual_search"
    arguments = SearchArguments

    def run(self, asked: SearchArguments, gallery: Gallery) -> Found:
        full, phrases = gallery.picture(asked.image_index).full, plain(asked.objects)
        parts = windows(full.size)
        seen = self.detector.find([full.crop(part) for part in parts], phrases)
        moved = [
            Detection(d.label, d.score, _moved(d.box, part[0], part[1]))
            for part, found in zip(parts, seen, strict=True)
            for d in found
        ]
        found = distinct(moved)[: self.most]
        words, images = self.told(asked.image_index, phrases, found, gallery)
        if found:
            best = widened(_touched(found[0].box), full.size, 0.5, least=0.1)
            closer = enlarged(full.crop(best), max(full.size), gallery.most_shown)
            images.append(Made(closer, asked.image_index, best, f"1: {found[0].label}, enlarged"))
        return Found(words, images)


def plain(phrases: Sequence[str]) -> list[str]:
    """Phrases without the full stops that some detectors are asked with, each once."""
    return list(dict.fromkeys(phrase.strip(" .") or phrase for phrase in phrases))


def windows(size: tuple[int, int], share: int = 3, starts: int = 4) -> list[tuple[int, int, int, int]]:
    """The whole image and ``starts`` × ``starts`` overlapping parts of it, each 1/``share`` of its sides."""
    wide, high = size
    part = max(wide // share, 1), max(high // share, 1)

    def steps(whole: int, own: int) -> list[int]:
        return sorted({round(i * (whole - own) / (starts - 1)) for i in range(starts)})

    small = [(x, y, x + part[0], y + part[1]) for y in steps(high, part[1]) for x in steps(wide, part[0])]
    return [(0, 0, wide, high), *small]


def distinct(found: Sequence[Detection], overlap: float = 0.5) -> list[Detection]:
    """Findings, surest first, without those that mostly cover a surer one of the same label.

    Overlap is measured as a share of the smaller box: a part of the image may show half of a thing.
    """
    kept: list[Detection] = []
    for one in sorted(found, key=lambda d: -d.score):
        if not any(one.label == other.label and _shared(one.box, other.box) > overlap for other in kept):
            kept.append(one)
    return kept


def _shared(one: Sequence[float], other: Sequence[float]) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    least = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(wide, 0.0) * max(high, 0.0) / least if least > 0 else 0.0


def _moved(box: Sequence[float], x: float, y: float) -> tuple[float, float, float, float]:
    return box[0] + x, box[1] + y, box[2] + x, box[3] + y


def _touched(box: Sequence[float]) -> tuple[int, int, int, int]:
    return int(box[0]), int(box[1]), max(round(box[2]), int(box[0]) + 1), max(round(box[3]), int(box[1]) + 1)


Question = tuple[Image, tuple[str, ...]]


class ZeroShotDetector:
    """Finds things by any phrase, with transformers' pipeline ``zero-shot-object-detection``.

    It takes GroundingDINO, OWL-ViT and OWLv2, from a folder or the hub.

    Args:
        model: A folder or a hub id; None is none.
        least: The lowest score that counts.
        device: Where it runs.
    """

    def __init__(self, model: str | None, least: float = 0.3, device: str = "cpu") -> None:
        self.model, self.least, self.device = model, least, device

    def missing(self) -> str:
        return missing_model(self.model, "detector")

    def find(self, images: Sequence[Image], phrases: Sequence[str]) -> list[list[Detection]]:
        """Return the findings in each image, surest first."""
        ask = shared(("detector", self.model, self.least, self.device), self._load)
        return ask([(image, tuple(phrases)) for image in images])

    def _load(self) -> Callable[[list[Question]], list[list[Detection]]]:
        assert self.model is not None, "`missing` has said so"
        finder = pipeline_of("zero-shot-object-detection", self.model, self.device)
        # GroundingDINO was trained on phrases that end with a full stop, which parts them from each other.
        end = "." if finder.model.config.model_type.endswith("grounding-dino") else ""

        def find(questions: list[Question]) -> list[list[Detection]]:
            asked = [
                {"image": image, "candidate_labels": [phrase + end for phrase in phrases]}
                for image, phrases in questions
            ]
            found = finder(asked, threshold=self.least)
            return [
                distinct(_detections(own, image, end))
                for own, (image, _) in zip(found, questions, strict=True)
            ]

        return find


def _detections(found: Sequence[Any], image: Image, end: str) -> list[Detection]:
    """The findings within the image; boxes may stick out, and labels have the ``end`` of what was asked."""
    kept = []
    for one in found:
        box = one["box"]
        x1, x2 = (float(min(max(box[key], 0), image.width)) for key in ("xmin", "xmax"))
        y1, y2 = (float(min(max(box[key], 0), image.height)) for key in ("ymin", "ymax"))
        if x1 < x2 and y1 < y2:
            label = str(one["label"]).removesuffix(end)
            kept.append(Detection(label, float(one["score"]), (x1, y1, x2, y2)))
    return kept


Vector = NDArray[np.float64]


class SimilarityArguments(Arguments):
    """Arguments of `Similarity`."""

    image_indices: Annotated[list[ImageIndex], Field(min_length=1, max_length=8)]
    """The numbers of the images that are compared."""
    texts: Annotated[list[Phrase], Field(max_length=8)] = []
    """Texts to compare each of them with."""
    other_image_indices: Annotated[list[ImageIndex], Field(max_length=8)] = []
    """The numbers of other images to compare each of them with, instead of texts."""


class Similarity(ModelTool[SimilarityArguments]):
    """Says how similar images are to texts or to other images, by the cosine of their embeddings.

    Args:
        model: A folder or a hub id of a model that embeds images and texts (CLIP, SigLIP).
        device: Where it runs.
    """

    name = "similarity"
    also = ("SimilarityComputing",)
    arguments = SimilarityArguments
    setting = "similarity_model"

    def run(self, asked: SimilarityArguments, gallery: Gallery) -> Found:
        if bool(asked.texts) == bool(asked.other_image_indices):
            raise ToolError("give either texts or other_image_indices")
        own: list[Image | str] = [gallery.picture(number).full for number in asked.image_indices]
        others: list[Image | str] = [*asked.texts]
        others += [gallery.picture(number).full for number in asked.other_image_indices]
        vectors = shared(("similarity", self.model, self.device), self._load, most=32)([*own, *others])
        names = [f'"{text}"' for text in asked.texts] + [f"image {n}" for n in asked.other_image_indices]
        told = []
        for number, vector in zip(asked.image_indices, vectors, strict=False):
            cosines = [float(vector @ other) for other in vectors[len(own) :]]
            told += [f"image {number} and {name}: {c:.3f}" for name, c in zip(names, cosines, strict=True)]
        return Found("\n".join(told))

    def _load(self) -> Callable[[list[Image | str]], list[Vector]]:
        import torch
        from transformers import AutoModel

        model, processor = loaded(AutoModel, self.named, self.device), processor_of(self.named)
        # SigLIP was trained on texts that are padded to its longest.
        padding = "max_length" if model.config.model_type.startswith("siglip") else True

        @torch.inference_mode()
        def embed(things: list[Image | str]) -> list[Vector]:
            found: list[Vector] = [np.zeros(0)] * len(things)
            for is_text in (True, False):
                places = [i for i, thing in enumerate(things) if isinstance(thing, str) == is_text]
                if not places:
                    continue
                some = [things[i] for i in places]
                if is_text:
                    inputs = processor(text=some, padding=padding, truncation=True, return_tensors="pt")
                    made = model.get_text_features(**inputs.to(self.device))
                else:
                    inputs = processor(images=some, return_tensors="pt")
                    made = model.get_image_features(**inputs.to(self.device))
                for i, vector in zip(places, made.pooler_output.double().cpu().numpy(), strict=True):
                    found[i] = vector / np.linalg.norm(vector)
            return found

        return embed
