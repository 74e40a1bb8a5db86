"""Preference pairs of traces for a verifier (VTS-V §4.2).

The pairs of one problem are made at once (`problem_pairs`). What concerns all pairs, such as that the chosen
side is longer as often as the rejected one, is counted first and decided pair by pair (`Balance`), so that a
set need not fit into memory. `leak_test` says whether chosen and rejected side can be told apart by their
words alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import StrictRow
from selfverify.rollouts.wrappers import Message
from selfverify.visual.traces import Decider, VisualTrace

Kind = Literal["wrong", "hasty", "wasteful"]

MOST_PAIRS = 4
"""Pairs of one problem and kind, at most."""
LONGEST_RATIO = 4
"""How many times longer one side may be than the other, in characters of what was said."""


@dataclass(frozen=True, slots=True)
class Pair(StrictRow):
    """A right and a wrong way to go on from one prompt.

    Args:
        id: Its name.
        problem: The problem's id.
        kind: Why the rejected trace is worse: its answer is ``wrong``; it is wrong because the model was told
            to answer at once (``hasty``); or it is right and looked more often (``wasteful``).
        source: The origin of the rejected trace, see `VisualTrace.source`.
        prompt: The question, and the turns and replies that both traces have.
        chosen: The rest of the better trace, a turn first and last.
        rejected: The rest of the worse one.
        chosen_cuts: For each turn in ``chosen`` its channels.
        rejected_cuts: For each turn in ``rejected`` its channels.
        category: The problem's.
        chosen_by: Who found the chosen side right: the task's ``rules``, or a model as ``judge``.
        rejected_by: Who found the rejected side wrong, or of a ``wasteful`` one right.
    """

    id: str
    problem: str
    kind: Kind
    source: str
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    chosen_cuts: list[list[list[Any]]] = field(default_factory=list)
    rejected_cuts: list[list[list[Any]]] = field(default_factory=list)
    category: str = ""
    chosen_by: Decider = "rules"
    rejected_by: Decider = "rules"


@dataclass(frozen=True, slots=True)
class Pairing:
    """How pairs are made.

    Args:
        wasteful: Whether two right traces make a pair, too, of which the one with fewer looks is preferred
            (ours: the paper's pairs differ in right and wrong only).
        match_lengths: Whether the chosen side is longer as often as the rejected one, at every ratio of
            lengths (`length_group`), and neither side more than `LONGEST_RATIO` times as long as the other.
            Both limits are for pairs of kind ``wrong``: that a hasty one is shorter, and a wasteful one
            longer, is what is wrong with them. Of these two kinds there are as many, if there are both.
    """

    wasteful: bool = False
    match_lengths: bool = True


def problem_pairs(traces: Sequence[VisualTrace], how: Pairing, dropped: Counter[str]) -> list[Pair]:
    """Pair the traces of one problem on their longest common prefix (VTS-V §4.2).

    A pair has one beginning, then a better and a worse way. The beginning becomes the prompt, where
    multi-step DPO's log-ratios cancel (Eq. 10).

    The paper prompts a model to go on wrongly. Prompted lies tell themselves by their words (`leak_test`), so
    a model's own wrong traces of the same problem count here, too.

    Of all possible pairs those with most turns in common come first, then those of like lengths; a trace is
    the rejected one of one pair at most for each kind.

    Args:
        traces: The problem's.
        how: How pairs are made.
        dropped: Counts possible pairs and traces that are left out, by the reason.
    """
    right = [t for t in traces if t.correct and t.source != "induced"]
    wrong = [t for t in traces if t.wrong and t.source != "hurried"]
    hasty = [t for t in traces if t.wrong and t.source == "hurried"]
    dropped["induced to be wrong, and right"] += sum(t.correct and t.source == "induced" for t in traces)
    dropped["right, and not in the form that was asked for"] += sum(
        not t.correct and not t.wrong for t in traces
    )
    if not right:
        dropped["no right trace of the problem"] += len(wrong) + len(hasty)
        return []
    if not wrong and not hasty and not how.wasteful:
        dropped["no wrong trace of the problem"] += len(right)
    pairs = _chosen("wrong", [(w, x) for w in right for x in wrong], how, dropped)
    pairs += _chosen("hasty", [(w, x) for w in right for x in hasty], how, dropped)
    if how.wasteful:
        fewer = [(a, b) for a in right for b in right if len(a.turns) < len(b.turns)]
        pairs += _chosen("wasteful", fewer, how, dropped)
    return pairs


def _chosen(
    kind: Kind, possible: Sequence[tuple[VisualTrace, VisualTrace]], how: Pairing, dropped: Counter[str]
) -> list[Pair]:
    """The pairs of one problem."""
    found: list[tuple[int, int, Pair]] = []
    for better, worse in possible:
        pair = paired(better, worse, kind)
        if isinstance(pair, str):
            dropped[pair] += 1
            continue
        a, b = said_length(pair.chosen), said_length(pair.rejected)
        if kind == "wrong" and how.match_lengths and max(a, b) > LONGEST_RATIO * max(min(a, b), 1):
            dropped[f"one side is more than {LONGEST_RATIO} times as long as the other"] += 1
            continue
        found.append((-len(pair.prompt), abs(a - b), pair))
    taken: list[Pair] = []
    used: set[str] = set()
    for _, _, pair in sorted(found, key=lambda one: (one[0], one[1], one[2].id)):
        worse_name = pair.id.rpartition(" > ")[2]
        if worse_name in used:
            continue
        used.add(worse_name)
        if len(taken) < MOST_PAIRS:
            taken.append(pair)
        else:
            dropped[f"the problem has {MOST_PAIRS} pairs already"] += 1
    return taken


def paired(better: VisualTrace, worse: VisualTrace, kind: Kind) -> Pair | str:
    """The pair of two traces, or why they make none."""
    count = 0
    for one, other in zip(better.messages, worse.messages, strict=False):
        if one != other:
            break
        count += 1
    if count == 0:
        return "the two are asked differently"
    if count == min(len(better.messages), len(worse.messages)):
        return "one is the beginning of the other"
    if {better.messages[count]["role"], worse.messages[count]["role"]} != {"assistant"}:
        return "the same words are replied to differently"
    turns = sum(message["role"] == "assistant" for message in better.messages[:count])
    return Pair(
        f"{better.id} > {worse.id}",
        better.problem,
        kind,
        worse.source,
        better.messages[:count],
        better.messages[count:],
        worse.messages[count:],
        better.cuts[turns:],
        worse.cuts[turns:],
        better.category,
        better.decider,
        worse.decider,
    )


def said_length(messages: Iterable[Message]) -> int:
    """Characters of what the model says in messages."""
    return sum(len(message["content"]) for message in messages if message["role"] == "assistant")


ALIKE, TOKEN = 0.1, 4
"""Sides are of one length that differ by no more than this share of the shorter one, or by so many
characters, about a token."""


def length_group(pair: Pair) -> tuple[int, int]:
    """Return how much the lengths of a pair's sides differ, in steps of a factor of √2, and the longer side.

    The side is 1 where the chosen one is longer, -1 where the rejected one is, and 0 where they are alike.
    """
    a, b = said_length(pair.chosen), said_length(pair.rejected)
    shorter, longer = sorted((a, b))
    if longer - shorter <= max(TOKEN, ALIKE * shorter):
        return 0, 0
    return int(2 * math.log2(longer / max(shorter, 1))), 1 if a > b else -1


class Balance:
    """Says which pairs of a set stay, so that neither lengths nor the number of looks tell the sides apart.

    Of pairs of kind ``wrong`` whose lengths differ about as much, the chosen side is longer as often as the
    rejected one. There are as many hasty as wasteful pairs, else a verifier learns that looks are good, or
    bad; of the larger kind those leave whose sides have least in common, and if one kind is missing, all
    stay. Those of a group that leave are spread evenly over the set.

    First all pairs are counted, then each is asked about, in the same order.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[Kind, int, int]] = Counter()
        self._asked: Counter[tuple[Kind, int, int]] = Counter()
        self._quotas: Mapping[tuple[Kind, int, int], int] | None = None

    def count(self, pair: Pair) -> None:
        """Count a pair."""
        self._counts[self._group(pair)] += 1

    def keeps(self, pair: Pair, dropped: Counter[str]) -> bool:
        """Whether a pair stays; where it does not, ``dropped`` counts why."""
        if self._quotas is None:
            self._quotas = self._shares()
        group = self._group(pair)
        place, quota, count = self._asked[group], self._quotas[group], self._counts[group]
        self._asked[group] += 1
        if (place + 1) * quota // count > place * quota // count:
            return True
        side = "chosen" if group[2] > 0 else "rejected"
        dropped[
            f"the {side} side would be longer more often"
            if pair.kind == "wrong"
            else f"there would be more {pair.kind} pairs than of the opposite"
        ] += 1
        return False

    @staticmethod
    def _group(pair: Pair) -> tuple[Kind, int, int]:
        return (pair.kind, *(length_group(pair) if pair.kind == "wrong" else (len(pair.prompt), 0)))

    def _shares(self) -> dict[tuple[Kind, int, int], int]:
        """How many pairs of each group stay."""
        counts = self._counts
        totals: Counter[Kind] = Counter()
        for (kind, _, _), count in counts.items():
            totals[kind] += count
        fewer = min(totals["hasty"], totals["wasteful"])
        left: dict[Kind, int] = {kind: fewer or totals[kind] for kind in totals}
        quotas = {}
        for kind, size, side in sorted(counts, reverse=True):
            group, count = (kind, size, side), counts[kind, size, side]
            if kind == "wrong":
                quotas[group] = min(count, counts[kind, size, -side])
            else:
                quotas[group] = min(count, left[kind])
                left[kind] -= quotas[group]
        return quotas


