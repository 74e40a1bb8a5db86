"""A policy and its optimizer under accelerate: in one process, or with DDP or FSDP2.

The files on the disk are the same in all cases, so a run may go on with another number of processes. To this
end, weights and the optimizer's state that FSDP2 holds in shards are gathered for checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import DistributedType, LoggerType
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from selfverify.core import ranks
from selfverify.core.errors import ConfigError
from selfverify.policy.policy import Policy
from selfverify.trainer.optim import LOW_PRECISION, ApartGradients, ChannelOptimizer, sum_in_float32


def check_trackers(names: Sequence[str]) -> None:
    """Refuse trackers that accelerate does not know, or would leave out because they are not installed.

    Raises:
        ConfigError: There is one.
    """
    installed = {str(name) for name in get_available_trackers()}
    missing = {str(name) for name in LoggerType.list()} - installed
    for name in names:
        if name not in {*LOGGER_TYPE_TO_CLASS, "all"}:  # the table also holds those that a program registers
            known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
            raise ConfigError(f"learner.log.trackers: there is no tracker {name!r}; there are: all, {known}")
        if name == "all" and not installed:
            raise ConfigError(
                f"learner.log.trackers: of all ({', '.join(sorted(missing - {'all'}))}) none is installed"
            )
        if name in missing - {"all"}:
            raise ConfigError(f"learner.log.trackers: {name} is not installed: pip install {name}")


def make_accelerator(policy: Policy, **settings: Any) -> Accelerator:
    """Make the accelerator of a run. It reads from the environment what a launcher says about processes and
    sharding.

    Raises:
        ConfigError: accelerate's settings ask for DeepSpeed or for gradient accumulation, or one of several
            processes has its policy on another process's device.
    """
    plan = DistributedDataParallelKwargs(
        # A step without images uses no vision tower.
        find_unused_parameters=policy.config.train_vision,
        gradient_as_bucket_view=True,
    )
    accelerator = Accelerator(
        # The policy is where `policy.device` says. accelerate would move it to the process's current device,
        # and the optimizer's counts of steps, which AdamW reads one by one, away from the CPU.
        device_placement=False,
        cpu=policy.device.type == "cpu",
        kwargs_handlers=[plan],
        **settings,
    )
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise ConfigError("this trainer does not run under DeepSpeed: use FSDP2, or verl for large models")
    # accelerate numbers CPUs, too.
    if ranks.count() > 1 and policy.device.type != "cpu" and policy.device != accelerator.device:
        raise ConfigError(
            f"policy.device={policy.config.device}: process {ranks.index()} of {ranks.count()} trains on "
            f"{accelerator.device}, and its policy is on {policy.device}; say auto or cpu"
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps} in accelerate's settings "
            "would divide gradients that are summed here; leave it at 1 and set "
            "learner.batch.micro_batch_groups"
        )
    return accelerator


class Parallel:
    """The trained policy with its optimizer and reference, each wrapped as the launcher asked for.

    Args:
        accelerator: The accelerator of `make_accelerator`.
        policy: The policy that is trained.
        reference: The policy of the KL term; None where there is no KL term.
        optimizer: The optimizer of the policy's parameters.
        max_grad_norm: Gradients with a larger norm are scaled down to it.

    Raises:
        ConfigError: The launcher's settings do not go with this library.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        policy: Policy,
        reference: Policy | None,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
    ) -> None:
        self.max_grad_norm = max_grad_norm
        self.accelerator, self.policy, self.reference, self.raw = accelerator, policy, reference, optimizer
        self._sharded = accelerator.distributed_type == DistributedType.FSDP
        if self._sharded and not accelerator.is_fsdp2:
            raise ConfigError("FSDP of version 1 shards otherwise than this needs; set fsdp_version: 2")
        kind = optimizer.make if isinstance(optimizer, ChannelOptimizer) else type(optimizer)
        if kind is not torch.optim.AdamW and self._sharded:
            raise ConfigError("learner.optim.name=adamw_8bit does not go with FSDP; use adamw")
        self.apart = ApartGradients(lambda: [p for group in optimizer.param_groups for p in group["params"]])
        """This process's gradients of channels that are kept apart."""
        shared = reference is not None and reference.running.root is policy.running.root
        if not self._sharded:  # FSDP2 sums in the type that it reduces in
            sum_in_float32(self.apart.parameters())  # before DDP looks at them
        before = sum(1 for _ in policy.model.parameters())
        policy.running.root, self.optimizer = accelerator.prepare(policy.running.root, optimizer)
        if sum(1 for _ in policy.model.parameters()) != before:
            raise ConfigError(
                "accelerate has parted weights that the model ties; set fsdp_cpu_ram_efficient_loading: false"
            )
        low = any(parameter.dtype in LOW_PRECISION for parameter in self.apart.parameters())
        self._sums_here = low and isinstance(policy.running.root, DistributedDataParallel)
        """Whether gradients are summed over processes here, in float32; DDP sums in the weights' type."""
        if reference is None:
            return
        if shared:
            reference.running.root = policy.running.root
        elif self._sharded:
            from accelerate.utils.fsdp_utils import fsdp2_prepare_model

            reference.running.root = fsdp2_prepare_model(accelerator, reference.running.root)

    def release(self) -> None:
        """Unwrap the policy, so that it computes in its own precision again after the training."""
        self.policy.running.root = self.accelerator.unwrap_model(
            self.policy.running.root, keep_fp32_wrapper=False
        )

    def backward(self, loss: Tensor, channel: str | None = None, more: bool = False) -> None:
        """Add the gradient of ``loss``, which is a share of the sum over all processes.

        Args:
            loss: The loss of one pass, or of one of its channels.
            channel: Where the gradient is added: to what is kept in ``apart`` for this channel. None is the
                parameters' own gradient.
            more: Whether another loss of the same forward pass follows.
        """
        # Wrappers average over processes what is to be summed here.
        loss = loss * ranks.count()
        with nullcontext() if channel is None else self.apart.adding(channel):
            self.accelerator.backward(loss, retain_graph=more)

    def _lend_apart(self, channel: str) -> None:
        """Make the parameters' gradients those that were kept for ``channel``, of all processes."""
        self.apart.lend(channel)
        if isinstance(self.policy.running.root, DistributedDataParallel):
            self._sum_gradients()

    def _sum_gradients(self) -> None:
        """Average the parameters' gradients over the processes, as DDP does."""
        parameters = self.apart.parameters()
        flags = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        flags = flags.to(self.policy.device)
        torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
        for parameter, used in zip(parameters, flags.tolist(), strict=True):
            if used:
                if parameter.grad is None:  # other processes have a gradient here
                    parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= ranks.count()

    def apart_norms(self) -> dict[str, float]:
        """Return the norms of the gradients that are kept apart, by channel, and forget the gradients."""
        norms = {}
        for channel in list(self.apart.kept):
            self._lend_apart(channel)
            gradients = [p.grad for p in self.apart.parameters() if p.grad is not None]
            norms[channel] = _number(torch.nn.utils.get_total_norm(gradients))
        self.raw.zero_grad()
        return norms

    def one_pass(self, last: bool) -> AbstractContextManager[Any]:
        """A context for a forward and a backward pass; in the ``last`` of an update, DDP sums gradients."""
        root = self.policy.running.root
        if not isinstance(root, DistributedDataParallel) or (last and not self._sums_here):
            return nullcontext()
        waiting: AbstractContextManager[None] = root.no_sync()
        return waiting

    def step(self, channel: str = "", rate: float = 1.0, sharers: int = 1) -> float:
        """Clip the gradient, make the update and clear the gradient; return its norm before clipping.

        Where the norm is not finite in some process, no process makes the update: weights, masters and
        moments stay as they are. Gradients of other channels are not concerned.

        Args:
            channel: The channel whose moments are used (`ChannelOptimizer`). If gradients are kept apart for
                this channel, they are the ones that are used.
            rate: The factor on the learning rate.
            sharers: The number of channels that step after the same passes.
        """
        if channel in self.apart.kept:
            self._lend_apart(channel)
        elif self._sums_here:
            self._sum_gradients()
        if isinstance(self.raw, ChannelOptimizer):
            self.raw.take_turn(channel, rate, sharers)
        norm = _number(
            self.accelerator.clip_grad_norm_(list(self.policy.running.root.parameters()), self.max_grad_norm)
        )
        norm = next((each for each in ranks.gather(norm) if not math.isfinite(each)), norm)
        finite = math.isfinite(norm)
        if not finite:
            self.optimizer.zero_grad()
        if finite or self.accelerator.scaler is not None:
            # float16's scaler makes no update by such a gradient; being asked for one it lowers its scale.
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    # --- what a checkpoint holds --------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor] | None:
        """Return a sharded model's whole state on the first process; None where the model is not sharded.

        Every process has to call this.
        """
        if not self._sharded:
            return None
        found: dict[int, Tensor] = {}
        whole = {}
        for name, tensor in self.policy.model.state_dict().items():
            place = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).data_ptr()
            # Tied weights stay one tensor, as `save_pretrained` expects; an empty shard has no place.
            if not place or place not in found:
                found[place] = _whole(tensor)
            whole[name] = found[place]
        return whole


