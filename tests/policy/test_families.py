"""Every family: prompts, log-probs, gradients and samples as from transformers' own classes (invariant 1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import KINDS, Reference, write_family
from tests.policy.conftest import noise_image

from rounding import assert_close, assert_gradients_close
from selfverify.core.config import SamplingConfig
from selfverify.core.policy_config import AdapterConfig, PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

CONTINUATIONS = [
    [[70, 71, 72, 73, 74], [75], [76, 77, 78]],
    [[80, 81], [], [82]],
    [[83, 84, 85, 86], [87, 88]],
]


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """A ``model_type``."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="module")
def reference(kind: str, folder: Path) -> Reference:
    return Reference.load(kind, folder)


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    """One image that is split where the family splits, no image, and two images of other sizes."""
    return [
        Problem("one", user_turn("Which digits are shown here?"), [noise_image(1, 48, 40)]),
        Problem("none", user_turn("Say 7.", images=0)),
        Problem(
            "two", user_turn("Compare these.", images=2), [noise_image(2, 64, 32), noise_image(3, 32, 32)]
        ),
    ]


def expected_logprobs(reference: Reference, problems: list[Problem]) -> torch.Tensor:
    rows = torch.zeros(3, 3, 5, dtype=reference.model.dtype)
    for b, (problem, group) in enumerate(zip(problems, CONTINUATIONS, strict=True)):
        for g, continuation in enumerate(group):
            if continuation:
                rows[b, g, : len(continuation)] = reference.logprobs(problem, continuation)
    return rows


@pytest.mark.parametrize(
    ("shared", "double", "tower"),
    [(True, False, False), (True, True, True), (False, True, False)],
    ids=["shared", "shared in float64, with the tower", "plain in float64"],
)
def test_logprobs_and_gradients(
    kind: str,
    folder: Path,
    reference: Reference,
    problems: list[Problem],
    in_float64: Any,
    shared: bool,
    double: bool,
    tower: bool,
) -> None:
    policy = Policy.load(str(folder), device="cpu", train_vision=tower)
    if double:
        in_float64(policy)
        reference = Reference.load(kind, folder, torch.float64)
    policy.shares_prefix = shared
    found = policy.logprobs(policy.encode(problems), CONTINUATIONS)
    expected = expected_logprobs(reference, problems)
    assert_close(found, expected)
    assert expected[expected != 0].std() > 0.5
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(7))
    (found * weights).sum().backward()
    reference.model.zero_grad()
    (expected * weights).sum().backward()
    theirs = {name: p.grad for name, p in reference.model.named_parameters() if p.grad is not None}
    ours = dict(policy.model.named_parameters())
    seeing = {id(p) for p in policy.loaded.family.vision_parameters(policy.model)}
    assert any(p.grad is not None for p in ours.values() if id(p) in seeing) == tower
    learning = [name for name in theirs if tower or id(ours[name]) not in seeing]
    assert_gradients_close({n: ours[n].grad for n in learning}, {n: theirs[n] for n in learning})
    assert sum(bool(theirs[name].abs().max() > 1e-3) for name in learning) > 10


def test_samples(folder: Path, reference: Reference, problems: list[Problem]) -> None:
    policy = Policy.load(str(folder), device="cpu")
    prompts = policy.encode(problems)
    greedy = policy.sample(
        prompts, SamplingConfig(group_size=2, temperature=0.0, max_new_tokens=8), seeds=[0, 1, 2]
    )
    banned = policy.suppressed_tokens
    assert policy.loaded.family.placeholder(policy.model) in banned
    for problem, [sample, _] in zip(problems, greedy, strict=True):
        inputs, start = reference.inputs(problem, sample.tokens)
        logits = reference.model(**inputs).logits[0, start - 1 : -1]
        logits[:, banned] = float("-inf")
        assert sample.tokens == logits.argmax(-1).tolist()
    free = policy.sample(prompts, SamplingConfig(group_size=2, max_new_tokens=8), seeds=[0, 1, 2])
    values = policy.logprobs(prompts, [[s.tokens for s in group] for group in free])
    for group, rows in zip(free, values, strict=True):
        for sample, row in zip(group, rows, strict=True):
            assert_close(sample.logprobs, row[: len(sample.tokens)])


def test_without_sharing_the_same_is_drawn(folder: Path, problems: list[Problem]) -> None:
    """Samples with prompts of their own are those of shared prompts: draws belong to seed and sample."""
    sampling = SamplingConfig(group_size=2, max_new_tokens=8, temperature=0.7, top_p=0.9)
    said = []
    for how in ("auto", "off"):
        policy = Policy.load(str(folder), device="cpu", shared_prefix=how)
        prompts = policy.encode(problems)
        said.append(policy.sample(prompts, sampling, seeds=[0, 1, 2]))
        assert policy.shares_prefix is (how == "auto")
    for shared, own in zip(*said, strict=True):
        assert [sample.tokens for sample in shared] == [sample.tokens for sample in own]
        for one, other in zip(shared, own, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_places_are_written_in_the_familys_space(folder: Path, problems: list[Problem]) -> None:
    """Thousandths, but for Qwen2.5-VL (`test_loading.py`)."""
    policy = Policy.load(str(folder), device="cpu")
    for size in [problems[0].images[0].size, (17, 400), (1, 1)]:
        assert policy.coordinate_space(size) == (1000, 1000)


@pytest.mark.parametrize("lora", [None, AdapterConfig(rank=2)], ids=["whole", "lora"])
def test_trains_and_saves(
    folder: Path, problems: list[Problem], tmp_path: Path, lora: AdapterConfig | None
) -> None:
    start = Policy.load(str(folder), device="cpu")
    trained = Policy.load(PolicyConfig(path=str(folder), device="cpu", lora=lora))
    config = TrainerConfig(steps=1, groups_per_step=2, warmup_steps=0, learning_rate=1e-2)
    learn(trained, make_task("digits-pick"), make_method("sft", right=1, wrong=1), config, output=tmp_path)
    found = trained.logprobs(trained.encode(problems), CONTINUATIONS)
    assert not torch.allclose(found, start.logprobs(start.encode(problems), CONTINUATIONS), atol=1e-3)
    again = Policy.load(str(tmp_path / "checkpoints/checkpoint-000001/model"), device="cpu")
    assert_close(again.logprobs(again.encode(problems), CONTINUATIONS), found)
