"""Tools that read an image: its text with places (OCR), what it shows in words, how near things are."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from PIL import Image

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.tasks.base import user_turn
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.tools.base import (
    Found,
    ModelTool,
    OnImage,
    VisualTool,
    loaded,
    pipeline_of,
    place_of,
    processor_of,
    shared,
)
from selfverify.visual.tools.gallery import SLIMMEST, Gallery, Made


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in an image.

    Args:
        text: The words of the line.
        box: x1, y1, x2, y2 in pixels.
        score: How sure the reader is, from 0 to 1.
        words: Its words with their boxes.
    """

    text: str
    box: tuple[float, float, float, float]
    score: float
    words: Sequence[tuple[str, tuple[float, float, float, float]]] = ()


class OcrArguments(OnImage):
    """Arguments of `Ocr`."""

    level: Literal["words", "lines"] = "words"
    """Whether places are given for single words, or for lines only."""


class Ocr(VisualTool[OcrArguments]):
    """Reads the text in an image and says where it stands."""

    name = "ocr"
    arguments = OcrArguments

    def missing(self) -> str:
        lacking = [name for name in ("rapidocr", "onnxruntime") if find_spec(name) is None]
        return f"{lacking[0]} is not installed: pip install 'selfverify[looking]'" if lacking else ""

    def run(self, asked: OcrArguments, gallery: Gallery) -> Found:
        image = gallery.picture(asked.image_index).full
        if max(image.size) > SLIMMEST * min(image.size):
            wide, high = image.size
            raise ToolError(
                f"image {asked.image_index} has {wide} x {high} pixels, which is too slim to be read"
            )
        [lines] = shared(("ocr", "rapidocr"), _load, most=1)([image])
        if not lines:
            return Found(f"No text was found in image {asked.image_index}.")

        def place(box: Sequence[float]) -> str:
            return ", ".join(f"{value:g}" for value in gallery.written(asked.image_index, box))

        told = []
        for line in lines:
            told.append(f"{json.dumps(line.text, ensure_ascii=False)} at [{place(line.box)}]")
            if asked.level == "words" and len(line.words) > 1:
                told += [
                    f"  {json.dumps(word, ensure_ascii=False)} at [{place(box)}]" for word, box in line.words
                ]
        return Found("\n".join([f"Text in image {asked.image_index}:", *told]))


def _load() -> Callable[[list[Image.Image]], list[list[Line]]]:
    """RapidOCR with the weights that its package carries; nothing is fetched."""
    import torch
    from rapidocr import RapidOCR

    # Its own threads, as many as there are cores, spin while they wait and slow down other programs.
    threads = {
        f"EngineConfig.onnxruntime.{kind}_op_num_threads": torch.get_num_threads()
        for kind in ("intra", "inter")
    }
    engine = RapidOCR(params={"Global.log_level": "critical", **threads})

    def read(images: list[Image.Image]) -> list[list[Line]]:
        return [_lines(engine(np.asarray(image)[:, :, ::-1], return_word_box=True)) for image in images]

    return read


def _lines(found: Any) -> list[Line]:
    if found.txts is None or found.boxes is None:
        return []
    words = found.word_results or [()] * len(found.txts)
    return [
        Line(text, _around(box), float(score), [(word, _around(corners)) for word, _, corners in own])
        for text, box, score, own in zip(found.txts, found.boxes, found.scores, words, strict=True)
    ]


def _around(corners: Any) -> tuple[float, float, float, float]:
    """The upright box around a slanted one."""
    points = np.asarray(corners, dtype=float)
    (x1, y1), (x2, y2) = points.min(axis=0), points.max(axis=0)
    return float(x1), float(y1), float(x2), float(y2)


REQUEST = "Describe this image in one or two sentences."
LONGEST = 96
"""Tokens of a caption."""


