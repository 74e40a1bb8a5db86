"""The policy: a model with its processor, which encodes problems, samples, and gives log-probabilities."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from selfverify.errors import DataError
from selfverify.policy.config import PolicyConfig, SamplingConfig
from selfverify.policy.encoding import Encoder, Prompt, VisionCache, image_features
from selfverify.policy.loading import Loaded, load
from selfverify.policy.sampling import Decoder, Sample
from selfverify.policy.shared_attention import SharedLayout
from selfverify.rollouts.types import Problem


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
        self.encoder = Encoder(loaded)
        self.cache = None if config.train_vision else VisionCache(config.vision_cache_mb)

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
        device: torch.device = self.loaded.model.device
        return device

    @property
    def stop_tokens(self) -> set[int]:
        """Token ids that end a response."""
        eos = self.model.generation_config.eos_token_id
        found = set(eos) if isinstance(eos, list) else {eos}
        return (found | {self.tokenizer.eos_token_id}) - {None}

    def frozen_copy(self) -> Policy:
        """A reference policy: same weights now, never trained. It shares the encoder and feature cache."""
        reference = copy.copy(self)
        model = copy.deepcopy(self.loaded.model).eval()
        model.requires_grad_(False)
        reference.loaded = Loaded(model, self.tokenizer, self.loaded.image_processor, self.loaded.family)
        return reference

    def save(self, folder: Any) -> None:
        """Write model, tokenizer and image processor as a checkpoint folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.loaded.image_processor is not None:
            self.loaded.image_processor.save_pretrained(folder)

    # --- encode -----------------------------------------------------------------------------------

    def encode(self, problems: Sequence[Problem]) -> list[Prompt]:
        """Prompts of ``problems``; with a frozen tower their images pass through it here, once.

        Raises:
            DataError: Naming the problem whose images or messages cannot be used.
        """
        prompts = [self.encoder.prompt(problem) for problem in problems]
        if self.cache is not None:
            image_features(self.loaded, prompts, self.cache)
        return prompts

    def embed(self, prompts: Sequence[Prompt], ids: Tensor) -> Tensor:
        """Embeddings ``[B, L, H]`` of padded ``ids`` [B, L], image features in their places."""
        embeddings: Tensor = self.model.get_input_embeddings()(ids)
        placeholder = self.loaded.family.placeholder(self.model)
        if not any(prompt.images for prompt in prompts):
            return embeddings
        features = image_features(self.loaded, prompts, self.cache)
        flat = torch.cat([features[image.key] for prompt in prompts for image in prompt.images])
        places = ids == placeholder
        if int(places.sum()) != len(flat):
            names = ", ".join(prompt.problem_id for prompt in prompts)
            raise DataError(f"{int(places.sum())} image tokens but {len(flat)} image features in {names}")
        return embeddings.masked_scatter(places.unsqueeze(-1), flat.to(embeddings.dtype))

    # --- forward ----------------------------------------------------------------------------------

    def backbone(self, embeddings: Tensor, positions: Tensor, layout: SharedLayout) -> Tensor:
        """Hidden states ``[B, L, H]``; ``positions`` [axes, B, L]."""
        axes = self.loaded.family.position_axes
        # A 4-D mask is taken as finished by transformers; ours is inside the attention function.
        done = embeddings.new_zeros(1, 1, 1, 1)
        return self.loaded.family.backbone(self.model)(
            inputs_embeds=embeddings,
            position_ids=positions if axes > 1 else positions[0],
            attention_mask=done,
            use_cache=False,
            shared=layout,
        ).last_hidden_state

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of ``hidden``."""
        module: nn.Module = self.model.get_output_embeddings()
        logits: Tensor = module(hidden)
        return logits

    def _pad(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """Right-padded ids ``[B, P]``, positions ``[axes, B, P]``, lengths ``[B]``."""
        lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        ids = nn.utils.rnn.pad_sequence(
            [prompt.ids for prompt in prompts], batch_first=True, padding_value=self.tokenizer.pad_token_id
        )
        places = nn.utils.rnn.pad_sequence([prompt.positions.T for prompt in prompts], batch_first=True)
        return ids.to(self.device), places.permute(2, 0, 1).to(self.device), lengths.to(self.device)

    def _prefill(self, prompts: Sequence[Prompt]) -> tuple[Tensor, SharedLayout]:
        ids, positions, lengths = self._pad(prompts)
        layout = SharedLayout("prefill", lengths, ids.shape[1])
        hidden = self.backbone(self.embed(prompts, ids), positions, layout)
        return hidden[torch.arange(len(prompts), device=self.device), lengths - 1], layout

    def decode_step(self, tokens: Tensor, positions: Tensor, layout: SharedLayout) -> Tensor:
        """Hidden states ``[B, G, H]`` of one new token per continuation; ``positions`` [B, G]."""
        embeddings = self.model.get_input_embeddings()(tokens)
        axes = self.loaded.family.position_axes
        return self.backbone(embeddings, positions.expand(axes, *positions.shape), layout)

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Prompt], sampling: SamplingConfig | None = None, *, seeds: Sequence[int]
    ) -> list[list[Sample]]:
        """G samples for each prompt.

        Args:
            prompts: B encoded prompts.
            sampling: Group size, temperature, top-p, length limit.
            seeds: One per prompt; a prompt's samples depend on its own seed only.

        Returns:
            B lists of G samples.
        """
        sampling = sampling or SamplingConfig()
        if not prompts:
            return []
        was_training = self.model.training
        self.model.eval()
        try:
            last, layout = self._prefill(prompts)
            starts = torch.tensor([prompt.next_position for prompt in prompts], device=self.device)
            decoder = Decoder(self, sampling, self.stop_tokens, self.loaded.family.suppressed(self.model))
            return decoder.run(last, layout, starts, list(seeds))
        finally:
            self.model.train(was_training)

    # --- log-probabilities --------------------------------------------------------------------------

    def pad_continuations(self, continuations: Sequence[Sequence[Sequence[int]]]) -> tuple[Tensor, Tensor]:
        """Ids ``[B, G, R]`` and lengths ``[B, G]`` of ragged continuations, padded with empty ones."""
        groups = max(len(group) for group in continuations)
        width = max((len(tokens) for group in continuations for tokens in group), default=0)
        ids = torch.full((len(continuations), groups, max(width, 1)), self.tokenizer.pad_token_id)
        lengths = torch.zeros(len(continuations), groups, dtype=torch.long)
        for b, group in enumerate(continuations):
            for g, tokens in enumerate(group):
                ids[b, g, : len(tokens)] = torch.tensor(list(tokens), dtype=torch.long)
                lengths[b, g] = len(tokens)
        return ids.to(self.device), lengths.to(self.device)

    def hidden_states(self, prompts: Sequence[Prompt], ids: Tensor) -> Tensor:
        """Hidden states that predict each continuation token, ``[B, G, R, H]``, prompts forwarded once.

        Args:
            prompts: B encoded prompts.
            ids: ``[B, G, R]`` continuation tokens, padded on the right.
        """
        b, g, r = ids.shape
        prompt_ids, positions, lengths = self._pad(prompts)
        width = prompt_ids.shape[1]
        starts = torch.tensor([prompt.next_position for prompt in prompts], device=self.device)
        steps = starts[:, None, None] + torch.arange(r, device=self.device)
        steps = steps.expand(b, g, r).reshape(1, b, g * r).expand(positions.shape[0], b, g * r)
        embeddings = torch.cat(
            [self.embed(prompts, prompt_ids), self.model.get_input_embeddings()(ids.reshape(b, g * r))], dim=1
        )
        layout = SharedLayout("packed", lengths, width, g)
        hidden = self.backbone(embeddings, torch.cat([positions, steps], dim=2), layout)
        first = hidden[torch.arange(b, device=self.device), lengths - 1]
        rest = hidden[:, width:].view(b, g, r, -1)[:, :, :-1]
        return torch.cat([first[:, None, None].expand(b, g, 1, -1), rest], dim=2)

    def logprobs(
        self,
        prompts: Sequence[Prompt],
        continuations: Sequence[Sequence[Sequence[int]]],
        *,
        temperature: float = 1.0,
        needed: Tensor | None = None,
    ) -> Tensor:
        """Log-probabilities ``[B, G, R]`` of every continuation token, 0 at padding; differentiable.

        Args:
            prompts: B encoded prompts.
            continuations: B lists of up to G token lists.
            temperature: Divides the logits, as in sampling.
            needed: ``[B, G, R]`` bool; the head is computed only there (elsewhere 0).
        """
        ids, lengths = self.pad_continuations(continuations)
        wanted = torch.arange(ids.shape[2], device=self.device) < lengths[..., None]
        if needed is not None:
            wanted = wanted & needed.to(self.device)
        hidden = self.hidden_states(prompts, ids)
        values = self._token_logprobs(hidden[wanted], ids[wanted], temperature or 1.0)
        return torch.zeros(ids.shape, dtype=values.dtype, device=self.device).masked_scatter(wanted, values)

    def _token_logprobs(self, hidden: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """``[N]`` float32 from hidden ``[N, H]``; no more than ``logprob_chunk`` rows of logits at a time,
        recomputed in the backward pass."""

        def chunk(rows: Tensor, wanted: Tensor) -> Tensor:
            logits = self.head(rows).float() / temperature
            picked: Tensor = logits.gather(-1, wanted[:, None]).squeeze(-1) - logits.logsumexp(-1)
            return picked

        size = self.config.logprob_chunk
        if len(hidden) <= size:
            return chunk(hidden, targets)
        parts = [
            checkpoint(chunk, rows, wanted, use_reentrant=False)
            for rows, wanted in zip(hidden.split(size), targets.split(size), strict=True)
        ]
        return torch.cat(parts)
