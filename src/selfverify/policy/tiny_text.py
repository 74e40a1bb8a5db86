"""A small language model with fresh weights, for built-in policies that read and write text only.

`write_tiny_text` puts transformers' own Qwen3 classes at about two million parameters and a tokenizer into a
folder that loads like any checkpoint. The tokenizer makes one token of each word of its corpus; every other
text falls apart into shorter pieces, in the end into bytes, so that no text is unknown to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from selfverify.policy.generators import kept_generators

PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")

TEMPLATE = (
    "{% if tools %}<|system|>"
    "{% for tool in tools %}{{ tool['function']['name'] }} {% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{{ part['text'] }}{% endfor %}{% endif %}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Tools are shown by their names alone: what they take is learnt."""


WORDS = r"\d|\p{L}+|[^\s\p{L}\d]+|\s"
"""A digit, a word, a run of signs, or a space. A word is the same token behind a space, a quote and nothing:
small models copy it from one place to another without having learnt that the forms are the same."""


def text_tokenizer(
    corpus: Iterable[str], phrases: Sequence[str] = (), words: str = WORDS
) -> PreTrainedTokenizerFast:
    """A tokenizer to which each word of ``corpus`` is one token, and no text is unknown.

    Args:
        corpus: Texts whose words are to be known.
        phrases: Strings that are one token wherever they stand, such as the fixed parts of a tool call. They
            are no special tokens: whoever writes such a text gets such a token.
        words: What a word is: a regular expression, whose matches are never joined to one token.

    Raises:
        ValueError: The corpus has no words.
    """
    splitter = pre_tokenizers.Split(Regex(words), "isolated")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [splitter, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    inner.decoder = decoders.ByteLevel()
    known = sorted({word for text in corpus for word, _ in splitter.pre_tokenize_str(text)})
    if not known:
        raise ValueError("the corpus of a tokenizer has no words")
    trainer = trainers.BpeTrainer(
        vocab_size=2**16,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[PAD, END, *ROLES],
    )
    # The pieces are given as they stand, so that each is counted once, whatever the corpus repeats.
    inner.train_from_iterator(known, trainer)
    inner.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def write_tiny_text(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    seed: int = 0,
    hidden: int = 160,
    layers: int = 6,
    context: int = 2048,
) -> Path:
    """Write a fresh small language model to ``folder`` and return it; its weights depend on the seed alone.

    Args:
        folder: Gets the model and the tokenizer.
        tokenizer: Of `text_tokenizer`.
        seed: Decides the weights.
        hidden: Width, a multiple of 32.
        layers: Depth.
        context: Tokens that a prompt and its conversation may have together.
    """
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        head_dim=32,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with kept_generators(torch.device("cpu")):
        torch.default_generator.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
