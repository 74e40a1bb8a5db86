"""Fresh text policies: what their tokenizer makes of texts, and that the library takes them."""

from __future__ import annotations

from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn
from selfverify_phone.fresh_model import text_tokenizer, write_tiny_text

CORPUS = ["Set an alarm for 7:30.", "Call Bob Lee", "alarm on", "alarm off"]
CALL = '{"name": "tap", "arguments": {"id": "'
TOKENIZER = text_tokenizer(CORPUS, [CALL, '"}}'])


def test_words_of_the_corpus_are_one_token_each() -> None:
    def pieces(text: str) -> list[str]:
        return [TOKENIZER.decode([token]) for token in TOKENIZER(text)["input_ids"]]

    assert pieces("Set an alarm for 7:30.") == [*["Set", " an", " alarm", " for", " 7", ":", "3", "0", "."]]
    # "Set" never stood behind a line's end in the corpus.
    assert pieces("Bob Lee\nSet") == ["Bob", " Lee", "\n", "Set"]
    assert pieces(f'{CALL}n3"}}}}') == [CALL, "n", "3", '"}}']
    # "Bobby" is not known: it falls apart, and nothing is lost.
    assert len(pieces("Bobby")) > 1
    assert "".join(pieces("Bobby")) == "Bobby"
    times = text_tokenizer(["07:30"], words=r"\d\d:\d\d|.")
    assert len(times("07:30 ")["input_ids"]) == 2


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_text_is_unknown(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, clean_up_tokenization_spaces=False) == text or "<|" in text


def test_the_same_corpus_gives_the_same_tokenizer() -> None:
    again = text_tokenizer(reversed(CORPUS), [CALL, '"}}'])
    assert again.get_vocab() == TOKENIZER.get_vocab()


def test_a_policy_of_it_speaks_and_continues(tmp_path: Path) -> None:
    folder = write_tiny_text(tmp_path, TOKENIZER, hidden=64, layers=2)
    policy = Policy.load(str(folder), device="cpu")
    tools = [{"type": "function", "function": {"name": "tap", "parameters": {}}}]
    problem = Problem("p", user_turn("Set an alarm", images=0), tools=tools)
    (prompt,) = policy.encode([problem])
    assert (
        policy.tokenizer.decode(prompt.ids) == "<|system|>tap <|end|><|user|>Set an alarm<|end|><|assistant|>"
    )
    (samples,) = policy.sample([prompt], SamplingConfig(group_size=3, max_new_tokens=5), seeds=[0])
    found = policy.logprobs([prompt], [[sample.tokens for sample in samples]])
    assert_close(found[0, 0, : len(samples[0].tokens)], samples[0].logprobs)


def test_attention_begins_by_copying(tmp_path: Path) -> None:
    """Values go through a rotation and back: where all heads look at one place, its state comes out."""
    words = text_tokenizer(["a few words"])
    model = Policy.load(str(write_tiny_text(tmp_path / "fresh", words, hidden=64, layers=2))).model
    for layer in model.model.layers:
        state = torch.randn(5, 64)
        out = layer.self_attn.o_proj(layer.self_attn.v_proj(state))
        assert_close(out, state)


def test_a_fresh_policy_depends_on_its_seed_alone(tmp_path: Path) -> None:
    for name, noise, seed in (("a", 1, 0), ("b", 2, 0), ("c", 2, 1)):
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        write_tiny_text(tmp_path / name, TOKENIZER, seed=seed, hidden=96, layers=1)
        assert torch.equal(torch.get_rng_state(), state)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
