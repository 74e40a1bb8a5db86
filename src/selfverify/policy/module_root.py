"""The module that data-parallel wrappers wrap, and where a model computes.

DDP and FSDP2 hook into one module's ``forward``, while a policy calls parts of its model: the
embeddings, the vision tower, the decoder, the head. So a policy calls these parts inside a `ModuleRoot`,
whose ``forward`` runs any function. A `ModuleRunner` has them compute there in the right mode, with the right
adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from selfverify.policy import adapters

T = TypeVar("T")


class ModuleRoot(nn.Module):
    """Holds the model; ``forward(run)`` returns ``run()``, which computes with it."""

    def __init__(self, model: Any, decoder: nn.Module) -> None:
        super().__init__()
        self.model = model
        # accelerate shards these modules one by one. Every forward pass goes through each decoder layer once.
        # All else is gathered with the root, so that one process may encode more images than another.
        layers = {type(layer).__name__ for layer in getattr(decoder, "layers", ())}
        self._no_split_modules = sorted(layers or model._no_split_modules or ())

    def tie_weights(self) -> None:
        """Tie the model's tied weights again. accelerate calls this after it has cut weights into pieces."""
        self.model.tie_weights()

    def forward(self, run: Callable[[], T]) -> T:
        """Return the result of ``run()``."""
        return run()


def enter(root: nn.Module, run: Callable[[], T]) -> T:
    """Return the result of ``run()``, called inside ``root``, which may be wrapped."""
    if isinstance(root, DistributedDataParallel) and not torch.is_grad_enabled():
        root = root.module  # DDP's own forward synchronises buffers, and not all processes sample at once
    result: T = root(run)
    return result


def enter_whole(root: nn.Module, run: Callable[[], T]) -> T:
    """Return the result of ``run()``, called with all weights in place. Every process has to call this.

    Within ``run`` the processes need not make the same calls: one may sample longer than another.
    """
    sharded = [m for m in root.modules() if isinstance(m, FSDPModule)]
    if not sharded:
        return enter(root, run)

    def unsharded() -> T:
        for module in sharded:
            module.unshard()
            module.set_reshard_after_forward(False, recurse=False)
        try:
            return run()
        finally:
            for module in sharded:
                module.set_reshard_after_forward(module is not root, recurse=False)
                module.reshard()

    return enter(root, unsharded)


Adapter = Literal["learnt", "start", "off"]
"""With which adapter a model computes: the one it has, as it was before training, or none."""


class ModuleRunner:
    """Calls what computes with a model. Calls inside of calls run as they are.

    Args:
        model: The model.
        root: What is wrapped where several processes train.
        adapter: With which adapter it computes, where it has one.
    """

    def __init__(self, model: Any, root: nn.Module, adapter: Adapter = "learnt") -> None:
        self.model, self.root, self.adapter = model, root, adapter
        self._is_inside = False

    def inside(self, run: Callable[[], T]) -> T:
        """The result of ``run()``, called where wrappers of the model see what it computes."""
        return self._enter(run, enter)

    @torch.no_grad()
    def whole(self, run: Callable[[], T]) -> T:
        """The result of ``run()``, called with all weights in place where wrappers hold shards of them.

        ``run`` samples or evaluates. Where several processes train, every one of them has to call this.
        """
        return self._enter(run, enter_whole)

    def infer(self, run: Callable[[], T]) -> T:
        """The result of ``run()``, called inside the root with the model in evaluation mode."""
        with self.evaluating():
            return self.inside(run)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model in evaluation mode."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def _enter(self, run: Callable[[], T], way: Callable[[nn.Module, Callable[[], T]], T]) -> T:
        if self._is_inside:
            return run()
        self._is_inside = True
        try:
            with self._adapted():
                return way(self.root, run)
        finally:
            self._is_inside = False

    def _adapted(self) -> AbstractContextManager[None]:
        if self.adapter == "start":
            return adapters.as_started(self.model)
        return adapters.switched_off(self.model) if self.adapter == "off" else nullcontext()
