"""The checks that a policy makes once, before anything relies on its numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.policy.decoding import Head, TokenSampler, not_finite
from selfverify.policy.encoding import Encoder, Prompt
from selfverify.policy.forward import Forward
from selfverify.policy.kv_sessions import SharedKVSession
from selfverify.policy.loading import Loaded
from selfverify.policy.packing import Continuation, Continuations
from selfverify.policy.shared_attention import SharingError, check_kinds

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.25, torch.float16: 0.05}
"""By how much log-probabilities with shared and with plain prompts may differ, by the model's type.

That is the most in float32, and the mean in half precision, where the last bit of a logit may be half of it.
"""


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
    with torch.autocast(forward.device.type, enabled=False), forward.own_attention():
        theirs = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        try:
            if family.shares_prompts:
                places = torch.arange(ids.shape[1], device=forward.device).expand(family.position_axes, 1, -1)
                hidden = forward.plain(ids, places, mask, [], [])
            else:
                hidden = family.whole_forward(model, ids, mask, ids.shape[1], [])
            ours = head.logits(hidden).float()
            worst = float((ours - theirs.float()).abs().max())
            found = f"up to {worst:.2g}"
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
                raise
            ours, worst, found = theirs, math.inf, str(error)
    if bool(ours.isfinite().logical_not().any()):
        raise not_finite(path)
    if not worst <= 10 * TOLERANCE.get(model.dtype, 1e-4):
        raise ConfigError(
            f"policy.path={path}: models of type {model.config.model_type!r} do something to their "
            f"logits that is not known here ({found}), so samples and log-probs would be wrong; "
            "please report the model"
        )


def made_up(loaded: Loaded, banned: Collection[int]) -> tuple[list[Prompt], list[list[list[int]]]]:
    """Two prompts of different lengths and two continuations of each, of six tokens and of two.

    They are the same in every process and at every time, so that all processes come to the same result. The
    first prompt has an image, where the model reads images.

    Args:
        loaded: A model whose family's prompts can be shared.
        banned: See `check_head`.
    """
    model, tokenizer, family = loaded.model, loaded.tokenizer, loaded.family
    size = model.get_input_embeddings().num_embeddings
    plain = sorted({*range(size)} - {*banned, *tokenizer.all_special_ids})
    tokens = [plain[n * len(plain) // 42] for n in range(1, 42)]
    images, shown = [], []
    if family.placeholder(model) is not None:
        images = [Encoder(loaded, 0).image(Image.linear_gradient("L").resize((64, 64)), "made up")]
        shown = tokenizer(images[0].text, add_special_tokens=False)["input_ids"]
    prompts = []
    for name, ids, own in (
        ("first", [*tokens[:10], *shown, *tokens[10:24]], images),
        ("second", tokens[24:33], []),
    ):
        row = torch.tensor(ids)
        positions = family.positions(model, row, own)
        prompts.append(Prompt(f"made up {name}", row, positions, own, int(positions.max()) + 1))
    rest = tokens[33:]
    return prompts, [[rest[:6], rest[6:]], [rest[:1:-1], rest[:2]]]


@torch.no_grad()
def check_merged(adapted: Forward, merged: Forward, banned: Collection[int], path: str) -> None:
    """Compare a model that has an adapter with the model that it was merged to, on a few plain tokens.

    Args:
        adapted: The forward passes of a model with an adapter, in evaluation mode.
        merged: The forward passes of a plain model, in evaluation mode.
        banned: See `check_head`.
        path: The name of the adapter in the error.

    Raises:
        ConfigError: Log-probabilities differ by more than `TOLERANCE` on average. The largest difference of a
            whole vocabulary says less, because merged weights are rounded once more.
    """
    ids, found = _plain_tokens(adapted.model, banned), []
    for forward in (adapted, merged):
        with torch.autocast(ids.device.type, enabled=False), forward.own_attention():
            made = forward.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        found.append(made.logits.float().log_softmax(-1))
    mean = float((found[0] - found[1]).abs().mean())
    if not mean <= TOLERANCE.get(merged.model.dtype, 1e-4):
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
def sharing_agrees(forward: Forward, head: Head, prompts: Sequence[Prompt], batch: Continuations) -> bool:
    """Say whether log-probabilities with shared prompts equal the plain ones: packed, and token by token.

    Args:
        forward: The forward passes of a model in evaluation mode.
        head: The head of the same model.
        prompts: B prompts.
        batch: The continuations of the prompts, without images.

    Returns:
        Whether they are equal, up to `TOLERANCE`. If not, a warning names the model and says why.
    """
    model, mask_bgr = forward.model, batch.mask_bgr

    def logprobs(hidden_bgrh: Tensor) -> Tensor:
        return head.logprobs(hidden_bgrh[mask_bgr], batch.ids_bgr[mask_bgr], 1.0)

    with torch.autocast(forward.device.type, enabled=False):
        plain = logprobs(forward.hidden_plain(prompts, batch))
        try:
            check_kinds(forward.family.backbone(model).config)
            shared = torch.stack(
                [logprobs(forward.hidden_shared(prompts, batch)), _grown(forward, head, prompts, batch)]
            )
        except SharingError as error:
            reason = str(error)
        else:
            gaps = (shared - plain).abs()
            gap = float(gaps.mean() if model.dtype.itemsize == 2 else gaps.max())
            if gap <= TOLERANCE.get(model.dtype, 1e-4):
                return True
            reason = f"log-probs with a shared prompt differ from the plain forward by {gap:.2g}"
    return _sharing_is_off(model, reason)


def _sharing_is_off(model: Any, reason: str) -> bool:
    """Say so in a warning, and return that prompts do not agree."""
    logger.warning(
        "prompts cannot be shared by models of type %r (%s); sharing is off for this model: each sample has "
        "its prompt to itself, in sampling and in learning. Results stay exact, but both become several "
        "times slower and take more memory. Please report the model, the device and the version of torch.",
        model.config.model_type, reason,
    )  # fmt: skip
    return False


def _grown(forward: Forward, head: Head, prompts: Sequence[Prompt], batch: Continuations) -> Tensor:
    """Log-probabilities ``[tokens]`` of what grows behind kept prompts: twice a token, then all others."""
    nothing = torch.zeros(0, dtype=torch.long, device=forward.device)
    b, g, width = batch.ids_bgr.shape
    voice = TokenSampler(head, SamplingConfig(group_size=g, temperature=1.0), nothing, nothing, "checked")
    threads = SharedKVSession(forward, voice, prompts, [0] * b, lambda run: run())
    rows = {
        (i, j): batch.ids_bgr[i, j, : int(batch.lengths_bg[i, j])].tolist()
        for i in range(b)
        for j in range(g)
    }
    parts = [
        threads.append({place: Continuation(row[start:end]) for place, row in rows.items()}, score=True)
        for start, end in ((0, 1), (1, 2), (2, width))
    ]
    return torch.cat([part[place] for place in rows for part in parts]).to(forward.device)


def refused_above(model: Any) -> float:
    """The mean difference of log-probabilities beyond which it is no rounding."""
    kind = model.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else model.dtype
    return max(TOLERANCE.get(dtype, 0.0), 1e-3)


@torch.no_grad()
def check_causal(forward: Forward, head: Head, prompt: Prompt, tokens: Sequence[int], path: str) -> None:
    """Check that log-probabilities do not depend on what stands behind a token.

    Args:
        forward: The forward passes of a model in evaluation mode.
        head: The head of the same model.
        prompt: Any prompt.
        tokens: Three tokens or more that are put behind it.
        path: The name of the model in the error.

    Raises:
        ConfigError: They do.
    """
    batch = Continuations.stack([[tokens, tokens[:2]]], 0, forward.device)
    with torch.autocast(forward.device.type, enabled=False):
        hidden_grh = forward.hidden_plain([prompt], batch)[0, :, :2]
        first, alone = (head.logprobs(hidden, batch.ids_bgr[0, 0, :2], 1.0) for hidden in hidden_grh)
        gap, most = float((first - alone).abs().mean()), refused_above(forward.model)
    if not gap <= most:
        raise ConfigError(
            f"policy.path={path}: models of type {forward.model.config.model_type!r} give a token another "
            f"log-prob once others stand behind it (by {gap:.2g}), so that none of them would be right; take "
            "a model that reads from left to right (docs/models.md)"
        )


GRADIENT_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
"""The most by which gradients with a shared and with a plain prompt may differ, as a share of their norm.

