"""Reading scores softly and greedily, against enumeration of the eleven score texts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rounding import assert_close
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import SCORE_TEXTS, ScoreReading
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores, score_tree


class MergingTokenizer:
    """Tokenises greedily with the longest piece of a given vocabulary."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = sorted(pieces, key=len, reverse=True)
        self.ids = {piece: n for n, piece in enumerate(self.pieces)}

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        assert not add_special_tokens
        ids = []
        while text:
            piece = next(p for p in self.pieces if text.startswith(p))
            ids.append(self.ids[piece])
            text = text[len(piece) :]
        return {"input_ids": ids}


CHARACTERS = (*"0123456789", ".", "<score>")
TOKENIZERS = {
    "characters": MergingTokenizer(*CHARACTERS),
    "0. merged": MergingTokenizer(*CHARACTERS, "0.", "1."),
    "fractions merged": MergingTokenizer(*CHARACTERS, *(f".{d}" for d in range(10))),
    "0.9 is one token": MergingTokenizer(*CHARACTERS, "0.9", "1.0"),
    "every score is one token": MergingTokenizer(*CHARACTERS, *SCORE_TEXTS),
    "uneven": MergingTokenizer(*CHARACTERS, "0.", "0.5", ".7", "1.0"),
}


def next_probabilities(path: tuple[int, ...], tokens: list[int]) -> dict[int, float]:
    """Some fixed distribution over ``tokens`` behind ``path``."""
    logits = [math.sin(7.0 * token + sum((i + 2) * t for i, t in enumerate(path))) * 2 for token in tokens]
    total = sum(map(math.exp, logits))
    return {token: math.exp(value) / total for token, value in zip(tokens, logits, strict=True)}


def enumerate_scores(tokenizer: Any, distribution: Any) -> dict[str, float]:
    """Probability of each score text when only score texts can be written, one by one.

    ``distribution(path, tokens)`` is the policy's, normalised over ``tokens``. A token that is the only
    way on has probability 1.
    """
    texts = {text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in SCORE_TEXTS}
    chances = {}
    for text, ids in texts.items():
        chance = 1.0
        for n, token in enumerate(ids):
            ways = sorted({other[n] for other in texts.values() if other[:n] == ids[:n]})
            chance *= distribution(ids[:n], ways)[token] if len(ways) > 1 else 1.0
        chances[text] = chance
    return chances


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tree_equals_enumeration_and_choices_follow_what_was_written(name: str) -> None:
    """Every score's branchings lead along its own tokens, and their worth adds up to the score's.

    By the chain rule: the advantages of the branches taken sum to the score's worth less the mean.
    """
    tokenizer = TOKENIZERS[name]
    tree = score_tree(tokenizer)
    probabilities = {path: next_probabilities(path, list(node.children)) for path, node in tree.branchings()}
    reading = ScoreReading(tree, probabilities)
    chances = enumerate_scores(tokenizer, next_probabilities)
    assert sum(chances.values()) == pytest.approx(1.0)
    assert reading.distribution() == pytest.approx({float(text): chance for text, chance in chances.items()})
    expected = sum(chance * float(text) for text, chance in chances.items())
    assert tree.expectation(probabilities) == pytest.approx(expected)
    worth = {float(text): math.cos(9 * float(text)) for text in chances}
    mean = sum(chances[text] * worth[float(text)] for text in chances)
    for text in SCORE_TEXTS:
        written = tokenizer(text, add_special_tokens=False)["input_ids"]
        total = 0.0
        for choice in reading.choices([*written, 10_000], worth):
            total += choice.advantage[choice.tokens.index(written[choice.place])]
            pairs = zip(choice.probability, choice.advantage, strict=True)
            assert sum(p * a for p, a in pairs) == pytest.approx(0)
        assert total == pytest.approx(worth[float(text)] - mean)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", [*SCORE_TEXTS, "0.00", "0.05", "0.85", "0.99", "1.00"])
