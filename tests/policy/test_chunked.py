"""Long prompts and replies go through the model in chunks: how they are cut, what memory they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.policy.conftest import Loaders, noise_image

from memory_meter import Meter
from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.policy.families import ImageInput
from selfverify.policy.forward import prefill
from selfverify.policy.kv_sessions import SharedKVSession
from selfverify.policy.packing import Continuation, SharedLayout
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

KINDS = ["tiny", "llama", "mistral", "gemma3_text"]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_in_chunks(loaders: Loaders, problems: list[Problem], kind: str) -> None:
    """Short prompts together, a long one in pieces: the same states and keys as all in one go."""
    policy = loaders.policy(kind)
    asked = problems if kind == "tiny" else [Problem("a", user_turn("Say 7." * n, 0)) for n in (1, 30, 2)]
    prompts = policy.encode(asked)
    with torch.no_grad():
        policy.forward.chunk = 10**6
        expected, whole = prefill(policy.forward, prompts)
        policy.forward.chunk = sorted(len(prompt.ids) for prompt in prompts)[1] * 2
        assert policy.forward.chunk < len(prompts) * whole.prompt_width
        for chunk in (policy.forward.chunk, 7):
            policy.forward.chunk = chunk
            found, layout = prefill(policy.forward, prompts)
            assert_close(found, expected)
            assert layout.prompt_keys.keys() == whole.prompt_keys.keys()
            for b, prompt in enumerate(prompts):
                for number, pair in whole.prompt_keys.items():
                    for ours, theirs in zip(layout.prompt_keys[number], pair, strict=True):
                        n = len(prompt.ids)
                        assert_close(ours[b, :, :n], theirs[b, :, :n])


def reading(policy: Policy, prompt: int) -> int:
    """The most bytes that are held while a prompt is read, without its keys and values in all layers."""
    prompts = policy.encode([Problem("long", user_turn("7" * prompt, images=0))])
    with torch.no_grad(), Meter() as meter, meter.span() as span:
        _, layout = prefill(policy.forward, prompts)
        kept = sum(x.nbytes for pair in layout.prompt_keys.values() for x in pair)
    return span.total - kept


def hearing(policy: Policy, group: int, piece: Callable[[int], Continuation]) -> int:
    """The most bytes that are held while threads hear something, without the keys that are kept."""
    prompts = policy.encode([Problem("short", user_turn("7", images=0))])
    pieces = {(0, g): piece(g) for g in range(group)}
    with Meter() as meter:
        threads = policy.threads(prompts, SamplingConfig(group_size=group), seeds=[0])
        assert isinstance(threads, SharedKVSession)
        threads._layout.least_room = 8192  # so that keys never grow
        with meter.span() as span:
            threads.append(pieces)
        pairs = [*threads._layout.prompt_keys.values(), *threads._layout.own_keys.values()]
        kept = sum(x.nbytes for pair in pairs for x in pair)
    return span.total - kept


def test_memory_depends_on_the_chunk(load_policy: Any) -> None:
    """Not on how much is heard, by how many, or on how long a prompt is."""
    policy = load_policy("llama", prefill_chunk=64)
    policy.voice(SamplingConfig())  # a first use checks the head

    def words(tokens: int) -> Callable[[int], Continuation]:
        return lambda g: Continuation([9] * (tokens - g))

    c = policy.model.config
    token = 2 * 4 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim
    """Bytes of a token's keys and values; those of what goes through together may be copied."""
    assert reading(policy, 600) < 1.2 * reading(policy, 350) + 600 * token
    base = hearing(policy, 2, words(250))
    for group, tokens in ((2, 1000), (16, 250), (16, 60)):
        assert hearing(policy, group, words(tokens)) < 1.2 * base + tokens * token, (group, tokens)
    policy.forward.chunk = 4096
    assert hearing(policy, 8, words(512)) > 3 * base  # it is the chunk


def test_keys_grow_layer_by_layer() -> None:
    """Old and new keys are held of one layer at a time, also when a part of the threads goes on alone."""
    layers, room, token = 8, 64, 2 * 4 * 4 * 3 * 32  # two float32 tensors [1, 4, 3, room, 32] a layer
    layout = SharedLayout("grow", torch.tensor([0]), 0, 4)

    def fill(each: SharedLayout, start: int, count: int) -> None:
        each.place(torch.zeros(1, each.continuations), start, True)
        for number in range(layers):
            each.add(number, *[torch.ones(1, each.continuations, 3, count, 32)] * 2)

    with Meter() as meter:
        fill(layout, 0, room)
        held, little = layers * room * token, 4 * token
        assert held <= meter.live < held + little
        with meter.span() as growing:
            fill(layout, room, 1)
        assert 2 * held <= meter.live < 2 * held + little
        assert growing.total <= 2 * held + held // layers + little
        every = torch.zeros(1, 4, dtype=torch.long), torch.tensor([[0, 1, 2, 3]])
        copy = layout.select(every)
        with meter.span() as shrinking:
            copy = copy.select(every, release=True)
        assert shrinking.total <= 4 * held + 2 * held // layers + little


def test_memory_of_images_depends_on_the_chunk(load_policy: Any) -> None:
    """What the tower makes at a time, and the features of one thread."""
    policy = load_policy("tiny", prefill_chunk=64, vision_cache_mb=0)
    policy.voice(SamplingConfig())

    def shown(count: int) -> Callable[[int], Continuation]:
        def piece(g: int) -> Continuation:
            images = [policy.encoder.image(noise_image(10 * g + n, 64, 64), "") for n in range(count)]
            return Continuation([t for image in images for t in (9, *tokens_of(policy, image))], images)

        return piece

    base = hearing(policy, 1, shown(4))
    for group, count in ((4, 4), (2, 8)):
        assert hearing(policy, group, shown(count)) < 1.4 * base, (group, count)
    policy.forward.chunk = 4096
    assert hearing(policy, 8, shown(8)) > 2 * base


def tokens_of(policy: Policy, image: ImageInput) -> list[int]:
    """What stands for an image."""
    tokens: list[int] = policy.tokenizer(image.text, add_special_tokens=False)["input_ids"]
    return tokens
