"""The built-in tiny policy: transformers' own Qwen2.5-VL classes at 2-6 million parameters.

`write_tiny` puts model, tokenizer and image processor into a folder that loads like any checkpoint.
The tokenizer is a byte-level BPE (nothing is ever unknown) trained on the digit tasks' prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<score>", "</score>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Fixed for good: another corpus would be another vocabulary, and the shipped weights depend on this one.
_CORPUS_TASKS = ("digits-locate", "digits-mix", "digits-pick", "digits-sum")


def _corpus() -> Iterator[str]:
    from selfverify.tasks import make_task

    for name in _CORPUS_TASKS:
        for index in range(50):
            yield from (
                part["text"]
                for message in make_task(name).problem("train", 0, index).messages
                for part in message["content"]
                if part["type"] == "text"
            )
    yield "user assistant\n" * 50


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, the tags as single tokens, and Qwen's chat markup."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d| ?\p{L}+| ?[^\s\p{L}\d]+|\s"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL if t not in ("<|im_end|>", "<|endoftext|>")],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_config(tokenizer: PreTrainedTokenizerFast, hidden: int = 160, layers: int = 5) -> Qwen2_5_VLConfig:
    """A Qwen2.5-VL configuration of 2.4 million parameters."""
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    heads = hidden // 32
    # Transformers' 0.02 suits widths of thousands. Here it hides the image behind tiny activations, and
    # reading starts hundreds of steps later; about 1 / sqrt(width) keeps the signal's size.
    spread = 0.08
    return Qwen2_5_VLConfig(
        initializer_range=spread,
        text_config={
            "initializer_range": spread,
            "vocab_size": -(-len(tokenizer) // 16) * 16,
            "hidden_size": hidden,
            "intermediate_size": 3 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 3 if heads % 3 == 0 else heads,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]},
            "bos_token_id": None,
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "tie_word_embeddings": True,
        },
        vision_config={
            "initializer_range": spread,
            "depth": 4,
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_heads": 3,
            "patch_size": 8,
            "spatial_merge_size": 2,
            "temporal_patch_size": 1,
            "out_hidden_size": hidden,
            "window_size": 64,
            "fullatt_block_indexes": [0, 1, 2, 3],
        },
        image_token_id=ids["<|image_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        # No video tokens in this vocabulary: an id that no sequence can contain.
        video_token_id=2**30,
        tie_word_embeddings=True,
    )


def tiny_image_processor() -> Qwen2VLImageProcessorPil:
    """8-pixel patches merged two by two: one token per 16x16 pixels, which is one digit's cell."""
    return Qwen2VLImageProcessorPil(
        patch_size=8,
        merge_size=2,
        temporal_patch_size=1,
        min_pixels=16 * 16,
        max_pixels=512 * 512,
        image_mean=[0.2, 0.2, 0.2],
        image_std=[0.35, 0.35, 0.35],
    )


def write_tiny(folder: Path, seed: int = 0, hidden: int = 160, layers: int = 5) -> Path:
    """Write a freshly initialised tiny policy to ``folder`` and return it."""
    tokenizer = tiny_tokenizer()
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer, hidden, layers))
    finally:
        torch.random.set_rng_state(state)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tiny_image_processor().save_pretrained(folder)
    return folder


if __name__ == "__main__":
    import sys

    print(write_tiny(Path(sys.argv[1])))
