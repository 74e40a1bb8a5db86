"""The settings of `selfverify plan`: the hardware and the lengths."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfverify.core.settings import Settings


class PlanSettings(Settings):
    """What a recipe is planned for. A length that is None is the task's or the recipe's own."""

    gpu: str = "h200"
    """The GPU: `h200`, `h100`, `a100`, ..., or `cpu` for this machine."""

    gpus: int = Field(1, ge=1)
    """The number of GPUs; they share the problems of a step."""

    shard: Literal["none", "fsdp"] = "none"
    """`fsdp`: each GPU keeps its part of the weights, gradients and optimiser state. `none`: each keeps all
    of them."""

    prompt_tokens: int | None = Field(None, ge=1)
    """The length of every prompt, images included, instead of the task's."""

    image_tokens: int | None = Field(None, ge=1)
    """The tokens of one image per prompt, instead of the task's images."""

    response_tokens: int | None = Field(None, ge=1)
    """The length of every response, in a conversation of each turn, instead of `sampling.max_new_tokens`."""

    reply_tokens: int | None = Field(None, ge=1)
    """The length of what a conversation of several turns hears between two of them, image included, and
    before the first one where environments speak first. Where replies are not known beforehand,
    it or `--reply-image-tokens` has to be given."""

    reply_image_tokens: int | None = Field(None, ge=1)
    """The tokens of one image in each of these replies."""
