"""Tiny models of the supported families on disk, and transformers' own way to feed them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL.Image import Image
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from selfverify.core.problem import Problem
from selfverify.policy.tiny_models import tiny_image_processor, tiny_tokenizer

SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
QWEN_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
IDEFICS = {
    "vision": {**SIGLIP, "model_type": "idefics3_vision"},
    "text": {"model_type": "llama"},
    "config": {"scale_factor": 2},
    "slot": "<image>",
    "special": ["<fake_token_around_image>", "<global-img>"]
    + [f"<row_{r}_col_{c}>" for r in range(1, 4) for c in range(1, 4)],
}
TILES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
QWEN_VISION = {"depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 1}

KINDS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "vision": {**QWEN_VISION, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
        "text": {"rope_parameters": QWEN_ROPE},
        "slot": "<|image_pad|>",
        "processor": tiny_image_processor,
        "class": "Qwen2VLProcessor",
    },
    "qwen3_vl": {
        "vision": {
            **QWEN_VISION,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0, 1],
        },
        # What is added behind the last layer nobody reads: one layer more than there are deep features.
        "text": {"rope_parameters": QWEN_ROPE, "head_dim": 16, "num_hidden_layers": 3},
        "slot": "<|image_pad|>",
        "processor": tiny_image_processor,
        "class": "Qwen3VLProcessor",
    },
    "idefics3": {
        **IDEFICS,
        "processor": lambda: Idefics3ImageProcessorPil(**TILES),
        "class": "Idefics3Processor",
    },
    "smolvlm": {
        **IDEFICS,
        "vision": {**SIGLIP, "model_type": "smolvlm_vision"},
        "processor": lambda: SmolVLMImageProcessorPil(**TILES),
        "class": "SmolVLMProcessor",
    },
    "llava_onevision": {
        "vision": {**SIGLIP, "vision_use_head": False},
        "text": {"model_type": "qwen2"},
        # So few tiles of features that an image of four is made smaller.
        "config": {
            "image_grid_pinpoints": [[32, 32], [32, 64], [64, 32], [64, 64]],
            "vision_aspect_ratio": "anyres_max_2",
        },
        "slot": "<image>",
        "processor": lambda: LlavaOnevisionImageProcessorPil(
            size={"height": 32, "width": 32}, image_grid_pinpoints=[[32, 32], [32, 64], [64, 32], [64, 64]]
        ),
        "class": "LlavaOnevisionProcessor",
    },
    "internvl": {
        "vision": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": [32, 32],
            "patch_size": [8, 8],
        },
        "text": {"model_type": "qwen2"},
        "slot": "<IMG_CONTEXT>",
        "special": ["<img>", "</img>"],
        "processor": lambda: GotOcr2ImageProcessorPil(
            size={"height": 32, "width": 32}, min_patches=1, max_patches=4
        ),
        "class": "InternVLProcessor",
    },
    "gemma3": {
        "vision": {**SIGLIP, "vision_use_head": False},
        "text": {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "config": {"mm_tokens_per_image": 4},
        "slot": "<start_of_image>",
        "special": ["<image_soft_token>", "<end_of_image>"],
        "placeholder": "<image_soft_token>",
        "processor": lambda: Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
        "class": "Gemma3Processor",
    },
}
"""By ``model_type``: sizes, what stands for images, and transformers' processor class."""

NAMED = {
    "internvl": {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
    },
    "gemma3": {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    },
}