Measured on the built-in model: rounding alone gives 2e-6 in float32 and up to 0.06 in bfloat16; a kernel that
reads denominators in a wrong order gives 0.9 and more.
"""


def gradients_agree(forward: Forward, head: Head, prompt: Prompt, batch: Continuations) -> bool:
    """Say whether gradients with a shared prompt equal the plain ones, on the continuations of one prompt.

    Compared is the gradient of log-probabilities by the embeddings of the prompt's tokens, and by those of
    the continuations'. It passes through the queries, keys and values of every layer, and leaves the weights'
    own gradients and a wrapper's hooks alone. One prompt by itself is laid out in memory as in no batch of
    several. Tokens that the prompt itself predicts are left out: then the prompt's gradient is that of its
    keys and values, as its continuations attend to them, alone.

    Args:
        forward: The forward passes of a model in evaluation mode.
        head: The head of the same model.
        prompt: A prompt.
        batch: Its continuations, two or more of two tokens or more.

    Returns:
        Whether they are equal, up to `GRADIENT_TOLERANCE`. If not, a warning names the model.
    """

    def gradient(run: Callable[[Sequence[Prompt], Continuations], Tensor]) -> Tensor:
        """Return the gradient of weighted log-probabilities by the embeddings that ``run`` looks up."""
        looked_up: list[Tensor] = []

        def hold(module: Any, args: Any, output: Tensor) -> Tensor:
            looked_up.append(output.detach().requires_grad_())
            return looked_up[-1].clone()  # a model may change it in place

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
                [found] = torch.autograd.grad(loss, looked_up[:1])
        finally:
            hook.remove()
        return found.float()

    try:
        with torch.autocast(forward.device.type, enabled=False):
            shared, plain = gradient(forward.hidden_shared), gradient(forward.hidden_plain)
    except SharingError as error:
        reason = f"gradients with a shared prompt: {error}"
    else:
        size, g = len(prompt.ids), batch.ids_bgr.shape[1]
        own = shared[0, size:].unflatten(0, (g, -1))
        wanted = plain[:, :size].sum(0), plain[:, size : size + own.shape[1]]
        pairs = zip((shared[0, :size], own), wanted, strict=True)
        gap = float(torch.stack([(x - y).norm() / y.norm() for x, y in pairs]).max())  # NaN, if any is
        if gap <= GRADIENT_TOLERANCE.get(forward.model.dtype, 1e-3):
            return True
        reason = f"gradients with a shared prompt differ from the plain ones by {gap:.2g} of their norm"
    return _sharing_is_off(forward.model, reason)