class ImageCaptioner(ModelTool[OnImage]):
    """Describes an image in words.

    Args:
        model: A folder or a hub id: a captioner (BLIP, GIT, Florence-2), or a model that chats about images,
            such as the one that looks.
        device: Where it runs.
    """

    name = "caption"
    also = ("ImageCaptioner",)
    arguments = OnImage
    setting = "caption_model"

    def run(self, asked: OnImage, gallery: Gallery) -> Found:
        full = gallery.picture(asked.image_index).full
        [text] = shared(("caption", self.model, self.device), self._load)([full])
        if not text:
            return Found(f"No words were found for image {asked.image_index}.")
        return Found(f"Image {asked.image_index} shows: {text}")

    def _load(self) -> Callable[[list[Image.Image]], list[str]]:
        from transformers import AutoTokenizer

        chats = AutoTokenizer.from_pretrained(place_of(self.named)).chat_template is not None
        return self._chatting() if chats else self._captioning()

    def _captioning(self) -> Callable[[list[Image.Image]], list[str]]:
        import torch
        from transformers import AutoModelForImageTextToText

        model = loaded(AutoModelForImageTextToText, self.named, self.device)
        processor = processor_of(self.named)

        @torch.inference_mode()
        def describe(images: list[Image.Image]) -> list[str]:
            text = {"text": ["<CAPTION>"] * len(images)} if model.config.model_type == "florence2" else {}
            inputs = processor(images=images, **text, return_tensors="pt").to(self.device)
            tokens = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
            return [text.strip() for text in processor.batch_decode(tokens, skip_special_tokens=True)]

        return describe

    def _chatting(self) -> Callable[[list[Image.Image]], list[str]]:
        from selfverify.policy.policy import Policy
        from selfverify.rollouts.sampler import sampled_turn

        policy = Policy.load(place_of(self.named), device=self.device)
        sampling = SamplingConfig(group_size=1, temperature=0.0, max_new_tokens=LONGEST)

        def describe(images: list[Image.Image]) -> list[str]:
            problems = [
                Problem(f"caption/{i}", user_turn(REQUEST), [image]) for i, image in enumerate(images)
            ]
            groups = policy.sample(policy.encode(problems), sampling, seeds=[0] * len(problems))
            return [sampled_turn(policy.tokenizer, sample).turn.text.strip() for [sample] in groups]

        return describe


_DISTANCES = ("glpn", "zoedepth")
"""Families whose values grow with the distance; the others' grow with nearness."""


class Depth(ModelTool[OnImage]):
    """Shows how near the things in an image are, as a map of brightness.

    Args:
        model: A folder or a hub id of transformers' pipeline ``depth-estimation`` (Depth Anything, DPT).
        device: Where it runs.
    """

    name = "depth"
    arguments = OnImage
    setting = "depth_model"

    def run(self, asked: OnImage, gallery: Gallery) -> Found:
        full = gallery.picture(asked.image_index).full
        [depth] = shared(("depth", self.model, self.device), self._load)([full])
        label = f"depth of image {asked.image_index}"
        return Found("Brighter is nearer.", [Made(depth, asked.image_index, (0, 0, *full.size), label)])

    def _load(self) -> Callable[[list[Image.Image]], list[Image.Image]]:
        measure = pipeline_of("depth-estimation", self.named, self.device)
        config = measure.model.config
        distance = (
            config.model_type in _DISTANCES or config.to_dict().get("depth_estimation_type") == "metric"
        )

        def see(images: list[Image.Image]) -> list[Image.Image]:
            found = [one["predicted_depth"].float().cpu().numpy() for one in measure(images)]
            return [
                depth_map(-values if distance else values, image.size)
                for values, image in zip(found, images, strict=True)
            ]

        return see


def depth_map(nearness: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """Values ``[height, width]`` as brightness at an image's size: the nearest is white, NaN black."""
    known = nearness[np.isfinite(nearness)]
    low, high = float(known.min(initial=np.inf)), float(known.max(initial=-np.inf))
    nearness = np.nan_to_num(nearness, nan=low).clip(low, high)
    grey = (nearness - low) / (high - low) if high > low else np.zeros_like(nearness)
    shades = (255 * np.squeeze(grey)).round().astype(np.uint8)
    return Image.fromarray(shades).resize(size, Image.Resampling.BILINEAR)
