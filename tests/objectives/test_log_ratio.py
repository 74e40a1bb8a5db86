"""Δr and r(τ) of VTS-V, worked by hand, and Proposition A.1 where everything can be enumerated."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from rounding import assert_close
from selfverify.objectives.advantage import step_log_ratios


def test_by_hand() -> None:
    """Two steps of two tokens with an observation between them, and an answer of one token."""
    verifier = torch.tensor([1 / 2, 1 / 4, 1 / 9, 1 / 2, 1 / 8, 3 / 4]).log()
    base = torch.tensor([1 / 4, 1 / 4, 1 / 2, 1 / 4, 1 / 2, 1 / 4]).log()
    found = step_log_ratios(verifier, base, torch.tensor([0, 0, -1, 1, 1, 2]), 3)
    # log 2 + 0; log 2 - log 4; log 3. The observation's 2/9 counts nowhere.
    expected = torch.tensor([math.log(2), -math.log(2), math.log(3)])
    assert found.dtype == torch.float64
    assert_close(found, expected)
    assert_close(found.sum(), math.log(3))


def test_sums_are_float64() -> None:
    """Ten thousand small differences: summed in float32 they would be off in the fourth digit."""
    verifier, base = (torch.full((10_000,), value, dtype=torch.float32) for value in (-7.0, -7.0001))
    found = step_log_ratios(verifier, base, torch.zeros(10_000, dtype=torch.long), 1).item()
    assert found == pytest.approx(10_000 * (float(verifier[0]) - float(base[0])), rel=1e-12)


def test_what_does_not_fit_is_refused() -> None:
    """Other shapes, and a step that is not there; a step without tokens is 0."""
    row = torch.zeros(2)
    with pytest.raises(ValueError, match="shapes"):
        step_log_ratios(row, torch.zeros(3), torch.zeros(2, dtype=torch.long), 1)
    with pytest.raises(ValueError, match="of step 1, and there are 1"):
        step_log_ratios(row, row, torch.tensor([0, 1]), 1)
    assert step_log_ratios(row, row, torch.tensor([-1, -1]), 2).tolist() == [0.0, 0.0]


PLANS, ACTIONS, STEPS = 3, 2, 2
SIZES = [PLANS, ACTIONS] * STEPS + [PLANS]
"""t_1, a_1, t_2, a_2 and the answer t_3; an observation is a function of plan and action, so that the history
of these says all."""
PATHS = list(itertools.product(*(range(size) for size in SIZES)))


def tables(seed: int) -> list[Tensor]:
    """Logits of every choice under every history: ``[histories, choices]`` for each place."""
    generator = torch.Generator().manual_seed(seed)
    heights = [math.prod(SIZES[:n]) for n in range(len(SIZES))]
    return [torch.randn(h, s, generator=generator) for h, s in zip(heights, SIZES, strict=True)]


def path_logprobs(logits: list[Tensor]) -> Tensor:
    """``[paths, places]`` log-probabilities of the choices of every path."""
    columns = []
    for place, table in enumerate(logits):
        row = torch.zeros(len(PATHS), dtype=torch.long)
        for earlier in range(place):
            row = row * SIZES[earlier] + torch.tensor([path[earlier] for path in PATHS])
        columns.append(table.log_softmax(-1)[row, torch.tensor([path[place] for path in PATHS])])
    return torch.stack(columns, dim=1)


def rewards(of: Tensor, base: Tensor, eta: float) -> Tensor:
    """r of every path, times η; Q(s_1) is some constant."""
    step = torch.tensor([0, 0, 1, 1, 2])
    return (
        torch.stack([eta * step_log_ratios(a, b, step, 3).sum() for a, b in zip(of, base, strict=True)]) + 0.7
    )


def objective(of: Tensor, base: Tensor, reward: Tensor, eta: float, action_sign: float) -> Tensor:
    """What Eq. 8 minimises, with the sign of its second KL term as given.

    The expectation over paths of the log-ratios is that of the KL divergences under the histories.
    """
    ratio = of - base
    plans, actions = ratio[:, 0::2].sum(1), ratio[:, 1::2].sum(1)
    return (of.sum(1).exp() * (-reward + eta * plans + action_sign * eta * actions)).sum()


def minimised(base: Tensor, reward: Tensor, eta: float, action_sign: float, start: list[Tensor]) -> Tensor:
    """The paths' log-probabilities at the minimum that gradient descent finds."""
    logits = [table.clone().requires_grad_() for table in start]
    descent = torch.optim.LBFGS(
        logits, max_iter=400, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        descent.zero_grad()
        loss = objective(path_logprobs(logits), base, reward, eta, action_sign)
        loss.backward()
        return loss

    descent.step(closure)
    return path_logprobs(logits).detach()


def test_proposition_a_1() -> None:
    """With r of V_φ' as the reward, the KL-regularised problem is solved by V_φ'.

    So it is with η before both KL terms and a plus before the second one. With Eq. 8's minus V_φ' is not even
    a stationary point.
    """
    eta = 0.5
    wanted, base = path_logprobs(tables(1)), path_logprobs(tables(2))
    reward = rewards(wanted, base, eta)
    found = minimised(base, reward, eta, 1.0, tables(3))
    assert torch.allclose(found.sum(1).exp(), wanted.sum(1).exp(), atol=1e-5)
    best = objective(wanted, base, reward, eta, 1.0)
    for seed in range(4, 24):
        assert objective(path_logprobs(tables(seed)), base, reward, eta, 1.0) > best

    def slope(sign: float) -> float:
        logits = [table.requires_grad_() for table in tables(1)]
        objective(path_logprobs(logits), base, reward, eta, sign).backward()
        return max(float(table.grad.abs().max()) for table in logits if table.grad is not None)

    assert slope(1.0) < 1e-12 < 1e-3 < slope(-1.0)
