"""OCR: the text in an image, with its places."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
from PIL.Image import Image

from selfverify.looking.tools.pictures import SLIMMEST, Gallery
from selfverify.looking.tools.shared import shared
from selfverify.looking.tools.visual_tool import Found, OnImage, VisualTool
from selfverify.tasks.tool_calls import ToolError


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in an image.

    Args:
        text: What it says.
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
    also = ("ocr_action", "OCR")
    arguments = OcrArguments

    def missing(self) -> str:
        """See `VisualTool`."""
        lacking = [name for name in ("rapidocr", "onnxruntime") if find_spec(name) is None]
        return f"{lacking[0]} is not installed: pip install 'selfverify[looking]'" if lacking else ""

    def run(self, asked: OcrArguments, gallery: Gallery) -> Found:
        """See `VisualTool`."""
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


def _load() -> Callable[[list[Image]], list[list[Line]]]:
    """RapidOCR with the weights that its package carries; nothing is fetched."""
    import torch
    from rapidocr import RapidOCR

    # Its own threads, as many as there are cores, spin while they wait and slow down whatever else runs.
    threads = {
        f"EngineConfig.onnxruntime.{kind}_op_num_threads": torch.get_num_threads()
        for kind in ("intra", "inter")
    }
    engine = RapidOCR(params={"Global.log_level": "critical", **threads})

    def read(images: list[Image]) -> list[list[Line]]:
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
