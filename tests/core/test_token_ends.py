"""Where each sampled token ends in the decoded text, and which tokens belong to the score."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from selfverify.core.tags import channel_lengths, parse_tagged, token_ends


def byte_tokenizer():
    """Byte-level BPE as in Qwen: token b is byte b for b < 256, then a few merges and an end token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda c: (len(c.encode()), c))
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    by_byte = {b: chr(b) for b in printable} | {b: chr(256 + k) for k, b in enumerate(others)}
    assert sorted(by_byte.values()) == sorted(letters)
    vocab = {by_byte[b]: b for b in range(256)}
    merges = [*zip(("s", "sc", "sco", "scor", "<", ">"), "core/<", strict=True), (">", by_byte[10])]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


def stripping_tokenizer():
    """SentencePiece style as in Llama: a word decoded alone loses the space before it."""
    words = ["<unk>", "▁a", "▁b", "c", "▁", "<score>", "0", ".", "9"]
    backend = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


BYTES, STRIPPING = byte_tokenizer(), stripping_tokenizer()


def spell(text):
    return list(text.encode())


def test_ascii():
    """`<`, `score`, `>`, `0`, `.`, `9` end at 1, 6, 7, 8, 9, 10."""
    ids = BYTES.encode("<score>0.9")
    assert token_ends(BYTES, ids) == ("<score>0.9", [1, 6, 7, 8, 9, 10])


def test_the_sampled_spelling_counts_and_not_the_tokenizers():
    """`score` sampled letter by letter has five ends; encoding the text again would give one token."""
    assert token_ends(BYTES, spell("score")) == ("score", [1, 2, 3, 4, 5])
    assert len(BYTES.encode("score")) == 1


def test_a_character_split_over_tokens():
    """é is 2 bytes: `a` ends at 1, the first byte of é where é begins (1), the second after it (2), `b` at 3.

    😀 is 4 bytes: three tokens end where it begins, the fourth after it.
    """
    assert token_ends(BYTES, spell("aéb")) == ("aéb", [1, 1, 2, 3])
    assert token_ends(BYTES, spell("😀!")) == ("😀!", [0, 0, 0, 1, 2])


def test_special_tokens_stay_in_the_text():
    ids = [*spell("1"), BYTES.eos_token_id]
    assert token_ends(BYTES, ids) == ("1<|im_end|>", [1, 11])


def test_invalid_bytes_read_as_replacement_characters():
    text, ends = token_ends(BYTES, [0xFF, 0xFE, ord("a")])
    assert (text, ends) == ("\ufffd\ufffda", [1, 2, 3])
    text, ends = token_ends(BYTES, [ord("a"), 0xF0, 0x9F])  # cut off inside a character
    assert text == "a\ufffd"
    assert ends[0] == 1 and ends[-1] == 2


def test_a_tokenizer_whose_single_tokens_decode_differently():
    """` a b` decodes to `a b`: ends 1, 3, then `c` 4; alone, `▁b` would be `b` of length 1."""
    assert token_ends(STRIPPING, [1, 2, 3, 5, 6, 7, 8]) == ("a bc<score>0.9", [1, 3, 4, 11, 12, 13, 14])


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(codec="utf-8"), max_size=30))
def test_ends_of_any_spelled_text(text):
    """Spelled in bytes, token k ends after the characters whose last byte is at or before k."""
    ids = spell(text)
    last_bytes = [len(text[: k + 1].encode()) - 1 for k in range(len(text))]
    decoded, ends = token_ends(BYTES, ids)
    assert decoded == text
    if "\ufffd" not in text:
        assert ends == [sum(last <= k for last in last_bytes) for k in range(len(ids))]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, len(BYTES) - 1), max_size=40))
def test_ends_of_any_tokens(ids):
    text, ends = token_ends(BYTES, ids)
    assert text == BYTES.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len(ends) == len(ids)
    assert ends == sorted(ends)
    assert not ids or ends[-1] == len(text)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(STRIPPING) - 1), max_size=20))
def test_ends_where_every_word_decodes_differently(ids):
    text, ends = token_ends(STRIPPING, ids)
    prefixes = [STRIPPING.decode(ids[: k + 1]) for k in range(len(ids))]
    assert [text[:end] for end in ends] == prefixes


# --------------------------------------------------------------------------------------------- channels


@pytest.mark.parametrize(
    ("boundary", "length"),
    [
        (None, 4),  # no score: all answer
        (0, 0),
        (1, 1),  # inside the first token: it straddles and stays answer
        (2, 1),  # the second token starts exactly there
        (3, 2),  # inside the second token
        (5, 2),
        (6, 3),
        (7, 4),  # inside the last token
        (99, 4),
    ],
)
def test_channel_lengths_by_hand(boundary, length):
    """Tokens [0, 2) [2, 5) [5, 6) [6, 9)."""
    assert channel_lengths([2, 5, 6, 9], boundary) == length


def test_tokens_of_a_split_character_at_the_boundary_are_score():
    """`>` then é in two tokens: ends 1, 1, 2; both tokens of é start at 1."""
    assert channel_lengths([1, 1, 2], 1) == 1


def test_the_score_channel_of_a_sampled_output():
    """All up to `<score>` is answer; `0`, `.`, `9`, `</`, `score`, `>` and the end token: 7 score tokens."""
    ids = [*BYTES.encode("<answer>4</answer><score>0.9</score>"), BYTES.eos_token_id]
    text, ends = token_ends(BYTES, ids)
    read = parse_tagged(text[: ends[-2]], ("answer", "score"))
    cut = channel_lengths(ends, read.score_start)
    assert read.score == 0.9
    assert len(ids) - cut == 7
    assert BYTES.decode(ids[:cut]) == "<answer>4</answer><score>"


def test_a_token_that_straddles_the_tag_stays_answer():
    """`>` and a newline are one token, as in Qwen: it is part of the tag, the score starts behind it."""
    newline = BYTES.convert_tokens_to_ids(">\u010a")
    ids = [*BYTES.encode("<answer>4</answer><score"), newline, *BYTES.encode("0.9</score>")]
    text, ends = token_ends(BYTES, ids)
    cut = channel_lengths(ends, parse_tagged(text, ("answer", "score")).score_start)
    assert BYTES.decode(ids[:cut]).endswith("<score>\n")
    assert BYTES.decode(ids[cut:]) == "0.9</score>"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12), st.integers(0, 40))
def test_channel_lengths_by_definition(widths, boundary):
    ends = [sum(widths[: k + 1]) for k in range(len(widths))]
    starts = [0, *ends][: len(ends)]
    assert channel_lengths(ends, boundary) == sum(start < boundary for start in starts)
