"""Tiny models of the classes that visual tools use, with fresh weights, in folders like any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.grounding_dino.image_processing_pil_grounding_dino import (
    GroundingDinoImageProcessorPil,
)
from transformers.models.owlv2.image_processing_pil_owlv2 import Owlv2ImageProcessorPil
from transformers.models.owlvit.image_processing_pil_owlvit import OwlViTImageProcessorPil
from transformers.models.sam.image_processing_pil_sam import SamImageProcessorPil

from tables import read_tables

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PARTS = read_tables(Path(__file__).with_suffix(".yaml"))
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
    made = model(model.config_class(**config))
    if isinstance(made, hf.Owlv2ForObjectDetection):
        torch.nn.init.zeros_(made.box_head.dense2.weight)  # else its boxes are as thin as a hair
    made.save_pretrained(folder)
    if processor is not None:
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


def write_grounding_dino(folder: Path) -> Path:
    """A detector that was trained on phrases which end with a full stop."""
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words = [*marks, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    texts = hf.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
    images = GroundingDinoImageProcessorPil(size=SIZE)
    backbone = hf.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 1], window_size=2,
        out_indices=[1, 2],
    )  # fmt: skip
    layers = {"layers": 2, "ffn_dim": 32, "attention_heads": 2}
    both = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in layers.items()}
    return _save(
        folder, hf.GroundingDinoForObjectDetection, hf.GroundingDinoProcessor(images, texts),
        backbone_config=backbone, text_config=hf.BertConfig(**SIZES, vocab_size=len(words)), d_model=32,
        num_queries=6, num_feature_levels=2, max_text_len=32, **both,
    )  # fmt: skip


def write_owlv2(folder: Path) -> Path:
    """A zero-shot detector that pads images to squares."""
    processor = hf.Owlv2Processor(Owlv2ImageProcessorPil(size=SIZE), tokenizer())
    config = {"text_config": _text(), "vision_config": SEEN, "projection_dim": 16}
    return _save(folder, hf.Owlv2ForObjectDetection, processor, **config)


def write_depth_anything(folder: Path) -> Path:
    """A model of depth on features of DINOv2."""
    backbone = hf.Dinov2Config(
        **{**SEEN, "num_hidden_layers": 4}, out_indices=[1, 2, 3, 4], reshape_hidden_states=False,
        apply_layernorm=True,
    )  # fmt: skip
    return _save(
        folder, hf.DepthAnythingForDepthEstimation, DPTImageProcessorPil(size=SIZE),
        backbone_config=backbone, reassemble_hidden_size=16, patch_size=8, neck_hidden_sizes=[8] * 4,
        fusion_hidden_size=8, head_hidden_size=8,
    )  # fmt: skip


def write_florence2(folder: Path) -> Path:
    """A model that is asked by tasks such as ``<CAPTION>``."""
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<image>"]
    words = [*marks, *LETTERS, "Ġ", *(f"Ġ{letter}" for letter in LETTERS), "W", "?", "."]
    texts = hf.BartTokenizer(
        vocab={word: i for i, word in enumerate(words)},
        merges=[],
        extra_special_tokens={"image_token": "<image>"},
    )
    images = CLIPImageProcessorPil(size=SIZE, crop_size=SIZE, image_seq_length=17)
    processor = hf.Florence2Processor(images, texts, num_additional_image_tokens=1)
    return _save(
        folder, hf.Florence2ForConditionalGeneration, processor,
        vision_config=PARTS["florence2"]["vision"],
        text_config={"vocab_size": len(words)} | PARTS["florence2"]["text"],
        image_token_id=words.index("<image>"),
    )  # fmt: skip


def _prompted(side: int, patch: int) -> dict[str, dict[str, int]]:
    """The parts of SAM 2 and 3 that read boxes and write masks."""
    mask = {"hidden_size": 32, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 32}
    return {
        "prompt_encoder_config": {"hidden_size": 32, "image_size": side, "patch_size": patch},
        "mask_decoder_config": mask,
    }


def _write_preparation(folder: Path, side: int, mean: list[float], std: list[float]) -> Path:
    """The file with which processors are stored that cannot be made without torchvision."""
    prepared = {"size": {"height": side, "width": side}, "image_mean": mean, "image_std": std}
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": prepared}), encoding="utf-8")
    return folder


def write_sam2(folder: Path) -> Path:
    """SAM 2 of images."""
    _save(folder, hf.Sam2Model, None, vision_config=PARTS["sam2"], **_prompted(64, 16))
    return _write_preparation(folder, 64, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def write_sam3(folder: Path) -> Path:
    """The part of SAM 3 that is asked by boxes."""
    _save(folder, hf.Sam3TrackerModel, None, vision_config=PARTS["sam3"], **_prompted(56, 14))
    return _write_preparation(folder, 56, [0.5] * 3, [0.5] * 3)
