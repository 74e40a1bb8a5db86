"""Settings of sampling in training: how trajectories are drawn, and by which engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from selfverify.core.settings import Config


class VLLMConfig(Config):
    """vLLM as the engine that samples in training, through TRL's `VLLMGeneration`."""

    mode: Literal["colocate", "server"] = Field(
        "colocate",
        description="Where vLLM runs: in the training processes on their devices (`colocate`), or on a "
        "server that `vllm serve` started.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = Field(
        None,
        description="The precision in which vLLM computes; null is that of the policy's weights. Another one "
        "is faster where it is lower, and its samples have other probabilities than the policy's.",
    )
    server_base_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="With `mode: server`: the server's address, such as `http://10.0.0.2:8000`.",
    )
    server_timeout_s: float = Field(
        240.0, gt=0.0, description="With `mode: server`: the seconds to wait for it to start."
    )
    group_port: int = Field(
        51216, ge=1, le=65535, description="With `mode: server`: the port over which new weights are sent."
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        description="With `mode: colocate`: the number of processes that share one copy of the model; it "
        "divides the number of all processes.",
    )
    gpu_memory_utilization: float = Field(
        0.3,
        gt=0.0,
        le=1.0,
        description="With `mode: colocate`: the share of the device's memory that vLLM may take.",
    )
    max_model_length: int | None = Field(
        None,
        ge=1,
        description="With `mode: colocate`: the most tokens of a prompt and its response; null is the "
        "model's limit.",
    )
    max_num_seqs: int | None = Field(
        None,
        ge=1,
        description="With `mode: colocate`: the most responses decoded at once; null is vLLM's own choice.",
    )
    enable_sleep_mode: bool = Field(
        False,
        description="With `mode: colocate`: give vLLM's memory back during updates; waking up takes time.",
    )
    model_impl: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="With `mode: colocate`: whose implementation of the model vLLM runs."
    )

    @model_validator(mode="after")
    def _check(self) -> VLLMConfig:
        if self.mode == "server" and self.server_base_url is None:
            raise ValueError("mode: server needs server_base_url, the address that `vllm serve` printed")
        shared = ("mode", "dtype")
        servers = ("server_base_url", "server_timeout_s", "group_port")
        # By value, not by what was written: a run's resolved recipe writes every default out.
        for name, field in VLLMConfig.model_fields.items():
            other = name not in shared and (name in servers) != (self.mode == "server")
            if other and getattr(self, name) != field.default:
                hint = "give it to `vllm serve`" if self.mode == "server" else "use mode: server"
                raise ValueError(f"{name} means nothing with mode: {self.mode}; {hint}")
        return self


class SamplingConfig(Config):
    """How trajectories are sampled during training."""

    group_size: int = Field(8, ge=1, description="The number of trajectories per problem (the papers' G).")
    temperature: float = Field(1.0, ge=0.0, description="Sampling temperature; 0 is greedy.")
    top_p: float = Field(
        0.99,
        gt=0.0,
        le=1.0,
        description="Sample from the likeliest tokens that together hold this probability.",
    )
    max_new_tokens: int = Field(
        48,
        ge=1,
        description="The most tokens of a turn; a longer turn is cut off and finishes with `length`.",
    )
    engine: Literal["own", "vllm"] = Field(
        "own",
        description="The engine that samples: this library (`own`), or vLLM with the policy's weights. "
        "Evaluations within a training sample with `own`; `eval`, `matrix` and `data filter` with this one.",
    )
    vllm: VLLMConfig | None = Field(None, description="The settings of vLLM; only with `engine: vllm`.")

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
