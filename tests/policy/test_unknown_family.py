"""A family that we do not know (LLaVA 1.5 here) works by transformers' own forward, loudly."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.policy.conftest import noise_image
from transformers import (
    AutoProcessor,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    WatermarkingConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError, DataError, SamplingError
from selfverify.core.problem import Problem
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn
from tiny_models import write_checkpoint

CONTINUATIONS = [[[70, 71, 72, 73], [75], []], [[80, 81], [82], [83, 84, 85]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False
    )
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    tokenizer.chat_template = tokenizer.chat_template.replace(slot, "<image>")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {"model_type": "clip_vision_model", **sizes, "image_size": 32, "patch_size": 8}
    text = {
        "model_type": "llama", **sizes, "vocab_size": -(-len(tokenizer) // 16) * 16, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=image)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    write_checkpoint(folder, model, tokenizer)
    size = {"height": 32, "width": 32}
    LlavaProcessor(
        CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False), tokenizer,
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [
        Problem("two", user_turn("Compare these.", images=2), [noise_image(1), noise_image(2, 64, 32)]),
        Problem("none", user_turn("Say 7.", images=0)),
    ]


@pytest.fixture
def policy(folder: Path, caplog: pytest.LogCaptureFixture) -> Policy:
    with caplog.at_level(logging.WARNING):
        loaded = Policy.load(str(folder), device="cpu")
    assert "'llava' is not known" in caplog.text
    return loaded


def raw_logits(folder: Path, problem: Problem, continuation: list[int]) -> torch.Tensor:
    model = LlavaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    processor = AutoProcessor.from_pretrained(folder)
    text = processor.tokenizer.apply_chat_template(
        problem.messages, tokenize=False, add_generation_prompt=True
    )
    made = processor(text=[text], images=problem.images or None, return_tensors="pt")
    start = made["input_ids"].shape[1]
    ids = torch.cat([made["input_ids"], torch.tensor([continuation], dtype=torch.long)], dim=1)
    images = {"pixel_values": made["pixel_values"]} if problem.images else {}
    return model(input_ids=ids, **images).logits[0, start - 1 : -1]


def raw_logprobs(folder: Path, problem: Problem, continuation: list[int]) -> torch.Tensor:
    logits = raw_logits(folder, problem, continuation)
    return logits.log_softmax(-1).gather(-1, torch.tensor(continuation)[:, None])[:, 0]


def test_logprobs_and_gradients(folder: Path, policy: Policy, problems: list[Problem]) -> None:
    found = policy.logprobs(policy.encode(problems), CONTINUATIONS)
    for b, group in enumerate(CONTINUATIONS):
        for g, continuation in enumerate(group):
            if continuation:
                expected = raw_logprobs(folder, problems[b], continuation)
                assert_close(found[b, g, : len(continuation)], expected)
    found.sum().backward()
    assert policy.model.model.language_model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    frozen = policy.loaded.family.vision_parameters(policy.model)
    assert len(frozen) > 10 and all(p.grad is None for p in frozen)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_no_samples(
    folder: Path, policy: Policy, problems: list[Problem], temperature: float
) -> None:
    sampling = SamplingConfig(group_size=3, max_new_tokens=6, temperature=temperature, top_p=1.0)
    prompts = policy.encode(problems)
    policy.sample(prompts[:1], sampling, seeds=[3])
    with torch.no_grad():
        policy.model.lm_head.weight[3, 4] = torch.nan
    with pytest.raises(SamplingError, match=rf"{folder}: its logits are not finite"):
        policy.sample(prompts, sampling, seeds=[3, 4])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_samples(folder: Path, policy: Policy, problems: list[Problem], temperature: float) -> None:
    sampling = SamplingConfig(group_size=3, max_new_tokens=6, temperature=temperature, top_p=1.0)
    prompts = policy.encode(problems)
    state = torch.random.get_rng_state()
    groups = policy.sample(prompts, sampling, seeds=[3, 4])
    assert torch.equal(state, torch.random.get_rng_state())
    assert groups == policy.sample(prompts, sampling, seeds=[3, 4])
    if temperature == 0:
        for problem, group in zip(problems, groups, strict=True):
            for sample in group:
                logits = raw_logits(folder, problem, sample.tokens)
                logits[:, policy.suppressed_tokens] = float("-inf")
                assert sample.tokens == logits.argmax(-1).tolist()
    values = policy.logprobs(prompts, [[s.tokens for s in group] for group in groups])
    for group, rows in zip(groups, values, strict=True):
        assert len(group) == 3
        for sample, row in zip(group, rows, strict=True):
            assert_close(sample.logprobs, row[: len(sample.tokens)])
            assert not set(sample.tokens) & set(policy.suppressed_tokens)
            assert (sample.finish == "stop") == (sample.tokens[-1] in policy.stop_tokens)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.5},
        {"min_new_tokens": 5},
        {"suppress_tokens": list(range(60, 300))},
        {"sequence_bias": [[[70], 100.0]]},
        {"forced_eos_token_id": 70},
        {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "min_p": 0.9},
        {"max_length": 3},
        {"num_beams": 3},
        {"use_cache": False},
        {"stop_strings": ["e"]},
        {"pad_token_id": 10**6},
        {"cache_implementation": "static"},
        {"watermarking_config": WatermarkingConfig(bias=9.0)},
    ],
    ids=lambda settings: "+".join(settings),
)
def test_what_a_checkpoint_says_of_generation_changes_nothing(
    policy: Policy, problems: list[Problem], settings: dict[str, Any]
) -> None:
    """Its penalties, cuts and forced tokens would make another distribution than that which learns."""
    prompts = policy.encode(problems)
    samplings = [
        SamplingConfig(group_size=3, max_new_tokens=6, temperature=temperature, top_p=1.0)
        for temperature in (0.0, 1.0)
    ]
    [[greedy, *_], _] = policy.sample(prompts, samplings[0], seeds=[3, 4])
    own, theirs = policy.model.generation_config, GenerationConfig(**settings)
    # Without samples that end early, and with some, where a checkpoint may forbid that.
    for stop in ([policy.tokenizer.eos_token_id], [policy.tokenizer.eos_token_id, greedy.tokens[1]]):
        own.eos_token_id = theirs.eos_token_id = stop
        policy.model.generation_config = own
        expected = [policy.sample(prompts, sampling, seeds=[3, 4]) for sampling in samplings]
        policy.model.generation_config = theirs
        assert [policy.sample(prompts, sampling, seeds=[3, 4]) for sampling in samplings] == expected
        assert policy.model.generation_config is theirs


def test_second_turns(policy: Policy, problems: list[Problem]) -> None:
    """Each with a prompt of its own; sampled as what they are under the learner's forward."""
    sampling = SamplingConfig(group_size=3, max_new_tokens=6, top_p=1.0)
    prompts = policy.encode(problems)
    writer = ReplyEncoder(policy.encoder)
    follow = [writer.encode(problem, Observation("Sure?"), 1) for problem in problems]
    threads = policy.threads(prompts, sampling, seeds=[1, 2])
    assert isinstance(threads, RecomputingSession)
    places = [(b, g) for b in range(2) for g in range(3)]
    first = threads.generate(dict.fromkeys(places, 0))
    assert set(first) == set(places)
    asked = {(b, g): without_written_end(first[b, g].tokens, follow[b]) for b, g in [(0, 1), (1, 0), (1, 2)]}
    heard = threads.append(asked, score=True)
    second = threads.generate(dict.fromkeys(list(asked), 1))
    assert set(second) == set(asked)
    for (b, g), piece in asked.items():
        turns = [*first[b, g].tokens, *piece.tokens, *second[b, g].tokens]
        [[row]] = policy.logprobs([prompts[b]], [[turns]])
        start = len(first[b, g].tokens)
        end_of_piece = start + len(piece.tokens)
        assert_close(first[b, g].logprobs, row[:start])
        assert_close(heard[b, g], row[start:end_of_piece])
        assert_close(second[b, g].logprobs, row[end_of_piece:])


