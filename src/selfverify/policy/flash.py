"""PyTorch's flash attention on the CPU and on CUDA, with the logarithm of the softmax's denominator.

Both classes take attention in the shape of `merged_attention`: a query ``[B, G, K, N, R, *]`` of K key
heads, N query heads per key head and G continuations of R tokens, either to the prompt's keys or to its own
earlier tokens. ``rows`` and ``unrows`` bring it into the kernel's shape and back; forward returns the output,
the logarithm ``[..., rows]`` and what backward wants back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

Sizes = Sequence[int] | None
"""True lengths of B prompts whose keys are padded on the right; None where none is."""


class Flash(Protocol):
    """One device's kernels. ``own``: the keys are the continuation's (causal), not the prompt's."""

    def rows(self, x: Tensor, own: bool) -> Tensor:
        """``[B, G, K, N, R, *]`` to ``[batch, heads, rows, *]``."""
        ...

    def unrows(self, x: Tensor, shape: torch.Size, own: bool) -> Tensor:
        """Back to ``shape`` but for its last axis."""
        ...

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, own: int, sizes: Sizes, scale: float
    ) -> tuple[Tensor, Tensor, Any]:
        """Output, logarithm and what `backward` takes as ``rest``; ``own`` is R, or 0 for the prompt."""
        ...

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        log: Tensor,
        rest: Any,
        own: int,
        sizes: Sizes,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, keys and values, for the output and logarithm of the *whole* softmax."""
        ...


class CpuFlash:
    """Takes masks, not fewer key heads than query heads: what shares a key head becomes its rows."""

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    def rows(self, x: Tensor, own: bool) -> Tensor:
        """``[B*G, K, N*R, *]`` or ``[B, K, G*N*R, *]``."""
        return x.flatten(3, 4).flatten(0, 1) if own else x.transpose(1, 2).flatten(2, 4)

    def unrows(self, x: Tensor, shape: torch.Size, own: bool) -> Tensor:
        """See `Flash`."""
        b, g, k, n, r, _ = shape
        return x.view(b, g, k, n, r, -1) if own else x.view(b, k, g, n, r, -1).transpose(1, 2)

    @staticmethod
    def _mask(query: Tensor, keys: Tensor, own: int, sizes: Sizes) -> Tensor | None:
        places = torch.arange(keys.shape[2])
        if own:
            heads = query.shape[2] // own
            if heads == 1:
                return None  # the kernel's own causal rule
            hidden = (places > torch.arange(own)[:, None]).repeat(heads, 1)
        elif sizes is None:
            return None
        else:
            hidden = (places >= torch.tensor(sizes)[:, None])[:, None, None]
        return torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(hidden, torch.finfo(query.dtype).min)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, own: int, sizes: Sizes, scale: float
    ) -> tuple[Tensor, Tensor, Any]:
        """See `Flash`."""
        mask = self._mask(query, keys, own, sizes)
        causal = bool(own) and mask is None
        out, log = self.kernel(query, keys, values, 0.0, causal, attn_mask=mask, scale=scale)
        return out, log, mask

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        log: Tensor,
        rest: Any,
        own: int,
        sizes: Sizes,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Flash`."""
        causal = bool(own) and rest is None
        q, k, v = self.kernel_backward(
            grad, query, keys, values, out, log, 0.0, causal, attn_mask=rest, scale=scale
        )
        return q, k, v


class CudaFlash:
    """Takes fewer key heads than query heads, not masks: padded prompts go one by one, cut to their length.

    A key head's queries are not gathered in one row as on the CPU: backward, the kernel's blocks are
    (keys, query heads), and with two key heads most of the device would idle.
    """

    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward

    def rows(self, x: Tensor, own: bool) -> Tensor:
        """``[B*G, K*N, R, *]`` or ``[B, K*N, G*R, *]``."""
        return (
            x.flatten(2, 3).flatten(0, 1) if own else x.permute(0, 2, 3, 1, 4, 5).flatten(3, 4).flatten(1, 2)
        )

    def unrows(self, x: Tensor, shape: torch.Size, own: bool) -> Tensor:
        """See `Flash`."""
        b, g, k, n, r, _ = shape
        if own:
            return x.reshape(b, g, k, n, r, -1)
        return x.reshape(b, k, n, g, r, -1).permute(0, 3, 1, 2, 4, 5)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, own: int, sizes: Sizes, scale: float
    ) -> tuple[Tensor, Tensor, Any]:
        """See `Flash`."""
        if own or sizes is None:
            out, log, *rest, _ = self.kernel(query, keys, values, 0.0, bool(own), False, scale=scale)
            return out, log, rest
        parts = [
            self.forward(q, k[:, :, :size], v[:, :, :size], 0, None, scale)
            for q, k, v, size in zip(query.split(1), keys.split(1), values.split(1), sizes, strict=True)
        ]
        outs, logs, rests = zip(*parts, strict=True)
        return torch.cat(outs), torch.cat(logs), rests

    def backward(
        self,
        grad: Tensor,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        out: Tensor,
        log: Tensor,
        rest: Any,
        own: int,
        sizes: Sizes,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Flash`."""
        if own or sizes is None:
            lengths, dropout = rest[:4], rest[4:]
            q, k, v = self.kernel_backward(
                grad, query, keys, values, out, log, *lengths, 0.0, bool(own), *dropout, scale=scale
            )
            return q, k, v
        grads = [torch.zeros_like(x) for x in (query, keys, values)]
        for b, size in enumerate(sizes):
            at = slice(b, b + 1)
            found = self.backward(
                grad[at],
                query[at],
                keys[at, :, :size],
                values[at, :, :size],
                out[at],
                log[at],
                rest[b],
                0,
                None,
                scale,
            )
            grads[0][at], grads[1][at, :, :size], grads[2][at, :, :size] = found
        return grads[0], grads[1], grads[2]


def flash_for(query: Tensor) -> Flash | None:
    """The kernels for a tensor like this; None where there are none that give the logarithm."""
    if query.device.type == "cpu":
        return CpuFlash() if query.dtype in (torch.float32, torch.bfloat16) else None
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    if query.device.type != "cuda" or not half or not fits:
        return None
    return CudaFlash() if _runs(query.device) else None


def _runs(device: torch.device) -> bool:
    """Whether this build and this GPU have the kernels of `CudaFlash`."""
    if _assumed.get():
        return True
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)


_assumed = ContextVar("assumed", default=False)


@contextmanager
def assume_cuda() -> Iterator[None]:
    """Inside, a CUDA device is taken to be there and of capability 8.0 or more: to plan for one elsewhere."""
    token = _assumed.set(True)
    try:
        yield
    finally:
        _assumed.reset(token)
