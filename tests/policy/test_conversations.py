"""Every family: conversations with images in the middle or before the first turn, kept keys against whole
forwards (invariant 1)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import KINDS, write_family
from tests.policy.conftest import noise_image

from selfverify.core.episode import Reply
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.policy.continuations import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.replies import ReplyEncoder
from selfverify.policy.shared_threads import SharedThreads
from selfverify.policy.threads import Place
from selfverify.tasks.base import user_turn

TURNS = 4
SAMPLING = SamplingConfig(group_size=3, max_new_tokens=6, top_p=1.0)


@pytest.fixture(scope="module", params=sorted(KINDS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [
        Problem("one", user_turn("Which digits are shown here?"), [noise_image(1, 48, 40)]),
        Problem("none", user_turn("Say 7.", images=0)),
        Problem("begun", user_turn("Say 7.", images=0), environment_begins=True),
        Problem("both", user_turn("Compare."), [noise_image(2, 40, 32)], environment_begins=True),
    ]


Row = tuple[Continuation, list[float]]
"""What stands behind a prompt, and what the threads said of its tokens."""


def reply(rng: random.Random) -> Reply:
    """Some words; an image before them in every second reply."""
    words = {"type": "text", "text": "and " * rng.randrange(1, 6)}
    if rng.random() < 0.5:
        return Reply([words])
    picture = noise_image(rng.randrange(3), 32 + 16 * rng.randrange(2), 32)
    return Reply([{"type": "image"}, words], [picture])


def talk(policy: Policy, problems: list[Problem], end: float) -> list[list[Row]]:
    """Threads of ragged lengths, some of which pause for a turn or end; images in every second reply."""
    prompts, writer = policy.encode(problems), ReplyEncoder(policy.encoder)
    threads = policy.threads(prompts, SAMPLING, seeds=range(3, 3 + len(problems)))
    assert isinstance(threads, SharedThreads)
    places = [(b, g) for b in range(len(problems)) for g in range(SAMPLING.group_size)]
    rows: dict[Place, Row] = {place: (Continuation([], []), []) for place in places}
    rng = random.Random(0)

    def hear(pieces: dict[Place, Continuation]) -> None:
        for place, values in threads.hear(pieces, score=True).items():
            before, known = rows[place]
            piece = pieces[place]
            tokens, images = [*before.tokens, *piece.tokens], [*before.images, *piece.images]
            rows[place] = Continuation(tokens, images), known + values.tolist()

    first = [p for p in places if problems[p[0]].environment_begins]
    hear({p: writer.opening(problems[p[0]], reply(rng) if p[1] else None) for p in first})
    for turn in range(TURNS):
        for place, sample in threads.say(places, turn).items():
            piece, values = rows[place]
            rows[place] = (
                Continuation([*piece.tokens, *sample.tokens], piece.images),
                values + sample.logprobs,
            )
        places = [place for place in places if rng.random() > end]
        hear({place: writer.encode(problems[place[0]], reply(rng), turn) for place in places})
    return [[rows[b, g] for g in range(SAMPLING.group_size)] for b in range(len(problems))]


@pytest.mark.parametrize(
    ("double", "chunk"), [(False, 8192), (True, 8192), (False, 5)], ids=["float32", "float64", "in chunks"]
)
def test_kept_keys_are_those_of_the_whole_conversation(
    folder: Path, problems: list[Problem], double: bool, chunk: int
) -> None:
    """In chunks of 5 tokens all prompts and replies are cut, most images in the middle (Gemma 3's never)."""
    policy = Policy.load(str(folder), device="cpu", prefill_chunk=chunk)
    if double:
        policy.model.double()
    rows = talk(policy, problems, end=0.2)
    assert {bool(piece.images) for group in rows for piece, _ in group} == {True, False}
    assert len({len(piece.tokens) for group in rows for piece, _ in group}) > 3
    prompts = policy.encode(problems)
    found = {}
    for shared in (True, False):
        policy.shares_prefix = shared
        found[shared] = policy.logprobs(prompts, [[piece for piece, _ in group] for group in rows])
    # The head takes its logits in float32 (and threads keep them so).
    close = 1e-5 if double else 1e-4
    torch.testing.assert_close(found[True], found[False], rtol=close, atol=close)
    for group, values in zip(rows, found[False], strict=True):
        for (piece, known), row in zip(group, values, strict=True):
            expected = row[: len(piece.tokens)]
            torch.testing.assert_close(torch.tensor(known), expected.float(), rtol=close, atol=close)


def in_float64(model: Any) -> None:
    """Transformers computes some norms in float32 whatever the weights are, which rounds at 1e-7."""
    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(exact_norm, module, type(module).__name__.startswith("Gemma"))


def exact_norm(module: Any, plus_one: bool, hidden: torch.Tensor) -> torch.Tensor:
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    scaled = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + eps)
    return scaled * (1.0 + module.weight if plus_one else module.weight)


def test_float64(folder: Path, problems: list[Problem]) -> None:
    """Shared and plain forward of conversations agree to 1e-10, gradients relative to the largest."""
    policy = Policy.load(str(folder), device="cpu")
    in_float64(policy.model)
    rows = [[piece for piece, _ in group] for group in talk(policy, problems, end=0.0)]
    prompts, batch = policy.encode(problems), policy.stack(rows)
    states, grads = {}, {}
    for name, run in (("shared", policy.forward.hidden_shared), ("plain", policy.forward.hidden_plain)):
        policy.model.zero_grad()
        hidden = run(prompts, batch)[batch.mask_bgr]
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        (hidden * weights).sum().backward()
        states[name] = hidden.detach()
        grads[name] = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(states["shared"], states["plain"], rtol=1e-10, atol=1e-10)
    assert grads["shared"].keys() == grads["plain"].keys()
    for name, grad in grads["shared"].items():
        other = grads["plain"][name]
        assert float((grad - other).abs().max()) <= 1e-10 * max(float(other.abs().max()), 1.0), name
