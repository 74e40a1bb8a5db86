"""Vision towers compute windows, and images, of one size together: transformers' numbers in few calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import sharpen, write_family
from PIL import Image
from tests.policy.conftest import noise_image
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForImageTextToText, Qwen2_5_VLForConditionalGeneration

from selfverify.policy.families import Segments
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_config, tiny_image_processor, tiny_tokenizer

WINDOWS, FULL = 3, 1
"""Layers of the first family's tower whose patches see their window (4 x 4 tokens), and their image."""
LARGE = noise_image(0, 512, 512)
"""1,024 tokens: 64 windows of one size."""
EVEN = noise_image(5, 128, 128)
IMAGES = [
    noise_image(1, 64, 64),
    noise_image(2, 176, 112),  # 11 x 7 tokens: windows of four sizes
    noise_image(3, 64, 64),
    noise_image(4, 16, 32),  # smaller than a window
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three families, the first with windows."""
    folder = tmp_path_factory.mktemp("windows")
    config = tiny_config(96, 1)
    config.vision_config.fullatt_block_indexes = [WINDOWS]
    model = Qwen2_5_VLForConditionalGeneration(config)
    sharpen(model)
    for part in (model, tiny_tokenizer(), tiny_image_processor()):
        part.save_pretrained(folder)
    others = {kind: write_family(kind, tmp_path_factory.mktemp(kind)) for kind in ("qwen2_vl", "qwen3_vl")}
    return {"qwen2_5_vl": folder, **others}


@pytest.fixture
def load(folders: dict[str, Path]) -> Callable[..., tuple[Policy, Any]]:
    """A policy, and transformers' model of the same weights."""

    def make(kind: str, dtype: torch.dtype = torch.float32, **settings: Any) -> tuple[Policy, Any]:
        policy = Policy.load(str(folders[kind]), device="cpu", **settings)
        policy.model.to(dtype)
        theirs = AutoModelForImageTextToText.from_pretrained(folders[kind], attn_implementation="sdpa")
        return policy, theirs.to(dtype)

    return make


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes ``[B, heads, L, D]`` of the queries of all calls of attention."""
    seen: list[tuple[int, ...]] = []
    attention = F.scaled_dot_product_attention

    def counted(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(tuple(query.shape))
        return attention(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    return seen


def ours(policy: Policy, images: Sequence[Image.Image]) -> list[Tensor]:
    """Features of the images, which go through the tower together."""
    made = [policy.encoder.image(image, "p") for image in images]
    return policy.loaded.family.image_features(policy.model, made)


def transformers_own(model: Any, images: Sequence[Image.Image]) -> list[Tensor]:
    made = tiny_image_processor()(images=list(images), return_tensors="pt")
    out = model.model.get_image_features(made["pixel_values"], made["image_grid_thw"], return_dict=True)
    deep = getattr(out, "deepstack_features", None) or []
    return [torch.cat(layers, dim=-1) for layers in zip(out.pooler_output, *deep, strict=True)]


def assert_close(found: Sequence[Tensor], expected: Sequence[Tensor], share: float) -> None:
    """Equal up to ``share`` of the largest value."""
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=share * float(theirs.abs().max()))


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen2_vl", "qwen3_vl"])
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("images", [IMAGES, IMAGES[1:2], [EVEN]], ids=["several", "one", "even"])
@torch.no_grad()
def test_features_are_those_of_transformers(
    load: Any, kind: str, dtype: torch.dtype, share: float, images: list[Image.Image]
) -> None:
    policy, theirs = load(kind, dtype)
    assert_close(ours(policy, images), transformers_own(theirs, images), share)


@torch.no_grad()
def test_a_layer_makes_one_call_for_all_windows(load: Any, calls: list[tuple[int, ...]]) -> None:
    policy, theirs = load("qwen2_5_vl")
    transformers_own(theirs, [LARGE])
    assert len(calls) == WINDOWS * 64 + FULL
    calls.clear()
    ours(policy, [LARGE])
    # 64 windows of 64 patches, and 4,096 patches that see each other.
    assert calls == [(64, 3, 64, 32)] * WINDOWS + [(1, 3, 4096, 32)] * FULL
    calls.clear()
    ours(policy, IMAGES)  # 1 + 3 x 2 + 1 + 1 windows of up to 64 patches, and images of three sizes
    assert calls[:WINDOWS] == [(9, 3, 64, 32)] * WINDOWS
    assert calls[WINDOWS:] == [(1, 3, 8, 32), (2, 3, 64, 32), (1, 3, 308, 32)]


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen3_vl"])
@torch.no_grad()
def test_a_single_image_has_the_bits_of_transformers(load: Any, kind: str) -> None:
    """Without windows it goes through the same calls as ever: runs that are resumed go on as they began."""
    policy, theirs = load(kind)
    for image in (*IMAGES, EVEN):
        assert torch.equal(ours(policy, [image])[0], transformers_own(theirs, [image])[0])


@pytest.mark.parametrize("together", [False, True])
def test_segments_of_one_length_that_are_apart(together: bool) -> None:
    """By hand: values that are averaged within segments of 2, 1, 2 and 3 patches."""
    segments = Segments(torch.tensor([0, 2, 3, 5, 8]), torch.device("cpu"), together)
    value = torch.tensor([1.0, 3, 7, 2, 4, 1, 2, 6]).reshape(1, 1, 8, 1)
    same = torch.zeros(1, 1, 8, 1)
    found = segments.attend(torch.nn.Module(), (same, same, value), is_causal=False)
    assert found.flatten().tolist() == [2, 2, 7, 3, 3, 3, 3, 3]
    assert segments.row.tolist() == [0, 8]
