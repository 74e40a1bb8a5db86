"""Sampling by vLLM, in the training processes or on a server, through TRL's `VLLMGeneration`.

TRL starts or reaches vLLM, sends it the weights and gathers prompts over processes. This module decides which
tokens vLLM gets, and checks those that come back.

- *Prompts*: in this process vLLM expands a prompt's image slots on its own, and would expand slots that are
  expanded already once more (TRL issue 6294), so it gets the prompt as the chat template wrote it. TRL's
  client of a server places images by the runs of image tokens, so it gets the expanded prompt. Either way the
  prompt that vLLM read must equal the prompt that we learn from.
- *Log-probabilities* are vLLM's ``processed_logprobs``, those of the distribution that it really drew from:
  under the temperature, after top-p and the ban of image tokens. Our own sampler and the learner take them
  before top-p and the ban. Under exact arithmetic a token's importance weight is therefore the mass of the
  tokens that could be drawn in its place: top-p or a little more.
- *Images*: vLLM keeps the features of images that it has seen. It has to forget them when the tower changes.
- *Seeds*: `VLLMGeneration` has one set of sampling parameters for all prompts, so a problem's samples cannot
  have their own seed; runs with vLLM are not reproducible bit by bit.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accelerate import Accelerator
from accelerate.utils import DistributedType

from selfverify.core import ranks
from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.errors import ConfigError, SamplingError, SelfVerifyError
from selfverify.core.images import to_rgb
from selfverify.core.trajectory import Finish
from selfverify.policy import adapters
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.policy.vllm_start import forget_images, require_vllm, start_generation


class VLLMEngine:
    """vLLM with the weights of one policy. All processes of a run make and use it together.

    Args:
        policy: The policy whose weights vLLM samples with.
        accelerator: The run's processes.
        sampling: Settings of sampling; ``sampling.vllm`` says where and how vLLM runs.

    Raises:
        ConfigError: vLLM is not installed, does not start, or cannot sample as this policy would.
    """

    def __init__(self, policy: Policy, accelerator: Accelerator, sampling: SamplingConfig) -> None:
        self.policy, self.accelerator = policy, accelerator
        self.settings = sampling.vllm or VLLMConfig()
        self.stale = True
        """Whether the policy has learnt since vLLM got its weights (at first vLLM has those on disk)."""
        self._knows_images = True
        """Whether vLLM may hold features of images that another tower has computed."""
        self._refuse()
        require_vllm()
        self._generation = start_generation(policy, accelerator, self.settings)

    def _refuse(self) -> None:
        model_type = self.policy.model.config.model_type
        if not self.policy.loaded.family.shares_prompts:
            raise ConfigError(
                f"sampling.engine=vllm: how models of type {model_type!r} write images into prompts is not "
                "known here, so prompts could not be compared with vLLM's; use engine=own"
            )
        plugin = getattr(self.accelerator.state, "deepspeed_plugin", None)
        shards = self._sharded or (plugin is not None and plugin.zero_stage == 3)
        if shards and adapters.is_adapted(self.policy.model):
            raise ConfigError(
                "sampling.engine=vllm: an adapter (policy.lora) cannot be merged out of shards (FSDP, "
                "ZeRO-3); train all weights, or use DDP"
            )

    @property
    def _sharded(self) -> bool:
        """Whether FSDP holds the weights in shards, which TRL gathers itself."""
        return self.accelerator.distributed_type == DistributedType.FSDP

    def send_weights(self) -> None:
        """Send the policy's weights to vLLM, if it does not have them.

        Every process has to call this with its shards as they are, not inside `Policy.whole`.

        Raises:
            SamplingError: vLLM has failed.
        """
        if self._has_weights:
            return
        with self._named_failures():
            self._generation.sync_weights()
            if self._knows_images:
                forget_images(self._generation)
        # A tower that is frozen is the same from now on. A server may have had another one before this run.
        self._knows_images = self.policy.config.train_vision
        self.stale = False

    @property
    def _has_weights(self) -> bool:
        # In sleep mode TRL puts vLLM to sleep after each call, which drops the weights.
        return not self.stale and not getattr(self._generation, "_llm_weights_sleeping", False)

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            yield
        except SelfVerifyError:
            raise
        except Exception as error:
            raise SamplingError(
                f"vLLM ({self.settings.mode}) has failed: {type(error).__name__}: {error}; go on from the "
                "newest checkpoint with --resume"
            ) from error

    def sample(self, prompts: Sequence[Prompt], sampling: SamplingConfig) -> list[list[Sample]]:
        """G samples for each prompt, with the policy's newest weights.

        Every process has to call this equally often, if need be with no prompts.

        Raises:
            ConfigError: vLLM read another prompt than ours, wrote a token that is never sampled, or sleeps
                with FSDP between two calls of one rollout.
            SamplingError: vLLM has failed.
        """
        # TRL hands every process as many responses as it has prompts itself: all need equally many.
        count = max(ranks.gather(len(prompts)))
        if count == 0:
            return []
        if not self._has_weights and self._sharded:
            raise ConfigError(
                "sampling.vllm.enable_sleep_mode: with FSDP vLLM cannot get its weights again in the middle "
                "of a rollout, which this method's second turn needs; switch it off"
            )
        self.send_weights()
        filler = [min(self.policy.stop_tokens, default=0)]
        rows = [self._tokens(prompt) for prompt in prompts] + [filler] * (count - len(prompts))
        images = [[to_rgb(p) for p in prompt.pictures] or None for prompt in prompts]
        images += [None] * (count - len(prompts))
        g, generation = sampling.group_size, self._generation
        generation.temperature, generation.top_p = sampling.temperature, sampling.top_p
        generation.max_completion_length = sampling.max_new_tokens
        with self._named_failures():
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
        """Free the device's memory, or close the connection to the server."""
        client = getattr(self._generation, "vllm_client", None)
        if client is not None:
            client.close_communicator()
        self._generation = None
        gc.collect()

    def _tokens(self, prompt: Prompt) -> list[int]:
        if self.settings.mode == "colocate":
            return prompt.unexpanded
        placeholder = self.policy.loaded.family.slot(self.policy.model, self.policy.tokenizer)
        if any(image.text.replace(placeholder, "") for image in prompt.images):
            model_type = self.policy.model.config.model_type
            raise ConfigError(
                f"problem {prompt.problem_id}: models of type {model_type!r} write more than image tokens "
                "for an image, which TRL cannot place on a server; use sampling.vllm.mode=colocate"
            )
        ids: list[int] = prompt.ids.tolist()
        return ids

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
