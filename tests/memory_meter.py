"""A meter of the bytes that tensors hold, real or on the meta device."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(slots=True, eq=False)
class Span:
    """The bytes at the worst moment of a block."""

    total: int


class Meter(TorchDispatchMode):
    """A context in which every tensor's storage is counted from when it is made until it is freed.

    The memory that a kernel needs besides its results, and the memory that an allocator holds back, are not
    counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self._held: dict[int, int] = {}
        self._spans: list[Span] = []

    @contextmanager
    def span(self) -> Iterator[Span]:
        """Note the worst moment until the end of the block."""
        span = Span(self.live)
        self._spans.append(span)
        try:
            yield span
        finally:
            self._spans.remove(span)

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors, those made outside of the context too."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._held:
                self._held[key] = storage.nbytes()
                weakref.finalize(storage, self._free, key).atexit = False
                self.live += storage.nbytes()
        for span in self._spans:
            span.total = max(span.total, self.live)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            self.hold(tensor for tensor in tree_leaves(out) if isinstance(tensor, Tensor))
        return out

    def _free(self, key: int) -> None:
        self.live -= self._held.pop(key)
