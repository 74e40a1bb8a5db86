"""The processes of one run: which one this is, what they tell each other, who learns from which group.

Outside `accelerate launch` and torchrun there is one process, and everything here is what it would be anyway.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from selfverify.core.errors import SelfVerifyError

T = TypeVar("T")


def start(cpu: bool) -> None:
    """Join the other processes, if a launcher started several. Before a model is loaded."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from accelerate import PartialState

        PartialState(cpu=cpu)


def stop() -> bool:
    """Part from the others when all is done: threads between processes must not outlive the interpreter.

    Returns:
        Whether this is the first process, which tells people what came out.
    """
    first = index() == 0
    if count() > 1:
        gc.collect()  # a wrapper that outlives its group may hang when it goes
        dist.barrier()
        dist.destroy_process_group()
    return first


def count() -> int:
    """How many processes there are."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def index() -> int:
    """Which one this is, from 0."""
    return dist.get_rank() if count() > 1 else 0


def gather(value: T) -> list[T]:
    """Everybody's ``value``, by process. All have to call it."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def on_first(run: Callable[[], T]) -> T:
    """``run()`` by the first process; all get its result. All have to call it.

    Raises:
        SelfVerifyError: The first process raised one; so do the others then.
    """
    if count() == 1:
        return run()
    told: list[Any] = [None, None]
    if index() == 0:
        try:
            told[0] = run()
        except SelfVerifyError as error:
            told[1] = error
    dist.broadcast_object_list(told, src=0)
    if told[1] is not None:
        raise told[1]
    result: T = told[0]
    return result


def everywhere(run: Callable[[], T]) -> T:
    """Call ``run`` in every process and return each process's own result. All processes must call this.

    Raises:
        SelfVerifyError: ``run`` raised one in some process. The first such error is raised in all of them, so
            that none waits for a process that has given up.
    """
    made: list[T] = []
    failed: SelfVerifyError | None = None
    try:
        made.append(run())
    except SelfVerifyError as error:
        failed = error
    for theirs in gather(failed):
        if theirs is not None:
            raise theirs
    return made[0]


def agree(what: str, facts: dict[str, Any]) -> None:
    """Check that all processes hold the same ``facts``. All have to call it.

    Raises:
        SelfVerifyError: They don't; the message names the first fact and the process that differ.
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
    """Who learns from which group, so that the busiest process has little to do.

    Groups stay where they were sampled, and its image is encoded, unless a move shortens the longest queue.

    Args:
        costs: Tokens of each group.
        owners: The process that sampled it.
        processes: How many there are.

    Returns:
        A process for each group; the same for the same arguments.
    """
    owners = list(owners)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == p) for p in range(processes)]
    while True:
        longest, shortest = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[longest] - loads[shortest]
        # What moves leaves both below the longest queue; best is half of the gap.
        movable = [i for i, o in enumerate(owners) if o == longest and costs[i] < gap]
        if not movable:
            return owners
        moved = min(movable, key=lambda i: (abs(gap - 2 * costs[i]), i))
        owners[moved] = shortest
        loads[longest] -= costs[moved]
        loads[shortest] += costs[moved]
