"""Similarity of images with texts and with other images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from pydantic import Field

from selfverify.looking.tools.hub_models import loaded, processor_of
from selfverify.looking.tools.model_tool import ModelTool
from selfverify.looking.tools.pictures import Gallery
from selfverify.looking.tools.shared import shared
from selfverify.looking.tools.visual_tool import Arguments, Found, ImageIndex, Phrase
from selfverify.tasks.tool_calls import ToolError

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
        """See `VisualTool`."""
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
