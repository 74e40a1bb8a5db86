"""The questions that a model family answers, with the answers that most families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn
from transformers import PreTrainedModel

from selfverify.core.errors import ConfigError


@dataclass(slots=True)
class ImageInput:
    """One preprocessed image.

    Args:
        key: Digest of its content.
        tensors: What the image processor made of it, as a batch of one image.
        text: What stands for it in a prompt's text: placeholders, and marks around them.
        placeholders: How many of the text's tokens are placeholders, one per image feature.
    """

    key: str
    tensors: dict[str, Tensor]
    text: str
    placeholders: int


class Family:
    """A model family. The defaults fit text-only causal language models.

    The rest of `policy` asks these methods. A family overrides those whose answers differ.
    """

    position_axes = 1
    """The rows of the position ids: 3 for multimodal rotary embeddings, 1 for plain ones."""
    shares_prompts = True
    """Whether a prompt can be forwarded once for all its continuations."""
    bidirectional_images = False
    """Whether the tokens of one image attend to each other in both directions."""
    splits_single_images = False
    """Whether an image is split into tiles only where it is its prompt's only one."""

    def backbone(self, model: Any) -> Any:
        """The decoder that maps embeddings to hidden states.

        Raises:
            ConfigError: The model does not say which of its parts that is.
        """
        # A few models name their head, or themselves, as their decoder.
        inner = (part for name, part in model.named_children() if name == "model")
        for found in (model.get_decoder(), model.base_model, *inner):
            if isinstance(found, PreTrainedModel) and found is not model:
                return found
        raise ConfigError(
            f"models of type {model.config.model_type!r} name no decoder, so they cannot be used here; take "
            "another type of model, and please report this one"
        )

    def placeholder(self, model: Any) -> int | None:
        """Return the token id that stands for one image feature; None for text-only models."""
        return None

    def slot(self, model: Any, tokenizer: Any) -> str:
        """Return the text that the chat template writes for an image. `ImageInput.text` takes its place."""
        token: str = tokenizer.convert_ids_to_tokens(self.placeholder(model))
        return token

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """Return the tokens that only prompts may contain: placeholders, and the marks around images."""
        return []

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Tensor]:
        """Make tensors of one image. ``several`` says that its prompt has others (`splits_single_images`)."""
        return dict(processor(images=[image], return_tensors="pt"))

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """Return the text that stands for an image in a prompt: placeholders, and marks around them."""
        raise TypeError("a text-only model has no images")

    def coordinate_space(self, model: Any, processor: Any, size: tuple[int, int]) -> tuple[int, int]:
        """Return the width and height of the space in which the model writes places in an image.

        By default 1000 x 1000, whatever the image's size.

        Args:
            model: The model.
            processor: Its image processor.
            size: Width and height of the image in pixels.

        Raises:
            ValueError: The processor refuses images of this size.
        """
        return 1000, 1000

    def positions(self, model: Any, ids: Tensor, images: Sequence[ImageInput]) -> Tensor:
        """Return position ids ``[axes, L]`` of one sequence ``ids`` [L] that contains ``images``."""
        return torch.arange(len(ids), device=ids.device)[None]

    def prepare_tower(self, model: Any) -> None:
        """Set up how the vision tower of a model that was just loaded computes."""

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """Return features ``[placeholders, F]`` of each image.

        The first H columns replace the placeholders' embeddings. Others, if any, are for `decoder_inputs`.
        """
        raise TypeError("a text-only model has no image features")

    def decoder_inputs(self, model: Any, places: Tensor, features: Tensor) -> dict[str, Any]:
        """Make further arguments of the decoder, from ``features`` [places, F] at ``places`` [B, L]."""
        return {}

    def run_decoder(
        self, model: Any, embeddings: Tensor, positions: Tensor, mask: Tensor, **more: Any
    ) -> Tensor:
        """Return hidden states ``[B, L, H]`` of the decoder alone.

        ``positions`` are ``[axes, B, L]``, and ``mask`` is of any kind that the decoder takes. What is seen
        is kept in ``past_key_values`` where ``more`` has them.
        """
        hidden: Tensor = self.backbone(model)(
            inputs_embeds=embeddings,
            position_ids=positions if self.position_axes > 1 else positions[0],
            attention_mask=mask,
            use_cache="past_key_values" in more,
            **more,
        ).last_hidden_state
        return hidden

    def plain_forward(
        self, model: Any, embeddings: Tensor, positions: Tensor, mask: Tensor, places: Tensor, **more: Any
    ) -> Tensor:
        """Return hidden states ``[B, L, H]`` of padded rows, by transformers' own masks.

        Args:
            embeddings: ``[B, L, H]``, image features in their places.
            positions: ``[axes, B, L]``.
            mask: ``[B, L]`` 1 at tokens.
            places: ``[B, L]`` True at placeholders.
            more: From `decoder_inputs`; ``past_key_values`` as in `run_decoder`.
        """
        return self.run_decoder(model, embeddings, positions, mask, **more)

    def whole_forward(
        self, model: Any, ids: Tensor, mask: Tensor, prompt: int, images: Sequence[ImageInput]
    ) -> Tensor:
        """Return hidden states of one prompt's rows by the whole model. Only `Unknown` can."""
        raise TypeError("prompts of this family can be shared; use plain_forward")

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters of the vision tower, which are frozen unless ``train_vision`` is set."""
        return []


class VisionFamily(Family):
    """Vision-language models of transformers, whose ``model.model`` holds a vision tower and a decoder."""

    tower: tuple[str, ...] = ("vision_tower", "multi_modal_projector")
    """The modules of ``model.model`` that make image features."""

    def placeholder(self, model: Any) -> int | None:
        """See `Family`."""
        token: int = model.config.image_token_id
        return token

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """See `Family`."""
        return [tokenizer.convert_ids_to_tokens(self.placeholder(model))]

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """See `Family`."""
        return [p for name in self.tower for p in getattr(model.model, name).parameters()]


def stacked(images: Sequence[ImageInput], name: str, model: Any) -> Tensor:
    """Join the images' tensors of one name, on the model's device."""
    return torch.cat([image.tensors[name] for image in images]).to(model.device)