def sharpen(model: torch.nn.Module, seed: int = 1) -> None:
    """Give the weights values large enough that logits and attention are far from uniform.

    With transformers' initialisation a tiny model predicts every token alike and attends to every place
    alike, so that a wrong mask or position would hardly show.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 / parameter[0].numel() ** 0.5)
            else:
                parameter.add_(0.1 * noise)


def write_family(kind: str, folder: Path) -> Path:
    """A checkpoint folder with a tiny random model of ``kind``."""
    about = KINDS[kind]
    tokenizer = tiny_tokenizer()
    special = [about["slot"], *about.get("special", [])]
    tokenizer.add_special_tokens({"additional_special_tokens": special}, replace_extra_special_tokens=False)
    if kind in NAMED:
        tokenizer._set_model_specific_special_tokens(NAMED[kind])
    if "qwen" not in kind:
        tokenizer.chat_template = tokenizer.chat_template.replace(
            "<|vision_start|><|image_pad|><|vision_end|>", about["slot"]
        )
    text = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        **about["text"],
    }
    placeholder = tokenizer.convert_tokens_to_ids(about.get("placeholder", about["slot"]))
    config = AutoConfig.for_model(
        kind,
        text_config=text,
        vision_config=about["vision"],
        image_token_id=placeholder,
        video_token_id=2**30,
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        **about.get("config", {}),
    )
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config)
    sharpen(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about["processor"]().save_pretrained(folder)
    return folder


NOT_FOR_MODELS = ("rows", "cols", "num_patches", "num_crops", "batch_num_images")
"""What image processors return for who writes the text; models don't take it, or not
from TRL (``batch_num_images``: with one image a row they do without)."""


def make_writer(kind: str, config: Any, tokenizer: Any) -> Any:
    """transformers' processor of ``kind``, of which ``replace_image_token`` says what stands for an image.

    Most of these classes want a video processor, hence torchvision, to be constructed, so it is not.
    """
    made = getattr(transformers, KINDS[kind]["class"])
    processor = made.__new__(made)
    processor.image_processor = KINDS[kind]["processor"]()
    processor.tokenizer = tokenizer
    processor.image_token = KINDS[kind]["slot"]
    # What tells a model which tokens are an image's, where it wants to know.
    processor.kinds_name = (
        "mm_token_type_ids" if "qwen" in kind else "token_type_ids" if kind == "gemma3" else None
    )
    processor.placeholder = KINDS[kind].get("placeholder", KINDS[kind]["slot"])
    processor.fake_image_token, processor.global_image_token = "<fake_token_around_image>", "<global-img>"
    processor.global_image_tag = "<global-img>"
    processor.image_seq_len = processor.image_seq_length = 4
    processor.num_image_tokens = 16
    processor.vision_feature_select_strategy = "full"
    processor.vision_aspect_ratio = getattr(config, "vision_aspect_ratio", None)
    processor.start_image_token, processor.end_image_token = "<img>", "</img>"
    inside = "<image_soft_token>" * 4
    processor.full_image_sequence = f"\n\n<start_of_image>{inside}<end_of_image>\n\n"
    return processor


def preprocess(processor: Any, images: Sequence[Sequence[Image]]) -> dict[str, Any]:
    """What the image processor makes of each row's images, cut and tiled as the processor asks for it."""
    options = dict(getattr(type(processor), "images_kwargs", None) or {})
    return dict(
        processor.image_processor(images=[list(row) for row in images], return_tensors="pt", **options)
    )


@dataclass(slots=True)
class Reference:
    """transformers' model of a folder, fed one row at a time with what its own processor class writes."""

    kind: str
    model: Any
    tokenizer: Any
    processor: Any

    @classmethod
    def load(cls, kind: str, folder: Path, dtype: torch.dtype = torch.float32) -> Reference:
        """With eager attention, which takes its softmax in float32, so not in float64."""
        attention = "sdpa" if dtype == torch.float64 else "eager"
        loader = AutoModelForImageTextToText
        model = loader.from_pretrained(folder, attn_implementation=attention, dtype=dtype).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return cls(kind, model, tokenizer, make_writer(kind, model.config, tokenizer))

    def inputs(self, problem: Problem, continuation: Sequence[int]) -> tuple[dict[str, Any], int]:
        """Arguments of the model for one row, and where the continuation begins."""
        text = self.tokenizer.apply_chat_template(
            problem.messages, tokenize=False, add_generation_prompt=True
        )
        extra = preprocess(self.processor, [problem.images]) if problem.images else {}
        for i in range(len(problem.images)):
            written = self.processor.replace_image_token(extra, image_idx=i)
            text = text.replace(KINDS[self.kind]["slot"], written.replace("<", "\0"), 1)
        ids = self.tokenizer(text.replace("\0", "<"), add_special_tokens=False)["input_ids"]
        row = torch.tensor([[*ids, *continuation]])
        inputs = {k: v for k, v in extra.items() if k not in NOT_FOR_MODELS}
        if self.kind == "llava_onevision" and problem.images:
            inputs["batch_num_images"] = torch.tensor([len(problem.images)])
        kinds = (row == self.model.config.image_token_id).long()
        if self.processor.kinds_name:
            inputs[self.processor.kinds_name] = kinds
        return {"input_ids": row, "attention_mask": torch.ones_like(row), **inputs}, len(ids)

    def logprobs(self, problem: Problem, continuation: Sequence[int]) -> torch.Tensor:
        """Log-probabilities of the continuation's tokens."""
        inputs, start = self.inputs(problem, continuation)
        logits = self.model(**inputs).logits[0, start - 1 : -1].float()
        wanted = torch.tensor(list(continuation), dtype=torch.long)
        return logits.log_softmax(-1).gather(-1, wanted[:, None])[:, 0]
