"""A small model with fresh weights, in a folder that loads like any checkpoint.

`write_tiny` makes `builtin:digits` anew: transformers' own Qwen2.5-VL classes at 2-6 million parameters.
Tokenizer and image processor are those that are shipped. The tokenizer is a byte-level BPE, to which no
text is unknown; each digit and each tag is one token. The image processor merges 8-pixel patches two by two,
so that the cell of a digit is one token.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from selfverify.policy.decoding import kept_generators
from selfverify.policy.loading import BUILTIN

SHIPPED = BUILTIN / "digits"


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a copy of the shipped tokenizer, with its chat template."""
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(SHIPPED)
    return tokenizer


def tiny_image_processor() -> Qwen2VLImageProcessorPil:
    """Return a copy of the shipped image processor."""
    processor: Qwen2VLImageProcessorPil = Qwen2VLImageProcessorPil.from_pretrained(SHIPPED)
    return processor


def tiny_config(hidden: int = 160, layers: int = 5) -> Qwen2_5_VLConfig:
    """Return the shipped configuration at another width (a multiple of 32) and depth."""
    settings = json.loads((SHIPPED / "config.json").read_text(encoding="utf-8"))
    heads = hidden // 32
    del settings["dtype"], settings["text_config"]["layer_types"]
    settings["text_config"] |= {
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 3 if heads % 3 == 0 else heads,
    }
    settings["vision_config"]["out_hidden_size"] = hidden
    return Qwen2_5_VLConfig(**settings)


def write_tiny(folder: Path, seed: int = 0, hidden: int = 160, layers: int = 5) -> Path:
    """Write a fresh tiny policy to ``folder`` and return it; its weights depend on the seed alone."""
    tokenizer = tiny_tokenizer()
    with kept_generators(torch.device("cpu")):
        torch.default_generator.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(tiny_config(hidden, layers))
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tiny_image_processor().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    import sys

    print(write_tiny(Path(sys.argv[1])))
