"""What `gpu_update.py` measures: Qwen2.5-VL at its published sizes, with random weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import torch
from common import FILLER
from PIL import Image
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.policy.loading import Loaded, prepare
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn

PATCH, MERGE = 14, 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the decoder, and of the tower, which 3B and 7B have in common."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    tied: bool
    tower: tuple[int, int, int, int] = (32, 1280, 3420, 16)
    """Depth, width, inner width, heads."""
    full_attention: tuple[int, ...] = (7, 15, 23, 31)

    @property
    def head_width(self) -> int:
        """Of one attention head."""
        return self.hidden // self.heads

    def config(self, tokenizer: Any) -> Qwen2_5_VLConfig:
        """transformers' configuration, with the special tokens of ``tokenizer``."""
        depth, width, inner, heads = self.tower
        quarter = self.head_width // 8
        return Qwen2_5_VLConfig(
            text_config={
                "vocab_size": self.vocabulary,
                "hidden_size": self.hidden,
                "intermediate_size": self.inner,
                "num_hidden_layers": self.layers,
                "num_attention_heads": self.heads,
                "num_key_value_heads": self.key_heads,
                "max_position_embeddings": 128000,
                "rms_norm_eps": 1e-6,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e6,
                    # 16, 24, 24 of 64 pairs.
                    "mrope_section": [quarter, quarter * 3 // 2, quarter * 3 // 2],
                },
                "bos_token_id": None,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
                "tie_word_embeddings": self.tied,
            },
            vision_config={
                "depth": depth,
                "hidden_size": width,
                "intermediate_size": inner,
                "num_heads": heads,
                "patch_size": PATCH,
                "spatial_merge_size": MERGE,
                "temporal_patch_size": 2,
                "tokens_per_second": 2,
                "window_size": 112,
                "fullatt_block_indexes": list(self.full_attention),
                "out_hidden_size": self.hidden,
            },
            image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
            vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
            vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
            video_token_id=2**30,
            tie_word_embeddings=self.tied,
        )


SHAPES = {
    "3b": Shape(2048, 11008, 36, 16, 2, 151936, True),
    "7b": Shape(3584, 18944, 28, 28, 4, 152064, False),
    "tiny": Shape(64, 96, 3, 4, 2, 640, True, (2, 32, 48, 2), (1,)),
}
"""From the `config.json` of Qwen2.5-VL-3B- and -7B-Instruct."""


class Endless(Policy):
    """A policy that never stops, so that every response has the same length."""

    @property
    def stop_tokens(self) -> set[int]:
        """None."""
        return set()


def make_policy(shape: Shape, device: str, dtype: torch.dtype, seed: int) -> Endless:
    """Random weights, made where they are used: nothing is read from a disk."""
    tokenizer = tiny_tokenizer()
    config = PolicyConfig(path="random", device=device)
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForImageTextToText.from_config(
            shape.config(tokenizer), dtype=dtype, attn_implementation="sdpa"
        ).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH, merge_size=MERGE, temporal_patch_size=2, min_pixels=1, max_pixels=2**30
    )
    return Endless(Loaded(model, tokenizer, processor, prepare(model, config)), config)


def make_problem(policy: Policy, prompt_tokens: int) -> Problem:
    """A question about one image; about ``prompt_tokens`` tokens, nearly all of them the image's."""
    cell = PATCH * MERGE
    problem = Problem("benchmark", user_turn("What is shown?"), [Image.new("RGB", (cell, cell))])
    room = prompt_tokens - len(policy.encoder.prompt(problem).ids) + 1
    rows = isqrt(room)
    noise = Image.effect_noise((room // rows * cell, rows * cell), 64).convert("RGB")
    problem = replace(problem, images=[noise])
    missing = prompt_tokens - len(policy.encoder.prompt(problem).ids)
    step = len(policy.tokenizer(FILLER, add_special_tokens=False)["input_ids"])
    return replace(problem, messages=user_turn("What is shown?" + FILLER * (missing // step)))
