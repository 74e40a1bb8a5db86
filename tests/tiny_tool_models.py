"""Tiny models of the classes that visual tools use, with fresh weights, in folders like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.owlvit.image_processing_pil_owlvit import OwlViTImageProcessorPil
from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SEEN = {**SIZES, "image_size": 32, "patch_size": 8}
SIZE = {"height": 32, "width": 32}


def tokenizer() -> hf.CLIPTokenizer:
    """Letters and digits, alone and at the end of a word."""
    marks = ["<|startoftext|>", "<|endoftext|>"]
    words = [letter + end for end in ("", "</w>") for letter in LETTERS] + marks
    return hf.CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=16)


def _text(**more: Any) -> dict[str, Any]:
    end = 2 * len(LETTERS) + 1
    marks = {"bos_token_id": end - 1, "eos_token_id": end, "pad_token_id": end, "sep_token_id": end}
    return {**SIZES, "vocab_size": end + 1, "max_position_embeddings": 16, **marks, **more}


def _save(folder: Path, model: type[hf.PreTrainedModel], processor: Any, **config: Any) -> Path:
    torch.manual_seed(0)
    model(model.config_class(**config)).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def write_owlvit(folder: Path) -> Path:
    """A zero-shot detector."""
    processor = hf.OwlViTProcessor(OwlViTImageProcessorPil(size=SIZE), tokenizer())
    config = {"text_config": _text(), "vision_config": SEEN, "projection_dim": 16}
    return _save(folder, hf.OwlViTForObjectDetection, processor, **config)


def write_clip(folder: Path) -> Path:
    """A model of images and texts."""
    processor = hf.CLIPProcessor(CLIPImageProcessorPil(size=SIZE, crop_size=SIZE), tokenizer())
    return _save(folder, hf.CLIPModel, processor, text_config=_text(), vision_config=SEEN, projection_dim=16)


def write_dpt(folder: Path) -> Path:
    """A model of depth."""
    sizes = {**SEEN, "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3]}
    neck = {"neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8}
    return _save(
        folder, hf.DPTForDepthEstimation, DPTImageProcessorPil(size=SIZE),
        **sizes, **neck, is_hybrid=False, use_auxiliary_head=False,
    )  # fmt: skip


def write_blip(folder: Path) -> Path:
    """A model that describes images."""
    text = _text(encoder_hidden_size=16, is_decoder=True, max_position_embeddings=128)
    processor = hf.BlipProcessor(BlipImageProcessorPil(size=SIZE), tokenizer())
    config = {"text_config": text, "vision_config": SEEN, "projection_dim": 16}
    return _save(folder, hf.BlipForConditionalGeneration, processor, **config)


def write_sam(folder: Path) -> Path:
    """A model that segments what is in boxes."""
    layers = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {
        **layers, "output_channels": 16, "image_size": 64, "patch_size": 16, "mlp_dim": 16, "window_size": 2,
        "global_attn_indexes": [0], "num_pos_feats": 8,
    }  # fmt: skip
    prompt = {
        "hidden_size": 16, "image_size": 64, "patch_size": 16, "image_embedding_size": 4,
        "mask_input_channels": 4,
    }  # fmt: skip
    mask = {**layers, "mlp_dim": 16, "attention_downsample_rate": 2, "iou_head_hidden_dim": 16}
    images = SamImageProcessorPil(
        size={"longest_edge": 64}, mask_size={"longest_edge": 16}, pad_size={"height": 64, "width": 64},
        mask_pad_size={"height": 16, "width": 16},
    )  # fmt: skip
    parts = {"vision_config": vision, "prompt_encoder_config": prompt, "mask_decoder_config": mask}
    return _save(folder, hf.SamModel, hf.SamProcessor(images), **parts)
