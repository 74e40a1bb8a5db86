"""Losses of batches: slices of rows whose gradient stays that of whole groups, and pairs."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from rounding import assert_close, assert_gradients_close
from selfverify.core import ranks
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Alternatives, Credit, Finish, Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.encoding import Prompt
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import TokenStreams, make_streams, pair_weights
from selfverify.trainer.loss import LossComputer, MicroBatch, Slice, micro_batches, row_slices
from tables import yaml_cases
from updating import trainer_config, update


def lengths_only(prompt: int, rows: list[int], owner: int = 0) -> TokenStreams:
    """A group of which only the lengths matter."""
    ids = torch.zeros(prompt, dtype=torch.long)
    shape = (len(rows), max(rows))
    known: Any = Prompt("p", ids, ids[None], prompt, [], [], [])
    zeros = torch.zeros(shape)
    return TokenStreams(known, [[0] * r for r in rows], zeros.long(), zeros, zeros, zeros, owner=owner)


# --- which rows go together -----------------------------------------------------------------------------


def test_slices_by_hand() -> None:
    """Prompt 100. Rows of 1000 and 990 together cost 100 + 2,000; apart twice 100 and twice what a pass costs
    beside its tokens. The row of 10 would cost 990 of padding with them."""
    assert row_slices(lengths_only(100, [1000, 10, 990]), 2500) == [[1], [2, 0]]
    assert row_slices(lengths_only(100, [1000, 10, 990]), 2000) == [[1], [2], [0]]
    assert row_slices(lengths_only(100, [1000, 10, 990]), 50) == [[1], [2], [0]]  # longer rows go alone
    assert row_slices(lengths_only(5000, [1000, 10, 990]), 8000) == [[1, 2, 0]]  # the prompt is the most


def cost(group: TokenStreams, slices: list[list[int]]) -> int:
    lengths = [len(row) for row in group.tokens]
    return sum(256 + len(group.prompt.ids) + len(s) * max(lengths[i] for i in s) for s in slices)


@pytest.mark.parametrize("seed", range(20))
def test_no_cut_of_the_sorted_rows_is_better(seed: int) -> None:
    """Against all 2^(G-1) ways to cut them."""
    noise = torch.Generator().manual_seed(seed)
    rows = torch.randint(1, 2000, (7,), generator=noise).tolist()
    prompt = int(torch.randint(1, 1500, (1,), generator=noise))
    group, budget = lengths_only(prompt, rows), 4000
    found = row_slices(group, budget)
    assert sorted(i for rows in found for i in rows) == list(range(7))
    order = sorted(range(7), key=lambda i: rows[i])
    every = []
    for count in range(7):
        for cuts in combinations(range(1, 7), count):
            edges = [0, *cuts, 7]
            slices = [order[a:b] for a, b in pairwise(edges)]
            if all(len(s) == 1 or prompt + len(s) * rows[s[-1]] <= budget for s in slices):
                every.append(cost(group, slices))
    assert cost(group, found) == min(every)


def test_groups_that_fit_are_joined_as_without_a_budget() -> None:
    groups = [lengths_only(50, [10 * i + 1] * 4) for i in range(7)]
    assert micro_batches(groups, 3, 10_000) == micro_batches(groups, 3)
    assert [[s.group for s in each.slices] for each in micro_batches(groups, 3)] == [
        [0, 1, 2],
        [3, 4, 5],
        [6],
    ]
    # 3 x (50 + 4 x 21) = 402, 2 x (50 + 4 x 41) = 428; the last, 50 + 4 x 61 = 294, fits alone only.
    found = micro_batches(groups, 3, 430)
    assert [[s.group for s in each.slices] for each in found] == [[0, 1, 2], [3, 4], [5], [6]]


def test_only_what_does_not_fit_is_cut() -> None:
    groups = [lengths_only(100, [10, 20]), lengths_only(100, [900, 10, 880]), lengths_only(90, [10, 20])]
    found = micro_batches(groups, 8, 2000)
    assert found == [
        MicroBatch([Slice(2, [0, 1]), Slice(0, [0, 1])]),
        MicroBatch([Slice(1, [1])]),
        MicroBatch([Slice(1, [2, 0])]),
    ]
    assert micro_batches(groups[1:2], 8, 2000, whole=True) == [MicroBatch([Slice(0, [0, 1, 2])])]


def test_all_processes_have_as_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first has three groups that fit, the second one of four slices, the third nothing."""
    groups = [lengths_only(10, [20], 0)] * 3 + [lengths_only(10, [2000, 3000, 4000, 5000], 1)]
    monkeypatch.setattr(ranks, "count", lambda: 3)
    seen = []
    for process in range(3):
        monkeypatch.setattr(ranks, "index", lambda process=process: process)
        seen.append(micro_batches(groups, 2, 100))
    assert [len(passes) for passes in seen] == [4, 4, 4]
    assert [[each.counts for each in passes] for passes in seen] == [
        [True, True, False, False], [True] * 4, [False] * 4
    ]  # fmt: skip
    assert all(len(each.slices) == 1 for passes in seen for each in passes if not each.counts)


