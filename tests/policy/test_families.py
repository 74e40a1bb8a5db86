"""Every family: prompts, log-probs, gradients and samples as from transformers' own classes; conversations
with images in the middle or before the first turn, kept keys against whole forwards (invariant 1)."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import KINDS, Reference, write_family
from tests.policy.conftest import assert_learners, noise_image

from rounding import assert_close, assert_gradients_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.policy_config import AdapterConfig, PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import SampleIndex
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.policy.kv_sessions import SharedKVSession
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.packing import Continuation
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
    sampling = SamplingConfig(group_size=2, max_new_tokens=8, temperature=0.7, top_p=0.9)
    shared = policy.sample(prompts, sampling, seeds=[0, 1, 2])
    assert_learners(policy, prompts, shared, temperature=0.7)
    # Draws belong to seed and sample, whether prompts are shared or not.
    unshared = Policy.load(str(folder), device="cpu", shared_prefix="off")
    own = unshared.sample(unshared.encode(problems), sampling, seeds=[0, 1, 2])
    assert (policy.shares_prefix, unshared.shares_prefix) == (True, False)
    for one, other in zip(chain(*shared), chain(*own), strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    # Places are written in thousandths, but for Qwen2.5-VL (`test_loading.py`).
    for size in [problems[0].images[0].size, (17, 400), (1, 1)]:
        assert policy.coordinate_space(size) == (1000, 1000)


@pytest.mark.parametrize("lora", [None, AdapterConfig(rank=2)], ids=["whole", "lora"])
def test_trains_and_saves(
    folder: Path, problems: list[Problem], tmp_path: Path, lora: AdapterConfig | None
) -> None:
    start = Policy.load(str(folder), device="cpu")
    trained = Policy.load(PolicyConfig(path=str(folder), device="cpu", lora=lora))
    config = TrainerConfig(steps=1, groups_per_step=2, optim={"warmup": 0, "learning_rate": 1e-2})
    learn(trained, make_task("digits-pick"), make_method("sft", right=1, wrong=1), config, output=tmp_path)
    found = trained.logprobs(trained.encode(problems), CONTINUATIONS)
    assert not torch.allclose(found, start.logprobs(start.encode(problems), CONTINUATIONS), atol=1e-3)
    again = Policy.load(str(tmp_path / "checkpoints/checkpoint-000001/model"), device="cpu")
    assert_close(again.logprobs(again.encode(problems), CONTINUATIONS), found)


# --- conversations ------------------------------------------------------------------------------------------


TURNS = 4
SAMPLING = SamplingConfig(group_size=3, max_new_tokens=6, top_p=1.0)


@pytest.fixture(scope="module")
def talked() -> list[Problem]:
    return [
        Problem("one", user_turn("Which digits are shown here?"), [noise_image(1, 48, 40)]),
        Problem("none", user_turn("Say 7.", images=0)),
        Problem("begun", user_turn("Say 7.", images=0), environment_begins=True),
        Problem("both", user_turn("Compare."), [noise_image(2, 40, 32)], environment_begins=True),
    ]


Row = tuple[Continuation, list[float]]
"""What stands behind a prompt, and what the threads said of its tokens."""


def reply(rng: random.Random) -> Observation:
    """Some words; an image before them in every second reply."""
    words = {"type": "text", "text": "and " * rng.randrange(1, 6)}
    if rng.random() < 0.5:
        return Observation([words])
    picture = noise_image(rng.randrange(3), 32 + 16 * rng.randrange(2), 32)
    return Observation([{"type": "image"}, words], [picture])


def talk(policy: Policy, problems: list[Problem]) -> list[list[Row]]:
    """Threads of ragged lengths, some of which pause for a turn or end; images in every second reply."""
    prompts, writer = policy.encode(problems), ReplyEncoder(policy.encoder)
    threads = policy.threads(prompts, SAMPLING, seeds=range(3, 3 + len(problems)))
    assert isinstance(threads, SharedKVSession)
    places = [(b, g) for b in range(len(problems)) for g in range(SAMPLING.group_size)]
    rows: dict[SampleIndex, Row] = {place: (Continuation([], []), []) for place in places}
    rng = random.Random(0)

    def hear(pieces: dict[SampleIndex, Continuation]) -> None:
        for place, values in threads.append(pieces, score=True).items():
            before, known = rows[place]
            piece = pieces[place]
            tokens, images = [*before.tokens, *piece.tokens], [*before.images, *piece.images]
            rows[place] = Continuation(tokens, images), known + values.tolist()

    first = [p for p in places if problems[p[0]].environment_begins]
    hear({p: writer.opening(problems[p[0]], reply(rng) if p[1] else None) for p in first})
    for turn in range(TURNS):
        for place, sample in threads.generate(dict.fromkeys(places, turn)).items():
            piece, values = rows[place]
            rows[place] = (
                Continuation([*piece.tokens, *sample.tokens], piece.images),
                values + sample.logprobs,
            )
        places = [place for place in places if rng.random() > 0.2]
        hear({place: writer.encode(problems[place[0]], reply(rng), turn) for place in places})
    return [[rows[b, g] for g in range(SAMPLING.group_size)] for b in range(len(problems))]


@pytest.mark.parametrize(
    ("double", "chunk"), [(False, 8192), (True, 8192), (False, 5)], ids=["float32", "float64", "in chunks"]
)
def test_kept_keys_are_those_of_the_whole_conversation(
    folder: Path, talked: list[Problem], in_float64: Any, double: bool, chunk: int
) -> None:
    """In chunks of 5 tokens all prompts and replies are cut, most images in the middle (Gemma 3's never)."""
    policy = Policy.load(str(folder), device="cpu", prefill_chunk=chunk)
    if double:
        in_float64(policy)
    rows = talk(policy, talked)
    assert {bool(piece.images) for group in rows for piece, _ in group} == {True, False}
    assert len({len(piece.tokens) for group in rows for piece, _ in group}) > 3
    prompts = policy.encode(talked)
    found, gradients = {}, []
    for shared in (True, False):
        policy.shares_prefix = shared
        found[shared] = policy.logprobs(prompts, [[piece for piece, _ in group] for group in rows])
        weights = torch.randn(found[shared].shape, generator=torch.Generator().manual_seed(1))
        policy.model.zero_grad()
        (found[shared] * weights).sum().backward()
        gradients.append({n: p.grad for n, p in policy.model.named_parameters() if p.grad is not None})
    assert_close(found[True], found[False])
    assert_gradients_close(*gradients)
    for group, values in zip(rows, found[False], strict=True):
        for (piece, known), row in zip(group, values, strict=True):
            assert_close(known, row[: len(piece.tokens)])
