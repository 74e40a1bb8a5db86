"""Forward passes: prompts alone, prompts with continuations sharing them, and the plain way.

All three give hidden states; `token_logprobs` turns those into log-probabilities without ever holding
the logits of a whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from selfverify.errors import DataError
from selfverify.policy.encoding import ByteCache, Prompt, image_features
from selfverify.policy.families import ImageInput
from selfverify.policy.loading import Loaded
from selfverify.policy.shared_attention import SharedLayout


@dataclass(slots=True)
class Continuation:
    """Tokens that follow a prompt; images only where the environment put some in."""

    tokens: Sequence[int]
    images: list[ImageInput] = field(default_factory=list)


@dataclass(slots=True)
class Continuations:
    """Continuations of B prompts as tensors: ``ids`` [B, G, R], ``lengths`` [B, G], and their images."""

    ids: Tensor
    lengths: Tensor
    images: list[list[list[ImageInput]]]

    @property
    def mask(self) -> Tensor:
        """``[B, G, R]`` True at tokens, False at padding."""
        places = torch.arange(self.ids.shape[2], device=self.ids.device)
        return places < self.lengths[..., None]


@dataclass(slots=True)
class Embedded:
    """Embeddings ``values`` [B, L, H], where image features are in them (``places`` [B, L]), and what else
    the decoder takes."""

    values: Tensor
    places: Tensor
    more: dict[str, Any] = field(default_factory=dict)


class Forward:
    """Forward passes of one loaded model. ``cache`` holds image features when the vision tower is frozen."""

    def __init__(self, loaded: Loaded, cache: ByteCache[Tensor] | None) -> None:
        self.loaded = loaded
        self.cache = cache

    @property
    def model(self) -> Any:
        """The transformers model."""
        return self.loaded.model

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.loaded.model.device
        return device

    # --- laying out ---------------------------------------------------------------------------------

    def stack_prompts(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """Right-padded ids ``[B, P]``, positions ``[axes, B, P]`` and lengths ``[B]``."""
        pad = self.loaded.tokenizer.pad_token_id
        ids = pad_sequence([prompt.ids for prompt in prompts], batch_first=True, padding_value=pad)
        places = pad_sequence([prompt.positions.T for prompt in prompts], batch_first=True)
        lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        return ids.to(self.device), places.permute(2, 0, 1).to(self.device), lengths.to(self.device)

    def stack_continuations(
        self, continuations: Sequence[Sequence[Sequence[int] | Continuation]]
    ) -> Continuations:
        """Ragged continuations as padded tensors; groups of different size are filled with empty ones."""
        rows = [
            [c if isinstance(c, Continuation) else Continuation(c) for c in group] for group in continuations
        ]
        groups = max((len(group) for group in rows), default=0)
        width = max((len(c.tokens) for group in rows for c in group), default=0)
        ids = torch.full((len(rows), groups, max(width, 1)), self.loaded.tokenizer.pad_token_id)
        lengths = torch.zeros(len(rows), groups, dtype=torch.long)
        for b, group in enumerate(rows):
            for g, continuation in enumerate(group):
                ids[b, g, : len(continuation.tokens)] = torch.tensor(
                    list(continuation.tokens), dtype=torch.long
                )
                lengths[b, g] = len(continuation.tokens)
        images = [[c.images for c in group] for group in rows]
        return Continuations(ids.to(self.device), lengths.to(self.device), images)

    def continuation_positions(self, prompts: Sequence[Prompt], continuations: Continuations) -> Tensor:
        """Position ids ``[axes, B, G, R]``. Text counts on; an image needs the family's rule."""
        b, g, r = continuations.ids.shape
        starts = torch.tensor([prompt.next_position for prompt in prompts], device=self.device)
        steps = starts[:, None, None] + torch.arange(r, device=self.device)
        positions = steps.expand(b, g, r).expand(self.loaded.family.position_axes, b, g, r)
        if not any(images for group in continuations.images for images in group):
            return positions
        positions = positions.clone()
        for i, (prompt, group) in enumerate(zip(prompts, continuations.images, strict=True)):
            for j, images in enumerate(group):
                if images:
                    length = int(continuations.lengths[i, j])
                    whole = torch.cat([prompt.ids, continuations.ids[i, j, :length].cpu()])
                    shown = [*prompt.images, *images]
                    places = self.loaded.family.positions(self.model, whole, shown)
                    positions[:, i, j, :length] = places[:, len(prompt.ids) :].to(self.device)
        return positions

    def embed(self, ids: Tensor, images: Sequence[ImageInput], owners: Sequence[Prompt]) -> Embedded:
        """Embeddings of ``ids`` [B, L], with the features of ``images`` in their places, in order.

        Raises:
            DataError: Image tokens and image features do not match; the problems are named.
        """
        family = self.loaded.family
        placeholder = family.placeholder(self.model)
        if placeholder is None:
            return Embedded(self.model.get_input_embeddings()(ids), torch.zeros_like(ids, dtype=torch.bool))
        places = ids == placeholder
        # Some families' placeholder lies outside the vocabulary.
        embeddings: Tensor = self.model.get_input_embeddings()(ids.masked_fill(places, 0))
        count = int(places.sum())
        if not images and count == 0:
            return Embedded(embeddings, places)
        features = image_features(self.loaded, images, self.cache)
        width = embeddings.shape[-1]
        flat = (
            torch.cat([features[image.key] for image in images]) if images else embeddings.new_zeros(0, width)
        )
        if count != len(flat):
            names = ", ".join(dict.fromkeys(prompt.problem_id for prompt in owners))
            raise DataError(f"{count} image tokens but {len(flat)} image features in: {names}")
        flat = flat.to(embeddings.dtype)
        return Embedded(
            embeddings.masked_scatter(places.unsqueeze(-1), flat[:, :width]),
            places,
            family.decoder_inputs(self.model, places, flat),
        )

    def _shared(self, embeddings: Tensor, positions: Tensor, layout: SharedLayout, **more: Any) -> Tensor:
        # A 4-D mask is taken as finished by transformers; ours is inside the attention function.
        finished = embeddings.new_zeros(1, 1, 1, 1)
        return self.loaded.family.run_decoder(
            self.model, embeddings, positions, finished, shared=layout, **more
        )

    def _blocks(self, places: Tensor) -> Tensor | None:
        """Numbers of the images that tokens belong to, -1 for text; None where only order matters.

        Args:
            places: ``[..., L]`` True at placeholders; images are apart by at least one token.
        """
        if not self.loaded.family.bidirectional_images or not bool(places.any()):
            return None
        starts = places & ~places.roll(1, -1)
        starts[..., 0] = places[..., 0]
        return torch.where(places, starts.cumsum(-1) - 1, -1)

    # --- passes -------------------------------------------------------------------------------------

    def prefill(self, prompts: Sequence[Prompt]) -> tuple[Tensor, SharedLayout]:
        """Each prompt's last hidden state ``[B, H]`` and the layout that keeps its keys and values."""
        ids, positions, lengths = self.stack_prompts(prompts)
        images = [image for prompt in prompts for image in prompt.images]
        embedded = self.embed(ids, images, prompts)
        layout = SharedLayout("prefill", lengths, ids.shape[1], prompt_images=self._blocks(embedded.places))
        hidden = self._shared(embedded.values, positions, layout, **embedded.more)
        return hidden[torch.arange(len(prompts), device=self.device), lengths - 1], layout

    def extend(
        self, given: Continuations, starts: Tensor, layout: SharedLayout, steps: int
    ) -> tuple[Tensor, SharedLayout]:
        """Give each prefilled prompt's continuations tokens that were not decoded one by one.

        Args:
            given: Text, at least one token for each continuation.
            starts: ``[B]`` position of the first of them.
            layout: The prefilled prompts'.
            steps: Room for tokens to be decoded afterwards.

        Returns:
            The hidden state of each continuation's last token ``[B, G, H]``, and the layout to decode with.
        """
        b, g, r = given.ids.shape
        layout = SharedLayout(
            "extend",
            layout.prompt_lengths,
            layout.prompt_width,
            g,
            r + steps,
            r,
            layout.prompt_keys,
            given_lengths=given.lengths,
            given_width=r,
        )
        places = (starts[:, None, None] + torch.arange(r, device=self.device)).expand(b, g, r).flatten(1)
        embeddings = self.model.get_input_embeddings()(given.ids.flatten(1))
        hidden = self._shared(
            embeddings, places.expand(self.loaded.family.position_axes, -1, -1), layout
        ).unflatten(1, (g, r))
        last = (given.lengths - 1)[..., None, None].expand(b, g, 1, hidden.shape[-1])
        layout.mode = "decode"
        return hidden.gather(2, last)[:, :, 0], layout

    def decode_step(self, tokens: Tensor, positions: Tensor, layout: SharedLayout) -> Tensor:
        """Hidden states ``[B, G, H]`` of one new token per continuation; ``positions`` [B, G]."""
        embeddings = self.model.get_input_embeddings()(tokens)
        return self._shared(embeddings, positions.expand(self.loaded.family.position_axes, -1, -1), layout)

    def hidden_shared(self, prompts: Sequence[Prompt], continuations: Continuations) -> Tensor:
        """Hidden states that predict each continuation token ``[B, G, R, H]``; each prompt forwarded once."""
        b, g, r = continuations.ids.shape
        ids, positions, lengths = self.stack_prompts(prompts)
        width = ids.shape[1]
        # Nothing is predicted from the last token, so it need not be forwarded (images are left whole).
        fed = r if any(i for group in continuations.images for i in group) else r - 1
        packed = torch.cat([ids, continuations.ids[..., :fed].reshape(b, g * fed)], dim=1)
        # Row by row the prompt's images come before its continuations'.
        images = [
            image
            for prompt, group in zip(prompts, continuations.images, strict=True)
            for image in [*prompt.images, *(i for own in group for i in own)]
        ]
        own_positions = self.continuation_positions(prompts, continuations)[..., :fed].flatten(2)
        embedded = self.embed(packed, images, prompts)
        layout = SharedLayout(
            "packed",
            lengths,
            width,
            g,
            prompt_images=self._blocks(embedded.places[:, :width]),
            own_images=self._blocks(embedded.places[:, width:].unflatten(1, (g, fed))),
        )
        places = torch.cat([positions, own_positions], dim=2)
        hidden = self._shared(embedded.values, places, layout, **embedded.more)
        first = hidden[torch.arange(b, device=self.device), lengths - 1]
        rest = hidden[:, width:].unflatten(1, (g, fed))[:, :, : r - 1]
        return torch.cat([first[:, None, None].expand(b, g, 1, -1), rest], dim=2)

    def hidden_plain(self, prompts: Sequence[Prompt], continuations: Continuations) -> Tensor:
        """The same from prompt + continuation written out G times: the yardstick, and the fallback."""
        b, g, r = continuations.ids.shape
        if not self.loaded.family.shares_prompts:
            return self._hidden_whole(prompts, continuations)
        rows, places, images = [], [], []
        own_positions = self.continuation_positions(prompts, continuations)
        for i, prompt in enumerate(prompts):
            for j in range(g):
                rows.append(torch.cat([prompt.ids.to(self.device), continuations.ids[i, j]]))
                places.append(torch.cat([prompt.positions.to(self.device), own_positions[:, i, j]], dim=1).T)
                images += prompt.images
                if j < len(continuations.images[i]):
                    images += continuations.images[i][j]
        ids = pad_sequence(rows, batch_first=True, padding_value=self.loaded.tokenizer.pad_token_id)
        positions = pad_sequence(places, batch_first=True).permute(2, 0, 1)
        starts = torch.tensor([len(prompt.ids) for prompt in prompts], device=self.device).repeat_interleave(
            g
        )
        lengths = starts + continuations.lengths.flatten()
        mask = torch.arange(ids.shape[1], device=self.device) < lengths[:, None]
        embedded = self.embed(ids, images, prompts)
        hidden = self.loaded.family.plain_forward(
            self.model, embedded.values, positions, mask.long(), embedded.places, **embedded.more
        )
        places_of = (starts - 1)[:, None] + torch.arange(r, device=self.device)
        return hidden[torch.arange(b * g, device=self.device)[:, None], places_of].view(b, g, r, -1)

    def _hidden_whole(self, prompts: Sequence[Prompt], continuations: Continuations) -> Tensor:
        """`hidden_plain` by the model's own forward, prompt by prompt, for `families.Unknown`."""
        r = continuations.ids.shape[2]
        groups = []
        for prompt, ids, lengths in zip(prompts, continuations.ids, continuations.lengths, strict=True):
            start = len(prompt.ids)
            rows = torch.cat([prompt.ids.to(self.device).expand(len(ids), -1), ids], dim=1)
            mask = torch.arange(start + r, device=self.device) < (start + lengths)[:, None]
            hidden = self.loaded.family.whole_forward(self.model, rows, mask.long(), start, prompt.images)
            groups.append(hidden[:, start - 1 : start - 1 + r])
        return torch.stack(groups)

    # --- head ---------------------------------------------------------------------------------------

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of ``hidden``, scaled or capped as the model's configuration says."""
        module: nn.Module = self.model.get_output_embeddings()
        logits: Tensor = module(hidden)
        c = self.model.config.get_text_config()
        if (divisor := getattr(c, "logits_scaling", None)) is not None:  # Granite
            logits = logits / divisor
        if (factor := getattr(c, "logit_scale", None)) is not None:  # Cohere
            logits = logits * factor
        if (cap := getattr(c, "final_logit_softcapping", None)) is not None:  # Gemma 2, Gemma 3n
            logits = torch.tanh(logits / cap) * cap
        return logits

    @torch.no_grad()
    def check_head(self, ids: Tensor) -> float:
        """How far `head` is from the model's own logits at most, on text alone.

        Args:
            ids: ``[L]`` tokens, none of them a placeholder.
        """
        row = ids[None].to(self.device)
        mask = torch.ones_like(row)
        theirs = self.model(input_ids=row, attention_mask=mask, use_cache=False).logits
        embedded = self.embed(row, [], [])
        family = self.loaded.family
        if family.shares_prompts:
            places = torch.arange(len(ids), device=self.device).expand(family.position_axes, 1, -1)
            hidden = family.plain_forward(self.model, embedded.values, places, mask, embedded.places)
        else:
            hidden = family.whole_forward(self.model, row, mask, len(ids), [])
        return float((self.head(hidden).float() - theirs.float()).abs().max())

    def token_logprobs(self, hidden: Tensor, targets: Tensor, temperature: float, rows: int) -> Tensor:
        """Float32 log-probabilities of ``targets``, ``[N]`` or ``[N, K]``, from hidden ``[N, H]``.

        At most ``rows`` rows of logits exist at a time; the backward pass computes them again.
        """

        def chunk(states: Tensor, wanted: Tensor) -> Tensor:
            logits = self.head(states).float() / temperature
            columns = wanted if wanted.dim() == 2 else wanted[:, None]
            picked: Tensor = logits.gather(-1, columns) - logits.logsumexp(-1, keepdim=True)
            return picked.view(wanted.shape)

        if len(hidden) <= rows:
            return chunk(hidden, targets)
        parts = [
            checkpoint(chunk, states, wanted, use_reentrant=False)
            for states, wanted in zip(hidden.split(rows), targets.split(rows), strict=True)
        ]
        return torch.cat(parts)
