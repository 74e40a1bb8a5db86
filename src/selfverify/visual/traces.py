"""Traces as data: what a model said and was shown while it looked (VTS-V Eq. 1's τ), and their pairs.

Traces are checked and counted (`Curation`). A verifier learns from pairs (`make_pairs`), of which `leak_test`
says whether chosen and rejected side can be told apart by their words alone.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import STRICT
from selfverify.core.problem import content_parts
from selfverify.core.trajectory import ANSWER
from selfverify.rollouts.wrappers import Message
from selfverify.tasks.answering import worth_imitating
from selfverify.tasks.tool_episode import TOOL_CALLS
from selfverify.visual.config import PIXELS_PER_TOKEN

BYTES_PER_TOKEN = 4
"""Of text, as an estimate."""
ROLES = ("system", "user", "assistant", "tool")


@dataclass(slots=True)
class VisualTrace:
    """One conversation.

    Args:
        id: Its name.
        problem: The problem's id. Traces of one problem have the same.
        messages: ``role`` and ``content``: a text, or parts of type ``text`` and ``image``, the latter with
            the name of a file.
        cuts: For each message of the assistant its channels, as `Observation.channels` has them.
        rewards: The rewards of its end.
        steps: The record of each step (`VisualStep`).
        finish: How the last turn ended.
        lost: Why it broke off; empty where it did not.
        source: How it was made: ``sampled``, ``branched`` from another trace, ``induced`` to be wrong, or
            ``hurried`` to an answer.
        category: The problem's.
        task: The task's name.
        told: How many messages were given to who spoke, the question among them.
    """

    id: str
    problem: str
    messages: list[Message]
    cuts: list[list[list[Any]]] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    finish: str = "stop"
    lost: str = ""
    source: str = "sampled"
    category: str = ""
    task: str = ""
    told: int = 1

    @property
    def correct(self) -> bool:
        """Whether the task found the answer right and whole."""
        return worth_imitating(self.rewards)

    @property
    def turns(self) -> list[Message]:
        """The model's turns: H steps and the answer."""
        return [message for message in self.messages if message["role"] == "assistant"]

    @property
    def images(self) -> list[str]:
        """The names of all images in order."""
        return [part["image"] for message in self.messages for part in parts_of(message) if is_image(part)]


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands on a trace.

    Args:
        most_tokens: Longer ones are dropped (§4.1: 20,000; §4.2's released filter for pairs: 10,000).
        least_calls: Carried out calls of tools; 0 keeps answers at first sight.
        errors: Whether steps are kept whose call failed.
    """

    most_tokens: int = 20_000
    least_calls: int = 1
    errors: bool = True


def parts_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A message's content as parts."""
    return content_parts(message["content"])


def is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part is an image."""
    return part.get("type") == "image"


def flattened(messages: Sequence[Message]) -> list[Message]:
    """Messages with nested lists of parts opened, texts side by side joined, and users' messages merged.

    A message that holds text only has a text as its content.
    """
    found: list[Message] = []
    for message in messages:
        content = message["content"]
        parts = _joined(_opened(content)) if isinstance(content, list) else parts_of(message)
        if found and found[-1]["role"] == message["role"] == "user":
            parts = _joined([*parts_of(found.pop()), *parts])
        text = not any(map(is_image, parts))
        found.append(
            {
                "role": message["role"],
                "content": "".join(part.get("text", "") for part in parts) if text else parts,
            }
        )
    return found


def _opened(parts: Iterable[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, list):
            found += _opened(part)
        else:
            found.append({"type": "text", "text": part} if isinstance(part, str) else part)
    return found


def _joined(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and part.get("type") == found[-1].get("type") == "text":
            found[-1] = {"type": "text", "text": found[-1]["text"] + part["text"]}
        else:
            found.append(dict(part))
    return found


def estimated_length(messages: Iterable[Message], sizes: Mapping[str, tuple[int, int]]) -> int:
    """Return an estimate of the tokens of messages: a quarter of their bytes, and an image's pixels by 28 x
    28.

    Args:
        messages: The messages.
        sizes: Width and height of images by name.
    """
    tokens = 0
    for message in messages:
        for part in parts_of(message):
            if is_image(part):
                wide, high = sizes[part["image"]]
                tokens += max(wide * high // PIXELS_PER_TOKEN, 1)
            else:
                tokens += -(-len(part["text"].encode("utf-8", "replace")) // BYTES_PER_TOKEN)
    return tokens


class Curation:
    """Checks traces one after another, and counts what is dropped by its reason.

    VTS-V §4.1 flattens nested structures, merges turns that belong together, and drops what is malformed,
    trivial, too long or wrong. Here every trace that is dropped has a reason.

    Args:
        folder: Where images are.
        demands: The demands on a trace.
    """

    def __init__(self, folder: Path, demands: Demands) -> None:
        self.folder, self.demands = folder, demands
        self.dropped: Counter[str] = Counter()
        self.sizes: dict[str, tuple[int, int]] = {}
        """Of the images that were seen."""
        self._seen: set[str] = set()
        self._missing: set[str] = set()
        self._asked: dict[str, list[Message]] = {}

    def take(self, traces: Iterable[VisualTrace]) -> list[VisualTrace]:
        """The traces that are kept, flattened."""
        kept = []
        for trace in traces:
            reason = self._fault(trace)
            if reason:
                self.dropped[reason] += 1
            else:
                kept.append(trace)
        return kept

    def _fault(self, trace: VisualTrace) -> str:
        """Why a trace is dropped; empty where it is not."""
        if trace.lost:
            return "they broke off"
        if trace.finish != "stop":
            return "their last turn was cut off"
        if fault := malformed(trace):
            return f"malformed: {fault}"
        trace.messages = flattened(trace.messages)
        if any(not self._is_there(name) for name in trace.images):
            return "an image is missing or cannot be read"
        if trace.rewards.get(TOOL_CALLS, 0) < self.demands.least_calls:
            return "no tool was used"
        if not self.demands.errors and any(step.get("error") for step in trace.steps):
            return "a call failed"
        if estimated_length(trace.messages, self.sizes) > self.demands.most_tokens:
            return f"they are longer than {self.demands.most_tokens:,} tokens"
        first = self._asked.setdefault(trace.problem, trace.messages[:1])
        if trace.messages[:1] != first:
            return "the same problem is asked otherwise"
        same = repr((trace.problem, trace.messages))
        if same in self._seen:
            return "the same was said before"
        self._seen.add(same)
        return ""

    def _is_there(self, name: str) -> bool:
        if name in self._missing:
            return False
        if name not in self.sizes:
            try:
                if Path(name).name != name:
                    raise ValueError("a name leads elsewhere")
                with Image.open(self.folder / name, formats=("PNG",)) as image:
                    self.sizes[name] = image.size
                    image.verify()
            except (OSError, ValueError, SyntaxError):
                self._missing.add(name)
                self.sizes.pop(name, None)
                return False
        return True


def malformed(trace: VisualTrace) -> str:
    """Return the fault of a trace's form; empty where nothing is."""
    for message in trace.messages:
        content = message.get("content")
        opened = _opened(content) if isinstance(content, list) else content
        if fault := malformed_message({**message, "content": opened}):
            return fault
    roles = [message["role"] for message in trace.messages]
    if not roles or roles[0] == "assistant" or roles[-1] != "assistant":
        return "no question at the beginning, or no answer at the end"
    said = [place for place, role in enumerate(roles) if role == "assistant"]
    if any(after == before + 1 for before, after in itertools.pairwise(said)):
        return "two turns without a reply between them"
    if any(not isinstance(turn["content"], str) or not turn["content"].strip() for turn in trace.turns):
        return "a turn is empty or shows images"
    if len(trace.cuts) != len(said):
        return "channels and turns differ in number"
    if [cut[:1] for cut in trace.cuts[-1][:1]] != [[ANSWER]]:
        return "they end without an answer"
    return ""


def malformed_message(message: Mapping[str, Any]) -> str:
    """Return the fault of the form of one message, whose parts are not nested; empty where nothing is."""
    if message.get("role") not in ROLES:
        return "a role is unknown"
    content = message.get("content")
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        if not isinstance(part, dict) or part.get("type") not in ("text", "image"):
            return "a part is neither text nor image"
        if not isinstance(part.get("image" if is_image(part) else "text"), str):
            return "a part is empty"
    return ""


Kind = Literal["wrong", "hasty", "wasteful"]


@dataclass(frozen=True, slots=True)
class Pair:
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
    """

    __pydantic_config__: ClassVar = STRICT

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


@dataclass(frozen=True, slots=True)
class Pairing:
    """How pairs are made.

    Args:
        wasteful: Whether two right traces make a pair, too, of which the one with fewer looks is preferred
            (ours: the paper's pairs differ in right and wrong only).
        most: Pairs of one problem and kind at most.
        longest_ratio: How many times longer one side may be than the other, in characters of what was said.
        match_lengths: Whether the chosen side is longer as often as the rejected one. Both limits are for
            pairs of kind ``wrong``: that a hasty one is shorter, and a wasteful one longer, is what is wrong
            with them. Of these two kinds there are as many, if there are both.
    """

    wasteful: bool = False
    most: int = 4
    longest_ratio: float = 4.0
    match_lengths: bool = True


def make_pairs(traces: Iterable[VisualTrace], how: Pairing) -> tuple[list[Pair], Counter[str]]:
    """Pair the traces of each problem on their longest common prefix (VTS-V §4.2).

    A pair has one beginning, then a better and a worse way. The beginning becomes the prompt, where
    multi-step DPO's log-ratios cancel (Eq. 10).

    The paper prompts a model to go on wrongly. Prompted lies tell themselves by their words (`leak_test`), so
    a model's own wrong traces of the same problem count here, too.

    Of all possible pairs those with most turns in common come first, then those of like lengths; a trace is
    the rejected one of one pair at most for each kind.

    Returns:
        The pairs, and how many possible ones or traces were left out for which reason.
    """
    by_problem: dict[str, list[VisualTrace]] = defaultdict(list)
    for trace in traces:
        by_problem[trace.problem].append(trace)
    pairs: list[Pair] = []
    dropped: Counter[str] = Counter()
    for problem in sorted(by_problem):
        right = [t for t in by_problem[problem] if t.correct and t.source != "induced"]
        wrong = [t for t in by_problem[problem] if not t.correct and t.source != "hurried"]
        hasty = [t for t in by_problem[problem] if not t.correct and t.source == "hurried"]
        dropped["induced to be wrong, and right"] += sum(
            t.correct and t.source == "induced" for t in by_problem[problem]
        )
        if not right:
            dropped["no right trace of the problem"] += len(wrong) + len(hasty)
            continue
        if not wrong and not hasty and not how.wasteful:
            dropped["no wrong trace of the problem"] += len(right)
        pairs += _chosen("wrong", [(w, x) for w in right for x in wrong], how, dropped)
        pairs += _chosen("hasty", [(w, x) for w in right for x in hasty], how, dropped)
        if how.wasteful:
            fewer = [(a, b) for a in right for b in right if len(a.turns) < len(b.turns)]
            pairs += _chosen("wasteful", fewer, how, dropped)
    if how.match_lengths:
        pairs = as_hasty_as_wasteful(matched_lengths(pairs, dropped), dropped)
    return pairs, +dropped


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
        if kind == "wrong" and max(a, b) > how.longest_ratio * max(min(a, b), 1):
            dropped[f"one side is more than {how.longest_ratio:g} times as long as the other"] += 1
            continue
        found.append((-len(pair.prompt), abs(a - b), pair))
    taken: list[Pair] = []
    used: set[str] = set()
    for _, _, pair in sorted(found, key=lambda one: (one[0], one[1], one[2].id)):
        worse_name = pair.id.rpartition(" > ")[2]
        if worse_name in used:
            continue
        if len(taken) == how.most:
            dropped[f"the problem has {how.most} pairs already"] += 1
            used.add(worse_name)
            continue
        used.add(worse_name)
        taken.append(pair)
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
    )


def said_length(messages: Iterable[Message]) -> int:
    """Characters of what the model says in messages."""
    return sum(len(message["content"]) for message in messages if message["role"] == "assistant")


def matched_lengths(pairs: Sequence[Pair], dropped: Counter[str]) -> list[Pair]:
    """Pairs among which the chosen side is longer as often as it is shorter.

    Pairs that differ most in length leave first.
    """
    differences = {
        pair.id: said_length(pair.chosen) - said_length(pair.rejected)
        for pair in pairs
        if pair.kind == "wrong"
    }
    longer = sorted((d, name) for name, d in differences.items() if d > 0)
    shorter = sorted((-d, name) for name, d in differences.items() if d < 0)
    kept = min(len(longer), len(shorter))
    left_out = {name for _, name in [*longer[kept:], *shorter[kept:]]}
    if left_out:
        side = "chosen" if len(longer) > len(shorter) else "rejected"
        dropped[f"the {side} side would be longer more often"] += len(left_out)
    return [pair for pair in pairs if pair.kind != "wrong" or pair.id not in left_out]


def as_hasty_as_wasteful(pairs: Sequence[Pair], dropped: Counter[str]) -> list[Pair]:
    """Pairs with as many hasty as wasteful ones, else a verifier learns that looks are good, or bad.

    Of the larger kind those leave whose sides have least in common. If one kind is missing, all stay.
    """
    kinds: dict[Kind, list[Pair]] = {
        kind: sorted((p for p in pairs if p.kind == kind), key=lambda p: (-len(p.prompt), p.id))
        for kind in ("hasty", "wasteful")
    }
    fewer = min(map(len, kinds.values()))
    if not fewer:
        return [*pairs]
    left_out = {(kind, pair.id) for kind, few in kinds.items() for pair in few[fewer:]}
    for kind, _ in left_out:
        dropped[f"there would be more {kind} pairs than of the opposite"] += 1
    return [pair for pair in pairs if (pair.kind, pair.id) not in left_out]


FOLDS = 5
MOST = 0.6
"""The largest accuracy of a classifier with which pairs pass."""
NUMBER = "<number>"
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_WORDS = re.compile(r"</?\w+>|[^\W_]+|\?")


@dataclass(frozen=True, slots=True)
class Leak:
    """The findings of a classifier.

    Args:
        accuracy: Its share of right guesses on problems that it has not seen; .5 is chance.
        pairs: How many pairs there were.
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


def leak_test(pairs: Sequence[Pair], words: int = 10, seed: int = 0) -> Leak:
    """Let a classifier guess which side is the chosen one, from how often each word occurs.

    In the 12 pairs that VTS-V's authors published all rejected traces have a tag that no chosen one has. A
    verifier can learn that instead of what it is meant to learn. Here a bag-of-words classifier tries, which
    understands nothing: what it finds out, a verifier may use.

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
