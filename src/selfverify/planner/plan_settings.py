"""The settings of `selfverify plan`: the hardware, the lengths, and how fast the hardware gets."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PlanSettings(BaseModel):
    """What a recipe is planned for. A length that is None is the task's or the recipe's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: str = Field("h200", description="The GPU: `h200`, `h100`, `a100`, ..., or `cpu` for this machine.")
    gpus: int = Field(1, ge=1, description="The number of GPUs; they share the problems of a step.")
    shard: Literal["none", "fsdp"] = Field(
        "none",
        description="`fsdp`: each GPU keeps its part of the weights, gradients and optimiser state. `none`: "
        "each keeps all of them.",
    )
    prompt_tokens: int | None = Field(
        None, ge=1, description="The length of every prompt, images included, instead of the task's."
    )
    image_tokens: int | None = Field(
        None, ge=1, description="The tokens of one image per prompt, instead of the task's images."
    )
    response_tokens: int | None = Field(
        None, ge=1, description="The length of every response, instead of `sampling.max_new_tokens`."
    )
    utilisation: float = Field(
        0.4, ge=0.01, le=1.0, description="The share of the GPU's peak that computing reaches."
    )
    bandwidth_utilisation: float = Field(
        0.6, ge=0.01, le=1.0, description="The share of the memory's bandwidth that decoding reaches."
    )
