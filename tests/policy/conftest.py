"""The yardstick of the policy tests: transformers' own forward, which knows nothing of this library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel

from rounding import assert_close
from selfverify.core.problem import Problem
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_image_processor
from selfverify.tasks.base import user_turn

PAD = "<|image_pad|>"


def noise_image(seed: int, width: int = 32, height: int = 24) -> Image.Image:
    """An image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


class RawModel:
    """transformers' model loaded by itself, fed one row at a time, and inputs made without our encoder.

    With eager attention, which takes its softmax in float32, so not in float64.
    """

    def __init__(self, folder: Path, vision: bool, **settings: Any) -> None:
        loader = TinyModel if vision else AutoModelForCausalLM
        attention = "sdpa" if settings.get("dtype") == torch.float64 else "eager"
        self.model = loader.from_pretrained(folder, attn_implementation=attention, **settings).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor: Any = tiny_image_processor() if vision else None
        self.pad = self.tokenizer.convert_tokens_to_ids(PAD)

    def prompt(self, problem: Problem) -> list[int]:
        """The problem's tokens, with as many for each image as it takes."""
        head, *parts = self.tokenizer.apply_chat_template(
            problem.messages, tokenize=False, add_generation_prompt=True
        ).split(PAD)
        for image, part in zip(problem.images, parts, strict=True):
            grid = self.processor(images=[image], return_tensors="pt")["image_grid_thw"][0]
            head += PAD * (int(grid.prod()) // 4) + part
        ids: list[int] = self.tokenizer(head, add_special_tokens=False)["input_ids"]
        return ids

    def logits(
        self, problem: Problem, continuation: Sequence[int], images: Sequence[Image.Image] = ()
    ) -> torch.Tensor:
        """``[continuation, V]``: what predicts a continuation of the prompt; ``images`` are its own."""
        prompt, shown = self.prompt(problem), [*problem.images, *images]
        ids = torch.tensor([[*prompt, *continuation]])
        extra: dict[str, Any] = {}
        if self.processor is not None:
            extra["mm_token_type_ids"] = (ids == self.pad).int()
        if shown:
            extra |= self.processor(images=shown, return_tensors="pt")
            extra["pixel_values"] = extra["pixel_values"].to(self.model.dtype)
        out = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), **extra).logits
        return out[0, len(prompt) - 1 : -1]

    def logprobs(
        self, problem: Problem, tokens: Sequence[int], images: Sequence[Image.Image], temperature: float
    ) -> torch.Tensor:
        """Log-probabilities of a continuation's tokens."""
        wanted = torch.tensor(tokens, dtype=torch.long)
        values = (self.logits(problem, tokens, images).float() / temperature).log_softmax(-1)
        return values.gather(-1, wanted[:, None])[:, 0]


def assert_learners(
    policy: Policy, prompts: Sequence[Prompt], groups: Sequence[Sequence[Sample]], temperature: float = 1.0
) -> None:
    """The samples' log-probs are those that the learner computes."""
    tokens = [[sample.tokens for sample in group] for group in groups]
    values = policy.logprobs(prompts, tokens, temperature=temperature)
    for group, rows in zip(groups, values, strict=True):
        for sample, row in zip(group, rows, strict=True):
            assert_close(sample.logprobs, row[: len(sample.tokens)])


@pytest.fixture(scope="session")
def make_raw(tiny_folder: Path, text_folders: dict[str, Path]) -> Callable[..., RawModel]:
    """``make_raw(kind="tiny", **settings)`` loads transformers' model of that kind."""

    def make(kind: str = "tiny", **settings: Any) -> RawModel:
        folder = tiny_folder if kind == "tiny" else text_folders[kind]
        return RawModel(folder, kind == "tiny", **settings)

    return make


@pytest.fixture(scope="session")
def raw(make_raw: Callable[..., RawModel]) -> RawModel:
    """The raw tiny model, for tests that leave it as it is."""
    return make_raw()


@dataclass(slots=True)
class Loaders:
    """``load_policy`` and ``make_raw`` of one type of numbers."""

    policy: Callable[..., Policy]
    raw: Callable[..., Any]


@pytest.fixture(params=["float32", "float64"])
def loaders(request: pytest.FixtureRequest, load_policy: Any, make_raw: Any) -> Loaders:
    """In float32 by the kernels that training uses, in float64 to the last digits."""
    if request.param == "float32":
        return Loaders(load_policy, make_raw)
    in_float64 = request.getfixturevalue("in_float64")
    return Loaders(
        lambda *kind, **settings: in_float64(load_policy(*kind, **settings)),
        lambda *kind: make_raw(*kind, dtype=torch.float64),
    )


@pytest.fixture(scope="session")
def problems() -> list[Problem]:
    """Prompts of different lengths: one image, none, three images of two sizes (one of them twice)."""
    small, large = noise_image(1), noise_image(2, 48, 40)
    return [
        Problem("one", user_turn("Which digits are shown here, and what do they add up to?"), [small]),
        Problem("none", user_turn("Say 7.", images=0)),
        Problem("three", user_turn("Compare these.", images=3), [large, noise_image(3), large]),
    ]
