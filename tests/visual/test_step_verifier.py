"""The verifier that hears each step: equal to scoring the whole anew, in the loop, with foreign words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tests.policy.conftest import noise_image

from rounding import assert_close
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn
from selfverify.visual.stopping import LOG_RATIO, LOG_RATIO_PLAN
from selfverify.visual.verifier import StepVerifier
from tiny_models import disturb

STEPS = ["Look.\ncrop 1 0 0 3 3", "<think>5</think>crop 2 0 0 2 2", "<answer>5</answer>"]


def question(number: int) -> Problem:
    """With one image."""
    return Problem(f"look/{number}", user_turn(f"Which digit is {number}?"), [noise_image(number)])


def shown(number: int) -> Observation:
    """An observation with an image."""
    parts = [{"type": "text", "text": f"Image {number}:"}, {"type": "image"}]
    return Observation(parts, [noise_image(100 + number, 16 + 8 * (number % 3))])


def said_by(policy: Policy, text: str, turn: int) -> PolicyTurn:
    """A turn with its tokens, the end token among them."""
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    return PolicyTurn(text, [*ids, policy.tokenizer.eos_token_id], Finish.STOP, turn)


def adapted(load_policy: Callable[..., Policy]) -> Policy:
    """A policy whose adapter has learnt something."""
    policy = load_policy(lora=AdapterConfig(rank=4, alpha=8))
    disturb(policy.model)
    return policy


def heard(
    verifier: StepVerifier, policy: Policy, problems: Mapping[Any, Problem]
) -> dict[Any, list[PolicyTurn]]:
    """All conversations of `STEPS`; the second problem's ends after its first step."""
    verifier.begin(problems)
    turns: dict[Any, list[PolicyTurn]] = {place: [] for place in problems}
    for number, text in enumerate(STEPS):
        going = [place for place in problems if number == 0 or place[0] == 0]
        told = {p: said_by(policy, f"{text} "[: len(text) + p[1]], number) for p in going}
        verifier.said(told)
        for place, words in told.items():
            turns[place].append(words)
        verifier.shown({p: shown(number + p[1]) for p in going if p[0] == 0 and number < 2})
    return turns


def anew(policy: Policy, problem: Problem, turns: list[PolicyTurn], sample: int) -> list[float]:
    """Each turn's sum of log-probabilities, from one pass over the whole conversation."""
    writer, tokens, images, ranges = ReplyEncoder(policy.encoder), [], [], []
    for number, words in enumerate(turns):
        ranges.append((len(tokens), len(tokens) + len(words.tokens)))
        tokens += words.tokens
        if number + 1 < len(turns):
            reply = writer.encode(problem, shown(number + sample), number + 1)
            piece = without_written_end(words.tokens, reply)
            tokens += piece.tokens
            images += piece.images
    with torch.no_grad():
        values = policy.logprobs(policy.encode([problem]), [[Continuation(tokens, images)]])[0, 0].double()
    return [float(values[low:high].sum()) for low, high in ranges]


def test_steps_on_kept_keys_equal_the_whole_anew(
    load_policy: Callable[..., Policy], in_float64: Callable[[Policy], Policy]
) -> None:
    """Two samples of one problem and one of another, images in mid-conversation, uneven ends."""
    policy = in_float64(adapted(load_policy))
    base = policy.without_adapter()
    problems = {(0, 0): question(1), (0, 1): question(1), (1, 0): question(2)}
    turns = heard(StepVerifier(policy, reasoner=policy), policy, problems)
    for place, said in turns.items():
        assert len(said) == (3 if place[0] == 0 else 1)
        own, below = (anew(p, problems[place], said, place[1]) for p in (policy, base))
        expected = [a - b for a, b in zip(own, below, strict=True)]
        assert_close([words.values[LOG_RATIO] for words in said], expected, size=max(map(abs, own)))
        assert max(map(abs, expected)) > 0.01
    first = turns[0, 0][1].values
    assert first[LOG_RATIO_PLAN] not in (0.0, first[LOG_RATIO])
    # An answer has no action: all of it is said in one piece.
    assert turns[0, 0][2].values[LOG_RATIO_PLAN] == 0.0


def test_a_reasoner_with_other_tokens(load_policy: Callable[..., Policy]) -> None:
    """Text from elsewhere is tokenised with the end of a message; special tokens in it mean nothing."""
    policy = adapted(load_policy)
    own, foreign = StepVerifier(policy, reasoner=policy), StepVerifier(policy)
    assert own.reads_tokens and not foreign.reads_tokens
    values = []
    for verifier in (own, foreign):
        verifier.begin({(0, 0): question(1)})
        words = said_by(policy, STEPS[0], 0)
        if verifier is foreign:
            words.tokens = []
        verifier.said({(0, 0): words})
        values.append(words.values)
    assert values[0] == pytest.approx(values[1], abs=1e-3)
    foreign.begin({(0, 0): question(1)})
    words = PolicyTurn("<|image_pad|> and <|im_end|>", [], Finish.STOP, 0)
    foreign.said({(0, 0): words})
    end = policy.tokenizer.eos_token_id
    assert foreign._heard[0, 0].last.count(end) == 1 and LOG_RATIO in words.values


def test_what_cannot_be_heard_is_not_measured(load_policy: Callable[..., Policy], caplog: Any) -> None:
    """A turn beyond the context is noted; the other conversation goes on."""
    policy = adapted(load_policy)
    verifier = StepVerifier(policy, reasoner=policy)
    verifier.begin({(0, 0): question(1), (1, 0): question(2)})
    limit = policy.model.config.get_text_config().max_position_embeddings
    long, short = said_by(policy, "a", 0), said_by(policy, "a", 0)
    long.tokens = long.tokens[:1] * limit
    verifier.said({(0, 0): long, (1, 0): short})
    assert LOG_RATIO not in long.values and LOG_RATIO in short.values
    assert "look/1" in caplog.text and "cannot follow" in caplog.text
    verifier.shown({(0, 0): shown(1), (1, 0): shown(1)})
    again = said_by(policy, "b", 1)
    verifier.said({(0, 0): again})
    assert not again.values


def test_a_verifier_needs_a_base(load_policy: Callable[..., Policy]) -> None:
    """The model below the adapter, or another one with the same tokens."""
    plain = load_policy()
    with pytest.raises(ConfigError, match="has no adapter"):
        StepVerifier(plain)
    other = load_policy()
    other.tokenizer.add_tokens(["another"])
    with pytest.raises(ConfigError, match="different tokens"):
        StepVerifier(plain, other)
    same = StepVerifier(plain, load_policy(), plain)
    same.begin({(0, 0): question(1)})
    words = said_by(plain, STEPS[0], 0)
    same.said({(0, 0): words})
    assert words.values[LOG_RATIO] == 0.0
