"""Vision-language families without their own file: the model's own forward runs on every sample by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfverify.policy.families.base import Family, ImageInput


class Unknown(Family):
    """Families that transformers' `AutoProcessor` and ``model.generate`` know, several times slower.

    Nothing is shared between a prompt's samples, no image feature is kept, and image tokens are suppressed
    only as far as the configuration names them. One `ImageInput` holds everything that the processor made of
    a prompt.
    """

    shares_prompts = False

    def backbone(self, model: Any) -> nn.Module:
        """See `Family`: the model below its head, with its vision tower."""
        whole: nn.Module = model.base_model if model.base_model is not model else model.model
        return whole

    def placeholder(self, model: Any) -> int | None:
        """See `Family`: the configuration's image token, if it names one."""
        names = ("image_token_id", "image_token_index")
        return next((i for name in names if (i := getattr(model.config, name, None)) is not None), None)

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """See `Family`."""
        token = self.placeholder(model)
        return [] if token is None else [tokenizer.convert_ids_to_tokens(token)]

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """See `Family`: everything that is not the decoder."""
        decoder = {id(p) for p in model.get_decoder().parameters()}
        head = {id(p) for p in model.get_output_embeddings().parameters()}
        return [p for p in model.parameters() if id(p) not in decoder | head]

    def whole_forward(
        self, model: Any, ids: Tensor, mask: Tensor, prompt: int, images: Sequence[ImageInput]
    ) -> Tensor:
        """Hidden states ``[G, L, H]`` of one prompt's G rows.

        Args:
            model: The model.
            ids: ``[G, L]`` prompt and continuation, padded on the right.
            mask: ``[G, L]`` 1 at tokens.
            prompt: The prompt's length.
            images: What the processor made of the prompt, or nothing.
        """
        rows, length = ids.shape
        tensors = {
            name: tensor.to(ids.device).repeat(rows, *[1] * (tensor.dim() - 1))
            for name, tensor in lengthened(images[0].tensors if images else {}, prompt, length).items()
        }
        hidden: Tensor = self.backbone(model)(
            input_ids=ids, attention_mask=mask, use_cache=False, **tensors
        ).last_hidden_state
        return hidden


def lengthened(tensors: dict[str, Tensor], prompt: int, length: int) -> dict[str, Tensor]:
    """What a processor made of ``prompt`` tokens, as it would be of ``length``, all others text."""
    more = length - prompt
    made = {}
    for name, tensor in tensors.items():
        if tensor.shape == (1, prompt):
            # This tensor gives the kinds of tokens, of which text is 0.
            tensor = torch.nn.functional.pad(tensor, (0, more))
        elif tensor.shape[:2] == (1, prompt):
            # This tensor says what a token sees of the images: the same as the prompt's last token.
            tensor = torch.cat([tensor, tensor[:, -1:].expand(-1, more, *tensor.shape[2:])], 1)
        made[name] = tensor
    return made