def test_an_environment_that_speaks_first(policy: Policy, problems: list[Problem]) -> None:
    """Its words stand behind the prompt; other groups draw what they draw without it."""
    sampling = SamplingConfig(group_size=3, max_new_tokens=6, top_p=1.0)
    asked = [*problems, *(replace(problem, environment_begins=True) for problem in problems)]
    prompts, writer = policy.encode(asked), ReplyEncoder(policy.encoder)
    threads = policy.threads(prompts, sampling, seeds=[1, 2, 3, 4])
    assert isinstance(threads, RecomputingSession)
    opened = [(b, g) for b in (2, 3) for g in range(3)]
    pieces = {(b, g): writer.opening(asked[b], Observation(f"Screen {g}.") if g else None) for b, g in opened}
    threads.append(pieces)
    said = threads.generate(dict.fromkeys([*((b, g) for b in (0, 1) for g in range(3)), *opened], 0))
    alone = policy.sample(prompts[:2], sampling, seeds=[1, 2])
    assert [[said[b, g] for g in range(3)] for b in (0, 1)] == alone
    for (b, g), piece in pieces.items():
        [[row]] = policy.logprobs([prompts[b]], [[[*piece.tokens, *said[b, g].tokens]]])
        assert_close(said[b, g].logprobs, row[len(piece.tokens) :])


@pytest.mark.parametrize("words", ["Say <|im_end|>.", "What is <image>?", "<|im_start|>user"])
def test_special_tokens_in_words_are_refused(policy: Policy, words: str) -> None:
    """The model's own processor tokenises a text as a whole."""
    with pytest.raises(DataError, match=r"problem p: .*(special|image) token"):
        policy.encode([Problem("p", user_turn(words, images=0))])


def test_sizes_are_not_for_a_whole_processor(folder: Path) -> None:
    for name in ("min_pixels", "max_pixels"):
        with pytest.raises(ConfigError, match=rf"policy\.{name}: LlavaProcessor .*processor_config\.json"):
            Policy.load(str(folder), device="cpu", **{name: 100})
