"""Sampling by vLLM on a server, through TRL's `VLLMGeneration`.

TRL reaches the server, sends it the weights and gathers prompts over processes. This module decides which
tokens vLLM gets, checks those that come back, and refuses a vLLM that would not sample as the policy does.

- *Prompts*: TRL places images by the runs of image tokens, so it gets the prompt with its image slots
  expanded. The prompt that vLLM read must equal the prompt that we learn from.
- *Log-probabilities* are vLLM's ``processed_logprobs``, those of the distribution that it really drew from:
  under the temperature, after top-p and the ban of image tokens. Our own sampler and the trainer take them
  before top-p and the ban. Under exact arithmetic a token's importance weight is therefore the mass of the
  tokens that could be drawn in its place: top-p or a little more.
- *Images*: vLLM keeps the features of images that it has seen. It has to forget them when the tower changes.
- *Seeds*: `VLLMGeneration` has one set of sampling parameters for all prompts, so a problem's samples cannot
  have their own seed; runs with vLLM are not reproducible bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType
from packaging.version import Version
from torch import nn

from selfverify.core import ranks
from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.errors import ConfigError, SamplingError, SelfVerifyError
from selfverify.core.images import to_rgb
from selfverify.core.trajectory import Finish
from selfverify.policy import adapters
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy

INSTALL = "pip install 'selfverify[vllm]'"
BANNED = -100.0
"""vLLM's most negative logit bias: e**-100 is never drawn. JSON, which goes to a server, has no infinity."""
SPEAKS_TO = {"1.16": ((0, 22), (0, 31))}
"""The first and the last version of vLLM that a version of TRL works with. vLLM 0.32 renames fields of its
server's log-probs, which TRL 1.16 then does not find."""


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
    if not first <= Version(found).release[:2] <= last:
        works = " to ".join(f"{major}.{minor}" for major, minor in (first, last))
        raise ConfigError(
            f"sampling.engine=vllm: {which} is {found}, and TRL {trl} works with {works}: {help}"
        )


def start_generation(policy: Policy, accelerator: Accelerator, settings: VLLMConfig) -> Any:
    """Return a `VLLMGeneration` that reaches the server, which has the weights on its disk.

    Raises:
        ConfigError: The server does not answer, or would not sample as the policy does.
    """
    from trl.generation.vllm_generation import VLLMGeneration

    model, family = policy.model, policy.loaded.family
    # TRL, requests and NCCL each raise their own types, some of them plain `Exception`.
    with _failing_as(ConfigError, "sampling.vllm: vLLM cannot be reached: {}"):
        generation = VLLMGeneration(
            model=_Merged(model) if adapters.is_adapted(model) else model,
            accelerator=accelerator,
            # All that is asked of a processor is which token images are placed by.
            processing_class=SimpleNamespace(image_token_id=family.placeholder(model)),
            mode="server",
            server_base_url=settings.server_base_url,
            server_timeout=settings.server_timeout_s,
            group_port=settings.group_port,
            generation_kwargs={
                "stop_token_ids": sorted(policy.stop_tokens),
                "logit_bias": dict.fromkeys(policy.suppressed_tokens, BANNED),
            },
        )
        client = getattr(generation, "vllm_client", None)  # the first process alone has one
        if client is not None:
            _check_server(client, settings.dtype or str(model.dtype).removeprefix("torch."))
    place = generation._place_features

    def place_checked(features: dict[str, Any] | None, ids: list[int]) -> Any:
        placed = place(features, ids)
        if features is not None:
            _check_places(features["mm_placeholders"]["image"], placed["mm_placeholders"]["image"])
        return placed

    generation._place_features = place_checked
    return generation


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

    def named_parameters(self, *_: Any, **__: Any) -> Any:
        """Names and tensors, the adapter merged in."""
        return adapters.merged_parameters(self.adapted)


FAILED = "vLLM has failed: {}; resume from the newest checkpoint"


@contextmanager
def _failing_as(error_class: type[SelfVerifyError], text: str) -> Iterator[None]:
    """Turn errors of other libraries into one of ours, named in ``text``."""
    try:
        yield
    except SelfVerifyError:
        raise
    except Exception as error:
        raise error_class(text.format(f"{type(error).__name__}: {error}")) from error


