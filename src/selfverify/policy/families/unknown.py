"""Vision-language families without their own file: the model's own forward runs on every sample by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfverify.core.errors import ConfigError
from selfverify.policy.families.base import Family, ImageInput


class Unknown(Family):
    """Families that transformers' `AutoProcessor` and ``model.generate`` know, several times slower.

    Nothing is shared between a prompt's samples, no image feature is kept, and image tokens are suppressed
    only as far as the configuration names them. One `ImageInput` holds everything that the processor made of
    a prompt.
    """

    shares_prompts = False

    def backbone(self, model: Any) -> Any:
        """See `Family`: the model below its head, with its vision tower."""
        return model.base_model if model.base_model is not model else model.model

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
            for name, tensor in lengthened(model, images[0].tensors if images else {}, prompt, length).items()
        }
        hidden: Tensor = self.backbone(model)(
            input_ids=ids, attention_mask=mask, use_cache=False, **tensors
        ).last_hidden_state
        return hidden


class _NoOutputs(dict[str, Any]):
    """The outputs of a model that has computed nothing: every one of them is None."""

    def __getattr__(self, name: str) -> None:
        return None


def lengthened(model: Any, tensors: dict[str, Tensor], prompt: int, length: int) -> dict[str, Tensor]:
    """What a processor made of ``prompt`` tokens, as it would be of ``length``, all others generated.

    Args:
        model: The model. What its `generate` appends for a token is appended for each of them.
        tensors: What the processor made.
        prompt: See above.
        length: See above.

    Raises:
        ConfigError: `generate` makes something else of a tensor.
    """
    if length == prompt:
        return tensors
    longer = model._update_model_kwargs_for_generation(_NoOutputs(), {**tensors, "use_cache": False}, False)
    made = {}
    for name, tensor in tensors.items():
        after = longer.get(name)
        # Of kinds of tokens to which `generate` appends nothing, it goes on with that of the last one.
        kinds = tensor.shape[:2] == (1, prompt) and not tensor.is_floating_point()
        last = tensor[:, -1:] if kinds else None
        axis = 1
        if isinstance(after, Tensor) and after.shape != tensor.shape:
            grown = [n for n, size in enumerate(tensor.shape) if after.shape[n : n + 1] == (size + 1,)]
            if after.dim() != tensor.dim() or len(grown) != 1:
                raise ConfigError(
                    f"models of type {model.config.model_type!r} turn {name} of shape {tuple(tensor.shape)} "
                    f"to {tuple(after.shape)} for a token that follows, which is not known here; take a "
                    "family of docs/models.md"
                )
            axis = grown[0]
            last = after.narrow(axis, tensor.shape[axis], 1)
        if last is not None:
            tensor = torch.cat([tensor, *[last] * (length - prompt)], axis)
        made[name] = tensor
    return made
