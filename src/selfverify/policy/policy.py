"""The policy: a model with its processor, which encodes problems, samples, and gives log-probabilities."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from selfverify import ranks
from selfverify.errors import ConfigError
from selfverify.policy import adapters
from selfverify.policy.checks import check_head, sharing_agrees
from selfverify.policy.config import PolicyConfig, SamplingConfig
from selfverify.policy.encoding import ByteCache, Encoder, Prompt, image_features, tensor_bytes
from selfverify.policy.forward import Continuation, Continuations, Forward
from selfverify.policy.loading import Loaded, copy_processor_settings, load
from selfverify.policy.offload import offloaded
from selfverify.policy.root import Root, enter, enter_whole
from selfverify.policy.sampling import Decoder, GivenUp, Sample
from selfverify.policy.turns import Turns, sample_turns, sample_turns_apart
from selfverify.policy.unshared import generate
from selfverify.policy.vllm import VLLMEngine
from selfverify.rollouts.types import Problem

Tokens = Sequence[Sequence[Sequence[int] | Continuation]]
T = TypeVar("T")


class Policy:
    """A loaded model that answers and verifies.

    Example:
        >>> from selfverify import Policy, make_task
        >>> policy = Policy.load("builtin:digits")
        >>> problem = make_task("digits-pick").problem("validation", seed=0, index=0)
        >>> [samples] = policy.sample(policy.encode([problem]), seeds=[0])
        >>> len(samples)
        8
    """

    def __init__(self, loaded: Loaded, config: PolicyConfig) -> None:
        self.loaded = loaded
        self.config = config
        self.encoder = Encoder(loaded, config.pixel_cache_mb)
        self._head_is_checked = False
        self.is_start = False
        """Whether this is the reference of a policy with an adapter, whose model it shares."""
        self.cache = None if config.train_vision else ByteCache(config.vision_cache_mb, tensor_bytes)
        self.forward = Forward(loaded, self.cache)
        self.root: nn.Module = Root(loaded.model, loaded.family.backbone(loaded.model))
        """What is wrapped where several processes train; every computation of the model runs inside it."""
        self._is_inside = False
        self.engine: VLLMEngine | None = None
        """What samples where ``sampling.engine`` is not ``own``; the learner starts and closes it."""
        sharing = config.shared_prefix == "auto" and loaded.family.shares_prompts
        self.shares_prefix: bool | None = None if sharing else False
        """Whether `logprobs` forwards each prompt once; None until the first batch has been checked."""

    @classmethod
    def load(cls, path: str | PolicyConfig, **settings: Any) -> Policy:
        """Load a policy by folder, hub id or ``builtin:NAME``; ``settings`` are `PolicyConfig` fields."""
        config = path if isinstance(path, PolicyConfig) else PolicyConfig(path=path, **settings)
        return cls(load(config), config)

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self.loaded.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer."""
        return self.loaded.tokenizer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.forward.device

    @property
    def stop_tokens(self) -> set[int]:
        """Token ids that end a response."""
        eos = self.model.generation_config.eos_token_id
        found = set(eos) if isinstance(eos, list) else {eos}
        return (found | {self.tokenizer.eos_token_id}) - {None}

    @property
    def suppressed_tokens(self) -> list[int]:
        """Token ids that are never sampled: image placeholders and the marks around images."""
        marks = self.loaded.family.marks(self.model, self.tokenizer)
        ids = {self.tokenizer.convert_tokens_to_ids(mark) for mark in marks if mark}
        logits = self.model.get_output_embeddings().weight.shape[0]
        return sorted(i for i in ids - {None, self.tokenizer.unk_token_id} if i < logits)

    def coordinate_space(self, size: tuple[int, int]) -> tuple[int, int]:
        """Width and height of the space in which the model writes places in an image of ``size`` (w, h).

        Raises:
            ValueError: The image processor refuses images of this size.
        """
        return self.loaded.family.coordinate_space(self.model, self.loaded.image_processor, size)

    def frozen_copy(self) -> Policy:
        """A reference policy: same weights now, never trained. It shares the encoder and feature cache.

        With an adapter it shares the model as well, and is what that was before training.
        """
        reference = copy.copy(self)
        reference.engine = None
        if adapters.is_adapted(self.model):
            reference.is_start = True
            return reference
        model = copy.deepcopy(self.loaded.model).eval()
        model.requires_grad_(False)
        reference.loaded = Loaded(model, self.tokenizer, self.loaded.image_processor, self.loaded.family)
        reference.forward = Forward(reference.loaded, self.cache)
        reference.root = Root(model, self.loaded.family.backbone(model))
        return reference

    def save(self, folder: Any, weights: dict[str, Tensor] | None = None) -> None:
        """Write model (or its adapter alone), tokenizer and image processor as a checkpoint folder.

        Args:
            folder: Where.
            weights: The model's state, where the model itself holds but a shard of it.
        """
        self._refuse_start("save")
        self.model.save_pretrained(folder, state_dict=weights)
        self.tokenizer.save_pretrained(folder)
        if self.loaded.image_processor is not None:
            self.loaded.image_processor.save_pretrained(folder)
            copy_processor_settings(self.config.path, Path(folder))

    def _refuse_start(self, what: str) -> None:
        if self.is_start:
            raise ConfigError(f"this is the reference of a policy with an adapter; {what} that policy")

    def merged(self) -> Policy:
        """A policy with what the adapter learnt in its weights: to be served, or saved whole.

        Raises:
            ConfigError: There is no adapter.
        """
        self._refuse_start("merge")
        if not adapters.is_adapted(self.model):
            raise ConfigError("this policy has no adapter to merge")
        base = self.model.peft_config[adapters.LEARNT].base_model_name_or_path
        plain = Policy.load(self.config.for_model(base))
        adapters.merge_into(self.model, plain.model)
        return plain

    @torch.no_grad()
    def fingerprint(self) -> str:
        """16 hex digits that change when the weights do: a digest of up to 4,096 values of each tensor."""
        digest = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            flat = parameter.detach().flatten()
            digest.update(name.encode())
            digest.update(flat[:: max(1, len(flat) // 4096)].float().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def encode(self, problems: Sequence[Problem]) -> list[Prompt]:
        """Prompts of ``problems``; with a frozen tower their images pass through it here, once.

        Raises:
            DataError: Naming the problem whose images or messages cannot be used.
        """
        prompts = [self.encoder.prompt(problem) for problem in problems]
        if self.cache is not None and self.loaded.family.shares_prompts:
            images = [image for prompt in prompts for image in prompt.images]
            self._inside(lambda: image_features(self.loaded, images, self.cache))
        return prompts

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | None = None,
        *,
        seeds: Sequence[int],
        given_up: GivenUp | None = None,
    ) -> list[list[Sample]]:
        """G samples for each prompt; the prompt is prefilled once.

        Args:
            prompts: B encoded prompts.
            sampling: Group size, temperature, top-p, length limit.
            seeds: One per prompt; a prompt's samples depend on its own seed only. vLLM takes no seeds.
            given_up: Asked before every token for the prompts (by their place) that need no more samples:
                theirs end there. Only families that share prompts can be asked.

        Returns:
            B lists of G samples.

        Raises:
            ConfigError: ``sampling.engine`` is ``vllm`` outside of training.
            SamplingError: vLLM has failed.
        """
        sampling = sampling or SamplingConfig()
        if sampling.engine == "vllm":
            if self.engine is None:
                raise ConfigError(
                    "sampling.engine=vllm: vLLM runs during training only; sample with engine=own"
                )
            return self.engine.sample(prompts, sampling)
        if not prompts:
            return []
        with self._evaluating(), self._as_started():
            return self._inside(lambda: self._sample(prompts, sampling, seeds, given_up))

    def _sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        seeds: Sequence[int],
        given_up: GivenUp | None,
    ) -> list[list[Sample]]:
        self._check_head()
        if not self.loaded.family.shares_prompts:
            return self._sample_unshared(prompts, sampling, seeds)
        last, layout = self.forward.prefill(prompts)
        starts = torch.tensor([prompt.next_position for prompt in prompts], device=self.device)
        decoder = Decoder(self.forward, sampling, self.stop_tokens, self.suppressed_tokens)
        return decoder.run(last, layout, starts, list(seeds), given_up)

    @torch.no_grad()
    def sample_turns(
        self,
        prompts: Sequence[Prompt],
        follow_ups: Sequence[Sequence[int]],
        sampling: SamplingConfig | None = None,
        *,
        seeds: Sequence[int],
    ) -> list[list[Turns]]:
        """G conversations of two turns for each prompt; see `turns.sample_turns`.

        Args:
            prompts: B encoded prompts.
            follow_ups: For each prompt what comes between the turns (`turns.follow_up`).
            sampling: As in `sample`; the length limit is that of each turn.
            seeds: As in `sample`. First turns are those that `sample` draws with the same seeds.
        """
        sampling = sampling or SamplingConfig()
        if sampling.engine == "vllm" or not self.loaded.family.shares_prompts:
            return sample_turns_apart(self, prompts, follow_ups, sampling, seeds)
        if not prompts:
            return []

        def run() -> list[list[Turns]]:
            self._check_head()
            decoder = Decoder(self.forward, sampling, self.stop_tokens, self.suppressed_tokens)
            return sample_turns(decoder, prompts, follow_ups, seeds)

        with self._evaluating(), self._as_started():
            return self._inside(run)

    def _sample_unshared(
        self, prompts: Sequence[Prompt], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[list[Sample]]:
        groups = generate(self.model, prompts, sampling, seeds, self.stop_tokens, self.suppressed_tokens)
        tokens = [[sample.tokens for sample in group] for group in groups]
        values = self.logprobs(prompts, tokens, temperature=sampling.temperature)
        for group, rows in zip(groups, values.tolist(), strict=True):
            for sample, row in zip(group, rows, strict=False):
                sample.logprobs = row[: len(sample.tokens)]
        return groups

    def hidden_states(self, prompts: Sequence[Prompt], continuations: Continuations) -> Tensor:
        """Hidden states that predict each continuation token, ``[B, G, R, H]``."""
        with self._as_started():
            return self._inside(lambda: self._hidden_states(prompts, continuations))

    def _hidden_states(self, prompts: Sequence[Prompt], continuations: Continuations) -> Tensor:
        self._check_head()
        if self.shares_prefix is None:
            with self._evaluating():
                self.shares_prefix = sharing_agrees(
                    self.forward, prompts, continuations, self.config.logprob_chunk
                )
        run = self.forward.hidden_shared if self.shares_prefix else self.forward.hidden_plain
        return run(prompts, continuations)

    def _inside(self, run: Callable[[], T]) -> T:
        """``run()`` inside the root, where wrappers see it."""
        return self._guard(run, enter)

    @torch.no_grad()
    def whole(self, run: Callable[[], T]) -> T:
        """``run()``, which samples or evaluates, with all weights in place if wrappers hold shards of them.

        Where several processes train, every one of them has to call it.
        """
        return self._guard(run, enter_whole)

    def _guard(self, run: Callable[[], T], how: Callable[[nn.Module, Callable[[], T]], T]) -> T:
        if self._is_inside:
            return run()
        self._is_inside = True
        try:
            return how(self.root, run)
        finally:
            self._is_inside = False

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """The model in evaluation mode."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def _as_started(self) -> AbstractContextManager[None]:
        return adapters.as_started(self.model) if self.is_start else nullcontext()

    def _check_head(self) -> None:
        """Once: a model may do to its logits what we don't know of, and all samples would be wrong.

        Raises:
            ConfigError: It does.
        """
        if not self._head_is_checked:
            with self._evaluating():
                check_head(self.forward, {*self.suppressed_tokens, *self.stop_tokens}, self.config.path)
            self._head_is_checked = True

    def logprobs(
        self,
        prompts: Sequence[Prompt],
        continuations: Tokens,
        *,
        temperature: float = 1.0,
        needed: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities ``[B, G, R]`` of every continuation token, 0 at padding; differentiable.

        Args:
            prompts: B encoded prompts.
            continuations: B lists of up to G token lists (or `Continuation` where images come in between).
            temperature: Divides the logits, as in sampling; 0 is read as 1.
            needed: ``[B, G, R]`` bool; the head is computed only there (elsewhere 0).
        """
        empty = torch.zeros(0, 3, dtype=torch.long)
        return self.logprobs_and_choices(
            prompts, continuations, empty, empty, temperature=temperature, needed=needed
        )[0]

    def logprobs_and_choices(
        self,
        prompts: Sequence[Prompt],
        continuations: Tokens,
        places: Tensor,
        choices: Tensor,
        *,
        temperature: float = 1.0,
        needed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`logprobs`, and from the same forward those of other tokens that could have stood at some places.

        Args:
            prompts: See `logprobs`.
            continuations: See `logprobs`.
            places: ``[M, 3]`` prompt, continuation and token.
            choices: ``[M, K]`` token ids to look at there.
            temperature: See `logprobs`.
            needed: See `logprobs`.

        Returns:
            ``[B, G, R]`` and ``[M, K]``.
        """
        offload = self.config.activation_offload and torch.is_grad_enabled()
        with offloaded(self.model) if offload else nullcontext():
            return self._inside(
                lambda: self._logprobs(prompts, continuations, places, choices, temperature, needed)
            )

    def _logprobs(
        self,
        prompts: Sequence[Prompt],
        continuations: Tokens,
        places: Tensor,
        choices: Tensor,
        temperature: float,
        needed: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        stacked = self.forward.stack_continuations(continuations)
        wanted = stacked.mask if needed is None else stacked.mask & needed.to(self.device)
        hidden = self.hidden_states(prompts, stacked)

        def head(states: Tensor, tokens: Tensor) -> Tensor:
            return self.forward.token_logprobs(states, tokens, temperature or 1.0, self.config.logprob_chunk)

        values = head(hidden[wanted], stacked.ids[wanted])
        if self.config.train_vision and ranks.count() > 1 and torch.is_grad_enabled():
            # Processes add up gradients of the same weights, also where only some of them saw an image.
            tower = self.loaded.family.vision_parameters(self.model)
            values = values + 0.0 * torch.stack([p.sum() for p in tower]).sum().to(values)
        filled = torch.zeros(wanted.shape, dtype=values.dtype, device=self.device)
        others = torch.zeros(choices.shape, device=self.device)
        if len(places):
            others = head(hidden[places.to(self.device).unbind(-1)], choices.to(self.device))
        return filled.masked_scatter(wanted, values), others
