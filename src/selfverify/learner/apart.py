"""Gradients of the same parameters that are kept apart, one for each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


class ApartGradients:
    """Keeps a gradient per channel, and lends it to the parameters.

    Args:
        parameters: Returns the trained parameters, which a wrapper may exchange for shards at any time.
    """

    def __init__(self, parameters: Callable[[], Sequence[nn.Parameter]]) -> None:
        self.parameters = parameters
        self.kept: dict[str, list[Tensor | None]] = {}
        """Gradients by channel, one for each parameter; None where there is no gradient."""

    @contextmanager
    def adding(self, channel: str) -> Iterator[None]:
        """A context whose backward passes add to what is kept for ``channel``."""
        self._put(self.kept.get(channel, []))
        yield
        self.kept[channel] = [parameter.grad for parameter in self.parameters()]
        self._put([])

    def lend(self, channel: str) -> None:
        """Make what is kept for ``channel`` the parameters' gradients, and forget it here."""
        self._put(self.kept.pop(channel))

    def _put(self, gradients: Sequence[Tensor | None]) -> None:
        parameters = self.parameters()
        for parameter, gradient in zip(parameters, gradients or [None] * len(parameters), strict=True):
            parameter.grad = gradient
