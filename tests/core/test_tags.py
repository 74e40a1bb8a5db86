"""Reading tagged output: worked examples, damaged output, any text; and where its tokens end."""

import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from selfverify.core import tags
from selfverify.core.tags import Tagged, channel_lengths, parse_score, parse_tagged, token_ends
from tables import yaml_cases

GOOD = "<think>2+2</think><answer>4</answer><score>0.9</score>"
MOBILE = ("tool_call", "score")
PIECES = [
    *("<think>", "</think>", "<answer>", "</answer>", "<score>", "</score>", "<tool_call>", "</tool_call>"),
    *("0.9", "1", " ", "\n", "x", "<", ">", "/", "<score", "score>", "nan", "1e400", "０.９", "0.9.9", "-0"),
]
SOUP = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)


# ----------------------------------------------------------------------------------------------- scores


@yaml_cases
def test_scores_that_are_read(text, score):
    assert parse_score(text) == score


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "0.9 0.9", "0 .9", "\u00a00.9", "0.9\u2003", "0.9\u200b", "\x000.9", "0.9\x00", "\ud800"),
        *("nan", "NaN", "inf", "1e400", "1e-3", "0.9.9", "-0", "+1", "-0.5", "1.2", "1.01", "2", "10", ".9"),
        *("1.", "0.", ".", "00.5", "01", "0,9", "0x1", "1_0", "90%", "0.9/1", "1/2"),
        *("０.９", "٠.٥", "०", "½"),
        *("0." + "1" * 15, "0" * 10_000, "0." + "9" * 1_000_000, "true", "None", "<score>0.9", "0.9</score>"),
    ],
)
def test_scores_that_are_not(text):
    assert parse_score(text) is None


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=20) | st.text("0123456789.eE+-naif \n０", max_size=20))
def test_any_text_gives_a_score_in_range_or_none(text):
    score = parse_score(text)
    assert score is None or 0 <= score <= 1
    if score is not None:
        assert float(text) == score


# ------------------------------------------------------------------------------------------------- tags


def test_a_well_formed_output():
    """`<think>2+2</think>` has 7 + 3 + 8 = 18 characters, the answer 8 + 1 + 9 = 18, `<score>` 7: 43."""
    fields = {"think": "2+2", "answer": "4", "score": "0.9"}
    assert parse_tagged(GOOD) == Tagged(fields, score=0.9, answer_ok=True, score_ok=True, score_start=43)
    spaced = "\n<think>2+2</think>\n <answer>4</answer>\r\n<score> 0.9 </score>\n"
    read = parse_tagged(spaced)
    assert (read.score, read.answer_ok, read.score_ok) == (0.9, True, True)
    assert spaced[read.score_start :] == " 0.9 </score>\n"


def test_other_sets_of_tags():
    read = parse_tagged('<tool_call>{"a": 1}</tool_call><score>1</score>', MOBILE)
    assert (read.fields["tool_call"], read.score, read.answer_ok) == ('{"a": 1}', 1.0, True)
    read = parse_tagged("<score>0.5</score>", ("score",))
    assert (read.score, read.answer_ok, read.score_start) == (0.5, True, 7)
    read = parse_tagged("<answer>a <score> b</answer>", ("answer",))
    assert read == Tagged({"answer": "a <score> b"}, answer_ok=True, score_asked=False)


def test_without_tags_all_of_the_text_is_the_answer() -> None:
    read = parse_tagged("So it is <b>4</b>.", ())
    assert read.fields == {"answer": "So it is <b>4</b>."} and read.answer_ok and not read.score_asked
    assert not parse_tagged(" \n", ()).answer_ok and parse_tagged("", ("answer", "score")).score_asked


@pytest.mark.parametrize("order", [("score", "answer"), ("answer", "answer"), ("score", "score")])
def test_an_order_that_cannot_work_is_an_error(order):
    with pytest.raises(ValueError, match="order"):
        parse_tagged("", order)


@yaml_cases
def test_malformed_outputs(text, answer_ok, score_ok, opened):
    read = parse_tagged(text)
    assert (read.answer_ok, read.score_ok, read.score_start is not None) == (answer_ok, score_ok, opened)
    assert (read.score is not None) == score_ok


