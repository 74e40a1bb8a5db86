"""Sampling: the tokens follow the model's distribution, and nothing else in the batch matters."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TopPLogitsWarper

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample, TokenSampler, pick_tokens, uniform_draws
from selfverify.policy.flash import CpuFlash
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny
from tiny_models import boosted

FREE = SamplingConfig(group_size=4, top_p=1.0, max_new_tokens=10)


def as_tuples(samples: list[Any]) -> list[tuple[list[int], list[float], str]]:
    return [(s.tokens, s.logprobs, s.finish) for s in samples]


def test_first_token_follows_the_softmax(policy: Policy, raw: Any, problems: list[Problem]) -> None:
    problem, draws = problems[0], 4000
    sampling = SamplingConfig(group_size=draws, temperature=0.8, top_p=1.0, max_new_tokens=1)
    [samples] = policy.sample(policy.encode([problem]), sampling, seeds=[11])
    logits = raw.logits(problem, [0])[0] / 0.8
    logits[policy.suppressed_tokens] = float("-inf")
    counts = torch.bincount(torch.tensor([s.tokens[0] for s in samples]), minlength=len(logits))
    expected = logits.softmax(-1).double() * draws
    common = expected >= 5
    found = [*counts[common].tolist(), int(counts[~common].sum())]
    wanted = torch.cat([expected[common], expected[~common].sum()[None]])
    assert len(found) > 20
    assert chisquare(found, (wanted * draws / wanted.sum()).tolist()).pvalue > 0.01


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99])
def test_nucleus_is_that_of_transformers(top_p: float) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = 3 * torch.randn(8, 30, generator=generator)
    warped = TopPLogitsWarper(top_p=top_p)(torch.zeros(8, 1, dtype=torch.long), logits.clone())
    grid = (torch.arange(2000) + 0.5) / 2000
    picked, _ = pick_tokens(logits[:, None].expand(8, 2000, 30), grid.expand(8, 2000), 1.0, top_p)
    shares = torch.stack([torch.bincount(row, minlength=30) for row in picked]) / 2000
    # Evenly spaced uniforms give every token its probability to within one step of the grid.
    torch.testing.assert_close(shares, warped.softmax(-1), rtol=0, atol=1.01 / 2000)
    assert bool((shares[warped.isinf()] == 0).all())


def test_the_ends_of_the_unit_interval_are_inside_the_nucleus() -> None:
    logits = torch.tensor([[2.0, 1.0, -9.0, 0.5, -9.0]]).expand(3, 5)
    ends = torch.tensor([0.0, 1.0 - 2**-24, 1.0])
    assert pick_tokens(logits, ends, 1.0, 0.95)[0].tolist() == [0, 3, 3]


def test_samples_do_not_depend_on_batch_companions_or_limits(policy: Policy, problems: list[Problem]) -> None:
    """A shorter limit cuts samples off, a smaller group leaves samples out; neither changes a token."""
    prompts = policy.encode(problems)
    together = policy.sample(prompts, FREE, seeds=[5, 6, 7])
    for b, seed in enumerate([5, 6, 7]):
        [alone] = policy.sample([prompts[b]], FREE, seeds=[seed])
        assert [s.tokens for s in alone] == [s.tokens for s in together[b]]
    turned = policy.sample(prompts[::-1], FREE, seeds=[7, 6, 5])
    assert [[s.tokens for s in g] for g in turned[::-1]] == [[s.tokens for s in g] for g in together]
    less = FREE.model_copy(update={"group_size": 2, "max_new_tokens": 4})
    for group, cut in zip(together, policy.sample(prompts, less, seeds=[5, 6, 7]), strict=True):
        assert [s.tokens[:4] for s in group[:2]] == [s.tokens for s in cut]


def test_a_watcher_sees_what_is_drawn_and_changes_nothing(policy: Policy, problems: list[Problem]) -> None:
    """Each token in order, each finished sample once; those of a prompt that was given up are not told of."""
    told: dict[tuple[int, int], list[int]] = {}
    ended: dict[tuple[int, int], Sample] = {}

    class Seen:
        def token(self, place: tuple[int, int], token: int) -> None:
            told.setdefault(place, []).append(token)

        def ended(self, place: tuple[int, int], sample: Sample) -> None:
            assert place not in ended
            ended[place] = sample

    sampling = FREE.model_copy(update={"group_size": 8, "max_new_tokens": 40})
    prompts, seeds = policy.encode(problems[:2]), [3, 4]
    plain = policy.sample(prompts, sampling, seeds=seeds)
    seen = policy.sample(prompts, sampling, seeds=seeds, watcher=Seen())
    assert [as_tuples(row) for row in seen] == [as_tuples(row) for row in plain]
    assert {s.finish for row in plain for s in row} == {Finish.STOP, Finish.LENGTH}
    assert ended == {(b, g): sample for b, row in enumerate(plain) for g, sample in enumerate(row)}
    assert told == {place: sample.tokens for place, sample in ended.items()}
    ended.clear()
    policy.sample(prompts, sampling, seeds=seeds, watcher=Seen(), given_up=lambda: [0])
    assert {b for b, _ in ended} == {1}


def test_same_seed_same_bits_and_other_seed_other_samples(policy: Policy, problems: list[Problem]) -> None:
    prompts = policy.encode(problems)
    first = [as_tuples(g) for g in policy.sample(prompts, FREE, seeds=[1, 2, 3])]
    torch.manual_seed(99)
    assert [as_tuples(g) for g in policy.sample(prompts, FREE, seeds=[1, 2, 3])] == first
    other = [as_tuples(g) for g in policy.sample(prompts, FREE, seeds=[4, 2, 3])]
    assert other[0] != first[0] and other[1:] == first[1:]


def test_a_samples_draws_depend_on_its_seed_place_and_turn_alone() -> None:
    numbers = [uniform_draws(seed, g, turn, 6) for seed in (3, 4) for g in range(5) for turn in (0, 1)]
    assert numbers[-1].dtype == torch.float64 and torch.cat(numbers).unique().numel() == 120
    assert torch.equal(uniform_draws(4, 4, 1, 4), numbers[-1][:4])


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_last_bits_of_logits_hardly_change_what_is_drawn(top_p: float) -> None:
    """Pairs of tokens of almost the same probability, whose order the last bits decide."""
    generator = torch.Generator().manual_seed(4)
    pairs = torch.randn(64, 200, generator=generator).repeat(1, 2)
    left, right = (pairs + 2e-7 * torch.randn(64, 400, generator=generator) for _ in range(2))
    drawn = torch.rand(64, generator=generator, dtype=torch.float64)
    for temperature in (0.7, 1.0):
        picked = [pick_tokens(logits, drawn, temperature, top_p)[0] for logits in (left, right)]
        assert int((picked[0] != picked[1]).sum()) <= 1


def test_long_nuclei_are_drawn_from_beside_short_ones() -> None:
    """Only the former are looked at in full; the suppressed token is the likeliest of all."""
    stop, hidden = torch.tensor([7, 8]), torch.tensor([3])
    voice = TokenSampler(Any, SamplingConfig(top_p=0.9, temperature=0.7), stop, hidden, "")
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(2, 50, 300, generator=generator) * torch.tensor([0.1, 20.0])[:, None, None]
    logits[..., 3], logits[:, 0, 7] = 200.0, 150.0
    drawn = torch.rand(2, 50, generator=generator, dtype=torch.float64)
    tokens, logprobs, ends = voice.pick(logits, drawn)
    whole, _ = pick_tokens(logits.index_fill(-1, hidden, float("-inf")), drawn, 0.7, 0.9)
    assert torch.equal(tokens, whole) and len(tokens[0].unique()) > 30
    assert ends[:, 0].all() and torch.equal(ends, torch.isin(whole, stop))
    torch.testing.assert_close(logprobs, (logits / 0.7).log_softmax(-1).gather(-1, whole[..., None])[..., 0])


class Kernels(TorchDispatchMode):
    """Counts the calls that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not func.is_view and not {"view", "empty"} & {*re.split(r"[._]", str(func))}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("flash", "most"), [(True, 40), (False, 46)], ids=["flash", "scores"])
