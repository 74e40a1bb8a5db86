"""Encoding: every image once, none lost, and errors that name the problem (invariant 7)."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.policy.conftest import noise_image

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.policy.features import ByteCache
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn
from selfverify.tasks.digits import DigitsSum, DigitsSumConfig

SHORT = SamplingConfig(group_size=3, max_new_tokens=6)


class Counter:
    """Counts images that pass through preprocessing and through the vision tower."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.preprocessed = self.encoded = 0
        processor, family = policy.loaded.image_processor, policy.loaded.family
        right_features = family.image_features

        def preprocess(images: list[Any], **kwargs: Any) -> Any:
            self.preprocessed += len(images)
            return processor(images=images, **kwargs)

        preprocess.merge_size = processor.merge_size  # type: ignore[attr-defined]

        def features(model: Any, images: list[Any]) -> Any:
            self.encoded += len(images)
            return right_features(model, images)

        monkeypatch.setattr(policy.loaded, "image_processor", preprocess)
        monkeypatch.setattr(family, "image_features", features)


def one_step(policy: Policy, reference: Policy, problems: list[Problem]) -> None:
    prompts = policy.encode(problems)
    groups = policy.sample(prompts, SHORT, seeds=range(len(problems)))
    tokens = [[s.tokens for s in group] for group in groups]
    for model in (policy, reference, policy):
        model.logprobs(prompts, tokens)


def test_each_distinct_image_is_encoded_once(
    load_policy: Any, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy()
    policy.shares_prefix = True  # or the first use would compare, on an image of its own
    reference = policy.frozen_copy()
    counter = Counter(policy, monkeypatch)
    one_step(policy, reference, problems)
    # Four images stand in the problems, one of them twice.
    assert (counter.preprocessed, counter.encoded) == (3, 3)
    one_step(policy, reference, problems[::-1])
    assert (counter.preprocessed, counter.encoded) == (3, 3)


def test_a_trained_tower_runs_once_per_forward(
    load_policy: Any, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = load_policy(train_vision=True)
    counter = Counter(policy, monkeypatch)
    prompts = policy.encode(problems)
    assert (counter.preprocessed, counter.encoded) == (3, 0)
    policy.shares_prefix = True
    values = policy.logprobs(prompts, [[[7, 8], [9]]] * 3)
    assert counter.encoded == 3
    values.sum().backward()
    assert policy.model.model.visual.patch_embed.proj.weight.grad.abs().sum() > 0


def test_equal_pixels_are_one_image_and_other_pixels_are_not(policy: Policy) -> None:
    problem = Problem("p", user_turn("x", images=3), [noise_image(1), noise_image(1).copy(), noise_image(2)])
    first, second, third = policy.encode([problem])[0].images
    assert first.key == second.key != third.key
    # The same bytes in another shape are another image.
    flat, tall = Image.new("RGB", (64, 16)), Image.new("RGB", (16, 64))
    keys = {i.key for i in policy.encode([Problem("q", user_turn("x", images=2), [flat, tall])])[0].images}
    assert len(keys) == 2


def test_not_even_in_their_last_bit() -> None:
    """Which images are cached depends on when a run was resumed, and its bits must not."""
    task, together = DigitsSum(DigitsSumConfig(count=2)), Policy.load("builtin:digits", device="cpu")
    problems = [task.problem("train", 0, index) for index in range(2)]
    prompts = together.encode(problems)
    for problem, prompt in zip(problems, prompts, strict=True):
        alone = Policy.load("builtin:digits", device="cpu")
        alone.encode([problem])
        key = prompt.images[0].key
        assert together.cache and alone.cache
        assert torch.equal(together.cache.get(key), alone.cache.get(key))


def test_cache_drops_the_least_recently_used_and_keeps_its_limit() -> None:
    cache = ByteCache(1)
    quarter = torch.zeros(2**16)  # 4 bytes each: a quarter of a MiB
    for key in "abcd":
        cache.put(key, quarter)
    assert cache.used == cache.limit
    assert cache.get("a") is not None
    cache.put("e", quarter)
    assert cache.used == cache.limit
    assert cache.get("b") is None and cache.get("a") is not None
    cache.put("too large", torch.zeros(2**18 + 1))
    assert cache.get("too large") is None and cache.get("e") is not None
    cache.put("e", quarter)
    assert cache.used == cache.limit


def test_cached_features_do_not_keep_a_batch_alive(policy: Policy, problems: list[Problem]) -> None:
    cache = policy.cache
    for item in [cache.get(image.key) for prompt in policy.encode(problems) for image in prompt.images]:
        assert item.untyped_storage().nbytes() == item.numel() * item.element_size()
        assert not item.requires_grad


# --- errors that name the problem -----------------------------------------------------------------------


def broken_image() -> Image.Image:
    """Half a file."""
    buffer = io.BytesIO()
    noise_image(3, 64, 64).save(buffer, format="PNG")
    return Image.open(io.BytesIO(buffer.getvalue()[: len(buffer.getvalue()) // 2]))


MARK = "What does <|image_pad|> mean?"
LARGE = [noise_image(i, 512, 512) for i in range(5)]
SPACE = r"tokens, {} of them for images.*reads {}"


@pytest.mark.parametrize(
    ("kind", "messages", "images", "named"),
    [
        *(
            ("tiny", user_turn("x", images=n), LARGE[:m], rf"\b{n} image placeholders.*{m} images")
            for n, m in ((1, 2), (2, 1), (0, 1), (1, 0))
        ),
        # Also with as many images as there are tokens: the text would take the place of a missing image.
        *(("tiny", user_turn(MARK, images=parts), LARGE[:1], "") for parts in range(3)),
        ("tiny", [{"role": "user", "content": MARK}], LARGE[:1], ""),
        ("tiny", user_turn("x"), [broken_image()], "image cannot be read"),
        ("llama", user_turn("x"), LARGE[:1], "text only"),
        ("llama", user_turn("7 " * 2000, images=0), [], SPACE.format(0, "2048.*max_pixels")),
        ("tiny", user_turn("x", images=5), LARGE, SPACE.format(5120, 4096)),
    ],
)
def test_problems_that_cannot_be_read_are_named(
    load_policy: Any, kind: str, messages: list[dict[str, Any]], images: list[Image.Image], named: str
) -> None:
    with pytest.raises(DataError, match=rf"task/7.*{named}"):
        load_policy(kind).encode([Problem("task/7", messages, images)])


def test_image_tokens_in_a_continuation_need_an_image(policy: Policy, problems: list[Problem]) -> None:
    pad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    with pytest.raises(DataError, match="one"):
        policy.logprobs(policy.encode(problems[:1]), [[[7, pad, 8]]])


def test_a_processor_of_another_model(tiny_folder: Path, tmp_path: Path) -> None:
    problem = Problem("p", user_turn("x"), [noise_image(0, 64, 64)])
    for name, value in (("patch_size", 16), ("merge_size", 1)):
        folder = tmp_path / name
        shutil.copytree(tiny_folder, folder)
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        (folder / "preprocessor_config.json").write_text(json.dumps({**settings, name: value}))
        with pytest.raises(DataError, match="processor"):
            Policy.load(str(folder), device="cpu").encode([problem])
