"""The policy: a model with its processor, which encodes problems, samples, and gives log-probabilities.

DDP and FSDP2 hook into one module's ``forward``, while a policy calls parts of its model: the
embeddings, the vision tower, the decoder, the head. So a policy calls these parts inside a `ModuleRoot`,
whose ``forward`` runs any function. A `ModuleRunner` has them compute there in the right mode, with the right
adapter.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.policy import adapters, loading
from selfverify.policy.checks import (
    check_causal,
    check_head,
    check_merged,
    gradients_agree,
    made_up,
    sharing_agrees,
)
from selfverify.policy.decoding import Head, Sample, TokenSampler
from selfverify.policy.encoding import Encoder, Prompt
from selfverify.policy.families import ImageInput
from selfverify.policy.features import ByteCache, few_at_once, image_features, offloaded
from selfverify.policy.forward import Forward
from selfverify.policy.kv_sessions import GivenUp, KVSession, SharedKVSession, TokenCallback
from selfverify.policy.loading import Loaded, load
from selfverify.policy.packing import Continuations, RaggedTokens
from selfverify.policy.recomputing_sessions import Engine, RecomputingSession, sample_apart
from selfverify.policy.shared_attention import ATTENTION

T = TypeVar("T")
P = ParamSpec("P")


class ModuleRoot(nn.Module):
    """Holds the model; ``forward(run)`` returns ``run()``, which computes with it."""

    def __init__(self, model: Any, decoder: nn.Module) -> None:
        super().__init__()
        self.model = model
        # accelerate shards these modules one by one. Every forward pass goes through each decoder layer once.
        # All else is gathered with the root, so that one process may encode more images than another.
        layers = {type(layer).__name__ for layer in getattr(decoder, "layers", ())}
        self._no_split_modules = sorted(layers or model._no_split_modules or ())

    def tie_weights(self) -> None:
        """Tie the model's tied weights again. accelerate calls this after it has cut weights into pieces."""
        self.model.tie_weights()

    def forward(self, run: Callable[[], T]) -> T:
        """Return the result of ``run()``."""
        return run()


def enter(root: nn.Module, run: Callable[[], T]) -> T:
    """Return the result of ``run()``, called inside ``root``, which may be wrapped."""
    if isinstance(root, DistributedDataParallel) and not torch.is_grad_enabled():
        root = root.module  # DDP's own forward synchronises buffers, and not all processes sample at once
    result: T = root(run)
    return result


def enter_whole(root: nn.Module, run: Callable[[], T]) -> T:
    """Return the result of ``run()``, called with all weights in place. Every process has to call this.

    Within ``run`` the processes need not make the same calls: one may sample longer than another.
    """
    sharded = [m for m in root.modules() if isinstance(m, FSDPModule)]
    if not sharded:
        return enter(root, run)

    def unsharded() -> T:
        for module in sharded:
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
        try:
            return run()
        finally:
            for module in sharded:
                module.set_reshard_after_forward(module is not root, recurse=False)
                module.reshard()

    return enter(root, unsharded)


Adapter = Literal["learnt", "start", "off"]
"""With which adapter a model computes: the one it has, as it was before training, or none."""


class ModuleRunner:
    """Calls what computes with a model. Calls inside of calls run as they are.

    Args:
        model: The model.
        root: The module that is wrapped where several processes train; the trainer puts the wrapper here.
        adapter: With which adapter it computes, where it has one.
    """

    def __init__(self, model: Any, root: nn.Module, adapter: Adapter = "learnt") -> None:
        self.model, self.root, self.adapter = model, root, adapter
        self._is_inside = False

    def inside(self, run: Callable[[], T]) -> T:
        """The result of ``run()``, called where wrappers of the model see what it computes."""
        return self._enter(run, enter)

    @torch.no_grad()
    def whole(self, run: Callable[[], T]) -> T:
        """The result of ``run()``, called with all weights in place where wrappers hold shards of them.

        ``run`` samples or evaluates. Where several processes train, every one of them has to call this.
        """
        return self._enter(run, enter_whole)

    def infer(self, run: Callable[[], T]) -> T:
        """The result of ``run()``, called inside the root with the model in evaluation mode."""
        with self.evaluating():
            return self.inside(run)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model in evaluation mode."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def _enter(self, run: Callable[[], T], way: Callable[[nn.Module, Callable[[], T]], T]) -> T:
        if self._is_inside:
            return run()
        self._is_inside = True
        try:
            with nullcontext() if self.adapter == "learnt" else adapters.switched(self.model, self.adapter):
                return way(self.root, run)
        finally:
            self._is_inside = False