def test_kernels_of_a_token(tmp_path: Path, flash: bool, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of padded prompts: in a layer, by flash attention and with scores written out, and beside layers."""
    monkeypatch.setattr(CpuFlash, "for_one", staticmethod(lambda keys, padded: flash))
    more = []
    for layers in (1, 2):
        folder = write_tiny(tmp_path / str(layers), hidden=192, layers=layers)
        policy = Policy.load(str(folder), device="cpu")
        prompts = policy.encode([make_task("digits-pick").problem("train", 0, index) for index in range(3)])
        assert len({len(prompt.ids) for prompt in prompts}) > 1
        calls = []
        for tokens in (1, 2, 3):  # the first, in which a model checks itself, does not count
            sampling = SamplingConfig(group_size=4, top_p=1.0, max_new_tokens=tokens)
            with Kernels() as kernels:
                groups = policy.sample(prompts, sampling, seeds=range(3))
            assert all(len(sample.tokens) == tokens for group in groups for sample in group)
            calls.append(kernels.calls)
        more.append(calls[2] - calls[1])
    layer = more[1] - more[0]
    assert layer <= most
    assert more[0] - layer <= 61


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_image_tokens_are_never_sampled(
    load_policy: Any, problems: list[Problem], token: str, temperature: float
) -> None:
    policy = boosted(load_policy(), 1e3, token)
    sampling = SamplingConfig(group_size=4, temperature=temperature, top_p=1.0, max_new_tokens=5)
    groups = policy.sample(policy.encode(problems), sampling, seeds=[1, 2, 3])
    forbidden = policy.tokenizer.convert_tokens_to_ids(token)
    assert forbidden not in [t for g in groups for s in g for t in s.tokens]


def test_training_mode_is_given_back(load_policy: Any, problems: list[Problem]) -> None:
    policy = load_policy(gradient_checkpointing=True)
    prompts = policy.encode(problems)
    expected = policy.sample(prompts, FREE, seeds=[1, 2, 3])
    policy.model.train()
    found = policy.sample(prompts, FREE, seeds=[1, 2, 3])
    assert policy.model.training
    assert [as_tuples(g) for g in found] == [as_tuples(g) for g in expected]
