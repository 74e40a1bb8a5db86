"""The checks that a policy makes once, before anything relies on its numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor

from selfverify.core.errors import ConfigError
from selfverify.policy.continuations import Continuations
from selfverify.policy.encoding import Prompt
from selfverify.policy.forward import Forward
from selfverify.policy.head import Head
from selfverify.policy.voice import not_finite

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
"""The most by which log-probabilities with shared and with plain prompts may differ, by the model's type."""


_COMPARED = 512
"""Tokens of a continuation that are compared: a plain forward of long conversations may not fit."""


@torch.no_grad()
def check_head(forward: Forward, head: Head, banned: Collection[int], path: str) -> None:
    """Compare our logits with the model's own on a few plain tokens.

    A model may do something to its logits that `Head` does not know. All samples would then be wrong.

    Args:
        forward: The forward passes of a model in evaluation mode.
        head: The head of the same model.
        banned: Tokens that may mean something to the model, such as placeholders.
        path: The name of the model in the error.

    Raises:
        ConfigError: The logits differ.
        SamplingError: They are not finite.
    """
    model, family = forward.model, forward.family
    ids = _plain_tokens(model, banned)
    mask = torch.ones_like(ids)
    # Under autocast the two ways to the same numbers would round differently.
    with torch.autocast(forward.device.type, enabled=False):
        theirs = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        if family.shares_prompts:
            embedded = forward.embed(ids, [], [])
            places = torch.arange(ids.shape[1], device=forward.device).expand(family.position_axes, 1, -1)
            hidden = family.plain_forward(model, embedded.values_blh, places, mask, embedded.places_bl)
        else:
            hidden = family.whole_forward(model, ids, mask, ids.shape[1], [])
        ours = head.logits(hidden).float()
        worst = float((ours - theirs.float()).abs().max())
    if not bool(ours.isfinite().all()):
        raise not_finite(path)
    if not worst <= 10 * TOLERANCE.get(model.dtype, 1e-4):
        raise ConfigError(
            f"policy.path={path}: models of type {model.config.model_type!r} do something to their "
            f"logits that is not known here (up to {worst:.2g}), so samples and log-probs would be wrong; "
            "please report the model"
        )


@torch.no_grad()
def check_merged(adapted: Any, merged: Any, banned: Collection[int], path: str) -> None:
    """Compare a model that has an adapter with the model that it was merged to, on a few plain tokens.

    Args:
        adapted: A model with an adapter, in evaluation mode.
        merged: A plain model, in evaluation mode.
        banned: See `check_head`.
        path: The name of the adapter in the error.

    Raises:
        ConfigError: Log-probabilities differ by more than `TOLERANCE` on average. The largest difference of a
            whole vocabulary says less, because merged weights are rounded once more.
    """
    ids = _plain_tokens(adapted, banned)
    with torch.autocast(ids.device.type, enabled=False):
        before, after = (
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
            .logits.float()
            .log_softmax(-1)
            for model in (adapted, merged)
        )
    mean = float((before - after).abs().mean())
    if not mean <= TOLERANCE.get(merged.dtype, 1e-4):
        raise ConfigError(
            f"{path}: merged into its model, this adapter gives other log-probs than beside it (on average "
            f"by {mean:.2g}): its kind is not known here; merge it with peft first, and report it"
        )


def _plain_tokens(model: Any, banned: Collection[int]) -> torch.Tensor:
    """Return ``[1, 4]`` ids of tokens that are not ``banned``, on the model's device."""
    vocabulary = range(model.get_input_embeddings().num_embeddings)
    plain = [*islice((token for token in vocabulary if token not in banned), 5, 9)]
    return torch.tensor([plain], device=model.device)


@torch.no_grad()
def sharing_agrees(
    forward: Forward, head: Head, prompts: Sequence[Prompt], batch: Continuations
) -> bool | None:
    """Say whether log-probabilities with shared prompts equal the plain ones, on two prompts of a batch.

    Args:
        forward: The forward passes of a model in evaluation mode.
        head: The head of the same model.
        prompts: B prompts.
        batch: The continuations of the prompts.

    Returns:
        Whether they are equal, up to `TOLERANCE`. If not, a warning names the model. None when there was no
        token to compare.
    """
    few = _beginnings(forward, batch.first(2, 2), _COMPARED)
    with torch.autocast(forward.device.type, enabled=False):
        rows = [
            head.logprobs(run(prompts[:2], few)[few.mask_bgr], few.ids_bgr[few.mask_bgr], 1.0)
            for run in (forward.hidden_shared, forward.hidden_plain)
        ]
    if not len(rows[0]):
        return None
    worst = float((rows[0] - rows[1]).abs().max())
    if worst <= TOLERANCE.get(forward.model.dtype, 1e-4):
        return True
    logger.warning(
        "%s: log-probs with a shared prompt differ from the plain forward by %.2g; "
        "sharing is off for this model, which makes it several times slower. Please report the model.",
        forward.model.config.model_type,
        worst,
    )
    return False