def in_root(method: Callable[Concatenate[Policy, P], T]) -> Callable[Concatenate[Policy, P], T]:
    """Decorates a method of `Policy`: its whole body runs in `Policy.inside`."""

    @wraps(method)
    def run(self: Policy, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.inside(lambda: method(self, *args, **kwargs))

    return run


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
        self.config = config
        self.encoder = Encoder(loaded, config.pixel_cache_mb)
        self._head_is_checked = False
        self._checked_plain: set[bool] = set()
        """Of prompts without images and with some, those whose plain forward is checked."""
        self.cache = None if config.train_vision else ByteCache[Tensor](config.vision_cache_mb)
        self._hold(loaded)
        self.engine: Engine | None = None
        """The engine that samples where ``sampling.engine`` is not ``own``; the trainer starts and closes
        it."""
        if config.shared_prefix == "off" or not loaded.family.shares_prompts:
            self.shares_prefix = False

    @classmethod
    def load(cls, path: str | Path | PolicyConfig, **settings: Any) -> Policy:
        """Load a policy by folder, hub id or ``builtin:NAME``; ``settings`` are `PolicyConfig` fields."""
        config = path if isinstance(path, PolicyConfig) else PolicyConfig(path=str(path), **settings)
        return cls(load(config), config)

    def _hold(self, loaded: Loaded) -> None:
        """Take a loaded model, with its forward passes, output head and root."""
        self.loaded = loaded
        self.model: Any = loaded.model
        self.tokenizer: Any = loaded.tokenizer
        self.forward = Forward(loaded, self.cache, self.config.prefill_chunk)
        self.head = Head(loaded.model, self.config.logprob_chunk)
        self.running = ModuleRunner(
            loaded.model, ModuleRoot(loaded.model, loaded.family.backbone(loaded.model))
        )

    @property
    def shares_prefix(self) -> bool | None:
        """Whether each prompt is forwarded once for all its samples; None until the first use has found out.

        It holds for sampling, conversations and log-probabilities alike.
        """
        return self.loaded.shares_prefix

    @shares_prefix.setter
    def shares_prefix(self, shares: bool | None) -> None:
        self.loaded.shares_prefix = shares
        if self.loaded.family.shares_prompts:
            # Lasting, since gradient checkpointing calls layers again outside of `Forward`.
            decoder: Any = self.loaded.family.backbone(self.model)
            decoder.config._attn_implementation = ATTENTION if shares else self.loaded.attention

    @property
    def device(self) -> torch.device:
        """The device the model is on."""
        return self.forward.device

    @property
    def stop_tokens(self) -> set[int]:
        """Token ids that end a response.

        Raises:
            ConfigError: The checkpoint names tokens that its model does not have.
        """
        given = self.model.generation_config.eos_token_id
        found = [*(given if isinstance(given, list) else [given]), self.tokenizer.eos_token_id]
        for token in found:
            if token is not None and (type(token) is not int or token < 0):
                raise ConfigError(
                    f"policy.path={self.config.path}: generation_config.json has {token!r} in eos_token_id; "
                    "write the id of the token there that ends a turn, or a list of such ids"
                )
        return {*found} - {None}

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

    @property
    def image_backend(self) -> str:
        """The class that prepares images, such as ``Qwen2VLImageProcessorPil``; empty for text models.

        transformers takes another one, whose pixels differ a little, where torchvision is installed.
        """
        processor = self.loaded.image_processor
        return "" if processor is None else type(processor).__name__

    def frozen_copy(self) -> Policy:
        """A policy that keeps today's weights, as a reference; it shares the encoder and the feature cache.

        The reference of a policy with an adapter shares the model, too, and computes with the adapter as it
        was before training.
        """
        reference = copy.copy(self)
        reference.engine = None
        if adapters.is_adapted(self.model):
            reference.running = ModuleRunner(self.model, self.running.root, "start")
            return reference
        model = copy.deepcopy(self.loaded.model).eval()
        model.requires_grad_(False)
        reference._hold(replace(self.loaded, model=model))
        return reference

    def without_adapter(self) -> Policy:
        """A policy that shares the model and computes without its adapter, also where that was loaded.

        Raises:
            ConfigError: There is no adapter.
        """
        self._refuse_start("switch off the adapter of")
        if not adapters.is_adapted(self.model):
            raise ConfigError(f"{self.config.path} has no adapter that could be switched off")
        base = copy.copy(self)
        base.engine = None
        if self.cache is not None and adapters.adapts_tower(self.model, self.loaded.family):
            base.cache = ByteCache(self.config.vision_cache_mb)
            base.forward = Forward(self.loaded, base.cache, self.config.prefill_chunk)
        base.running = ModuleRunner(self.model, self.running.root, "off")
        return base

    def save(self, folder: Any, weights: dict[str, Tensor] | None = None) -> None:
        """Write model (or its adapter alone), tokenizer and image processor as a checkpoint folder.

        Args:
            folder: The folder to write; it is made if need be.
            weights: The whole state of a model that holds only a shard of it; None takes the model's own.
        """
        self._refuse_start("save")
        loading.save(self.loaded, self.config.path, Path(folder), weights)

    def _refuse_start(self, what: str) -> None:
        if self.running.adapter != "learnt":
            raise ConfigError(f"this is the reference of a policy with an adapter; {what} that policy")

    def merged(self) -> Policy:
        """A policy without an adapter, whose weights hold what the adapter learnt: to serve or save whole.

        Raises:
            ConfigError: There is no adapter, or the merged model answers otherwise.
        """
        self._refuse_start("merge")
        if not adapters.is_adapted(self.model):
            raise ConfigError("this policy has no adapter to merge")
        base = self.model.peft_config[adapters.LEARNT].base_model_name_or_path
        plain = Policy.load(self.config.for_model(base))
        own = plain.model.state_dict()
        for name, weight in adapters.merged_parameters(self.model):
            own[name].copy_(weight)
        with self.running.evaluating():
            banned = self._banned()
            self.inside(lambda: check_merged(self.forward, plain.forward, banned, self.config.path))
        # The adapter has learnt from images as they were read beside it.
        plain.loaded.image_processor = self.loaded.image_processor
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
            images = {image.key: image for prompt in prompts for image in prompt.images}
            self.inside(lambda: self._encode_images(images.values()))
        return prompts

    def _encode_images(self, images: Iterable[ImageInput]) -> None:
        """Put the features of ``images`` into the cache; they are held nowhere else."""
        for few in few_at_once(images, self.config.prefill_chunk):
            image_features(self.loaded, few, self.cache, self.config.prefill_chunk)

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | None = None,
        *,
        seeds: Sequence[int],
        given_up: GivenUp | None = None,
        watcher: TokenCallback | None = None,
    ) -> list[list[Sample]]:
        """G samples for each prompt; the prompt is prefilled once.

        Args:
            prompts: B encoded prompts.
            sampling: Group size, temperature, top-p, length limit.
            seeds: One per prompt; what a prompt's samples draw depends on its own seed only, and the
                probabilities on the other prompts only by rounding. vLLM takes no seeds.
            given_up: Called before every token; it returns the places of prompts that need no more samples,
                whose samples end there. It is not called where prompts are not shared.
            watcher: Told of tokens and finished samples while they come; not where prompts are not shared.

        Returns:
            B lists of G samples.

        Raises:
            ConfigError: ``sampling.engine`` is ``vllm`` outside of training, an environment has to speak
                before the policy (`threads`), or a check of the model fails (`checks`).
            SamplingError: vLLM has failed, or the model's logits are not finite.
        """
        sampling = sampling or SamplingConfig()
        if waiting := [prompt.problem_id for prompt in prompts if not prompt.begun]:
            raise ConfigError(
                f"problem {waiting[0]}: its environment speaks first (Problem.environment_begins), so "
                "that it takes a conversation with its episode"
            )
        if sampling.engine == "vllm":
            if self.engine is None:
                raise ConfigError(
                    "sampling.engine=vllm: vLLM samples in training and evaluations; sample with engine=own"
                )
            return self.engine.sample(prompts, sampling)
        if not prompts:
            return []
        if not self._shares():
            voice = self.voice(sampling)
            return self.running.infer(
                lambda: sample_apart(self.forward, voice, prompts, seeds, self.logprobs)
            )
        threads = SharedKVSession(self.forward, self.voice(sampling), prompts, seeds, self.running.infer)
        places = [(b, g) for b in range(len(prompts)) for g in range(sampling.group_size)]
        said = threads.generate(dict.fromkeys(places, 0), more=False, given_up=given_up, watcher=watcher)
        return [[said[b, g] for g in range(sampling.group_size)] for b in range(len(prompts))]

    def threads(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | None = None,
        *,
        seeds: Sequence[int],
        rows: int | None = None,
    ) -> KVSession:
        """Growing conversations behind each prompt, G of each; see `sample` for the arguments.

        ``rows`` bounds how many there are at a time (`SharedKVSession`).

        Raises:
            ConfigError: ``sampling.engine`` is ``vllm`` outside of training, or the model does something to
                its logits that is not known here.
        """
        sampling = sampling or SamplingConfig()
        if sampling.engine == "vllm" or not prompts or not self._shares():
            return RecomputingSession(
                self.sample, self.logprobs, prompts, seeds, sampling, self.encoder.extended
            )
        return SharedKVSession(self.forward, self.voice(sampling), prompts, seeds, self.running.infer, rows)

    def voice(self, sampling: SamplingConfig) -> TokenSampler:
        """How this policy speaks with these settings.

        Raises:
            ConfigError: The model does something to its logits that is not known here.
        """
        self.inside(self._check_head)
        stop, suppressed = (
            torch.tensor(sorted(ids), dtype=torch.long, device=self.device)
            for ids in (self.stop_tokens, self.suppressed_tokens)
        )
        return TokenSampler(self.head, sampling, stop, suppressed, self.config.path)

    def inside(self, run: Callable[[], T]) -> T:
        return self.running.inside(run)

    def whole(self, run: Callable[[], T]) -> T:
        return self.running.whole(run)

    def _check_head(self) -> None:
        """Before the first use compare our logits with the model's own, which may do more to them.

        Raises:
            ConfigError: They differ.
        """
        if not self._head_is_checked:
            with self.running.evaluating():
                check_head(self.forward, self.head, self._banned(), self.config.path)
            self._head_is_checked = True

    def _banned(self) -> set[int]:
        return {*self.suppressed_tokens, *self.stop_tokens}

    def _shares(self) -> bool:
        """Whether prompts are shared; the first use of all finds it out."""
        if self.shares_prefix is None:
            self.running.infer(self._find_out)
        return bool(self.shares_prefix)

    def _find_out(self) -> None:
        self._check_head()
        prompts, rows = made_up(self.loaded, self._banned())
        self.shares_prefix = sharing_agrees(self._apart(), self.head, prompts, self.stack(rows))

    def _apart(self) -> Forward:
        """Forward passes for checks: the policy's own cache is for the images of problems."""
        return Forward(self.loaded, ByteCache(self.config.vision_cache_mb), self.config.prefill_chunk)

    def check_gradients(self) -> None:
        """Share prompts no longer if that gives other gradients than the plain forward.

        Training calls this once, before anything is learnt and before the model is wrapped. Where several
        processes train, every one of them has to call it.
        """
        if not self._shares():
            return
        [prompt, *_], rows = made_up(self.loaded, self._banned())

        def agree() -> bool:
            return gradients_agree(self._apart(), self.head, prompt, self.stack(rows[:1]))

        if not all(ranks.gather(self.running.infer(agree))):
            self.shares_prefix = False

    def _check_plain(self, prompts: Sequence[Prompt]) -> None:
        """Before the first uses of the plain forward check that tokens do not see what follows them.

        Raises:
            ConfigError: They do.
        """
        for prompt in prompts:
            kind = bool(prompt.images)
            # Where several processes learn in step, none may compute more than the others: see `Trainer`.
            if kind in self._checked_plain or (self._checked_plain and ranks.count() > 1):
                continue
            banned = self._banned()
            tokens = [*islice((token for token in prompt.ids.tolist() if token not in banned), 6)]
            with self.running.evaluating():
                check_causal(self.forward, self.head, prompt, tokens, self.config.path)
            self._checked_plain.add(kind)

    def logprobs(
        self,
        prompts: Sequence[Prompt],
        continuations: RaggedTokens,
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
        none = torch.zeros(0, 3, dtype=torch.long)
        return self.logprobs_and_choices(
            prompts, continuations, none, none, temperature=temperature, needed=needed
        )[0]

    @in_root
    def logprobs_and_choices(
        self,
        prompts: Sequence[Prompt],
        continuations: RaggedTokens,
        places: Tensor,
        choices: Tensor,
        *,
        temperature: float = 1.0,
        needed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`logprobs`, and from the same forward pass the log-probabilities of other tokens at some places.

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
        batch = self.stack(continuations)
        if not batch.ids_bgr.numel():  # not one continuation
            return torch.zeros(batch.ids_bgr.shape, device=self.device), torch.zeros(
                choices.shape, device=self.device
            )
        wanted_bgr = batch.mask_bgr if needed is None else batch.mask_bgr & needed.to(self.device)
        offload = self.config.activation_offload and torch.is_grad_enabled()
        with offloaded(self.model) if offload else nullcontext():
            hidden_bgrh = self.hidden_states(prompts, batch)
            values = self.head.logprobs(hidden_bgrh[wanted_bgr], batch.ids_bgr[wanted_bgr], temperature)
            others = torch.zeros(choices.shape, device=self.device)
            if len(places):
                states = hidden_bgrh[places.to(self.device).unbind(-1)]
                others = self.head.logprobs(states, choices.to(self.device), temperature)
            if self.config.train_vision and ranks.count() > 1 and torch.is_grad_enabled():
                # Processes add up gradients of the same weights, also where only some of them saw an image.
                tower = self.loaded.family.vision_parameters(self.model)
                sums = [p.sum(dtype=torch.float32) for p in tower]  # in float16 they may be infinite
                values = values + 0.0 * torch.stack(sums).sum().to(values)
        filled_bgr = torch.zeros(wanted_bgr.shape, dtype=values.dtype, device=self.device)
        return filled_bgr.masked_scatter(wanted_bgr, values), others

    @in_root
    def hidden_states(self, prompts: Sequence[Prompt], batch: Continuations) -> Tensor:
        """Hidden states that predict each continuation token, ``[B, G, R, H]``.

        Raises:
            ConfigError: The model does something to its logits that is not known here.
        """
        self._check_head()
        if self._shares():
            return self.forward.hidden_shared(prompts, batch)
        self._check_plain(prompts)
        return self.forward.hidden_plain(prompts, batch)

    def stack(self, continuations: RaggedTokens) -> Continuations:
        """Ragged continuations as padded tensors on the policy's device."""
        return Continuations.stack(continuations, self.tokenizer.pad_token_id, self.device)
