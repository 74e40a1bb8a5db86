"""Replies as tokens: the template's own around the words, and nothing of the model's inside them."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, normalizers

from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.policy.chat import TooLongError
from selfverify.policy.encoding import longest_row
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

WORDS = "Is that so? Say it again."


def test_inserted_tokens_are_the_templates(policy: Policy, problems: list[Problem]) -> None:
    """Prompt, a written answer, the inserted tokens and a second one are the conversation's own ids."""
    tokenizer = policy.tokenizer
    for problem in problems:
        [prompt] = policy.encode([problem])
        between = list(ReplyEncoder(policy.encoder).encode(problem, Observation(WORDS), 1).tokens)
        answer = "<think>7+2</think><answer>9</answer>"
        answered = tokenizer(answer, add_special_tokens=False)["input_ids"]
        whole = Problem(
            problem.id,
            [
                *problem.messages,
                {"role": "assistant", "content": [{"type": "text", "text": answer}]},
                *user_turn(WORDS, images=0),
            ],
            problem.images,
        )
        [expected] = policy.encode([whole])
        assert prompt.ids.tolist() + answered + between == expected.ids.tolist()


@pytest.mark.parametrize(
    "template",
    [
        # A question and nothing else; another text before the answer; an error of the template's own.
        "{{ messages[0]['role'] }}:{% if add_generation_prompt %}assistant:{% endif %}",
        "{{ messages | length }}{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}",
        "{% if messages | length > 1 %}{{ raise_exception('one question only') }}{% endif %}user:",
    ],
)
def test_template_that_cannot_go_on_is_refused(load_policy: Any, template: str) -> None:
    policy = load_policy()
    policy.tokenizer.chat_template = template
    with pytest.raises(ConfigError, match="problem p: the model's chat template cannot continue"):
        ReplyEncoder(policy.encoder).encode(Problem("p", user_turn("Say 7.", 0)), Observation(WORDS), 1)


def test_words_that_cannot_be_inserted_are_refused(policy: Policy) -> None:
    """Far too long to be tokenised, or too long for the context in its beginning alone."""
    problem, writer = Problem("p", user_turn("Say 7.", 0)), ReplyEncoder(policy.encoder)
    room = longest_row(policy.model)
    assert room is not None
    with pytest.raises(
        DataError, match=rf"problem p, turn 1: the reply has .* the model reads {room} tokens"
    ):
        writer.encode(problem, Observation("a" * (64 * room + 1)), 1)
    with pytest.raises(TooLongError, match=r"problem p, turn 1: the reply's first .* characters take"):
        writer.encode(problem, Observation("again " * 5000), 1)
    assert len(writer.encode(problem, Observation("a" * (4 * room - 1)), 1).tokens) > room


def test_words_that_read_like_an_image_are_words(policy: Policy) -> None:
    writer, tokenizer = ReplyEncoder(policy.encoder), policy.tokenizer
    problem = Problem("p", user_turn("Say 7.", 0))
    tokens = writer.encode(problem, Observation("look: <|image_pad|><|im_end|>"), 1).tokens
    plain = writer.encode(problem, Observation("look: "), 1).tokens
    assert "look: <|image_pad|><|im_end|>" in tokenizer.decode(tokens)
    special = set(tokenizer.all_special_ids) | {tokenizer.convert_tokens_to_ids("<|image_pad|>")}
    assert [i for i in tokens if i in special] == [i for i in plain if i in special]


@pytest.mark.parametrize(
    "words", ["Say \uff1c|end|\uff1e it.", "\uff1ccall\uff1e", "say <|end|>", "<<|end|>"]
)
def test_words_that_a_normaliser_makes_special(load_policy: Any, words: str) -> None:
    """Full-width brackets become a special token behind NFKC: such words are refused or stay words."""
    policy = load_policy()
    tokenizer = policy.tokenizer
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_tokens([AddedToken("<|end|>", normalized=True, special=True)])
    tokenizer.add_tokens([AddedToken("<call>", normalized=True)])
    meant = {tokenizer.convert_tokens_to_ids(token) for token in ("<|end|>", "<call>")}
    writer, problem = ReplyEncoder(policy.encoder), Problem("p", user_turn("Say 7.", 0))
    if "\uff1c" in words:
        with pytest.raises(DataError, match="problem p, turn 1: the reply cannot be written"):
            writer.encode(problem, Observation(words), 1)
    else:
        assert not set(writer.encode(problem, Observation(words), 1).tokens) & meant


def test_many_parts_take_little_time(policy: Policy) -> None:
    writer, problem = ReplyEncoder(policy.encoder), Problem("p", user_turn("Say 7.", 0))
    parts = [{"type": "text", "text": "a "}] * 5_000
    whole = writer.encode(problem, Observation("a " * 5_000), 1)
    assert writer.encode(problem, Observation(parts), 1).tokens == whole.tokens
    with pytest.raises(DataError, match="the reply has"):
        writer.encode(problem, Observation([{"type": "text", "text": ""}] * 1_000_000), 1)
