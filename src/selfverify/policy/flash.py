"""PyTorch's flash attention on the CPU and on CUDA, with the logarithm of the softmax's denominator.

`CpuFlash` and `CudaFlash` have the same five methods. Attention has the shape of `MergedAttention`: a query
``[B, G, K, N, R, *]`` of K key heads, N query heads per key head and G continuations of R tokens. The keys
are either the continuation's own earlier tokens (``own``, causal) or the prompt's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

Grads = tuple[Tensor, Tensor, Tensor]


def hide(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """The lowest number where ``hidden``, else 0: rows that see nothing stay finite."""
    return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)


class Sizes:
    """How many of the keys of each row of a batch are there, before padding on the right.

    Args:
        lengths: ``[batch]``.
    """

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths
        self._mask: Tensor | None = None

    @cached_property
    def listed(self) -> list[int]:
        """The lengths on the host, fetched once."""
        return self.lengths.tolist()

    def mask(self, keys: int, dtype: torch.dtype) -> Tensor:
        """``[batch, 1, 1, keys]`` numbers that are added to scores; made once, since layers are alike."""
        if self._mask is None or self._mask.shape[3] != keys or self._mask.dtype != dtype:
            hidden = torch.arange(keys, device=self.lengths.device) >= self.lengths[:, None]
            self._mask = hide(hidden, dtype)[:, None, None]
        return self._mask


@dataclass(frozen=True, slots=True)
class Part:
    """Attention to one set of keys, in a kernel's shape.

    ``own`` is R where the keys are the R tokens' own (causal), else 0. ``sizes`` is None where no row of keys
    is padded.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    own: int
    sizes: Sizes | None
    scale: float


class CpuFlash:
    """The CPU's kernels, which take masks, but need as many key heads as query heads.

    So the queries that share a key head become rows of one head. Where the causal rule holds, whose kernel
    takes no such rows, the key heads are repeated instead.
    """

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

    @staticmethod
    def for_one(keys: int, padded: bool) -> bool:
        """Whether it is the fastest for one token behind ``keys`` own ones, of which some rows have fewer.

        Products of matrices read many keys faster, by a quarter at 3,000 of them.
        """
        return keys <= 512

    def rows(self, x: Tensor, own: bool) -> Tensor:
        """Bring ``[B, G, K, N, R, *]`` into the kernel's shape ``[batch, heads, rows, *]``.

        That is ``[B*G, K, N*R, *]`` with ``own``, else ``[B, K, G*N*R, *]``.
        """
        return x.flatten(3, 4).flatten(0, 1) if own else x.transpose(1, 2).flatten(2, 4)

    def unrows(self, x: Tensor, shape: torch.Size, own: bool) -> Tensor:
        """Bring the result of `rows` back into ``shape``, but for its last axis."""
        b, g, k, n, r, _ = shape
        return x.view(b, g, k, n, r, -1) if own else x.view(b, k, g, n, r, -1).transpose(1, 2)

    @staticmethod
    def _apart(x: Tensor, part: Part) -> Tensor:
        """Rows of query heads that share a key head, ``[batch, K, N*R, ...]``, as heads of their own."""
        return x.unflatten(2, (-1, part.own)).flatten(1, 2) if part.own else x

    @staticmethod
    def _shared(x: Tensor, part: Part) -> Tensor:
        """The inverse of `_apart`."""
        return x.unflatten(1, (part.keys.shape[1], -1)).flatten(2, 3) if part.own else x

    @staticmethod
    def _repeated(part: Part) -> tuple[Tensor, Tensor]:
        """The keys and values, repeated for each query head where those are apart."""
        times = part.query.shape[2] // part.own if part.own else 1
        if times == 1:
            return part.keys, part.values
        return part.keys.repeat_interleave(times, 1), part.values.repeat_interleave(times, 1)

    def forward(self, part: Part) -> tuple[Tensor, Tensor, Any]:
        """Return the output, the logarithm ``[batch, heads, rows]``, and the ``rest`` for `backward`."""
        mask = None if part.sizes is None else part.sizes.mask(part.keys.shape[2], part.query.dtype)
        query, (keys, values) = self._apart(part.query, part), self._repeated(part)
        out, log = self.kernel(query, keys, values, 0.0, bool(part.own), attn_mask=mask, scale=part.scale)
        return self._shared(out, part), self._shared(log, part), mask

    def backward(self, part: Part, grad: Tensor, out: Tensor, log: Tensor, rest: Any) -> Grads:
        """Return the gradients of query, keys and values.

        ``out`` and ``log`` are the output and the logarithm of the *whole* softmax, over both sets of keys.
        """
        grad, query, out, log = (self._apart(x, part) for x in (grad, part.query, out, log))
        causal, scale = bool(part.own), part.scale
        q, *pair = self.kernel_backward(
            grad, query, *self._repeated(part), out, log, 0.0, causal, attn_mask=rest, scale=scale
        )
        k, v = (x.unflatten(1, (part.keys.shape[1], -1)).sum(2) for x in pair)
        return self._shared(q, part), k, v


