"""Small language models with fresh weights, from which the phone's policies are trained.

`write_tiny_text` makes a model that reads and writes text only: transformers' own Qwen3 classes, of one or
two million parameters, and a tokenizer that makes one token of each word of its corpus. Every other text
falls apart into shorter pieces, in the end into bytes, so that no text is unknown to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from selfverify.policy.decoding import kept_generators

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


WORDS = r"\d|\p{L}+|[^\s\p{L}\d]+"
"""A digit, a word, or a run of signs."""


def text_tokenizer(
    corpus: Iterable[str], phrases: Sequence[str] = (), words: str = WORDS
) -> PreTrainedTokenizerFast:
    """A tokenizer to which each word of ``corpus`` is one token, and no text is unknown.

    A word and the space before it are one token, too; it is another token than the word alone, so that small
    models copy words easily only where these have a space in both places.

    Args:
        corpus: Texts whose words are to be known.
        phrases: Strings that are one token wherever they stand, such as the fixed parts of a tool call. They
            are no special tokens: their text alone makes such a token.
        words: The definition of a word: a regular expression, whose matches are never joined to one token.

    Raises:
        ValueError: The corpus has no words.
    """
    joined = pre_tokenizers.Split(Regex(rf" ?(?:{words})|\s"), "isolated")
    spelt = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    known = {piece for text in corpus for piece, _ in joined.pre_tokenize_str(text) if not piece.isspace()}
    if not known:
        raise ValueError("the corpus of a tokenizer has no words")
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = spelt
    trainer = trainers.BpeTrainer(
        vocab_size=2**16,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[PAD, END, *ROLES],
    )
    # The words are given as they stand, so that each is counted once, also where the corpus repeats it.
    trained.train_from_iterator(sorted({piece.lstrip() for piece in known}), trainer)
    model = json.loads(trained.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(merge) for merge in model["merges"]]
    for piece in sorted(known):
        [(form, _)] = spelt.pre_tokenize_str(piece)
        if piece[0] == " " and form[1:] in vocab and form not in vocab:
            # Last of all merges: the word is put together first.
            merges.append((form[0], form[1:]))
            vocab[form] = len(vocab)
    inner = Tokenizer(models.BPE(vocab, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence([joined, spelt])
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([PAD, END, *ROLES])
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

    Each layer's attention begins by copying: what comes out of it is the mean of what it looked at. Where
    input and output embeddings are one matrix, as here, that makes the words it looked at likelier.
    (Weights that begin near the identity: Trockman and Kolter, "Mimetic Initialization of Self-Attention
    Layers", arXiv:2305.09828, with the sign that suits copying.)

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
        # Transformers' 0.02 is meant for widths of thousands; from there words of a kind grow alike.
        initializer_range=hidden**-0.5,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with kept_generators(torch.device("cpu")):
        torch.default_generator.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        _let_attention_copy(model)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@torch.no_grad()
def _let_attention_copy(model: Qwen3ForCausalLM) -> None:
    """Give each layer a random rotation into its heads' values, and back out of them."""
    for layer in model.model.layers:
        values, output = layer.self_attn.v_proj.weight, layer.self_attn.o_proj.weight
        rotation, _ = torch.linalg.qr(torch.randn_like(values))
        values.copy_(rotation)
        output.copy_(rotation.T)
