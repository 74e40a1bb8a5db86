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

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.policy.features import ByteCache, tensor_bytes
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


def test_equal_pixels_are_one_image_and_other_pixels_are_not(policy: Policy, make_image: Any) -> None:
    problem = Problem("p", user_turn("x", images=3), [make_image(1), make_image(1).copy(), make_image(2)])
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


def test_results_do_not_depend_on_the_cache(
    load_policy: Any, problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, uncached = load_policy(), load_policy(vision_cache_mb=0)
    counter = Counter(uncached, monkeypatch)
    tokens = [[[7, 8, 9]]] * 3
    values = [p.logprobs(p.encode(problems), tokens) for p in (cached, uncached)]
    assert_close(*values)
    assert uncached.cache is not None and uncached.cache.used == 0 and counter.encoded > 3


def test_cache_drops_the_least_recently_used_and_keeps_its_limit() -> None:
    cache = ByteCache(1, tensor_bytes)
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
    assert cache is not None
    for item in [cache.get(image.key) for prompt in policy.encode(problems) for image in prompt.images]:
        assert item.untyped_storage().nbytes() == item.numel() * item.element_size()
        assert not item.requires_grad


# --- errors that name the problem -----------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "images"), [(1, 2), (2, 1), (0, 1), (1, 0)])
def test_placeholders_and_images_must_match(policy: Policy, make_image: Any, parts: int, images: int) -> None:
    problem = Problem("task/7", user_turn("x", images=parts), [make_image(i) for i in range(images)])
    with pytest.raises(DataError, match=rf"task/7.*\b{parts} image placeholders.*{images} images"):
        policy.encode([problem])


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_text_that_contains_the_image_token_is_refused(policy: Policy, make_image: Any, parts: int) -> None:
    """Also with as many images as there are tokens: the text would take the place of a missing image."""
    images = [make_image(0)]
    messages = user_turn("What does <|image_pad|> mean?", images=parts)
    with pytest.raises(DataError, match="task/8"):
        policy.encode([Problem("task/8", messages, images)])
    as_string = [{"role": "user", "content": "What does <|image_pad|> mean?"}]
    with pytest.raises(DataError, match="task/9"):
        policy.encode([Problem("task/9", as_string, images)])


def test_broken_image_file(policy: Policy, make_image: Any) -> None:
    buffer = io.BytesIO()
    make_image(3, 64, 64).save(buffer, format="PNG")
    broken = Image.open(io.BytesIO(buffer.getvalue()[: len(buffer.getvalue()) // 2]))
    with pytest.raises(DataError, match=r"task/10.*image cannot be read"):
        policy.encode([Problem("task/10", user_turn("x"), [broken])])


def test_text_only_model_refuses_images(load_policy: Any, make_image: Any) -> None:
    policy = load_policy("llama")
    with pytest.raises(DataError, match=r"task/12.*text only"):
        policy.encode([Problem("task/12", user_turn("x"), [make_image(0)])])


def test_image_tokens_in_a_continuation_need_an_image(policy: Policy, problems: list[Problem]) -> None:
    pad = policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    with pytest.raises(DataError, match="one"):
        policy.logprobs(policy.encode(problems[:1]), [[[7, pad, 8]]])


def test_prompt_longer_than_the_context(load_policy: Any, policy: Policy, make_image: Any) -> None:
    long = Problem("task/13", user_turn("7 " * 2000, images=0))
    with pytest.raises(DataError, match=r"task/13.*tokens, 0 of them for images.*reads 2048.*max_pixels"):
        load_policy("llama").encode([long])
    large = Problem("task/14", user_turn("x", images=5), [make_image(i, 512, 512) for i in range(5)])
    with pytest.raises(DataError, match=r"task/14.*5120 of them for images.*reads 4096"):
        policy.encode([large])


def test_a_processor_of_another_model(tiny_folder: Path, tmp_path: Path, make_image: Any) -> None:
    problem = Problem("p", user_turn("x"), [make_image(0, 64, 64)])
    for name, value in (("patch_size", 16), ("merge_size", 1)):
        folder = tmp_path / name
        shutil.copytree(tiny_folder, folder)
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        (folder / "preprocessor_config.json").write_text(json.dumps({**settings, name: value}))
        with pytest.raises(DataError, match="processor"):
            Policy.load(str(folder), device="cpu").encode([problem])


# --- prompts --------------------------------------------------------------------------------------------
