"""Several processes train what one trains: DDP and FSDP2, on the CPU with gloo."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest
import torch

from killed_runs import rows
from selfverify.core import ranks
from trainer.launched import Weights, assert_same, launch, saved, trained

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
