"""Optimizers with float32 masters and with moments per channel, and the learning rate over a run.

`channel_names` and `only` say which channels an optimiser batch has and what of a group one of them learns;
`ApartGradients` keeps gradients of the same parameters apart, one for each channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfverify.core.errors import needs
from selfverify.core.trainer_config import OptimConfig, TrainerConfig
from selfverify.objectives import UNTRAINED
from selfverify.trainer.batch import TokenStreams

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


DECAYING = 0.2
"""The share of the updates in which the rate of `stable_decay` falls."""


def make_optimizer(
    config: OptimConfig, named: Iterable[tuple[str, nn.Parameter]], master_weights: bool = False
) -> torch.optim.Optimizer:
    """Make AdamW over those of the ``named`` parameters that are trained.

    Args:
        config: Names the optimizer, its rates and decays.
        named: The names and parameters of a model.
        master_weights: Whether trained weights of low precision have float32 masters.

    Raises:
        ConfigError: ``learner.optim.name`` needs a package that is not installed.
    """
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    settings: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": config.betas,
        "weight_decay": config.weight_decay,
    }
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    if config.name == "adamw_8bit":
        with needs("learner.optim.name=adamw_8bit needs bitsandbytes", "8bit"):
            from bitsandbytes.optim import AdamW8bit
        make = AdamW8bit
    low = any(parameter.dtype in LOW_PRECISION for _, parameter in trained)
    if config.channels != "joint" or low:
        return ChannelOptimizer(trained, make, settings, master_weights)
    return make(trained, **settings)


def sum_in_float32(parameters: Iterable[nn.Parameter]) -> None:
    """Let autograd sum the gradients of low-precision weights in float32, 4 bytes a value.

    In the weights' own type the sum would be rounded after each pass.
    """
    for parameter in parameters:
        if parameter.dtype in LOW_PRECISION:
            parameter.grad_dtype = torch.float32


def lost_steps(optimizer: torch.optim.Optimizer, learning_rate: float) -> str:
    """Say that steps are mostly lost in the rounding of weights; empty where they are not, or masters exist.

    AdamW changes a weight by about its learning rate. Rounding loses a change of less than half the distance
    to the next number, which is at least a quarter of the type's epsilon times the weight.
    """
    if isinstance(optimizer, ChannelOptimizer) and optimizer.masters:
        return ""
    low = [p for group in optimizer.param_groups for p in group["params"] if p.dtype in LOW_PRECISION]
    if not low:
        return ""
    typical = sum(float(p.detach().abs().sum(dtype=torch.float32)) for p in low) / sum(p.numel() for p in low)
    least = typical * torch.finfo(low[0].dtype).eps / 4
    if learning_rate >= least:
        return ""
    name = str(low[0].dtype).removeprefix("torch.")
    return (
        f"learner.optim.learning_rate={learning_rate:g} is small for {name} weights without masters: a "
        f"typical weight is {typical:.2g}, and rounding loses changes of less than {least:.2g}, so that "
        "most weights will not move. Set policy.master_weights=true, policy.dtype=float32 or policy.lora={}"
    )


def learning_rate_factor(config: TrainerConfig) -> Callable[[int], float]:
    """Return a function from an update's number to its factor on the peak learning rate.

    The factor rises linearly during the warm-up; then it follows ``config.optim.schedule``.
    """
    per_step = config.batch.updates_per_rollout * config.batch.inner_epochs
    total, warmup = config.steps * per_step, config.warmup_steps * per_step

    def factor(update: int) -> float:
        if update < warmup:
            return (update + 1) / warmup
        done = (update - warmup) / max(total - warmup, 1)
        if config.optim.schedule == "linear":
            return max(1.0 - done, 0.0)
        if config.optim.schedule == "stable_decay":
            return min(max((1.0 - done) / DECAYING, 0.0), 1.0)
        if config.optim.schedule == "cosine":
            return float(0.5 * (1 + np.cos(np.pi * min(done, 1.0))))
        return 1.0

    return factor


def channel_names(groups: Sequence[TokenStreams]) -> list[str]:
    """Return the channels that have trained tokens in any of the groups, in the order of the credits."""
    return list(
        dict.fromkeys(
            name
            for group in groups
            for place, name in enumerate(group.channels)
            if bool((group.channel_gr == place).any())
        )
    )


def only(group: TokenStreams, channel: str) -> TokenStreams:
    """Return ``group`` with the tokens of one channel trained, and the choices among these tokens."""
    places = torch.tensor([place for place, name in enumerate(group.channels) if name == channel])
    channel_gr = torch.where(torch.isin(group.channel_gr, places), group.channel_gr, UNTRAINED)
    choices = group.choices
    if choices is None or not bool((channel_gr[choices.rows, choices.places] != UNTRAINED).any()):
        return replace(group, channel_gr=channel_gr, choices=None, choice_weight_m=None)
    return replace(group, channel_gr=channel_gr)


def chosen_alternatives(groups: Sequence[TokenStreams], parts: Sequence[TokenStreams]) -> Tensor:
    """Return ``[M]`` bool: which tokens with choices of all ``groups`` are those of ``parts``."""
    flags = [
        torch.full((len(group.choices.rows),), part.choices is not None)
        for group, part in zip(groups, parts, strict=True)
        if group.choices is not None
    ]
    return torch.cat(flags) if flags else torch.zeros(0, dtype=torch.bool)


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
