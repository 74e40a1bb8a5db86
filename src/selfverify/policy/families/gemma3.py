"""Gemma 3: image tokens see each other in both directions; most layers have a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image
from torch import Tensor

from selfverify.policy.families.base import ImageInput, VisionFamily, stacked


class Gemma3(VisionFamily):
    """Gemma 3 with its vision tower; its text-only models are a plain `Family`."""

    bidirectional_images = True

    def slot(self, model: Any, tokenizer: Any) -> str:
        """See `Family`."""
        token: str = tokenizer.boi_token
        return token

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """See `Family`."""
        return [*super().marks(model, tokenizer), tokenizer.boi_token, tokenizer.eoi_token]

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Tensor]:
        """See `Family`. Pan-and-scan, off by default, would add crops; it is left off."""
        made = processor(images=[[image]], return_tensors="pt", do_pan_and_scan=False)
        return {"pixel_values": made["pixel_values"]}

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """See `Family`."""
        inside = tokenizer.convert_ids_to_tokens(self.placeholder(model)) * model.config.mm_tokens_per_image
        return f"\n\n{tokenizer.boi_token}{inside}{tokenizer.eoi_token}\n\n"

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """See `Family`."""
        made = model.model.get_image_features(stacked(images, "pixel_values", model), return_dict=True)
        return list(made.pooler_output)

    def plain_forward(
        self, model: Any, embeddings: Tensor, positions: Tensor, mask: Tensor, places: Tensor, **more: Any
    ) -> Tensor:
        """See `Family`: the model's own forward makes the masks from the kinds of tokens."""
        hidden: Tensor = model.model(
            inputs_embeds=embeddings,
            position_ids=positions[0],
            attention_mask=mask,
            token_type_ids=places.long(),
            use_cache="past_key_values" in more,
            **more,
        ).last_hidden_state
        return hidden
