"""Tiny models of the classes that visual tools use, with fresh weights, in folders like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    CLIPTokenizer,
    DPTConfig,
    DPTForDepthEstimation,
    OwlViTConfig,
    OwlViTForObjectDetection,
    OwlViTProcessor,
    SamConfig,
    SamModel,
    SamProcessor,
)
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.owlvit.image_processing_pil_owlvit import OwlViTImageProcessorPil
from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SEEN = {**SIZES, "image_size": 32, "patch_size": 8}


def tokenizer() -> CLIPTokenizer:
    """Letters and digits, alone and at the end of a word."""
    marks = ["<|startoftext|>", "<|endoftext|>"]
    words = [letter + end for end in ("", "</w>") for letter in LETTERS] + marks
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=16)


def _text(**more: Any) -> dict[str, Any]:
    end = 2 * len(LETTERS) + 1
    marks = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end, "sep_token_id": end}
    return {**SIZES, "vocab_size": end + 1, "max_position_embeddings": 16, **marks, **more}


def _save(folder: Path, model: Any, processor: Any) -> Path:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def write_owlvit(folder: Path) -> Path:
    """A zero-shot detector."""
    torch.manual_seed(0)
    model = OwlViTForObjectDetection(OwlViTConfig(text_config=_text(), vision_config=SEEN, projection_dim=16))
    images = OwlViTImageProcessorPil(size={"height": 32, "width": 32})
    return _save(folder, model, OwlViTProcessor(images, tokenizer()))


def write_clip(folder: Path) -> Path:
    """A model of images and texts."""
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=_text(), vision_config=SEEN, projection_dim=16))
    size = {"height": 32, "width": 32}
    return _save(folder, model, CLIPProcessor(CLIPImageProcessorPil(size=size, crop_size=size), tokenizer()))


def write_dpt(folder: Path) -> Path:
    """A model of depth."""
    torch.manual_seed(0)
    sizes = {**SEEN, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}
    config = DPTConfig(
        **sizes, neck_hidden_sizes=[8] * 4, fusion_hidden_size=8, is_hybrid=False, use_auxiliary_head=False
    )
    return _save(
        folder, DPTForDepthEstimation(config), DPTImageProcessorPil(size={"height": 32, "width": 32})
    )


def write_blip(folder: Path) -> Path:
    """A model that describes images."""
    torch.manual_seed(0)
    text = _text(encoder_hidden_size=16, is_decoder=True, max_position_embeddings=128)
    model = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=SEEN, projection_dim=16))
    return _save(
        folder, model, BlipProcessor(BlipImageProcessorPil(size={"height": 32, "width": 32}), tokenizer())
    )


def write_sam(folder: Path) -> Path:
    """A model that segments what is in boxes."""
    torch.manual_seed(0)
    vision = {
        "hidden_size": 16, "output_channels": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 64, "patch_size": 16, "mlp_dim": 16, "window_size": 2, "global_attn_indexes": [0],
        "num_pos_feats": 8,
    }  # fmt: skip
    prompt = {
        "hidden_size": 16,
        "image_size": 64,
        "patch_size": 16,
        "image_embedding_size": 4,
        "mask_input_channels": 4,
    }
    mask = {
        "hidden_size": 16,
        "mlp_dim": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "iou_head_hidden_dim": 16,
        "attention_downsample_rate": 2,
    }
    model = SamModel(SamConfig(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=mask))
    images = SamImageProcessorPil(
        size={"longest_edge": 64}, mask_size={"longest_edge": 16}, pad_size={"height": 64, "width": 64},
        mask_pad_size={"height": 16, "width": 16},
    )  # fmt: skip
    return _save(folder, model, SamProcessor(images))