class CudaFlash:
    """CUDA's kernels, which take fewer key heads than query heads, but no masks.

    So padded prompts go one by one, cut to their lengths. The queries of a key head do not become rows of one
    head as on the CPU: the backward kernel's blocks are (keys, query heads), and with two key heads most of
    the device would idle.
    """

    kernel = torch.ops.aten._scaled_dot_product_flash_attention
    kernel_backward = torch.ops.aten._scaled_dot_product_flash_attention_backward

    @staticmethod
    def for_one(keys: int, padded: bool) -> bool:
        """See `CpuFlash.for_one`; rows of different lengths would go one by one."""
        return not padded

    def rows(self, x: Tensor, own: bool) -> Tensor:
        """Bring ``[B, G, K, N, R, *]`` into the kernel's shape ``[batch, heads, rows, *]``.

        That is ``[B*G, K*N, R, *]`` with ``own``, else ``[B, K*N, G*R, *]``.
        """
        return (
            x.flatten(2, 3).flatten(0, 1) if own else x.permute(0, 2, 3, 1, 4, 5).flatten(3, 4).flatten(1, 2)
        )

    def unrows(self, x: Tensor, shape: torch.Size, own: bool) -> Tensor:
        """Bring the result of `rows` back into ``shape``, but for its last axis."""
        b, g, k, n, r, _ = shape
        if own:
            return x.reshape(b, g, k, n, r, -1)
        return x.reshape(b, k, n, g, r, -1).permute(0, 3, 1, 2, 4, 5)

    @staticmethod
    def _one_by_one(part: Part) -> Iterator[Part]:
        for b, size in enumerate(part.sizes.listed if part.sizes else ()):
            at = slice(b, b + 1)
            keys, values = part.keys[at, :, :size], part.values[at, :, :size]
            yield Part(part.query[at], keys, values, 0, None, part.scale)

    @staticmethod
    def _nothing(part: Part) -> tuple[Tensor, Tensor, Any]:
        """Return the output of `forward` without any key."""
        log = part.query.new_full(part.query.shape[:3], float("-inf"), dtype=torch.float32)
        return torch.zeros_like(part.query), log, None

    def forward(self, part: Part) -> tuple[Tensor, Tensor, Any]:
        """Return the output, the logarithm ``[batch, heads, rows]``, and the ``rest`` for `backward`."""
        if part.sizes is None:
            out, log, *rest, _ = self.kernel(
                part.query, part.keys, part.values, 0.0, bool(part.own), False, scale=part.scale
            )
            return out, log, rest
        rows = (
            self.forward(each) if each.keys.shape[2] else self._nothing(each)
            for each in self._one_by_one(part)
        )
        outs, logs, rests = zip(*rows, strict=True)
        return torch.cat(outs), torch.cat(logs), rests

    def backward(self, part: Part, grad: Tensor, out: Tensor, log: Tensor, rest: Any) -> Grads:
        """Return the gradients of query, keys and values.

        ``out`` and ``log`` are the output and the logarithm of the *whole* softmax, over both sets of keys.
        """
        if part.sizes is None:
            lengths, dropout = rest[:4], rest[4:]
            q, k, v = self.kernel_backward(
                grad,
                part.query,
                part.keys,
                part.values,
                out,
                # The kernel reads its values one after another as [batch, heads, rows], without its strides.
                log.contiguous(),
                *lengths,
                0.0,
                bool(part.own),
                *dropout,
                scale=part.scale,
            )
            return q, k, v
        q, k, v = (torch.zeros_like(x) for x in (part.query, part.keys, part.values))
        for b, each in enumerate(self._one_by_one(part)):
            at, size = slice(b, b + 1), each.keys.shape[2]
            found = self.backward(each, grad[at], out[at], log[at], rest[b])
            q[at], k[at, :, :size], v[at, :, :size] = found
        return q, k, v


Flash = CpuFlash | CudaFlash


def flash_for(query: Tensor) -> Flash | None:
    """Return the kernels for a query of this device, type and width; None where none gives the logarithm."""
    if query.device.type == "cpu":
        return CpuFlash() if query.dtype in (torch.float32, torch.bfloat16) else None
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    if query.device.type != "cuda" or not half or not fits:
        return None
    # Only builds for CUDA have these kernels, and only GPUs since Ampere run them.
    runs = torch.version.cuda is not None and torch.cuda.get_device_capability(query.device) >= (8, 0)
    return CudaFlash() if runs else None
