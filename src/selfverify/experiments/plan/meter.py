"""Counts the bytes that tensors hold and the floating-point operations on them, real or empty."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


@dataclass(slots=True, eq=False)
class Span:
    """The memory and the operations between two moments.

    Args:
        peak: The bytes held at the worst moment, by label.
        flops: Floating-point operations of matrix products, convolutions and attention, two per
            multiply-add; causal attention is counted in full.
    """

    peak: dict[str, int] = field(default_factory=dict)
    flops: int = 0

    @property
    def total(self) -> int:
        """The bytes at the worst moment."""
        return sum(self.peak.values())


class Meter(TorchDispatchMode):
    """A context in which every tensor's storage is counted from when it is made until it is freed.

    The memory that a kernel needs besides its results, and the memory that an allocator holds back, are not
    counted.

    Args:
        vocabulary: Tensors whose last dimension is this are labelled ``logits``.
    """

    def __init__(self, vocabulary: int | None = None) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.label = "activations"
        """The label of new storages."""
        self.live: Counter[str] = Counter()
        self._held: dict[int, tuple[str, int]] = {}
        self._spans: list[Span] = []

    @contextmanager
    def span(self, label: str = "activations") -> Iterator[Span]:
        """Count until the end of the block, where new tensors are labelled ``label``."""
        before, self.label = self.label, label
        span = Span(dict(self.live))
        self._spans.append(span)
        try:
            yield span
        finally:
            self._spans.remove(span)
            self.label = before

    def relabel(self, tensors: Iterable[Tensor | None], label: str) -> None:
        """Give ``tensors`` another label. Tensors made outside of the context are counted from now on."""
        for tensor in tensors:
            if tensor is not None:
                self._count(tensor, label, replace=True)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            for tensor in tree_leaves(out):
                if isinstance(tensor, Tensor):
                    self._count(tensor, self.label)
            if self._spans and (flops := count_flops(func, args, kwargs or {}, out)):
                for span in self._spans:
                    span.flops += flops
        return out

    def _count(self, tensor: Tensor, label: str, replace: bool = False) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        held = self._held.get(key)
        if held is not None:
            if replace and held[0] != label:
                self.live[held[0]] -= held[1]
                self.live[label] += held[1]
                self._held[key] = (label, held[1])
            return
        if not replace and label == "activations" and tensor.dim() and tensor.shape[-1] == self.vocabulary:
            label = "logits"
        self._held[key] = (label, storage.nbytes())
        weakref.finalize(storage, self._free, key).atexit = False
        self.live[label] += storage.nbytes()
        total = sum(self.live.values())
        for span in self._spans:
            if total > span.total:
                span.peak = dict(self.live)

    def _free(self, key: int) -> None:
        label, size = self._held.pop(key)
        self.live[label] -= size


def count_flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Return the floating-point operations of one call, by PyTorch's formulas.

    Attention is counted by our own formula, because key heads may be fewer than query heads.
    """
    packet = func._overloadpacket
    name: str = packet.__name__
    if name.startswith("_scaled_dot_product") and "attention" in name:
        # Backward: the gradient comes first, and five products instead of two are made.
        query, key, value = args[1:4] if name.endswith("backward") else args[:3]
        products = query.shape[-1] * (3 if name.endswith("backward") else 1) + value.shape[-1] * (
            2 if name.endswith("backward") else 1
        )
        return int(2 * prod(query.shape[:-1]) * key.shape[-2] * products)
    formula = flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula is not None else 0
