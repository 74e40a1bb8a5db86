"""Every family: conversations with images in the middle or before the first turn, kept keys against whole
forwards (invariant 1)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import KINDS, write_family
from tests.policy.conftest import noise_image

from rounding import assert_close, assert_gradients_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.policy.kv_sessions import SampleIndex, SharedKVSession
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
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
    folder: Path, problems: list[Problem], in_float64: Any, double: bool, chunk: int
) -> None:
    """In chunks of 5 tokens all prompts and replies are cut, most images in the middle (Gemma 3's never)."""
    policy = Policy.load(str(folder), device="cpu", prefill_chunk=chunk)
    if double:
        in_float64(policy)
    rows = talk(policy, problems)
    assert {bool(piece.images) for group in rows for piece, _ in group} == {True, False}
    assert len({len(piece.tokens) for group in rows for piece, _ in group}) > 3
    prompts = policy.encode(problems)
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
