"""Several processes train what one trains: DDP and FSDP2, on the CPU with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch

from killed_runs import rows
from selfverify.core import ranks
from served import free_port
from trainer.launched import FOLDERS, Weights, assert_same, launch, saved, trained

Run = tuple[Path, Weights]
"""A run's folder, and the weights after it."""

TOGETHER = {
    "alone": [(), ("vision=1", "text=1"), ("channels=separate",)],
    "ddp": [(), ("vision=1", "text=1"), ("tokens=150",)],
    "fsdp": [(), ("channels=separate",)],
}
"""Settings of runs that one launch makes one after another."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """``ran(way, *settings)``: a run that nobody changes, made once."""
    made: dict[tuple[str, tuple[str, ...], int], Path] = {}

    def run(way: str, *settings: str, processes: int = 2) -> Run:
        if (way, settings, processes) not in made:
            together = TOGETHER[way] if processes == 2 and settings in TOGETHER[way] else [settings]
            folders = {(way, each, processes): tmp_path_factory.mktemp(way) for each in together}
            words = [["+", folder, *key[1]] for key, folder in folders.items()]
            done = launch(way, *chain(*words), processes=processes)
            assert done.returncode == 0, done.stderr[-3000:]
            made.update(folders)
        folder = made[way, settings, processes]
        return folder, saved(folder, way, processes)

    return run


def assert_same_metrics(ours: Path, theirs: Path) -> list[dict[str, float]]:
    """Returns those of the first folder."""
    for mine, other in zip(rows(ours), rows(theirs), strict=True):
        assert mine == pytest.approx(other, rel=1e-4, abs=1e-6)
    return rows(ours)


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_equal_one(way: str, ran: Callable[..., Run]) -> None:
    (ours, weights), (theirs, others) = ran(way), ran("alone")
    assert_same(weights, others)
    assert len(assert_same_metrics(ours, theirs)) == 2


@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_slices_of_rows_keep_processes_in_step(way: str, ran: Callable[..., Run]) -> None:
    """Most rows are passes of their own, so that the processes have unlike numbers of them."""
    assert_same(ran(way, "tokens=150")[1], ran("alone")[1])


@pytest.mark.slow
def test_a_run_goes_on_under_another_wrapper(ran: Callable[..., Run], tmp_path: Path) -> None:
    trained(tmp_path, "fsdp", "steps=1")
    trained(tmp_path, "ddp", "steps=2", "resume=1")
    assert_same(trained(tmp_path, "alone", "steps=3", "resume=1"), ran("alone", "steps=3")[1])


@pytest.mark.parametrize(
    ("way", "processes", "settings"),
    [
        ("ddp", 2, ("vision=1", "text=1")),
        pytest.param("fsdp", 2, ("vision=1", "text=1"), marks=pytest.mark.slow),
        # Three processes on two cores take their time.
        pytest.param("ddp", 3, ("repeat=1", "groups=6"), marks=pytest.mark.slow),
    ],
    ids=["tower under DDP", "tower under FSDP", "a problem twice in a step"],
)
def test_uneven_processes_equal_one(
    way: str, processes: int, settings: tuple[str, ...], ran: Callable[..., Run]
) -> None:
    assert_same(ran(way, *settings, processes=processes)[1], ran("alone", *settings)[1])


@pytest.mark.parametrize("way", [pytest.param("ddp", marks=pytest.mark.slow), "fsdp"])
def test_channels_apart_equal_one_process(way: str, ran: Callable[..., Run]) -> None:
    """Each channel's gradient is summed over the processes."""
    settings = ("channels=separate",)
    (ours, weights), (theirs, others) = ran(way, *settings), ran("alone", *settings)
    assert_same(weights, others)
    assert all(line["grad_norm/score"] > 0 for line in assert_same_metrics(ours, theirs))


SUMS = """
import torch
from selfverify.core import ranks
from selfverify.policy.policy import Policy
from selfverify.trainer.parallel import Parallel, make_accelerator

ranks.start(cpu=True)
torch.manual_seed(ranks.index())
policy = Policy.load("builtin:digits", device="cpu", dtype="bfloat16")
trained = [p for p in policy.model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trained, lr=0.0)
parallel = Parallel(make_accelerator(policy), policy, None, optimizer, 1e9)
exact = [torch.zeros(p.shape) for p in trained]
for parameter, whole in zip(trained, exact):
    parameter.register_hook(lambda grad, whole=whole: [whole.add_(grad)] and None)
for number in range(20):
    with parallel.one_pass(last=number == 19):
        ids = torch.randint(5, 60, (1, 3 + ranks.index()))
        logits = policy.inside(lambda: policy.model(input_ids=ids, use_cache=False).logits)
        parallel.backward((logits.float() * torch.randn(logits.shape)).sum())
everyone = ranks.gather(exact)
wanted = torch.nn.utils.get_total_norm([sum(each) / ranks.count() for each in zip(*everyone)])
assert {p.grad.dtype for p in trained if p.grad is not None} == {torch.float32}
found = parallel.step()
assert abs(found / float(wanted) - 1) < 1e-6, (found, wanted)
ranks.stop()
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_gradients_of_bfloat16_weights_are_summed_in_float32(processes: int) -> None:
    """Over twenty passes and two processes; sums of bfloat16 numbers are off by 1e-3."""
    path = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    count = {"PYTHONPATH": path, "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1"}
    shared = {**os.environ, **count, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SUMS], env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE, text=True,
        )
        for rank in range(processes)
    ]  # fmt: skip
    for process in running:
        said = process.communicate(timeout=240)[1]
        assert process.returncode == 0, said[-2000:]


@pytest.mark.parametrize("seed", range(20))
def test_balancing_never_makes_the_longest_queue_longer(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    costs = torch.randint(1, 1000, (24,), generator=generator).tolist()
    owners = [i % 4 for i in range(24)]

    def longest(shares: list[int]) -> int:
        return max(sum(c for c, s in zip(costs, shares, strict=True) if s == p) for p in range(4))

    shared = ranks.balance(costs, owners, 4)
    assert longest(shared) <= longest(owners)
    # Greedy moves end within the smallest group of the mean.
    assert longest(shared) <= sum(costs) / 4 + max(costs) / 2
