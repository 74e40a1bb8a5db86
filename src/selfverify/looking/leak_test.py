"""Whether chosen and rejected traces can be told apart by their words alone, without understanding anything.

In the 12 pairs that VTS-V's authors published all rejected traces have a tag that no chosen one has. A
verifier can learn that instead of what it is meant to learn. Here a bag-of-words classifier tries: what it
finds out, a verifier may use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from selfverify.core.errors import DataError
from selfverify.looking.preference_pairs import Pair
from selfverify.looking.traces import Message

FOLDS = 5
MOST = 0.6
"""The largest accuracy of a classifier with which pairs pass."""
NUMBER = "<number>"
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_WORDS = re.compile(r"</?\w+>|[^\W_]+|\?")


@dataclass(frozen=True, slots=True)
class Leak:
    """What a classifier finds.

    Args:
        accuracy: Its share of right guesses on problems that it has not seen; .5 is chance.
        pairs: How many pairs there were.
        chosen: The words that speak most for the chosen side, with their weights.
        rejected: Those that speak for the rejected side.
    """

    accuracy: float
    pairs: int
    chosen: list[tuple[str, float]]
    rejected: list[tuple[str, float]]

    @property
    def passes(self) -> bool:
        """Whether the classifier stays below `MOST`."""
        return self.accuracy <= MOST


def words_of(messages: Iterable[Message]) -> list[str]:
    """The words and tags that a model has said, in lower case, with all numbers masked."""
    said = " ".join(message["content"] for message in messages if message["role"] == "assistant")
    return _WORDS.findall(_NUMBERS.sub(f" {NUMBER} ", said.lower()))


def leak_test(pairs: Sequence[Pair], words: int = 10, seed: int = 0) -> Leak:
    """Let a classifier guess which side is the chosen one, from how often each word occurs.

    Logistic regression on the counts of words (scaled by their largest), in five folds; all pairs of a
    problem are in one fold, so that what a problem is about does not help.

    Args:
        pairs: The pairs.
        words: How many words are named for each side.
        seed: Decides the folds.

    Raises:
        DataError: There are fewer than five problems.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    problems = np.array([pair.problem for pair in pairs for _ in range(2)])
    if len(set(problems.tolist())) < FOLDS:
        raise DataError(
            f"the leak test needs pairs of {FOLDS} problems or more, not {len(set(problems.tolist()))}"
        )
    texts = np.array([" ".join(words_of(side)) for pair in pairs for side in (pair.chosen, pair.rejected)])
    is_chosen = np.tile([1, 0], len(pairs))
    model = make_pipeline(
        CountVectorizer(analyzer=str.split), MaxAbsScaler(), LogisticRegression(max_iter=2000)
    )
    right = 0.0
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=seed).split(texts, is_chosen, problems):
        if not any(texts[train]):
            continue
        model.fit(texts[train], is_chosen[train])
        # A guess that is no better than a coin counts half: two equal texts have no right answer.
        leaning = model.decision_function(texts[test])
        signs = np.where(is_chosen[test] == 1, leaning, -leaning)
        right += float((signs > 1e-9).sum() + 0.5 * (np.abs(signs) <= 1e-9).sum())
    if not any(texts):
        return Leak(0.5, len(pairs), [], [])
    model.fit(texts, is_chosen)
    names = model[0].get_feature_names_out()
    weights = model[-1].coef_[0]
    order = np.argsort(weights)
    named = [(str(names[i]), round(float(weights[i]), 3)) for i in order]
    return Leak(
        right / len(is_chosen),
        len(pairs),
        [one for one in reversed(named[-words:]) if one[1] > 0],
        [one for one in named[:words] if one[1] < 0],
    )
