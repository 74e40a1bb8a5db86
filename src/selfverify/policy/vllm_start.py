"""Starts vLLM or reaches its server, and refuses one that would not sample as the policy does."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from accelerate import Accelerator
from torch import nn

from selfverify.core.config import VLLMConfig
from selfverify.core.errors import ConfigError, SamplingError, SelfVerifyError
from selfverify.policy import adapters
from selfverify.policy.policy import Policy

INSTALL = "pip install 'selfverify[vllm]'"
BANNED = -100.0
"""vLLM's most negative logit bias: e**-100 is never drawn. JSON, which goes to a server, has no infinity."""
SPEAKS_TO = {"1.16": ("0.22", "0.31")}
"""The first and the last version of vLLM that a version of TRL works with. vLLM 0.32 renames fields of its
server's log-probs, which TRL 1.16 then does not find."""
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def require_vllm() -> None:
    """Refuse to start without TRL and a vLLM that it works with.

    Raises:
        ConfigError: One of them is not installed, or they do not fit together.
    """
    try:
        from trl.generation import vllm_generation
    except (ImportError, ValueError) as error:  # ValueError: something else that is called vllm
        raise ConfigError(f"sampling.engine=vllm needs TRL ({error}): {INSTALL}") from error
    if not vllm_generation.is_vllm_available():
        raise ConfigError(f"sampling.engine=vllm needs vLLM, also to talk to a server: {INSTALL}")
    import vllm

    _check_version(vllm.__version__, "the vLLM that is installed", INSTALL)


def _check_version(found: str, which: str, help: str) -> None:
    trl = ".".join(version("trl").split(".")[:2])
    if trl not in SPEAKS_TO:
        return  # newer than this module: TRL warns by itself of versions that it does not know
    first, last = SPEAKS_TO[trl]
    if not _minor(first) <= _minor(found) <= _minor(last):
        raise ConfigError(
            f"sampling.engine=vllm: {which} is {found}, and TRL {trl} works with {first} to {last}: {help}"
        )


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def start_generation(policy: Policy, accelerator: Accelerator, settings: VLLMConfig) -> Any:
    """Return a `VLLMGeneration` whose vLLM runs, with the weights on disk and in the policy's precision.

    Raises:
        ConfigError: vLLM does not start, or would not sample as the policy does.
    """
    from trl.generation.vllm_generation import VLLMGeneration

    model, family = policy.model, policy.loaded.family
    dtype = settings.dtype or str(model.dtype).removeprefix("torch.")
    extra: dict[str, Any] = settings.model_dump(exclude={"server_timeout_s", "dtype"})
    try:
        with _launcher_variables_restored(), _precision(dtype):
            generation = VLLMGeneration(
                model=_Merged(model) if adapters.is_adapted(model) else model,
                accelerator=accelerator,
                # All that is asked of a processor is which token images are placed by.
                processing_class=SimpleNamespace(image_token_id=family.placeholder(model)),
                server_timeout=settings.server_timeout_s,
                trust_remote_code=policy.config.trust_remote_code,
                generation_kwargs={
                    "stop_token_ids": sorted(policy.stop_tokens),
                    "logit_bias": dict.fromkeys(policy.suppressed_tokens, BANNED),
                },
                **extra,
            )
        client = getattr(generation, "vllm_client", None)  # the first process alone has one
        if client is not None:
            _check_server(client, dtype)
    except SelfVerifyError:
        raise
    except Exception as error:
        # TRL, vLLM, requests and NCCL each raise their own types, some of them plain `Exception`.
        raise ConfigError(f"sampling.vllm: vLLM ({settings.mode}) does not start: {error}") from error
    place = generation._place_features

    def place_checked(features: dict[str, Any] | None, ids: list[int]) -> Any:
        placed = place(features, ids)
        if features is not None:
            _check_places(features["mm_placeholders"]["image"], placed["mm_placeholders"]["image"])
        return placed

    generation._place_features = place_checked
    return generation


def forget_images(generation: Any) -> None:
    """Let vLLM forget the image features that it has computed with other weights of the vision tower.

    TRL lets it forget prompts only (`reset_prefix_cache`).
    """
    client = getattr(generation, "vllm_client", None)
    if client is not None:
        client.session.post(f"{client.base_url}/reset_encoder_cache").raise_for_status()
    elif generation.mode == "colocate":
        generation.llm.llm_engine.reset_encoder_cache()


@contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """Hand ``dtype`` to the vLLM that TRL starts in this process.

    TRL has no argument for it, and without one vLLM computes in bfloat16 where a folder holds float32.
    """
    from trl.generation import vllm_generation

    made = vllm_generation.LLM
    vllm_generation.LLM = partial(made, dtype=dtype)
    try:
        yield
    finally:
        vllm_generation.LLM = made


@contextmanager
def _launcher_variables_restored() -> Iterator[None]:
    """TRL sets a launcher's variables for vLLM, and a process with them looks like one of several.

    Accelerate would then wrap its model in DDP, and so would every program that the process starts.
    """
    before = {name: os.environ.get(name) for name in _LAUNCHER_VARIABLES}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check_server(client: Any, dtype: str) -> None:
    answer = client.session.get(f"{client.base_url}/version")
    answer.raise_for_status()
    _check_version(answer.json()["version"], "the server's vLLM", "start one of these")
    found = client.get_server_info()["model_config"]
    mode, precision = found["logprobs_mode"], found["dtype"].removeprefix("torch.")
    if mode != "processed_logprobs":
        raise ConfigError(
            f"sampling.vllm: the server reports {mode}, not the probabilities it samples by; start it "
            "with `--logprobs-mode processed_logprobs`"
        )
    if precision != dtype:
        raise ConfigError(
            f"sampling.vllm: the server computes in {precision} and not in {dtype}, so that its "
            f"probabilities are others than the policy's; start it with `--dtype {dtype}`, or accept it with "
            f"sampling.vllm.dtype={precision}"
        )


def _check_places(theirs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> None:
    """Refuse images that take more or fewer tokens on the server: TRL moves them into place unchecked."""
    for number, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        mask = their.get("is_embed")
        length = their["length"] if mask is None else sum(mask)
        if length != our["length"]:
            raise SamplingError(
                f"the server makes {length} tokens of image {number + 1} of a prompt that has "
                f"{our['length']} places for it; it must use the same preprocessor_config.json"
            )


class _Merged(nn.Module):
    """A model with an adapter as `VLLMGeneration` needs to see it: a plain one with other weights.

    TRL itself knows peft's wrapper, which models here do not have, and merges in place.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.adapted = model
        self.name_or_path = model.name_or_path

    def named_parameters(self, *_: Any, **__: Any) -> Any:
        """Names and tensors, the adapter merged in."""
        return adapters.merged_parameters(self.adapted)