# --- the gradient ---------------------------------------------------------------------------------------

LENGTHS = [[3, 40, 17, 38], [25, 2], [9, 9, 8]]


def streams(policy: Policy, images: bool = False) -> list[TokenStreams]:
    """Ragged groups with two channels, KL, choices, a row that is not trained and, if asked, images."""
    task, noise = make_task("digits-pick"), torch.Generator().manual_seed(4)
    prompts = policy.encode([task.problem("train", 0, index) for index in range(len(LENGTHS))])
    found = []
    for number, (prompt, lengths) in enumerate(zip(prompts, LENGTHS, strict=True)):
        rows = [torch.randint(10, 200, (length,), generator=noise).tolist() for length in lengths]
        shown: list[list[Any]] = [[] for _ in rows]
        if images:
            for i in (0, 1):
                pixels = torch.randint(255, (32 + 16 * i, 32, 3), generator=noise, dtype=torch.uint8)
                picture = Image.fromarray(pixels.numpy())
                image = policy.encoder.image(picture, "seen", True)
                words = policy.tokenizer(image.text, add_special_tokens=False)["input_ids"]
                rows[i][2:2] = words
                shown[i] = [picture]
        shape = (len(rows), max(map(len, rows)))
        own = torch.arange(shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
        channel = torch.where(own, (torch.arange(shape[1]) % 3 == 0).long(), -1)
        channel[:, 2:4] = -1
        channel[-1] = -1
        advantage = torch.randn(shape, generator=noise)
        group = TokenStreams(
            prompt, rows, channel, advantage, 0.1 * torch.ones(shape), torch.rand(shape, generator=noise),
            number=number, pictures=shown if images else [],
        )  # fmt: skip
        at = (torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1]))
        advantage[at] = 0.0
        probability = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.1, 0.9, 0.0]])
        worth = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -1.0], [9.0, -1.0, 0.0]])
        group.choices = Alternatives(*at, torch.tensor([[5, 6, 0], [7, 8, 9], [5, 6, 0]]), probability, worth)
        group.choice_weight_m = torch.tensor([1.0, 2.0, 3.0])
        group.prepare_images(policy.encoder)
        found.append(group)
    return found


def drifted(policy: Policy, factor: float) -> Policy:
    other = policy.frozen_copy()
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(factor)
    return other


@yaml_cases
def test_the_gradient_of_slices_is_that_of_groups(
    load_policy: Any, in_float64: Any, settings: dict[str, Any]
) -> None:
    """With KL, choices, weights, log-probs of an older policy and of a reference, in float64."""
    policy = in_float64(load_policy())
    policy.shares_prefix = True
    given = dict(settings)
    groups, reference = streams(policy, given.pop("images", False)), drifted(policy, 0.97)
    old = None
    if given.pop("updates", False):
        older = drifted(policy, 0.99)
        old = [
            older.logprobs([group.prompt], [group.continuations]).detach()[0].float().cpu()
            for group in groups
        ]
    found = []
    for budget in (None, 150, 1):
        assert len(micro_batches(groups, 8, budget)) >= {None: 1, 150: 4, 1: 9}[budget]
        totals = update(policy, groups, reference, old, batch__micro_batch_tokens=budget, **given)
        gradient = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
        found.append((gradient, totals))
    whole, whole_totals = found[0]
    largest = max(float(g.abs().max()) for g in whole.values())
    assert largest > 1e-3
    for sliced, totals in found[1:]:
        assert_gradients_close(sliced, whole)
        assert dict(totals.sums) == pytest.approx(dict(whole_totals.sums), rel=1e-5, abs=1e-6)
        assert totals.largest == pytest.approx(whole_totals.largest, rel=1e-5)


ALONE: Any = type("Alone", (), {"policy": None})
"""Stands for the processes of a run."""


def test_pairs_stay_together() -> None:
    config = trainer_config(batch__micro_batch_tokens=10)
    groups = [lengths_only(5, [30, 40]), lengths_only(5, [30, 40])]
    assert all(
        each.slices[0].rows == [0, 1] for each in LossComputer(ALONE, config, "pairwise").passes(groups)
    )
    assert len(LossComputer(ALONE, config, "surrogate").passes(groups)) == 4


# --- pairs --------------------------------------------------------------------------------------------------


BETA = 0.25
"""Exact in float32, in which coefficients are kept."""


