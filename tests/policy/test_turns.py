"""Conversations of two turns: the template's own tokens, the policy's own probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from selfverify.policy.turns import Turns, follow_up, sample_turns, sample_turns_apart

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import derived_seed
from selfverify.tasks.base import user_turn

WORDS = "Is that so? Say it again."
SAMPLING = SamplingConfig(group_size=6, max_new_tokens=12)
KINDS = ["llama", "mistral", "gemma3_text"]


def ending(load_policy: Callable[..., Policy], kind: str = "tiny", by: float = 4.0) -> Policy:
    """A policy that ends about half of its turns within the limit."""
    policy = load_policy(kind)
    policy._check_head()
    right, index = policy.head.logits, policy.tokenizer.eos_token_id

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden)
        return logits + by * torch.nn.functional.one_hot(torch.tensor(index), logits.shape[-1])

    policy.head.logits = head  # type: ignore[method-assign]
    return policy


def between(policy: Policy, problems: list[Problem]) -> list[list[int]]:
    return [follow_up(policy.loaded, problem, WORDS) for problem in problems]


def continuation(turns: Turns) -> list[int]:
    return turns.first.tokens + turns.inserted + (turns.second.tokens if turns.second else [])


def check_logprobs(policy: Policy, prompts: list[Any], groups: list[list[Turns]]) -> None:
    expected = policy.logprobs(prompts, [[continuation(t) for t in group] for group in groups])
    for row, group in zip(expected, groups, strict=True):
        for values, turns in zip(row, group, strict=True):
            n, m = len(turns.first.tokens), len(turns.inserted)
            torch.testing.assert_close(torch.tensor(turns.first.logprobs), values[:n], rtol=1e-5, atol=2e-5)
            if turns.second:
                found = torch.tensor(turns.second.logprobs)
                torch.testing.assert_close(found, values[n + m :][: len(found)], rtol=1e-5, atol=2e-5)


def test_inserted_tokens_are_the_templates(policy: Policy, problems: list[Problem]) -> None:
    """Prompt, a written answer, the inserted tokens and a second one are the conversation's own ids."""
    tokenizer = policy.tokenizer
    for problem in problems:
        [prompt] = policy.encode([problem])
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
        assert prompt.ids.tolist() + answered + between(policy, [problem])[0] == expected.ids.tolist()


@pytest.mark.parametrize("kind", ["tiny", *KINDS])
def test_sampling_logprobs_are_the_learners(
    load_policy: Callable[..., Policy], problems: list[Problem], kind: str
) -> None:
    """Rows of different lengths, with and without a second turn, windows shorter than a turn."""
    policy = ending(load_policy, kind)
    asked = problems if kind == "tiny" else [Problem("a", user_turn("Say 7.", 0)), problems[1]]
    prompts = policy.encode(asked)
    groups = sample_turns(policy, prompts, between(policy, asked), SAMPLING, seeds=[3, 4, 5][: len(asked)])
    flat = [turns for group in groups for turns in group]
    assert {turns.first.finish for turns in flat} == {"stop", "length"}  # both kinds
    assert len({len(turns.first.tokens) for turns in flat}) > 3
    for turns in flat:
        cut_off = turns.first.finish == "length"
        assert (turns.second is None) == cut_off == (turns.inserted == [])
        # The model has ended its turn itself; the template's end of it is not written twice.
        assert cut_off or turns.inserted == between(policy, [asked[0]])[0][1:]
    check_logprobs(policy, prompts, groups)


def test_first_turns_are_those_of_single_turn_sampling(
    load_policy: Callable[..., Policy], problems: list[Problem]
) -> None:
    policy = ending(load_policy)
    prompts = policy.encode(problems)
    groups = sample_turns(policy, prompts, between(policy, problems), SAMPLING, seeds=[3, 4, 5])
    alone = policy.sample(prompts, SAMPLING, seeds=[3, 4, 5])
    assert [[t.first.tokens for t in group] for group in groups] == [[s.tokens for s in g] for g in alone]
    # Nor do second turns depend on what else is in the batch.
    [third] = sample_turns(policy, prompts[2:], between(policy, problems[2:]), SAMPLING, seeds=[5])
    assert [continuation(t) for t in third] == [continuation(t) for t in groups[2]]


def test_greedy_second_turns_equal_those_with_their_own_prompt(
    load_policy: Callable[..., Policy], problems: list[Problem]
) -> None:
    """The path of vLLM and of unknown families, on a model that could also share."""
    policy = ending(load_policy, by=4.0)
    prompts, follow = policy.encode(problems), between(policy, problems)
    greedy = SamplingConfig(group_size=2, temperature=0.0, max_new_tokens=40)
    shared = sample_turns(policy, prompts, follow, greedy, seeds=[0, 0, 0])
    apart = sample_turns_apart(policy, prompts, follow, greedy, [0, 0, 0])
    assert any(turns.second for group in shared for turns in group)
    assert [[continuation(t) for t in g] for g in shared] == [[continuation(t) for t in g] for g in apart]
    check_logprobs(policy, prompts, apart)


def test_prompts_are_prefilled_once(
    load_policy: Callable[..., Policy], problems: list[Problem], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ending(load_policy)
    prefill, calls = policy.forward.prefill, []
    monkeypatch.setattr(policy.forward, "prefill", lambda p: calls.append(len(p)) or prefill(p))
    sample_turns(policy, policy.encode(problems), between(policy, problems), SAMPLING, seeds=[3, 4, 5])
    assert calls == [3]


def test_all_first_turns_cut_off(policy: Policy, problems: list[Problem]) -> None:
    short = SamplingConfig(group_size=2, max_new_tokens=1)
    groups = sample_turns(policy, policy.encode(problems), between(policy, problems), short, seeds=[1, 2, 3])
    assert all(turns.second is None for group in groups for turns in group)


@pytest.mark.parametrize(
    "template",
    [
        # A question and nothing else; another text before the answer; an error of the template's own.
        "{{ messages[0]['role'] }}:{% if add_generation_prompt %}assistant:{% endif %}",
        "{{ messages | length }}{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}",
        "{% if messages | length > 1 %}{{ raise_exception('one question only') }}{% endif %}user:",
    ],
)
def test_template_that_cannot_go_on_is_refused(load_policy: Callable[..., Policy], template: str) -> None:
    policy = load_policy()
    policy.tokenizer.chat_template = template
    with pytest.raises(ConfigError, match="problem p: the model's chat template cannot continue"):
        follow_up(policy.loaded, Problem("p", user_turn("Say 7.", 0)), WORDS)


def test_words_that_cannot_be_inserted_are_refused(policy: Policy) -> None:
    problem = Problem("p", user_turn("Say 7.", 0))
    with pytest.raises(DataError, match=r"problem p: the second turn's prompt takes .* tokens"):
        follow_up(policy.loaded, problem, "again " * 5000)
    with pytest.raises(DataError, match="contains the image token"):
        follow_up(policy.loaded, problem, "look: <|image_pad|>")
    assert derived_seed(1, 1) != derived_seed(2, 1)
