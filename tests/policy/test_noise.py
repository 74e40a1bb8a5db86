"""What learns is the policy that sampled, whatever a model does otherwise while it learns."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfverify.policy.loading import draw_nothing


class Asking(nn.Module):
    """A layer that asks its settings at every call, as Falcon's do."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_dropout=0.5, model_type="asking")

    def forward(self, values: Tensor) -> Tensor:
        return F.dropout(values, self.config.hidden_dropout, self.training)


@pytest.mark.parametrize(
    "layer", [Asking(), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.InstanceNorm1d(6, track_running_stats=True)]
)
def test_a_layer_gives_the_same_while_it_learns(layer: nn.Module) -> None:
    """Also in a copy, such as a reference; and what it has kept of earlier batches stays."""
    model = nn.Sequential(nn.Identity(), layer)
    draw_nothing(model)
    values = 3 + torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    expected = model.eval()(values)
    before = copy.deepcopy(model.state_dict())
    for learns in (model, copy.deepcopy(model)):
        assert torch.equal(learns.train()(values), expected)
        after = learns.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