def pair(policy: Policy, index: int, lengths: tuple[int, int], images: bool, weight: float = 1.0) -> Any:
    """A rejected and a chosen trajectory: an action, with an observation between its two parts."""
    task, noise = make_task("digits-pick"), torch.Generator().manual_seed(index)
    problem = task.problem("train", 0, index)
    [prompt] = policy.encode([problem])
    rows = []
    for length in lengths:
        words = torch.randint(10, 200, (length,), generator=noise).tolist()
        shown, pictures = [30, 31], []
        if images:
            pictures = list(task.problem("train", 0, index + 50).images)
            image = policy.encoder.image(pictures[0], "seen", True)
            shown = policy.tokenizer(image.text, add_special_tokens=False)["input_ids"]
        seen = Segment("observation", shown, author="environment", images=pictures)
        said = [Segment("action", words[:3]), seen, Segment("action", words[3:], finish=Finish.STOP)]
        rows.append(Trajectory(said))
    credits = [Credit("action", torch.tensor([-1.0, 1.0]), kl_coef=BETA, weight=weight)]
    streams = make_streams(prompt, Group(problem, rows), credits)
    streams.prepare_images(policy.encoder)
    return streams


def plain_loss(
    policy: Policy, reference: Policy, groups: list[TokenStreams], weights: list[float]
) -> torch.Tensor:
    """DPO's formula on log-probs of each trajectory by itself, from the forward that shares nothing."""
    losses = []
    for group, weight in zip(groups, weights, strict=True):
        gains = []
        for row, own in zip(group.continuations, group.trained_gr, strict=True):
            rows: list[list[Continuation]] = [[row]]
            new = policy.logprobs([group.prompt], rows)[0, 0]
            with torch.no_grad():
                ref = reference.logprobs([group.prompt], rows)[0, 0]
            gains.append((new - ref)[own[: len(new)]].sum())
        losses.append(-weight * F.logsigmoid(BETA * (gains[1] - gains[0])))
    return torch.stack(losses).mean()


def gradients(policy: Policy) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
@pytest.mark.parametrize("size", [1, 8])
def test_loss_and_gradient_are_those_of_the_formula(
    load_policy: Any, in_float64: Any, images: bool, size: int
) -> None:
    policy = in_float64(load_policy())
    policy.shares_prefix = True
    reference = drifted(policy, 0.97)
    groups = [
        pair(policy, 0, (9, 12), images),
        pair(policy, 1, (20, 4), images, 2.0),
        pair(policy, 2, (7, 7), images),
    ]
    settings = {"batch__micro_batch_groups": size, "batch__micro_batch_tokens": 10_000 if size > 1 else 10}
    totals = update(policy, groups, reference, objective="pairwise", **settings)
    ours = gradients(policy)
    policy.model.zero_grad()
    policy.shares_prefix = reference.shares_prefix = False
    expected = plain_loss(policy, reference, groups, [1.0, 2.0, 1.0])
    expected.backward()
    assert_close(totals.sums["loss"], expected)
    theirs = gradients(policy)
    assert max(float(g.abs().max()) for g in theirs.values()) > 1e-3
    assert_gradients_close(ours, theirs)
    logged = totals.metrics()
    assert totals.sums["pairs"] == 3 and 0 <= logged["pairs/accuracy"] <= 1
    assert logged["pairs/margin"] != 0


def test_a_pair_without_one_of_its_trajectories_takes_no_part(load_policy: Any, in_float64: Any) -> None:
    policy = in_float64(load_policy())
    whole, broken = pair(policy, 0, (9, 12), False, 3.0), pair(policy, 1, (20, 4), False)
    broken.channel_gr[0] = -1
    weights = pair_weights([whole, broken])
    assert weights[0].unique().tolist() == [0.0, 3.0] and not weights[1].any()
    reference = drifted(policy, 0.97)
    found = []
    for groups in ([whole, broken], [whole]):
        totals = update(policy, groups, reference, objective="pairwise")
        found.append((totals.sums["loss"], totals.sums["pairs"]))
    assert_close(found[0], found[1])
    assert found[0][1] == 1


def test_groups_that_are_no_pairs_are_errors(load_policy: Any) -> None:
    policy = load_policy()
    group = pair(policy, 0, (9, 12), False)
    with pytest.raises(ValueError, match="reference"):
        update(policy, [group], objective="pairwise")
    with pytest.raises(ValueError, match="a pair is one trajectory"):
        pair_weights([group.take([0])])
    group.advantage_gr[:] = 1.0
    with pytest.raises(ValueError, match=r"digits-pick/train/0/0: a pair is .*\[\[1.0\], \[1.0\]\]"):
        pair_weights([group])
    group.advantage_gr[0] = 0.5
    with pytest.raises(ValueError, match="a pair is one trajectory"):
        pair_weights([group])


@yaml_cases
def test_objectives_that_cannot_be_computed(objective: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LossComputer(ALONE, trainer_config(**settings), objective)
