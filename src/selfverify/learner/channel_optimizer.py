"""Steps weights through float32 masters, and with moments of their own for each channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

LOW_PRECISION = (torch.bfloat16, torch.float16)
"""Types of weights in which an update of 1e-6 is mostly lost: bfloat16 keeps 8 binary digits, float16 11."""

MASTER = "master"
"""The name of a weight's float32 master among its state."""

CHUNK = 2**26
"""The gradients of so many values are turned to float32 at once (256 MiB)."""


class ChannelOptimizer(torch.optim.Optimizer):
    """Steps weights with an inner optimizer per channel, on float32 masters of weights in low precision.

    A master is a float32 copy of a bfloat16 or float16 weight. Gradients are applied to the master, and the
    master is rounded to the weight after each step, so that small steps add up (Micikevicius et al. 2018,
    "Mixed Precision Training", 3.1). Weights of other types are stepped themselves.

    Channels share the weights and the masters. Each channel has its own moments, which are made at its first
    step. `take_turn` says which channel the next `step` is for. Without a call it is the channel ``""``.

    A weight's state holds its ``master`` and the inner optimizers' state. The state's names are
    ``CHANNEL/NAME``, or ``NAME`` alone for the channel ``""``.

    Args:
        named: The names and parameters that are trained.
        make: Makes an inner optimizer of one parameter group.
        settings: The inner optimizer's settings: ``lr``, ``weight_decay``, ...
        masters: Whether weights of low precision have masters.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        make: Callable[..., torch.optim.Optimizer],
        settings: dict[str, Any],
        masters: bool = True,
    ) -> None:
        self.make, self.settings, self.masters = make, settings, masters
        self._stepped: list[nn.Parameter] = []
        """For each weight what is stepped: its master, or a parameter that shares the weight's memory."""
        self._inner: dict[str, torch.optim.Optimizer] = {}
        self._turn = ("", 1.0, 1)
        super().__init__(named, settings)

    def take_turn(self, channel: str, rate: float = 1.0, sharers: int = 1) -> None:
        """Say whose step the next one is.

        Args:
            channel: The channel whose moments are used.
            rate: The factor on the learning rate.
            sharers: The number of channels that step after the same gradients. They share the weight decay
                out, so that weights decay once.
        """
        self._turn = (channel, rate, sharers)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all weights that have a gradient. ``closure`` is not used."""
        channel, rate, sharers = self._turn
        inner = self._inner_of(channel)
        [group], [own] = self.param_groups, inner.param_groups
        own["lr"], own["weight_decay"] = group["lr"] * rate, group["weight_decay"] / sharers
        for chunk in self._chunks():
            for weight, stepped in chunk:
                assert weight.grad is not None
                stepped.grad = weight.grad.to(stepped.dtype)
            inner.step()
            for weight, stepped in chunk:
                stepped.grad = None
                if stepped.dtype != weight.dtype:
                    weight.copy_(stepped)
                self._keep(weight, stepped, channel)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned.

        A weight without a saved master gets one from its present value, so that a checkpoint of a run without
        masters can be gone on with.
        """
        # Torch would cast masters to the type of their weights.
        super().load_state_dict({**state_dict, "state": {}})
        self._stepped, self._inner = [], {}
        for number, (weight, stepped) in enumerate(self._pairs() if state_dict["state"] else ()):
            entry = dict(state_dict["state"].get(number, {}))
            master = entry.pop(MASTER, None)
            if master is not None and stepped.dtype != weight.dtype:
                stepped.data.copy_(master)
            for name, value in entry.items():
                channel, _, key = name.rpartition("/")
                self._inner_of(channel).state[stepped][key] = _placed(value, stepped)
            for channel in self._inner:
                self._keep(weight, stepped, channel)

    def _inner_of(self, channel: str) -> torch.optim.Optimizer:
        if channel not in self._inner:
            self._inner[channel] = self.make([stepped for _, stepped in self._pairs()], **self.settings)
        return self._inner[channel]

    def _pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Return each weight with what is stepped. Wrappers exchange weights, so masters are made late."""
        weights: list[nn.Parameter] = [p for group in self.param_groups for p in group["params"]]
        if not self._stepped:
            self._stepped = [nn.Parameter(w.detach().to(self._dtype(w))) for w in weights]
        return list(zip(weights, self._stepped, strict=True))

    def _dtype(self, weight: Tensor) -> torch.dtype:
        return torch.float32 if self.masters and weight.dtype in LOW_PRECISION else weight.dtype

    def _chunks(self) -> Iterator[list[tuple[nn.Parameter, nn.Parameter]]]:
        """Yield the weights that have gradients, in parts, so that few gradients are held twice."""
        chunk: list[tuple[nn.Parameter, nn.Parameter]] = []
        for weight, stepped in self._pairs():
            if weight.grad is None:
                continue
            if chunk and sum(w.numel() for w, _ in chunk) + weight.numel() > CHUNK:
                yield chunk
                chunk = []
            chunk.append((weight, stepped))
        if chunk:
            yield chunk

    def _keep(self, weight: nn.Parameter, stepped: nn.Parameter, channel: str) -> None:
        """Note the state of one weight where torch looks for it."""
        prefix = f"{channel}/" if channel else ""
        found = {f"{prefix}{key}": value for key, value in self._inner[channel].state[stepped].items()}
        if stepped.dtype != weight.dtype:
            found[MASTER] = stepped.data
        self.state[weight].update(found)


def _placed(value: Any, stepped: Tensor) -> Any:
    """Return a loaded part of the state where its weight is, and moments in the precision of the steps."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return value.to(stepped.device, stepped.dtype if value.is_floating_point() else value.dtype)