def test_a_certain_score_is_read_as_itself(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    tree = score_tree(tokenizer, decimals=len(text) - 2)
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    probabilities = {}
    for path, node in tree.branchings():
        chosen = ids[len(path)] if ids[: len(path)] == path else next(iter(node.children))
        probabilities[path] = {token: float(token == chosen) for token in node.children}
    assert tree.expectation(probabilities) == pytest.approx(float(text))
    assert tree.most_likely(probabilities) == float(text)
    assert len(tree.leaves({})) == 10 ** (len(text) - 2) + 1


def test_a_bare_0_is_a_score_beside_the_point() -> None:
    """p(1) + p(0) p(. | 0) sum_d p(d) d/10, from the same places of one forward pass."""
    tokenizer = MergingTokenizer(*CHARACTERS, "</score>")
    plain, tree, ids = score_tree(tokenizer), score_tree(tokenizer, bare=True), tokenizer.ids
    zero, point = (ids["0"],), (ids["0"], ids["."])
    assert tree.paths() == plain.paths()
    probabilities = {
        (): {ids["0"]: 0.75, ids["1"]: 0.25},
        zero: {ids["."]: 0.4, ids["</score>"]: 0.6},
        point: {ids[str(d)]: 0.2 if d in (3, 7) else 0.075 for d in range(10)},
    }
    below = sum(share * int(d) / 10 for d in "0123456789" for share in [probabilities[point][ids[d]]])
    assert tree.expectation(probabilities) == pytest.approx(0.25 + 0.75 * 0.4 * below)
    assert tree.most_likely(probabilities) == 0.0
    assert tree.leaves(probabilities)[0.0] == pytest.approx(0.75 * (0.6 + 0.4 * 0.075))
    assert sum(tree.leaves(probabilities).values()) == pytest.approx(1.0)


def test_most_likely_goes_token_by_token() -> None:
    """Like greedy decoding, which takes "0" and then its best digit though "1.0" is the likeliest text."""
    tree, ids = score_tree(TOKENIZERS["characters"]), TOKENIZERS["characters"].ids
    tenth = {ids[str(d)]: 0.1 for d in range(10)} | {ids["3"]: 0.11, ids["4"]: 0.09}
    probabilities = {(): {ids["0"]: 0.6, ids["1"]: 0.4}, (ids["0"], ids["."]): tenth}
    assert tree.most_likely(probabilities) == 0.3


def test_choices_end_where_the_score_is_no_longer_followed() -> None:
    tokenizer = MergingTokenizer(*CHARACTERS, "85", " ")
    tree = score_tree(tokenizer)
    probabilities = {path: next_probabilities(path, list(node.children)) for path, node in tree.branchings()}
    reading, worth = ScoreReading(tree, probabilities), {k / 10: k for k in range(11)}

    def places(text: str) -> list[int]:
        return [
            c.place for c in reading.choices(tokenizer(text, add_special_tokens=False)["input_ids"], worth)
        ]

    assert places("0.72") == [0, 2]
    assert places("0.85") == [0]
    assert places(" 0.7") == []
    assert places("") == []


def test_the_tree_is_that_of_scores_behind_their_tag() -> None:
    """A tokenizer that writes a text's first piece differently (SentencePiece) must not hide the scores."""

    class Marking(MergingTokenizer):
        def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return {"input_ids": [999, *super().__call__(text, add_special_tokens)["input_ids"]]}

    marked, plain = score_tree(Marking(*CHARACTERS)), score_tree(MergingTokenizer(*CHARACTERS))
    assert marked == plain


# --- with a policy --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefixes(policy: Policy) -> list[list[list[int] | None]]:
    def written(text: str) -> list[int]:
        return policy.tokenizer(text, add_special_tokens=False)["input_ids"]

    return [
        [written("<think>1+2=3</think><answer>1 2</answer><score>"), None, written("<score>")],
        [None, written("<answer>7</answer><score>"), None],
        [None, None, None],
    ]


@pytest.mark.parametrize("shared", [True, False])
def test_scores_equal_enumeration_with_transformers(
    load_policy: Any, raw: Any, problems: list[Problem], prefixes: Any, shared: bool
) -> None:
    policy = load_policy()
    policy.shares_prefix = shared
    readings = read_scores(policy, policy.encode(problems), prefixes)
    assert [[r is None for r in group] for group in readings] == [
        [p is None for p in group] for group in prefixes
    ]
    softs = []
    for problem, group, group_readings in zip(problems, prefixes, readings, strict=True):
        for prefix, reading in zip(group, group_readings, strict=True):
            if prefix is None:
                continue

            def distribution(
                path: tuple[int, ...], tokens: list[int], prefix: Any = prefix, problem: Problem = problem
            ) -> dict[int, float]:
                logits = raw.logits(problem, [*prefix, *path, tokens[0]])[-1]
                return dict(zip(tokens, logits[tokens].softmax(-1).tolist(), strict=True))

            chances = enumerate_scores(raw.tokenizer, distribution)
            expected = sum(chance * float(text) for text, chance in chances.items())
            assert_close(reading.soft, expected)
            softs.append(expected)

            ids: tuple[int, ...] = ()
            texts = [tuple(raw.tokenizer(t, add_special_tokens=False)["input_ids"]) for t in SCORE_TEXTS]
            while ids not in texts:
                ways = sorted({other[len(ids)] for other in texts if other[: len(ids)] == ids})
                best = distribution(ids, ways)
                ids = (*ids, max(ways, key=best.__getitem__))
            assert reading.greedy == float(SCORE_TEXTS[texts.index(ids)])
    assert len(softs) == 3 and max(softs) - min(softs) > 0.01


def test_reading_scores_keeps_no_gradient(policy: Policy, problems: list[Problem], prefixes: Any) -> None:
    policy.model.zero_grad()  # other tests share the policy
    [[reading, _, _], _, _] = read_scores(policy, policy.encode(problems), prefixes)
    assert isinstance(reading.soft, float)
    assert all(p.grad is None for p in policy.model.parameters())
    assert not torch.is_inference_mode_enabled()