class VLLMEngine:
    """vLLM with the weights of one policy. All processes of a run make and use it together.

    Args:
        policy: The policy whose weights vLLM samples with.
        accelerator: The run's processes.
        settings: Where the server is (``sampling.vllm``).

    Raises:
        ConfigError: vLLM is not installed, cannot be reached, or cannot sample as this policy would.
    """

    def __init__(self, policy: Policy, accelerator: Accelerator, settings: VLLMConfig) -> None:
        self.policy = policy
        self.stale = True
        """Whether the policy has learnt since vLLM got its weights (at first vLLM has those on disk)."""
        self._knows_images = True
        """Whether vLLM may hold features of images that another tower has computed."""
        model = policy.model
        if not policy.loaded.family.shares_prompts:
            raise ConfigError(
                f"sampling.engine=vllm: how models of type {model.config.model_type!r} write images into "
                "prompts is not known here, so prompts could not be compared with vLLM's; use engine=own"
            )
        # TRL itself gathers the weights that FSDP holds in shards.
        if accelerator.distributed_type == DistributedType.FSDP and adapters.is_adapted(model):
            raise ConfigError(
                "sampling.engine=vllm: an adapter (policy.lora) cannot be merged out of shards (FSDP); "
                "train all weights, or use DDP"
            )
        require_vllm()
        self._generation = start_generation(policy, accelerator, settings)
        self._client = getattr(self._generation, "vllm_client", None)

    def send_weights(self) -> None:
        """Send the policy's weights to vLLM, if it does not have them.

        Every process has to call this with its shards as they are, not inside `Policy.whole`.

        Raises:
            SamplingError: vLLM has failed.
        """
        if not self.stale:
            return
        with _failing_as(SamplingError, FAILED):
            self._generation.sync_weights()
            if self._knows_images and self._client is not None:
                # TRL lets it forget prompts only (`reset_prefix_cache`).
                forget = f"{self._client.base_url}/reset_encoder_cache"
                self._client.session.post(forget).raise_for_status()
        # A tower that is frozen is the same from now on. The server may have had another one before this run.
        self._knows_images = self.policy.config.train_vision
        self.stale = False

    def sample(self, prompts: Sequence[Prompt], sampling: SamplingConfig) -> list[list[Sample]]:
        """G samples for each prompt, with the policy's newest weights.

        Every process has to call this equally often, if need be with no prompts.

        Raises:
            ConfigError: vLLM read another prompt than ours, or wrote a token that is never sampled.
            SamplingError: vLLM has failed.
        """
        # TRL hands every process as many responses as it has prompts itself: all need equally many.
        count = max(ranks.gather(len(prompts)))
        if count == 0:
            return []
        self.send_weights()
        filler = [min(self.policy.stop_tokens, default=0)]
        rows = [self._tokens(prompt) for prompt in prompts] + [filler] * (count - len(prompts))
        images = [[to_rgb(p) for p in prompt.pictures] or None for prompt in prompts]
        images += [None] * (count - len(prompts))
        g, generation = sampling.group_size, self._generation
        generation.temperature, generation.top_p = sampling.temperature, sampling.top_p
        generation.max_completion_length = sampling.max_new_tokens
        with _failing_as(SamplingError, FAILED):
            read, written, logprobs, _ = generation.generate(
                prompts=[row for row in rows for _ in range(g)],
                images=[row for row in images for _ in range(g)] if any(images) else None,
                num_generations=g,
            )
        if logprobs is None:
            raise SamplingError(
                "vLLM reports no log-probabilities, without which samples cannot be learnt from"
            )
        groups = []
        for i, prompt in enumerate(prompts):
            own = range(i * g, (i + 1) * g)
            for row in own:
                self._check_prompt(prompt, read[row])
            groups.append([self._sample(prompt, written[row], logprobs[row]) for row in own])
        return groups

    def close(self) -> None:
        """Close the connection to the server."""
        if self._client is not None:
            self._client.close_communicator()

    def _tokens(self, prompt: Prompt) -> list[int]:
        placeholder = self.policy.loaded.family.slot(self.policy.model, self.policy.tokenizer)
        if any(image.text.replace(placeholder, "") for image in prompt.images):
            model_type = self.policy.model.config.model_type
            raise ConfigError(
                f"problem {prompt.problem_id}: models of type {model_type!r} write more than image tokens "
                "for an image, which TRL cannot place on a server; use sampling.engine=own"
            )
        return prompt.ids.tolist()

    def _check_prompt(self, prompt: Prompt, read: Sequence[int]) -> None:
        ours = prompt.ids.tolist()
        if list(read) == ours:
            return
        image = self.policy.loaded.family.placeholder(self.policy.model)
        theirs = sum(token == image for token in read)
        raise ConfigError(
            f"problem {prompt.problem_id}: vLLM read its prompt as {len(read)} tokens, {theirs} of them of "
            f"images, and the learner would read {len(ours)} and {sum(token == image for token in ours)}; "
            "both must have the same tokenizer and preprocessor_config.json"
        )

    def _sample(
        self, prompt: Prompt, tokens: Sequence[int], logprobs: Sequence[Sequence[float | None]]
    ) -> Sample:
        banned = set(tokens) & set(self.policy.suppressed_tokens)
        if banned:
            raise ConfigError(
                f"problem {prompt.problem_id}: vLLM wrote the image token {min(banned)} although a logit "
                "bias bans it; does the server ignore those?"
            )
        values = [math.nan if row[0] is None else row[0] for row in logprobs]
        if not tokens:
            return Sample([], [], Finish.ERROR)  # what vLLM has given up
        # Anything else that ends a response (the model's longest context) has cut it off.
        return Sample(
            list(tokens), values, Finish.STOP if tokens[-1] in self.policy.stop_tokens else Finish.LENGTH
        )
