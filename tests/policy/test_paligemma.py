"""PaliGemma, whose prompt is read in both directions and whose answer is not: its kinds of tokens matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.policy.conftest import noise_image
from transformers import (
    AutoProcessor,
    GenerationMixin,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
)
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn
from tiny_models import write_checkpoint

SAMPLING = SamplingConfig(group_size=3, max_new_tokens=6, top_p=1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paligemma")
    tokenizer = tiny_tokenizer()
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    tokenizer.chat_template = tokenizer.chat_template.replace(slot, "<image>")
    tokenizer.bos_token = "<|video_pad|>"
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    processor = PaliGemmaProcessor(images, tokenizer, chat_template=tokenizer.chat_template)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = {
        "model_type": "siglip_vision_model",
        "image_size": 32,
        "patch_size": 8,
        "vision_use_head": False,
    }
    text = {
        "model_type": "gemma", "num_key_value_heads": 1, "head_dim": 16, "bos_token_id": None,
        "vocab_size": -(-len(tokenizer) // 16) * 16, "eos_token_id": tokenizer.eos_token_id,
    }  # fmt: skip
    config = PaliGemmaConfig(
        vision_config={**sizes, **vision}, text_config={**sizes, **text}, projection_dim=32,
        image_token_id=processor.image_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = PaliGemmaForConditionalGeneration(config)
    write_checkpoint(folder, model, tokenizer)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem("one", user_turn("Which digits are shown here?"), [noise_image(1, 48, 40)])


@pytest.fixture
def policy(folder: Path) -> Policy:
    return Policy.load(str(folder), device="cpu")


def scores(folder: Path, problem: Problem, tokens: list[int]) -> torch.Tensor:
    """``[R, V]`` the log-probs from which transformers' `generate` draws, made to write ``tokens``."""
    model = PaliGemmaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    processor = AutoProcessor.from_pretrained(folder)
    text = processor.tokenizer.apply_chat_template(
        problem.messages, tokenize=False, add_generation_prompt=True
    )
    made = processor(text=[text], images=problem.images, return_tensors="pt", add_special_tokens=False)
    start = made["input_ids"].shape[1]
    out = model.generate(
        **made,
        do_sample=False,
        max_new_tokens=len(tokens),
        output_logits=True,
        return_dict_in_generate=True,
        prefix_allowed_tokens_fn=lambda _, ids: [tokens[len(ids) - start]],
    )
    return torch.stack([step[0] for step in out.logits]).float().log_softmax(-1)


def test_what_follows_a_token_does_not_change_its_logprob(
    folder: Path, policy: Policy, problem: Problem
) -> None:
    """Alone, with others behind it, behind a longer prompt, and as `generate` gives it: equal numbers."""
    tokens = [70, 71, 72, 73]
    expected = scores(folder, problem, tokens).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    prompts = policy.encode([problem])
    whole = policy.logprobs(prompts, [[tokens]])[0, 0]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    alone = policy.logprobs(prompts, [[tokens[:1]]])[0, 0, 0]
    assert float(alone.detach()) == pytest.approx(float(expected[0]), abs=1e-4)
    longer = policy.encoder.extended(prompts[0], Continuation(tokens[:2]))
    rest = policy.logprobs([longer], [[tokens[2:]]])[0, 0]
    torch.testing.assert_close(rest, expected[2:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", ["sample", "logprobs"])
def test_a_model_that_sees_what_follows_is_refused(
    policy: Policy, problem: Problem, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """As where transformers takes what was generated for a part of the prompt."""
    generic = GenerationMixin._update_model_kwargs_for_generation
    monkeypatch.setattr(PaliGemmaForConditionalGeneration, "_update_model_kwargs_for_generation", generic)
    prompts = policy.encode([problem])
    uses: dict[str, Callable[[], object]] = {
        "sample": lambda: policy.sample(prompts, SAMPLING, seeds=[3]),
        "logprobs": lambda: policy.logprobs(prompts, [[[70, 71, 72]]]),
    }
    with pytest.raises(ConfigError, match=r"policy\.path=.*'paligemma'.*docs/models\.md"):
        uses[first]()
