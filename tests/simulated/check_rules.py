"""The simulated device refuses what CUDA refuses, and allows what CUDA allows.

CUDA's rules: the tensors of an operation are on one device. Where PyTorch iterates over elements, a number
may come from the CPU. Indices of the CPU are moved to what they index. A slice takes values from any device.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from simulated.device import load, waits

load()

HERE, OTHER = torch.device("sim:0"), torch.device("sim:1")
X = torch.randn(3, 4)
D = X.to(HERE)
attend = F.scaled_dot_product_attention
IDS, FLAGS = torch.zeros(3, 1, dtype=torch.long), X > 0


REFUSED: dict[str, Callable[[], object]] = {
    "a sum": lambda: D + X,
    "two devices of one kind": lambda: D + X.to(OTHER),
    "a product": lambda: D @ X.T,
    "a layer": lambda: nn.Linear(4, 2)(D),
    "embeddings": lambda: F.embedding(IDS, D),
    "cat": lambda: torch.cat([D, X]),
    "stack": lambda: torch.stack([D, X]),
    "where": lambda: torch.where(D > 0, D, X),
    "masked_fill": lambda: D.masked_fill(FLAGS, 0.0),
    "gather": lambda: D.gather(1, IDS),
    "scatter": lambda: D.scatter(1, IDS, 1.0),
    "index_select": lambda: D.index_select(0, IDS[:, 0]),
    "index_put of values": lambda: D.clone().index_put_((IDS[:, 0],), X),
    "indices of the device": lambda: X[IDS[:, 0].to(HERE)],
    "attention": lambda: attend(D[None], D[None], X[None]),
    "numpy": lambda: D.numpy(),
    "a generator of the CPU": lambda: torch.rand(3, generator=torch.Generator(), device=HERE),
    "a generator of the device": lambda: torch.rand(3, generator=torch.Generator(HERE)),
    "a device that is not there": lambda: torch.zeros(1, device="sim:2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    said = r"(?i)same device|on cpu|device type|to have sim:0 device|should be the same|simulated devices"
    with pytest.raises((RuntimeError, TypeError), match=said):
        REFUSED[name]()


def test_the_host_waits_for_values_only() -> None:
    before = waits()
    _ = (D + D).softmax(-1)[IDS[:, 0]].sum()
    assert waits() == before
    _ = float(D.sum()), D.cpu(), D[D > 0]
    assert waits() == before + 3
