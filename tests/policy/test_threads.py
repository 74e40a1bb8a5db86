"""Conversations of two turns: prefilled once, drawn on their own, the policy's own probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.policy.conftest import Loaders

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.kv_sessions import KVSession, SharedKVSession
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.tasks.base import user_turn
from tiny_models import boosted

WORDS = "Is that so? Say it again."
SAMPLING = SamplingConfig(group_size=6, max_new_tokens=12)
KINDS = ["llama", "mistral", "gemma3_text"]


@dataclass
class Turns:
    """A first turn, what was put behind it, and the second turn, unless the first one was cut off."""

    first: Sample
    inserted: list[int]
    second: Sample | None = None


def ending(load_policy: Any, kind: str = "tiny", by: float = 4.0) -> Policy:
    """A policy that ends about half of its turns within the limit."""
    return boosted(load_policy(kind), by)


def between(policy: Policy, problems: list[Problem]) -> list[list[int]]:
    writer = ReplyEncoder(policy.encoder)
    return [list(writer.encode(problem, Observation(WORDS), 1).tokens) for problem in problems]


def talk(
    threads: KVSession, policy: Policy, problems: Sequence[Problem], sampling: SamplingConfig
) -> list[list[Turns]]:
    """Every thread says something, is asked `WORDS` unless it was cut off, and answers."""
    writer, size = ReplyEncoder(policy.encoder), sampling.group_size
    said = threads.generate(dict.fromkeys([(b, g) for b in range(len(problems)) for g in range(size)], 0))
    pieces = {
        place: without_written_end(sample.tokens, writer.encode(problems[place[0]], Observation(WORDS), 1))
        for place, sample in said.items()
        if sample.finish == Finish.STOP
    }
    assert threads.append(pieces) == {}
    again = threads.generate(dict.fromkeys(list(pieces), 1), more=False)
    groups = [
        [
            Turns(said[b, g], list(pieces[b, g].tokens) if (b, g) in pieces else [], again.get((b, g)))
            for g in range(size)
        ]
        for b in range(len(problems))
    ]
    assert set(again) == set(pieces)
    return groups


def sample_turns(
    policy: Policy,
    prompts: Sequence[Prompt],
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    *,
    seeds: Sequence[int],
) -> list[list[Turns]]:
    threads = policy.threads(prompts, sampling, seeds=seeds)
    assert isinstance(threads, SharedKVSession)
    return talk(threads, policy, problems, sampling)


def continuation(turns: Turns) -> list[int]:
    return turns.first.tokens + turns.inserted + (turns.second.tokens if turns.second else [])


def check_logprobs(policy: Policy, prompts: list[Any], groups: list[list[Turns]]) -> None:
    expected = policy.logprobs(prompts, [[continuation(t) for t in group] for group in groups])
    for row, group in zip(expected, groups, strict=True):
        for values, turns in zip(row, group, strict=True):
            n, m = len(turns.first.tokens), len(turns.inserted)
            assert_close(turns.first.logprobs, values[:n])
            if turns.second:
                found = turns.second.logprobs
                assert_close(found, values[n + m :][: len(found)])


@pytest.mark.parametrize("kind", ["tiny", *KINDS])
def test_sampling_logprobs_are_the_learners(loaders: Loaders, problems: list[Problem], kind: str) -> None:
    """Rows of different lengths, with and without a second turn, windows shorter than a turn."""
    policy = ending(loaders.policy, kind)
    asked = problems if kind == "tiny" else [Problem("a", user_turn("Say 7.", 0)), problems[1]]
    prompts = policy.encode(asked)
    groups = sample_turns(policy, prompts, asked, SAMPLING, seeds=[3, 4, 5][: len(asked)])
    flat = [turns for group in groups for turns in group]
    assert {turns.first.finish for turns in flat} == {"stop", "length"}  # both kinds
    assert len({len(turns.first.tokens) for turns in flat}) > 3
    for turns in flat:
        cut_off = turns.first.finish == "length"
        assert (turns.second is None) == cut_off == (turns.inserted == [])
        # The model has ended its turn itself; the template's end of it is not written twice.
        assert cut_off or turns.inserted == between(policy, [asked[0]])[0][1:]
    check_logprobs(policy, prompts, groups)


def test_first_turns_are_those_of_single_turn_sampling(load_policy: Any, problems: list[Problem]) -> None:
    policy = ending(load_policy)
    prompts = policy.encode(problems)
    groups = sample_turns(policy, prompts, problems, SAMPLING, seeds=[3, 4, 5])
    alone = policy.sample(prompts, SAMPLING, seeds=[3, 4, 5])
    assert [[t.first.tokens for t in group] for group in groups] == [[s.tokens for s in g] for g in alone]
    # Nor do second turns depend on what else is in the batch.
    [third] = sample_turns(policy, prompts[2:], problems[2:], SAMPLING, seeds=[5])
    assert [continuation(t) for t in third] == [continuation(t) for t in groups[2]]


def test_greedy_second_turns_equal_those_with_their_own_prompt(
    load_policy: Any, problems: list[Problem]
) -> None:
    """The path of vLLM and of unknown families, on a model that could also share."""
    policy = ending(load_policy, by=4.0)
    prompts = policy.encode(problems)
    greedy = SamplingConfig(group_size=2, temperature=0.0, max_new_tokens=40)
    shared = sample_turns(policy, prompts, problems, greedy, seeds=[0, 0, 0])
    own = RecomputingSession(
        policy.sample, policy.logprobs, prompts, [0, 0, 0], greedy, policy.encoder.extended
    )
    apart = talk(own, policy, problems, greedy)
    assert any(turns.second for group in shared for turns in group)
    assert [[continuation(t) for t in g] for g in shared] == [[continuation(t) for t in g] for g in apart]
    check_logprobs(policy, prompts, apart)


def test_first_turns_apart_do_not_depend_on_who_speaks(load_policy: Any, problems: list[Problem]) -> None:
    """An episode that could not be opened changes nothing for the others of its group."""
    policy = ending(load_policy)
    prompts = policy.encode(problems[:2])
    sampling = SamplingConfig(group_size=3, max_new_tokens=5)

    def first(places: list[tuple[int, int]]) -> dict[tuple[int, int], list[int]]:
        own = RecomputingSession(
            policy.sample, policy.logprobs, prompts, [3, 4], sampling, policy.encoder.extended
        )
        return {place: sample.tokens for place, sample in own.generate(dict.fromkeys(places, 0)).items()}

    everybody = first([(b, g) for b in range(2) for g in range(3)])
    some = [(1, 2), (0, 1)]
    assert first(some) == {place: everybody[place] for place in some}
    assert first([(1, 0)]) == {(1, 0): everybody[1, 0]}


def test_threads_that_hear_nothing_go_on(load_policy: Any, problems: list[Problem]) -> None:
    """Speaking twice in a row, and hearing an empty piece, before anything was said or behind it."""
    policy = load_policy("llama")
    prompts = policy.encode([problems[1]])
    sampling = SamplingConfig(group_size=2, max_new_tokens=4)
    threads = policy.threads(prompts, sampling, seeds=[1])
    places = [(0, 0), (0, 1)]
    assert threads.append({(0, 0): Continuation([])}, score=True)[0, 0].tolist() == []
    said = [threads.generate(dict.fromkeys(places, turn)) for turn in range(3)]
    threads.append({(0, 0): Continuation([])})
    said.append(threads.generate(dict.fromkeys(places, 3)))
    rows = [[token for turn in said for token in turn[place].tokens] for place in places]
    for place, values in zip(places, policy.logprobs(prompts, [rows])[0], strict=True):
        found = [value for turn in said for value in turn[place].logprobs]
        assert_close(found, values[: len(found)])
