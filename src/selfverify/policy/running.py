"""Where a model computes: inside its root, which wrappers see, in the right mode, with the right adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from selfverify.policy import adapters
from selfverify.policy.root import enter, enter_whole

T = TypeVar("T")

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