GRADIENT_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
"""The most by which gradients with a shared and with a plain prompt may differ, as a share of their norm.

Measured on the built-in model: rounding alone gives 2e-6 in float32 and up to 0.06 in bfloat16; a kernel that
reads denominators in a wrong order gives 0.9 and more.
"""


_LEARNT = 32
"""Tokens of a continuation whose gradient is compared."""


def gradients_agree(forward: Forward, head: Head, prompt: Prompt, batch: Continuations) -> bool | None:
    """Say whether gradients with a shared prompt equal the plain ones, on two continuations of one prompt.

    Compared is the gradient of log-probabilities by the embeddings of the prompt's tokens, and by those of
    the continuations'. It passes through the queries, keys and values of every layer, and leaves the weights'
    own gradients and a wrapper's hooks alone. One prompt by itself is laid out in memory as in no batch of
    several. Tokens that the prompt itself predicts are left out: then the prompt's gradient is that of its
    keys and values, as its continuations attend to them, alone.

    Args:
        forward: The forward passes of a model in evaluation mode.
        head: The head of the same model.
        prompt: The prompt.
        batch: At least its continuations, first of all.

    Returns:
        Whether they are equal, up to `GRADIENT_TOLERANCE`. If not, a warning names the model. None when there
        was no token to compare.
    """
    few = _beginnings(forward, batch.first(1, 2), _LEARNT)
    if few.ids_bgr.shape[2] < 2:
        return None
    with torch.autocast(forward.device.type, enabled=False):
        shared, plain = (
            _embedding_gradient(forward, head, run, prompt, few)
            for run in (forward.hidden_shared, forward.hidden_plain)
        )
    size, g = len(prompt.ids), few.ids_bgr.shape[1]
    own = shared[0, size:].unflatten(0, (g, -1))
    wanted = plain[:, :size].sum(0), plain[:, size : size + own.shape[1]]
    gap = max(float((x - y).norm() / y.norm()) for x, y in zip((shared[0, :size], own), wanted, strict=True))
    if gap <= GRADIENT_TOLERANCE.get(forward.model.dtype, 1e-3):
        return True
    logger.warning(
        "%s: gradients with a shared prompt differ from the plain ones by %.2g of their norm; "
        "sharing is off for this model, which makes it several times slower. Please report the model, the "
        "device and the version of torch.",
        forward.model.config.model_type,
        gap,
    )
    return False


def _embedding_gradient(
    forward: Forward,
    head: Head,
    run: Callable[[Sequence[Prompt], Continuations], Tensor],
    prompt: Prompt,
    batch: Continuations,
) -> Tensor:
    """Return the gradient of weighted log-probabilities by the embeddings that ``run`` looks up."""
    looked_up: list[Tensor] = []

    def hold(module: Any, args: Any, output: Tensor) -> Tensor:
        looked_up.append(output.detach().requires_grad_())
        return looked_up[-1]

    hook = forward.model.get_input_embeddings().register_forward_hook(hold)
    try:
        with torch.enable_grad():
            wanted_bgr = batch.mask_bgr.clone()
            wanted_bgr[..., 0] = False
            hidden = run([prompt], batch)[wanted_bgr]
            values = head.logprobs(hidden, batch.ids_bgr[wanted_bgr], 1.0)
            # Continuations that weigh the same could be taken for one another.
            weights_g1 = torch.arange(1.0, 1 + batch.ids_bgr.shape[1], device=values.device)[:, None]
            loss = (values * weights_g1.expand(batch.ids_bgr.shape[1:])[wanted_bgr[0]]).sum()
            [gradient] = torch.autograd.grad(loss, looked_up[:1])
    finally:
        hook.remove()
    return gradient.float()


def _beginnings(forward: Forward, batch: Continuations, tokens: int) -> Continuations:
    """Return at most the first ``tokens`` of each continuation, up to an image that would be cut."""
    places_bgr = forward.image_places(batch.ids_bgr).cpu()
    lengths_bg = batch.lengths_bg.clamp(max=tokens).clone()
    images = [[[*own] for own in group] for group in batch.images]
    for i, group in enumerate(batch.images):
        for j, own in enumerate(group):
            where = places_bgr[i, j].nonzero().flatten().tolist()
            ends = [*accumulate(image.placeholders for image in own)]
            if len(where) != (ends[-1] if ends else 0):
                return batch  # a forward pass says what is wrong
            whole = sum(1 for end in ends if where[end - 1] < tokens)
            images[i][j] = own[:whole]
            if whole < len(own):
                first = where[ends[whole - 1] if whole else 0]
                lengths_bg[i, j] = lengths_bg[i, j].clamp(max=first)
    width = max(int(lengths_bg.max()), 1)
    return Continuations(batch.ids_bgr[..., :width], lengths_bg, images)