class WholeOptimizer:
    """An optimizer with its state in one piece, which `CheckpointManager` saves and loads.

    Every process has to make one at the same time. The state is gathered then, so that one process can write
    it to the disk by itself.
    """

    def __init__(self, raw: torch.optim.Optimizer) -> None:
        self.raw = raw
        self.param_groups, self.state = raw.param_groups, raw.state
        self._gathered: dict[str, Any] = tree_map(_whole, raw.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return what `torch.optim.Optimizer.state_dict` would return in a run of one process."""
        return self._gathered

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put a state back that was taken from any number of processes."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        kept = {
            number: {name: _like(value, parameters[number]) for name, value in entry.items()}
            for number, entry in state["state"].items()
        }
        self.raw.load_state_dict({**state, "state": kept})


def _number(norm: Any) -> float:
    """Return a norm, which is in pieces where the parameters are."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _whole(value: Any) -> Any:
    """Return a sharded tensor in one piece on the first process, None on others; other values stay."""
    if not isinstance(value, DTensor):
        return value
    full = value.full_tensor()
    return full.cpu() if ranks.index() == 0 else None


def _like(value: Any, parameter: Tensor) -> Any:
    """Return ``value``, in shards if its parameter is in shards and has the same shape."""
    if isinstance(parameter, DTensor) and isinstance(value, Tensor) and value.shape == parameter.shape:
        return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
    return value