FOLDS = 5
MOST = 0.6
"""The largest accuracy of a classifier with which pairs pass."""
TESTED = 20_000
"""The most pairs whose words are counted."""
NUMBER = "<number>"
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_WORDS = re.compile(r"</?\w+>|[^\W_]+|\?")


@dataclass(frozen=True, slots=True)
class Leak:
    """The findings of a classifier.

    Args:
        accuracy: Its share of right guesses on problems that it has not seen; .5 is chance.
        pairs: How many pairs were tested.
        chosen: The words that speak most for the chosen side, with their weights.
        rejected: The words that speak most for the rejected side, with their weights.
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


def leak_test(pairs: Iterable[Pair], words: int = 10, seed: int = 0) -> Leak:
    """Let a classifier guess which side is the chosen one, from how often each word occurs.

    In the 12 pairs that VTS-V's authors published all rejected traces have a tag that no chosen one has. A
    verifier can learn that instead of what it is meant to learn. Here a bag-of-words classifier tries, which
    understands nothing: what it finds out, a verifier may use.

    Logistic regression on the counts of words (scaled by their largest), in five folds; all pairs of a
    problem are in one fold, so that what a problem is about does not help. Of more than `TESTED` pairs so
    many are drawn.

    Args:
        pairs: The pairs.
        words: How many words are named for each side.
        seed: Decides the folds and the draw.

    Raises:
        DataError: There are fewer than five problems.
    """
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    drawn: list[tuple[str, str, str]] = []
    rng = np.random.default_rng(seed)
    for number, pair in enumerate(pairs):
        place = number if number < TESTED else int(rng.integers(number + 1))
        if place < TESTED:
            chosen, rejected = (" ".join(words_of(side)) for side in (pair.chosen, pair.rejected))
            drawn[place : place + 1] = [(pair.problem, chosen, rejected)]
    problems = np.array([problem for problem, *_ in drawn for _ in range(2)])
    if len(set(problems.tolist())) < FOLDS:
        raise DataError(
            f"the leak test needs pairs of {FOLDS} problems or more, not {len(set(problems.tolist()))}"
        )
    texts = np.array([side for _, *sides in drawn for side in sides], dtype=object)
    is_chosen = np.tile([1, 0], len(drawn))
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
        return Leak(0.5, len(drawn), [], [])
    model.fit(texts, is_chosen)
    names = model[0].get_feature_names_out()
    weights = model[-1].coef_[0]
    order = np.argsort(weights)
    named = [(str(names[i]), round(float(weights[i]), 3)) for i in order]
    return Leak(
        right / len(is_chosen),
        len(drawn),
        [one for one in reversed(named[-words:]) if one[1] > 0],
        [one for one in named[:words] if one[1] < 0],
    )
