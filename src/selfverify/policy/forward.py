"""Forward passes: prompts alone, continuations behind them, both at once, and the plain way.

All give hidden states, whose names end in their axes (see `packing`); `Head` makes log-probabilities of them.

Prompts, and what growing conversations hear, pass through the model a few tokens at a time. How much memory
that takes depends on `Forward.chunk`, not on how long a prompt or a reply is, nor on how many conversations
hear one; only the keys and values that are kept grow with those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from selfverify.core.errors import DataError
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.families import Embedded, ImageInput, last_hidden
from selfverify.policy.features import ByteCache, image_features
from selfverify.policy.loading import Loaded
from selfverify.policy.packing import Carrier, Continuations, SharedLayout
from selfverify.policy.shared_attention import ATTENTION, SharingError, check_layers, sharing


class Forward:
    """Forward passes of one loaded model.

    Args:
        loaded: The model.
        cache: Holds image features when the vision tower is frozen.
        chunk: How many tokens, prompts' or heard, and features pass through the model at once where nothing
            is learnt.
    """

    def __init__(self, loaded: Loaded, cache: ByteCache[Tensor] | None, chunk: int) -> None:
        self.loaded, self.chunk = loaded, chunk
        self.cache = cache
        self.model: Any = loaded.model
        self.family = loaded.family

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = self.model.device
        return device

    # --- inputs -------------------------------------------------------------------------------------

    def stack_prompts(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids ``[B, P]`` padded on the right, positions ``[A, B, P]`` and lengths ``[B]``."""
        pad = self.loaded.tokenizer.pad_token_id
        ids = pad_sequence([prompt.ids for prompt in prompts], batch_first=True, padding_value=pad)
        places = pad_sequence([prompt.positions.T for prompt in prompts], batch_first=True)
        lengths = torch.tensor([len(prompt.ids) for prompt in prompts])
        return ids.to(self.device), places.permute(2, 0, 1).to(self.device), lengths.to(self.device)

    def continuation_positions(self, prompts: Sequence[Prompt], batch: Continuations) -> Tensor:
        """Position ids ``[A, B, G, R]``. Text counts on; an image needs the family's rule."""
        starts_b = torch.tensor([prompt.next_position for prompt in prompts], device=self.device)
        steps_b1r = starts_b[:, None, None] + torch.arange(batch.ids_bgr.shape[2], device=self.device)
        # Padding may reach beyond the context, where a model with learned positions has none.
        text_bgr = steps_b1r.masked_fill(~batch.mask_bgr, 0)
        positions = text_bgr.repeat(self.family.position_axes, 1, 1, 1)
        if not batch.has_images:
            return positions
        for i, (prompt, group) in enumerate(zip(prompts, batch.images, strict=True)):
            for j, images in enumerate(group):
                if images:
                    length = int(batch.lengths_bg[i, j])
                    whole = torch.cat([prompt.ids, batch.ids_bgr[i, j, :length].cpu()])
                    places = self.family.positions(self.model, whole, [*prompt.images, *images])
                    positions[:, i, j, :length] = places[:, len(prompt.ids) :].to(self.device)
        return positions

    def image_places(self, ids: Tensor) -> Tensor:
        """Where ``ids`` are placeholders of images; nowhere for a model that reads text only."""
        placeholder = self.family.placeholder(self.model)
        return torch.zeros_like(ids, dtype=torch.bool) if placeholder is None else ids == placeholder

    def features(self, images: Sequence[ImageInput], places: int, owners: Sequence[Prompt]) -> Tensor:
        """The features ``[places, F]`` of images, one after another.

        Args:
            images: The images.
            places: How many placeholders there are for them.
            owners: The prompts with the placeholders, named in errors.

        Raises:
            DataError: Placeholders and image features do not match; the problems are named.
        """
        found = image_features(self.loaded, images, self.cache, self.chunk)
        count = sum(len(found[image.key]) for image in images)
        if places != count:
            names = ", ".join(dict.fromkeys(prompt.problem_id for prompt in owners))
            raise DataError(f"{places} image tokens but {count} image features in: {names}")
        return torch.cat([found[image.key] for image in images])

    def embed(self, ids: Tensor, images: Sequence[ImageInput], owners: Sequence[Prompt]) -> Embedded:
        """Embeddings of ``ids`` [B, L], with the features of ``images`` in their places, in order.

        Args:
            ids: Tokens, ``[B, L]``.
            images: The images of all rows, in the order in which the rows show them.
            owners: The prompts of the rows, named in errors.

        Raises:
            DataError: Image tokens and image features do not match; the problems are named.
        """
        count = int(self.image_places(ids).sum())
        if not images and count == 0:
            return self._embedded(ids, None)
        return self._embedded(ids, self.features(images, count, owners))

    def _embedded(self, ids: Tensor, features: Tensor | None) -> Embedded:
        """`embed` with given ``features`` [places, F], None where there are no placeholders."""
        places = self.image_places(ids)
        # Some families' placeholder lies outside the vocabulary.
        embeddings: Tensor = self.model.get_input_embeddings()(ids.masked_fill(places, 0))
        if features is None:
            return Embedded(embeddings, places)
        features = features.to(embeddings.dtype)
        return Embedded(
            embeddings.masked_scatter(places.unsqueeze(-1), features[:, : embeddings.shape[-1]]),
            places,
            self.family.decoder_inputs(self.model, places, features),
        )

    @contextmanager
    def attention(self, name: str) -> Iterator[None]:
        """A context in which the decoder attends by transformers' implementation of that name."""
        config = self.family.backbone(self.model).config
        before = config._attn_implementation
        config._attn_implementation = name
        try:
            yield
        finally:
            config._attn_implementation = before

    def own_attention(self) -> AbstractContextManager[None]:
        """A context in which the model attends as transformers loads it."""
        return self.attention(self.loaded.attention) if self.family.shares_prompts else nullcontext()

    def _shared(self, embeddings: Tensor, positions: Tensor, layout: SharedLayout, **more: Any) -> Tensor:
        # A 4-D mask is taken as finished by transformers; ours is inside the attention function.
        finished = embeddings.new_zeros(1, 1, 1, 1)
        layout.windows.clear()
        with self.attention(ATTENTION), sharing():
            try:
                hidden = self.family.run_decoder(
                    self.model, embeddings, positions, finished, shared=Carrier(layout), **more
                )
            except (SharingError, torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception as error:
                # A model's code that does not expect such rows ends in errors of any type.
                raise SharingError(str(error)) from error
        check_layers(self.family.backbone(self.model), layout)
        return hidden

    def _blocks(self, places: Tensor) -> Tensor | None:
        """Numbers of the images that tokens belong to, -1 for text; None where only order matters.

        Args:
            places: ``[..., L]`` True at placeholders; images are apart by at least one token.
        """
        if not self.family.bidirectional_images or not bool(places.any()):
            return None
        starts = places & ~places.roll(1, -1)
        starts[..., 0] = places[..., 0]
        return torch.where(places, starts.cumsum(-1) - 1, -1)

    # --- passes -------------------------------------------------------------------------------------

    def prefill(self, prompts: Sequence[Prompt]) -> tuple[Tensor, SharedLayout]:
        """Each prompt's last hidden state ``[B, H]`` and the layout that keeps its keys and values."""
        ids_bp, positions_abp, lengths_b = self.stack_prompts(prompts)
        images = [image for prompt in prompts for image in prompt.images]
        embedded = self.embed(ids_bp, images, prompts)
        blocks = self._blocks(embedded.places_bl)
        layout = SharedLayout("prefill", lengths_b, ids_bp.shape[1], prompt_images=blocks)
        hidden_bph = self._shared(embedded.values_blh, positions_abp, layout, **embedded.more)
        return hidden_bph[torch.arange(len(prompts), device=self.device), lengths_b - 1], layout

    def grow(
        self, ids_bgr: Tensor, positions_abgr: Tensor, layout: SharedLayout, features: Tensor | None = None
    ) -> Tensor:
        """Hidden states ``[B, G, R, H]`` of new tokens behind kept ones; `SharedLayout.place` says where.

        Args:
            ids_bgr: Tokens, padded on the right.
            positions_abgr: Their position ids.
            layout: Keeps their keys and values.
            features: ``[places, F]`` of the images among the tokens, row by row; None without images.
        """
        ids_bl = ids_bgr.flatten(1)
        if features is None:
            embedded = Embedded(self.model.get_input_embeddings()(ids_bl), ids_bl)
        else:
            embedded = self._embedded(ids_bl, features)
            layout.own_images = self._blocks(embedded.places_bl.unflatten(1, ids_bgr.shape[1:]))
        hidden_blh = self._shared(embedded.values_blh, positions_abgr.flatten(2), layout, **embedded.more)
        return hidden_blh.unflatten(1, ids_bgr.shape[1:])

    def hidden_shared(self, prompts: Sequence[Prompt], batch: Continuations) -> Tensor:
        """Hidden states that predict each continuation token ``[B, G, R, H]``; each prompt forwarded once."""
        b, g, r = batch.ids_bgr.shape
        ids_bp, positions_abp, lengths_b = self.stack_prompts(prompts)
        p = ids_bp.shape[1]
        # Nothing is predicted from the last token, so it need not be forwarded (images are left whole).
        fed = r if batch.has_images else r - 1
        ids_bl = torch.cat([ids_bp, batch.ids_bgr[..., :fed].flatten(1)], dim=1)
        own_positions = self.continuation_positions(prompts, batch)[..., :fed].flatten(2)
        # Row by row the prompt's images come before its continuations'.
        images = [
            image
            for prompt, group in zip(prompts, batch.images, strict=True)
            for image in [*prompt.images, *(i for own in group for i in own)]
        ]
        embedded = self.embed(ids_bl, images, prompts)
        prompt_places, own_places = embedded.places_bl.split([p, g * fed], dim=1)
        layout = SharedLayout(
            "packed",
            lengths_b,
            p,
            g,
            prompt_images=self._blocks(prompt_places),
            own_images=self._blocks(own_places.unflatten(1, (g, fed))),
        )
        positions = torch.cat([positions_abp, own_positions], dim=2)
        hidden_blh = self._shared(embedded.values_blh, positions, layout, **embedded.more)
        first_bh = hidden_blh[torch.arange(b, device=self.device), lengths_b - 1]
        rest_bgrh = hidden_blh[:, p:].unflatten(1, (g, fed))[:, :, : r - 1]
        return torch.cat([first_bh[:, None, None].expand(b, g, 1, -1), rest_bgrh], dim=2)

    def hidden_plain(self, prompts: Sequence[Prompt], batch: Continuations) -> Tensor:
        """`hidden_shared` without sharing, from prompt + continuation written out G times.

        The yardstick for `hidden_shared`, and the fallback for models that cannot share.
        """
        if not self.family.shares_prompts:
            return self._hidden_whole(prompts, batch)
        b, g, r = batch.ids_bgr.shape
        own_positions = self.continuation_positions(prompts, batch)
        rows, places, images = [], [], []
        for i, prompt in enumerate(prompts):
            for j in range(g):
                rows.append(torch.cat([prompt.ids.to(self.device), batch.ids_bgr[i, j]]))
                places.append(torch.cat([prompt.positions.to(self.device), own_positions[:, i, j]], dim=1).T)
                images += [*prompt.images, *batch.images[i][j]]
        ids_nl = pad_sequence(rows, batch_first=True, padding_value=self.loaded.tokenizer.pad_token_id)
        positions_anl = pad_sequence(places, batch_first=True).permute(2, 0, 1)
        starts = torch.tensor([len(prompt.ids) for prompt in prompts], device=self.device)
        starts_n = starts.repeat_interleave(g)
        ends_n = starts_n + batch.lengths_bg.flatten()
        mask_nl = torch.arange(ids_nl.shape[1], device=self.device) < ends_n[:, None]
        room = longest_row(self.model)
        if room is not None and ids_nl.shape[1] > room:
            # Padding may reach beyond the context, where a model with learned positions has none.
            ids_nl, positions_anl, mask_nl = ids_nl[:, :room], positions_anl[:, :, :room], mask_nl[:, :room]
        hidden_nlh = self.plain(ids_nl, positions_anl, mask_nl.long(), images, prompts)
        before = (starts_n - 1)[:, None] + torch.arange(r, device=self.device)
        before = before.clamp(max=hidden_nlh.shape[1] - 1)
        return hidden_nlh[torch.arange(b * g, device=self.device)[:, None], before].view(b, g, r, -1)

    def plain(
        self,
        ids_nl: Tensor,
        positions_anl: Tensor,
        mask_nl: Tensor,
        images: Sequence[ImageInput],
        owners: Sequence[Prompt],
        **kept: Any,
    ) -> Tensor:
        """Hidden states ``[N, L, H]`` of rows by the model's own attention, masks and, for text, embeddings.

        Args:
            ids_nl: Tokens, padded on the right.
            positions_anl: Their position ids; a model that reads text only makes its own.
            mask_nl: 1 at tokens.
            images: The images of all rows, in order.
            owners: The prompts of the rows, named in errors.
            kept: ``past_key_values`` where what is seen has to be kept, for models with images.
        """
        with self.own_attention():
            if self.family.placeholder(self.model) is None:
                return last_hidden(self.family.backbone(self.model), mask_nl, input_ids=ids_nl)
            embedded = self.embed(ids_nl, images, owners)
            return self.family.plain_forward(self.model, embedded, positions_anl, mask_nl, **kept)

    def _hidden_whole(self, prompts: Sequence[Prompt], batch: Continuations) -> Tensor:
        """`hidden_plain` by the model's own forward, prompt by prompt, for `families.Unknown`."""
        r = batch.ids_bgr.shape[2]
        groups = []
        for prompt, ids_gr, lengths_g in zip(prompts, batch.ids_bgr, batch.lengths_bg, strict=True):
            start = len(prompt.ids)
            rows = torch.cat([prompt.ids.to(self.device).expand(len(ids_gr), -1), ids_gr], dim=1)
            mask = torch.arange(start + r, device=self.device) < (start + lengths_g)[:, None]
            hidden_glh = self.family.whole_forward(self.model, rows, mask.long(), start, prompt.images)
            groups.append(hidden_glh[:, start - 1 : start - 1 + r])
        return torch.stack(groups)


Row = TypeVar("Row", bound=Hashable)

_SCORES_PER_TOKEN = 4096
"""Attention scores of a layer that may exist at a time, for each token of a chunk."""


def scores_at_once(forward: Forward) -> int:
    """How many attention scores of a layer may exist at a time where tokens grow."""
    return _SCORES_PER_TOKEN * forward.chunk


@dataclass(slots=True)
class Heard:
    """Tokens for the ends of some continuations.

    Args:
        ids_bgr: Tokens, padded on the right.
        positions_abgr: Their position ids.
        kept_bg: How many own tokens each continuation has before.
        most: The largest of ``kept_bg``.
        even: Whether all ``kept_bg`` are equal.
        images: The images among the tokens, row by row.
        owners: The prompts of the rows, named in errors.
    """

    ids_bgr: Tensor
    positions_abgr: Tensor
    kept_bg: Tensor
    most: int
    even: bool
    images: Sequence[ImageInput]
    owners: Sequence[Prompt]


def append(forward: Forward, layout: SharedLayout, heard: Heard) -> Iterator[tuple[int, Tensor]]:
    """Put tokens behind continuations, `Forward.chunk` at a time where an image need not stay whole.

    Yields:
        The number of the first token of each chunk, and the chunk's hidden states ``[B, G, chunk, H]``.
    """
    n, m, width = heard.ids_bgr.shape
    family = forward.family
    places_bgr = forward.image_places(heard.ids_bgr)
    features = None
    if heard.images or bool(places_bgr.any()):
        features = forward.features(heard.images, int(places_bgr.sum()), heard.owners)
    # Features are in the order of the placeholders, row by row.
    order_bgr = (places_bgr.flatten().cumsum(0) - 1).view(places_bgr.shape)
    joined_r = (places_bgr[..., 1:] & places_bgr[..., :-1]).flatten(0, 1).any(0).tolist()
    unbroken = joined_r if family.bidirectional_images else [False] * (width - 1)
    for start, end in chunks(unbroken, max(forward.chunk // (n * m), 1)):
        layout.place(heard.kept_bg + start, heard.most + start, heard.even)
        here = slice(start, end)
        wanted = order_bgr[..., here][places_bgr[..., here]]
        part = features[wanted] if features is not None and len(wanted) else None
        yield start, forward.grow(heard.ids_bgr[..., here], heard.positions_abgr[..., here], layout, part)


def chunks(unbroken: Sequence[bool], size: int) -> Iterator[tuple[int, int]]:
    """Cut a row of tokens into chunks of at most ``size``, or of more where it may not be cut earlier.

    Args:
        unbroken: For each token but the first, whether it has to be in the chunk of the one before it.
        size: The tokens of a chunk.

    Yields:
        First tokens, and ends behind the last ones.
    """
    width, start = len(unbroken) + 1, 0
    cuts = [*(place for place, joined in enumerate(unbroken, 1) if not joined), width]
    while start < width:
        place = bisect_right(cuts, start + size)
        end = cuts[place - 1] if place and cuts[place - 1] > start else cuts[place]
        yield start, end
        start = end


def batches(widths: Mapping[Row, tuple[int, int]], tokens: int) -> list[list[Row]]:
    """Share rows of a grid out to batches, such that few tokens are padding.

    The rows of a batch are forwarded as a grid: of each line of the grid that has any of them as many rows as
    the line that has the most, all as long as the longest.

    Args:
        widths: For each row its line of the grid, and how many tokens it has.
        tokens: The largest number of tokens in a batch, padding included; a row that has more is a batch.
    """
    found: list[list[Row]] = []
    counts: dict[int, int] = {}
    # From the shortest to the longest, so that the last one says how long all are.
    for row, (line, width) in sorted(widths.items(), key=lambda item: item[1][1]):
        wider = counts | {line: counts.get(line, 0) + 1}
        if found and len(wider) * max(wider.values()) * width <= tokens:
            found[-1].append(row)
            counts = wider
        else:
            found.append([row])
            counts = {line: 1}
    return found


def prefill(forward: Forward, prompts: Sequence[Prompt]) -> tuple[Tensor, SharedLayout]:
    """Each prompt's last hidden state ``[B, H]`` and the layout that keeps its keys and values.

    Args:
        forward: The model's forward passes.
        prompts: B prompts of any length.
    """
    lengths = [len(prompt.ids) for prompt in prompts]
    if len(prompts) * max(lengths) <= forward.chunk:
        return forward.prefill(prompts)
    whole = SharedLayout("prefill", torch.tensor(lengths, device=forward.device), max(lengths))
    last: dict[int, Tensor] = {}
    for which in batches({i: (i, length) for i, length in enumerate(lengths)}, forward.chunk):
        few = [prompts[i] for i in which]
        fits = len(which) > 1 or lengths[which[0]] <= forward.chunk
        last_bh, part = forward.prefill(few) if fits else _prefill_long(forward, few[0])
        last |= dict(zip(which, last_bh, strict=True))
        for number in [*part.prompt_keys]:
            _keep(whole, number, part.prompt_keys.pop(number), which)
    return torch.stack([last[i] for i in range(len(prompts))]), whole


def _prefill_long(forward: Forward, prompt: Prompt) -> tuple[Tensor, SharedLayout]:
    """`prefill` of one prompt: it grows like a conversation that has no prompt."""
    device, count = forward.device, len(prompt.ids)
    none_b, none_bg = (torch.zeros(shape, dtype=torch.long, device=device) for shape in ((1,), (1, 1)))
    layout = SharedLayout("grow", none_b, 0, scores_at_once=scores_at_once(forward), least_room=count)
    ids, positions = prompt.ids.to(device)[None, None], prompt.positions.to(device)[:, None, None]
    heard = Heard(ids, positions, none_bg, 0, True, prompt.images, [prompt])
    *_, (_, states_bgrh) = append(forward, layout, heard)
    keys = {number: pair[:, :, 0] for number, pair in layout.own_keys.items()}
    lengths_b = torch.tensor([count], device=device)
    return states_bgrh[:, 0, -1], SharedLayout("prefill", lengths_b, count, prompt_keys=keys)


def _keep(whole: SharedLayout, number: int, pair: Tensor, which: Sequence[int]) -> None:
    """Put a layer's keys and values of the prompts ``which`` among those of all prompts."""
    if number not in whole.prompt_keys:
        shape = 2, len(whole.prompt_lengths), pair.shape[2], whole.prompt_width, pair.shape[4]
        whole.prompt_keys[number] = pair.new_zeros(shape)
    whole.prompt_keys[number][:, list(which), :, : pair.shape[3]] = pair
