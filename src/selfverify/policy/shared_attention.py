"""Attention in which the G continuations of a prompt share one copy of it.

A row holds a prompt once and its continuations one after another::

    [ prompt (P) | continuation 1 (R) | continuation 2 (R) | ... | continuation G (R) ]

Linear layers see P + G*R tokens instead of G*(P + R). Attention must keep the continuations apart, so
a continuation's query attends to the prompt's keys and to its own, and one softmax runs over both
parts; the result equals the plain forward of each prompt + continuation. Registered with transformers
under the name in `ATTENTION`, it serves every model that uses the attention interface and hands it nothing
that is not known here. Outside of such passes (`sharing`) it is PyTorch's attention, by transformers' masks.

Flash kernels compute it where they can (`MergedAttention`), else scores are written out
(`two_part_attention`). `ReadOnly` skips what nothing reads in the last layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from selfverify.policy.flash import Flash, Part, Sizes, flash_for, hide
from selfverify.policy.packing import Carrier, Masks, SharedLayout

Pair = tuple[Tensor, Tensor] | Tensor
"""Keys and values."""


def two_part_attention(
    layout: SharedLayout, query: Tensor, prompt: Pair, own: Pair, window: int | None, scale: float
) -> Tensor:
    """One softmax over the prompt's keys and a continuation's own, with scores written out.

    This is for what no flash kernel takes: tokens behind kept ones, sliding windows, images whose tokens see
    each other both ways. Where tokens grow, few scores and masks exist at a time.

    Args:
        layout: Says who sees what, and how many scores may exist at a time.
        query: ``[B, K, N, G, R, D]``: K key heads, N query heads per key head, R new tokens.
        prompt: Keys and values ``[B, K, P, D]``.
        own: Keys and values ``[B, G, K, T, D]``.
        window: The sliding window, or None.
        scale: Factor of the scores.

    Returns:
        ``[B, G, K, N, R, D]``.
    """
    count, keys = query.shape[4], prompt[0].shape[2] + own[0].shape[3]
    size = count
    if layout.scores_at_once is not None:
        per_token = query[..., 0, 0].numel() * keys
        size = min(count, max(layout.scores_at_once // per_token, 1))
    if size == count:
        # The same in every layer with the same window.
        if window not in layout.masks:
            layout.masks[window] = _masks(layout, query, window, 0, count)
        return _attention(query, prompt, own, layout.masks[window], scale)
    out = torch.empty_like(query.permute(0, 3, 1, 2, 4, 5))
    for start in range(0, count, size):
        end = min(start + size, count)
        part = query[..., start:end, :]
        # The tokens behind these are hidden from them, unless an image sees itself both ways.
        seen = own[0].shape[3] - (count - end if layout.own_images is None else 0)
        near = own[0][:, :, :, :seen], own[1][:, :, :, :seen]
        masks = _masks(layout, part, window, start, seen - layout.longest)
        out[..., start:end, :] = _attention(part, prompt, near, masks, scale)
    return out


def same_image(images: Tensor, others: Tensor) -> Tensor:
    """``[..., L]`` and ``[..., M]`` to ``[..., L, M]``: whether two tokens belong to one image."""
    return (images[..., :, None] == others[..., None, :]) & (images[..., :, None] >= 0)


def _masks(layout: SharedLayout, query: Tensor, window: int | None, start: int, new: int) -> Masks:
    """Return the numbers that are added to the scores of new tokens; None where they see everything.

    Args:
        layout: The layout of all R new tokens.
        query: The queries of Q new tokens, as in `two_part_attention`.
        window: The sliding window, or None.
        start: The first of the Q among the R.
        new: How many of the R have a key here.

    Returns:
        ``[B, 1, 1, G or 1, Q or 1, P]`` for the prompt's keys, ``[1 or B, 1, 1, 1 or G, Q, T]`` for a
        continuation's own.
    """
    count, dtype = query.shape[4], query.dtype
    ends = layout.prompt_lengths[:, None, None, None, None, None]
    before = torch.arange(layout.prompt_width, device=query.device)
    prompt = before >= ends if layout.sizes() else None
    first = start + (layout.longest if layout.even else 0)
    if count == new == 1 and window is None and layout.even:
        return None if prompt is None else hide(prompt, dtype), None
    columns = torch.arange(layout.longest + new, device=query.device)
    queries = torch.arange(first, first + count, device=query.device)[:, None]  # [..., Q, 1]
    if not layout.even:
        assert layout.starts is not None
        queries = layout.starts[:, None, None, :, None, None] + queries
    hidden = columns > queries
    if layout.own_images is not None:
        both_ways = _seen_both_ways(layout, layout.own_images, slice(start, start + count), len(columns))
        hidden = hidden & ~both_ways[:, None, None]
    if window is not None:
        hidden = hidden | (queries - columns >= window)
        far = ends + queries - before >= window
        prompt = far if prompt is None else prompt | far
    return None if prompt is None else hide(prompt, dtype), hide(hidden, dtype)


def _seen_both_ways(layout: SharedLayout, images: Tensor, which: slice, columns: int) -> Tensor:
    """``[B, G, Q, columns]`` whether a new token of ``which`` and an own key belong to one image."""
    same = same_image(images[..., which], images)
    if layout.starts is None:
        return same
    b, g, q, r = same.shape
    places = layout.starts[..., None] + torch.arange(r, device=same.device)
    return same.new_zeros(b, g, q, columns).scatter(3, places[:, :, None].expand(b, g, q, r), same)


def _attention(query: Tensor, prompt: Pair, own: Pair, masks: Masks, scale: float) -> Tensor:
    b, k, n, g, q, d = query.shape
    width = prompt[0].shape[2]
    scores_prompt = torch.matmul(query.reshape(b, k, n * g * q, d) * scale, prompt[0].transpose(2, 3))
    scores_prompt = scores_prompt.view(b, k, n, g, q, width)
    # Own keys differ by continuation: bring G beside B, and the N query heads into the rows.
    own_query = query.permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, d) * scale
    scores_own = torch.matmul(own_query, own[0].transpose(3, 4)).view(b, g, k, n, q, -1)
    scores_own = scores_own.permute(0, 2, 3, 1, 4, 5)
    for part, mask in zip((scores_prompt, scores_own), masks, strict=True):
        if mask is not None:
            part.add_(mask)
    scores = torch.cat([scores_prompt, scores_own], dim=-1)
    del scores_prompt, scores_own, part  # each is as large as all that follows
    weights = scores.softmax(dim=-1)
    del scores
    out = torch.matmul(weights[..., :width].reshape(b, k, n * g * q, width), prompt[1]).view(b, k, n, g, q, d)
    own_weights = weights[..., width:].permute(0, 3, 1, 2, 4, 5).reshape(b, g, k, n * q, -1)
    own_out = torch.matmul(own_weights, own[1]).view(b, g, k, n, q, d)
    return own_out + out.permute(0, 3, 1, 2, 4, 5)


@dataclass(slots=True)
class SeenKeys:
    """One set of keys that growing tokens see, for `merged`.

    Args:
        pair: Keys and values, a prompt's ``[B, K, P, D]`` or the continuations' ``[B, G, K, T, D]``.
        sizes: How many there are in each of B or B*G rows; None where all are.
        causal: Whether they are the new tokens' own, of which token r sees the keys 0..r.
    """

    pair: Pair
    sizes: Sizes | None = None
    causal: bool = False


def _attended(flash: Flash, part: Part, shape: torch.Size, own: bool) -> tuple[Tensor, Tensor, Any]:
    """Attention to one part: output and logarithm ``[B, G, K, N, R, *]``, and what a backward pass needs."""
    out, log, rest = flash.forward(part)
    return flash.unrows(out, shape, own), flash.unrows(log.unsqueeze(-1), shape, own), rest


def merged(flash: Flash, query: Tensor, seen: Sequence[SeenKeys], scaling: float) -> Tensor:
    """Attention of new tokens to all that they see; it has no gradients.

    Args:
        flash: The device's kernels.
        query: ``[B, G, K, N, R, D]``: K key heads, N query heads per key head, R new tokens.
        seen: The sets of keys.
        scaling: Factor of the scores.

    Returns:
        ``[B, G, K, N, R, D]``; in memory, of several sets, ``[B, G, R, K, N, D]``.
    """
    found, rows = [], {own: flash.rows(query, own) for own in (False, True)}
    for keys in seen:
        own = keys.pair[0].dim() == 5
        k, v = (x.flatten(0, 1) if own else x for x in keys.pair)
        part = Part(rows[own], k, v, query.shape[4] if keys.causal else 0, keys.sizes, scaling)
        found.append(_attended(flash, part, query.shape, own)[:2])
    out, log = found.pop()
    while found:
        # A part's share of the softmax's denominator. Few calls matter more than a digit of bfloat16.
        other, its = found.pop()
        share = torch.sigmoid(its - log).to(out.dtype)
        if found:
            out, log = torch.lerp(out, other, share), torch.logaddexp(log, its)
        else:
            whole = query.new_empty([query.shape[axis] for axis in (0, 1, 4, 2, 3, 5)])
            out = torch.lerp(out, other, share, out=whole.permute(0, 1, 3, 4, 2, 5))
    return out


class MergedAttention(torch.autograd.Function):
    """Attention of continuations to their prompt's keys and to their own earlier tokens.

    It is one softmax over two sets of keys, by PyTorch's flash attention, without holding its weights.
    Attention over the union of two key sets is the average of the attention over each, weighted by their
    shares of the softmax's denominator; a flash kernel returns the logarithm of its denominator beside its
    output, so two calls and a merge give the whole (ring attention, Liu et al. 2023, merges the same way). In
    the backward pass the same kernel is handed the *merged* output and denominator: a softmax weight is
    exp(score - log of the whole denominator), whichever part the key is in, so each call returns its part's
    exact gradients.

    Call ``MergedAttention.apply(flash, query, prompt_keys, prompt_values, keys, values, sizes, scaling)``.

    Args:
        flash: The device's kernels.
        query: ``[B, G, K, N, R, D]``, see `merged`.
        prompt_keys, prompt_values: ``[B, K, P, D]``.
        keys, values: ``[B, G, K, R, D]``; token r sees own keys 0..r.
        sizes: Of the prompts; None where none is padded.
        scaling: Factor of the scores.

    Returns:
        ``[B, G, K, N, R, D]``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        flash: Flash,
        query: Tensor,
        prompt_keys: Tensor,
        prompt_values: Tensor,
        keys: Tensor,
        values: Tensor,
        sizes: Sizes | None,
        scaling: float,
    ) -> Tensor:
        """See the class."""
        to_prompt, to_own = flash.rows(query, False), flash.rows(query, True)
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
        prompt = Part(to_prompt, prompt_keys, prompt_values, 0, sizes, scaling)
        own = Part(to_own, keys, values, query.shape[4], None, scaling)
        prompt_out, prompt_log, prompt_rest = _attended(flash, prompt, query.shape, False)
        own_out, own_log, own_rest = _attended(flash, own, query.shape, True)
        log = torch.logaddexp(prompt_log, own_log)
        out = (prompt_out * (prompt_log - log).exp()).addcmul_(own_out, (own_log - log).exp())
        out, ctx.rests = out.to(query.dtype), (prompt_rest, own_rest)
        ctx.save_for_backward(to_prompt, to_own, prompt_keys, prompt_values, keys, values, out, log)
        ctx.flash, ctx.sizes, ctx.scaling = flash, sizes, scaling
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of query, keys and values."""
        to_prompt, to_own, prompt_keys, prompt_values, keys, values, out, log = ctx.saved_tensors
        flash: Flash = ctx.flash
        shape = out.shape
        parts = (
            Part(to_prompt, prompt_keys, prompt_values, 0, ctx.sizes, ctx.scaling),
            Part(to_own, keys, values, shape[4], None, ctx.scaling),
        )
        found = []
        for own, part, rest in zip((False, True), parts, ctx.rests, strict=True):
            grad_rows, out_rows, log_rows = (flash.rows(x, own) for x in (grad, out, log))
            found.append(flash.backward(part, grad_rows, out_rows, log_rows.squeeze(-1), rest))
        (q1, *prompt_grads), (q2, *own_grads) = found
        own_grads = [g.unflatten(0, shape[:2]) for g in own_grads]
        query_grad = flash.unrows(q1, shape, False) + flash.unrows(q2, shape, True)
        return None, query_grad, *prompt_grads, *own_grads, None, None


ATTENTION = "selfverify_shared"

_KNOWN = {"dropout", "position_ids", "use_cache", "output_attentions"}
"""Arguments that layers hand to their attention beside those of `shared_attention`; all others change it."""


_sharing = ContextVar("a pass over rows with a layout is running", default=False)


@contextmanager
def sharing() -> Iterator[None]:
    """A context of a pass over rows with a layout, in which no layer may attend without it."""
    token = _sharing.set(True)
    try:
        yield
    finally:
        _sharing.reset(token)


class SharingError(RuntimeError):
    """A model whose prompts cannot be shared; the message says why, as a part of a sentence."""


@dataclass(slots=True)
class _Layer:
    """The arguments of one layer's attention: ``query`` [B, K*N, L, D], ``key`` and ``value`` [B, K, L,
    D]."""

    layout: SharedLayout
    number: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    window: int | None

    def narrow_window(self, longest: int) -> int | None:
        """The sliding window; None where it covers all ``longest`` tokens of the longest row."""
        return None if self.window is None or longest <= self.window else self.window

    def flash(self, window: int | None) -> Flash | None:
        """Flash attention's kernels; None where there are none, or masks are needed that they don't take."""
        return flash_for(self.query) if window is None and self.layout.own_images is None else None


def _prompt_attention(layer: _Layer, group_tokens: int) -> Tensor:
    """The prompts' own attention ``[B, K*N, P, D]``.

    Padding stands right of the prompt, so the causal rule already hides it from the prompt's tokens.
    """
    layout, p = layer.layout, layer.layout.prompt_width
    query, key, value = (x[:, :, :p] for x in (layer.query, layer.key, layer.value))
    n = query.shape[1] // key.shape[1]
    window = layer.narrow_window(p + group_tokens)
    near = None
    if window is not None or layout.prompt_images is not None:
        places = torch.arange(p, device=query.device)
        near = places <= places[:, None]
        if layout.prompt_images is not None:
            near = (near | same_image(layout.prompt_images, layout.prompt_images))[:, None]
        if window is not None:
            near = near & (places[:, None] - places < window)
        if n > 1:
            # With a mask, CUDA's fast kernels don't take fewer key heads than query heads.
            key, value = key.repeat_interleave(n, dim=1), value.repeat_interleave(n, dim=1)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=near,
        is_causal=near is None,
        scale=layer.scale,
        enable_gqa=near is None and n > 1,
    )


def _packed(layer: _Layer) -> Tensor:
    """Prompts and, where there are any, their continuations in one forward."""
    query, key, value, p = layer.query, layer.key, layer.value, layer.layout.prompt_width
    b, heads, length, d = query.shape
    k, g = key.shape[1], layer.layout.continuations
    r = (length - p) // g
    prompt_out = _prompt_attention(layer, r)
    if g * r == 0:
        return prompt_out.transpose(1, 2)
    prompt = key[:, :, :p], value[:, :, :p]
    keys, values = (x[:, :, p:].unflatten(2, (g, r)).transpose(1, 2) for x in (key, value))
    own_query = query[:, :, p:].reshape(b, k, heads // k, g, r, d)
    window = layer.narrow_window(p + r)
    flash = layer.flash(window)
    if flash is None or r == 1:
        own_out = two_part_attention(layer.layout, own_query, prompt, (keys, values), window, layer.scale)
    else:
        by_group, sizes = own_query.permute(0, 3, 1, 2, 4, 5), layer.layout.sizes()
        own_out = MergedAttention.apply(flash, by_group, *prompt, keys, values, sizes, layer.scale)
    return torch.cat([prompt_out.transpose(1, 2), _rows(own_out)], dim=1)


def _grow(layer: _Layer) -> Tensor:
    """The R newest tokens of every continuation behind a kept prompt and the continuation's own tokens."""
    layout, k = layer.layout, layer.key.shape[1]
    b, heads, length, d = layer.query.shape
    g, r = layout.continuations, length // layout.continuations
    new = layer.key.unflatten(2, (g, r)).transpose(1, 2), layer.value.unflatten(2, (g, r)).transpose(1, 2)
    own = layout.add(layer.number, *new)
    query = layer.query.reshape(b, k, heads // k, g, r, d)
    # Without a prompt all tokens are the continuation's own.
    prompt = layout.prompt_keys.get(layer.number, (layer.key[:, :, :0], layer.value[:, :, :0]))
    window = layer.narrow_window(layout.prompt_width + own.shape[4])
    flash = layer.flash(window)
    padded = not layout.even or layout.sizes() is not None
    if flash is None or (r == 1 and not flash.for_one(own.shape[4], padded)):
        return _rows(two_part_attention(layout, query, prompt, own, window, layer.scale))
    seen = [SeenKeys(prompt, layout.sizes())] if layout.prompt_width else []
    if r == 1:
        seen.append(SeenKeys(own, layout.kept_sizes(1)))
    else:
        seen += [SeenKeys(own[..., : layout.longest, :], layout.kept_sizes())] if layout.longest else []
        seen.append(SeenKeys(new, causal=True))
    return _rows(merged(flash, query.permute(0, 3, 1, 2, 4, 5), seen, layer.scale))


def _rows(out: Tensor) -> Tensor:
    """``[B, G, K, N, R, D]`` as ``[B, G*R, K*N, D]``."""
    return out.permute(0, 1, 4, 2, 3, 5).flatten(3, 4).flatten(1, 2)


def check_kinds(config: Any) -> None:
    """Refuse a decoder some of whose layers attend by a rule that is not known here, at all lengths.

    Args:
        config: The decoder's configuration.

    Raises:
        SharingError: Such layers are named.
    """
    kinds = {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    if getattr(config, "attention_chunk_size", None) is not None and not hasattr(config, "layer_types"):
        kinds.add("chunked_attention")
    if kinds:
        raise SharingError(f"some of its layers are of the kind {', '.join(sorted(kinds))}")


def check_layers(decoder: Any, layout: SharedLayout) -> None:
    """Check after a pass that every layer attended through `shared_attention`, with the window of its kind.

    Args:
        decoder: The decoder that ran.
        layout: The layout of the pass.

    Raises:
        SharingError: A layer did not.
    """
    config = decoder.config
    count = max(config.num_hidden_layers, len(getattr(decoder, "layers", ())))
    if missing := [number for number in range(count) if number not in layout.windows]:
        raise SharingError(
            f"{len(missing)} of its {count} layers do not attend through transformers' attention interface"
        )
    for number, kind in enumerate(getattr(config, "layer_types", None) or ()):
        if (layout.windows[number] is None) == (kind == "sliding_attention"):
            raise SharingError(f"layer {number}, a {kind}, has the window {layout.windows[number]}")


def shared_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    shared: Carrier | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    Args:
        module: The layer's attention; its ``layer_idx`` is the layer's number.
        query: ``[B, heads, L, D]``; ``key`` and ``value`` ``[B, key heads, L, D]``, positions applied.
        key: See ``query``.
        value: See ``query``.
        attention_mask: The one element that `Forward` passes; the layout says who sees what.
        scaling: Factor of the scores; None is D ** -0.5.
        shared: The row layout; None in an ordinary batch, whose mask knows the window.
        sliding_window: A token sees itself and the ``sliding_window - 1`` before it; None: all.
        kwargs: The layer's other arguments.

    Returns:
        ``[B, L, heads, D]`` and None (attention weights are not kept).

    Raises:
        SharingError: The layer lost the layout, changed the mask, or asks for what is not known here.
    """
    if shared is None:
        if _sharing.get():
            raise SharingError("its layers do not hand on how rows are laid out")
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if attention_mask is None or attention_mask.numel() != 1:
        raise SharingError("its layers make attention masks of their own")
    unknown = [name for name, given in kwargs.items() if name not in _KNOWN and given is not None]
    if unknown:
        raise SharingError(f"its layers hand their attention {', '.join(unknown)}")
    layout = shared.layout
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    number: int = module.layer_idx  # type: ignore[assignment]
    layout.windows[number] = sliding_window
    # Under autocast rotary embeddings have made queries and keys wider again.
    query, key = query.to(value.dtype), key.to(value.dtype)
    if layout.mode == "prefill":
        # Every new token meets them again: in a layout that is not packed they would be copied each time.
        layout.prompt_keys[number] = torch.stack([key, value])
    layer = _Layer(layout, number, query, key, value, scale, sliding_window)
    # Contiguous like what transformers' own functions return, on which a few models rely.
    return (_grow if layout.mode == "grow" else _packed)(layer).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, shared_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)


class ReadOnly:
    """Hooks on a layer's attention and feed-forward block, for rows with a `SharedLayout`.

    They skip the last decoder layer's feed-forward block for tokens whose output nothing reads. Behind the
    last layer, only the last token of a prompt is read: it predicts the first token of the continuations.
    Other tokens act through the keys and values that the layer's attention makes of them. So the feed-forward
    block, which is most of the layer's cost, gets only the tokens that predict something. Forward and
    backward passes become cheaper, most of all in shallow models and with long prompts. Hidden states that
    are read stay the same. The others lack what the block would add.

    Gradient checkpointing calls both modules again, and with them the hooks. Nothing is kept between calls. A
    deep copy of the model has its own hooks.
    """

    def __init__(self) -> None:
        self._layout: SharedLayout | None = None

    @classmethod
    def install(cls, decoder: Any) -> None:
        """Put the hooks on the last of the decoder's ``layers``, if it has ``self_attn`` and ``mlp``."""
        last = decoder.layers[-1] if getattr(decoder, "layers", None) else None
        attention, block = getattr(last, "self_attn", None), getattr(last, "mlp", None)
        if not isinstance(attention, nn.Module) or not isinstance(block, nn.Module):
            return
        hooks = cls()
        decoder.register_forward_pre_hook(hooks.begin)
        attention.register_forward_pre_hook(hooks.enter, with_kwargs=True)
        block.register_forward_pre_hook(hooks.narrow)
        block.register_forward_hook(hooks.widen)

    def begin(self, decoder: nn.Module, args: tuple[Any, ...]) -> None:
        """Before a pass: forget the layout of one whose block ran before its attention, or that failed."""
        self._layout = None

    def enter(self, attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the layer's attention: note the layout of rows with prompts. Other rows are read whole."""
        layout = kwargs["shared"].layout if kwargs.get("shared") else None
        prompts = layout is not None and layout.mode in ("packed", "prefill")
        self._layout = layout if prompts else None

    def narrow(self, block: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Before the block: ``[B, P + G*R, H]`` to ``[B, 1 + G*R, H]``."""
        if self._layout is None:
            return None
        hidden: Tensor = args[0]
        rows = torch.arange(len(hidden), device=hidden.device)
        last = hidden[rows, self._layout.prompt_lengths - 1].unsqueeze(1)
        return torch.cat([last, hidden[:, self._layout.prompt_width :]], dim=1), *args[1:]

    def widen(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """After the block: back to ``[B, P + G*R, H]``, with zeros for the tokens that were left out."""
        if self._layout is None:
            return None
        layout, self._layout = self._layout, None
        if isinstance(output, tuple):  # experts hand out their routing beside the hidden states
            return self._padded(output[0], layout), *output[1:]
        return self._padded(output, layout)

    @staticmethod
    def _padded(hidden: Tensor, layout: SharedLayout) -> Tensor:
        rows = torch.arange(len(hidden), device=hidden.device)
        prompt = hidden.new_zeros(len(hidden), layout.prompt_width, hidden.shape[2])
        prompt = prompt.index_put((rows, layout.prompt_lengths - 1), hidden[:, 0])
        return torch.cat([prompt, hidden[:, 1:]], dim=1)