def check(text, order=("think", "answer", "score")):
    """What holds for every text."""
    read = parse_tagged(text, order)
    assert read.score is None or 0 <= read.score <= 1
    assert read.score_ok == (read.score is not None)
    if read.score_start is not None:
        assert text[: read.score_start].endswith("<score>")
        assert f"</{order[-2]}>" in text[: read.score_start]
    for tag, content in read.fields.items():
        assert f"<{tag}>{content}</{tag}>" in text
    if read.answer_ok:
        assert set(order[:-1]) <= set(read.fields)
        head = text if read.score_start is None else text[: read.score_start - len("<score>")]
        tagged = [f"<{tag}>{read.fields[tag]}</{tag}>" for tag in order[:-1]]
        assert "".join(head.split()) == "".join("".join(tagged).split())
        for tag in ("<score>", "</score>"):
            assert not any(tag in read.fields[name] for name in order[:-1])
    if read.answer_ok and read.score_ok:
        assert text.count("<score>") == text.count("</score>") == 1
    return read


@settings(max_examples=300, deadline=None)
@given(SOUP | st.text(max_size=60))
@example("<score>" * 10_000)
@example("<think>" * 10_000)
@example("<answer>" * 10_000 + "</answer>" * 10_000)
@example("<think><answer><score>" * 3_000 + "</score></answer></think>" * 3_000)
@example("<think>\ud800</think><answer>\udfff</answer><score>1</score>")
@example("<" * 100_000)
@example("<think></think><answer></answer><score>0</score>")
def test_no_text_is_an_error(text):
    check(text)
    check(text, MOBILE)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(GOOD)), st.integers(0, 12), st.sampled_from(["", *PIECES]))
def test_a_damaged_output_is_read_as_it_is(start, cut, inserted):
    check(GOOD[:start] + inserted + GOOD[start + cut :])


@settings(max_examples=200, deadline=None)
@given(SOUP)
def test_what_follows_the_score_tag_never_changes_the_answers_format(tail):
    head = "<think>2+2</think><answer>4</answer><score>"
    read = check(head + tail)
    assert (read.answer_ok, read.score_start, read.fields["answer"]) == (True, len(head), "4")


TAGS = "<score> <answer> <think><answer> </answer> <answer></answer> < </answer><score>"


@pytest.mark.parametrize("unit", [*TAGS.split(), " "])
def test_work_grows_with_the_text_and_not_faster(unit):
    """As many lines run for 20,000 repeats as for 200: no loop over the text, only find and count."""

    def lines_run(text):
        seen = 0

        def trace(frame, event, arg):
            nonlocal seen
            if frame.f_code.co_filename != tags.__file__:  # a collector's callback may run in between
                return None
            seen += event == "line"
            return trace

        previous = sys.gettrace()
        sys.settrace(trace)
        try:
            parse_tagged(text)
        finally:
            sys.settrace(previous)
        return seen

    assert 10 < lines_run(unit * 200) == lines_run(unit * 20_000) < 200


# --- where tokens end ---------------------------------------------------------------------------------------


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


@yaml_cases
def test_where_tokens_end_by_hand(ids, text, ends):
    assert token_ends(STRIPPING if " " in text else BYTES, ids) == (text, ends)


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
    assert len(ends) == len(ids) and ends == sorted(ends)
    assert not ids or ends[-1] == len(text)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, len(STRIPPING) - 1), max_size=20))
def test_ends_where_every_word_decodes_differently(ids):
    text, ends = token_ends(STRIPPING, ids)
    prefixes = [STRIPPING.decode(ids[: k + 1]) for k in range(len(ids))]
    assert [text[:end] for end in ends] == prefixes


# --------------------------------------------------------------------------------------------- channels


def test_the_score_channel_of_a_sampled_output():
    """All up to `<score>` is answer; `0`, `.`, `9`, `</`, `score`, `>` and the end token: 7 score tokens."""
    ids = [*BYTES.encode("<answer>4</answer><score>0.9</score>"), BYTES.eos_token_id]
    text, ends = token_ends(BYTES, ids)
    read = parse_tagged(text[: ends[-2]], ("answer", "score"))
    cut = channel_lengths(ends, read.score_start)
    assert read.score == 0.9 and len(ids) - cut == 7
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
    """A token that straddles the boundary is the answer's; without a score all are."""
    ends = [sum(widths[: k + 1]) for k in range(len(widths))]
    starts = [0, *ends][: len(ends)]
    assert channel_lengths(ends, boundary) == sum(start < boundary for start in starts)
    assert channel_lengths(ends, None) == len(ends)
