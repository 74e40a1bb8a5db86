"""The processes of one run: their number, what they tell each other, and which learns from which group.

A run that was started without `accelerate launch` and torchrun has one process; all functions allow for that.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from selfverify.core.errors import SelfVerifyError

T = TypeVar("T")

_limit_s = 7200.0
_objects: dist.ProcessGroup | None = None
"""The group in which processes tell each other objects: by gloo, also where tensors go by NCCL, which would
end a run in which one process's rollouts take ten minutes more than another's."""


def start(cpu: bool, timeout_s: float = _limit_s) -> None:
    """Join the run's other processes if a launcher started several. Call this before a model is loaded.

    Args:
        cpu: Whether the processes compute on CPUs.
        timeout_s: How long a process waits for what another one has to tell, in seconds.
    """
    global _limit_s
    _limit_s = timeout_s
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState(cpu=cpu)


def stop() -> bool:
    """Leave the group of processes at the end of a run: its threads must not outlive the interpreter.

    Returns:
        Whether this is process 0, which tells people what came out.
    """
    global _objects
    first, _objects = index() == 0, None
    if count() > 1:
        gc.collect()  # an FSDP or DDP wrapper that is freed after the group may hang
        dist.barrier()
        dist.destroy_process_group()
    return first


def count() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def index() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if count() > 1 else 0


def gather(value: T) -> list[T]:
    """Return every process's ``value``, in the order of the processes. All processes must call this.

    Raises:
        SelfVerifyError: Another process has ended, or has not called this within the limit of `start`.
    """
    global _objects
    if count() == 1:
        return [value]
    if _objects is None:
        try:
            _objects = dist.new_group(backend="gloo", timeout=timedelta(seconds=_limit_s))
        except RuntimeError as error:
            raise SelfVerifyError(
                f"the processes do not reach each other by gloo ({error}); set GLOO_SOCKET_IFNAME to the "
                "network interface that all machines share"
            ) from error
    values: list[Any] = [None] * count()
    try:
        dist.all_gather_object(values, value, group=_objects)
    except RuntimeError as error:
        raise SelfVerifyError(
            f"process {index()} of {count()} has waited in vain for another one, which has ended or is more "
            f"than learner.process_timeout_s={_limit_s:g} seconds behind ({error}); look at its output, and "
            "resume from the newest checkpoint"
        ) from error
    return values


def on_first(run: Callable[[], T]) -> T:
    """Call ``run`` in process 0 and return its result in every process. All processes must call this.

    Raises:
        SelfVerifyError | OSError: ``run`` raised one, which is raised in all processes.
    """
    found: Any = gather(everywhere(lambda: run() if index() == 0 else None))
    first: T = found[0]
    return first


def everywhere(run: Callable[[], T]) -> T:
    """Call ``run`` in every process and return each process's own result. All processes must call this.

    Raises:
        SelfVerifyError | OSError: ``run`` raised one in some process. The first such error is raised in all
            of them, so that none waits for a process that has given up.
    """
    made: list[T] = []
    failed: SelfVerifyError | OSError | None = None
    try:
        made.append(run())
    except (SelfVerifyError, OSError) as error:
        failed = error
    for theirs in gather(failed):
        if theirs is not None:
            raise theirs
    return made[0]


def agree(what: str, facts: dict[str, Any]) -> None:
    """Check that all processes hold the same ``facts``. All processes must call this.

    Raises:
        SelfVerifyError: A process holds another fact; the message names both.
    """
    everyone = gather(facts)
    for number, theirs in enumerate(everyone):
        for name, value in everyone[0].items():
            if theirs.get(name) != value:
                raise SelfVerifyError(
                    f"{what}: process {number} has another {name} ({theirs.get(name)}) than process 0 "
                    f"({value}); start all with the same recipe, on the same data and weights"
                )


def balance(costs: Sequence[int], owners: Sequence[int], processes: int) -> list[int]:
    """Return which process learns from which group, so that the busiest process has as little as possible.

    A group stays with the process that sampled it, which has encoded its images, unless a move shortens the
    longest queue.

    Args:
        costs: The number of tokens of each group.
        owners: The process that sampled each group.
        processes: The number of processes.

    Returns:
        A process for each group; the same for the same arguments.
    """
    owners = list(owners)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == p) for p in range(processes)]
    while True:
        longest, shortest = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[longest] - loads[shortest]
        # A move leaves both below the longest queue; best is half of the gap.
        movable = [i for i, o in enumerate(owners) if o == longest and costs[i] < gap]
        if not movable:
            return owners
        moved = min(movable, key=lambda i: (abs(gap - 2 * costs[i]), i))
        owners[moved] = shortest
        loads[longest] -= costs[moved]
        loads[shortest] += costs[moved]
