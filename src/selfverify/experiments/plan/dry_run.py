"""Runs the real code without weights: a tensor that depends on a weight has a shape and no values.

Inside `DryRun.running`, tensors that are made from nothing but token ids, positions, masks, image grids and
other small tables are computed as always, so code may look into them. Every tensor that depends on a weight
is on PyTorch's meta device: it has a shape and a type, takes no memory and costs no arithmetic. Code that
asks such a tensor for its device is told that it is the CPU, so it chooses as it would there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_any, tree_map

aten = torch.ops.aten
META, CPU = torch.device("meta"), torch.device("cpu")


class DryRun:
    """Runs code without weights, as the module's docstring explains."""

    def __init__(self) -> None:
        self._values = _Values()

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which tensors that depend on weights have no values."""
        with self._values, _Place():
            yield

    @contextmanager
    def weights(self) -> Iterator[None]:
        """A context in which every new floating-point tensor is a weight."""
        self._values.making_weights = True
        yield
        self._values.making_weights = False


CHECKPOINTING = {
    "use_reentrant": False,
    "determinism_check": "none",
    "context_fn": lambda: (nullcontext(), _Place()),
}
"""The arguments of ``torch.utils.checkpoint``. When autograd computes a forward pass again, it does so
outside of function modes, so the mode that names the device is entered again."""


class _Values(TorchDispatchMode):
    """Decides operation by operation whether there are values to compute with."""

    making_weights = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not tree_any(_is_empty, (args, kwargs)) and not self._makes_weight(args, kwargs):
            return func(*args, **({**kwargs, "device": CPU} if "device" in kwargs else kwargs))
        if func in _DRAWS:
            return args[0]
        if func is aten._local_scalar_dense.default:
            # Losses, norms and largest differences go into logs and checks, and never into a shape.
            return torch.zeros((), dtype=args[0].dtype, device=CPU).item()
        if func._schema.is_mutable and isinstance(args[0], Tensor) and not args[0].is_meta:
            return args[0]
        if func in _INDEXED:
            args = (args[0], _without_masks(args[1]), *args[2:])
        args, kwargs = tree_map(_emptied, (args, kwargs))
        if func is aten.masked_scatter_backward.default:
            return args[0].new_empty(args[2])
        return func(*args, **({**kwargs, "device": META} if "device" in kwargs else kwargs))

    def _makes_weight(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not self.making_weights or tree_any(lambda x: isinstance(x, Tensor), (args, kwargs)):
            return False
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return "device" in kwargs and bool(dtype.is_floating_point)


_DRAWS = {aten.uniform_.default, aten.normal_.default}
"""The operations that fill new weights with random values."""

_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}


def _is_empty(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def _emptied(x: Any) -> Any:
    return torch.empty_like(x, device=META) if isinstance(x, Tensor) and not x.is_meta else x


def _without_masks(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Replace boolean masks by indices: the shape of what a mask selects depends on its values."""
    found: list[Tensor | None] = []
    for x in indices:
        mask = x is not None and x.dtype is torch.bool and not x.is_meta
        found += x.nonzero().unbind(1) if mask and x is not None else [x]
    return found


class _Place(TorchFunctionMode):
    """Says that tensors without values are on the CPU, and chooses its kernels."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == _DEVICE:
            return CPU
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is Tensor.cpu:
            return args[0]
        if isinstance(func, OpOverload | OpOverloadPacket):
            return func(*args, **kwargs)
        # `_Values` decides what is computed.
        here = META if func is Tensor.to and args[0].is_meta else CPU
        if func is Tensor.to:
            args = tuple(here if isinstance(x, torch.device | str) else x for x in args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": here}
        return func(*args, **kwargs)


_DEVICE = Tensor.device.__get__


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Run the kernel that PyTorch would take: flash, unless there is dropout or the mask needs a gradient."""
    if dropout_p or (attn_mask is not None and attn_mask.requires_grad):
        plain = aten._scaled_dot_product_attention_math
        out = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    else:
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            attn_mask = query.new_zeros(attn_mask.shape).masked_fill(~attn_mask, float("-inf"))
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        flash = aten._scaled_dot_product_flash_attention_for_cpu
        out = flash(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
    result: Tensor = out[0]
    return result
