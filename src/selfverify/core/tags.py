"""Tagged output: what tags hold, which tokens belong to which channel, and how it is asked for.

The text comes from a model, so nothing here raises on it, and malformed output is never repaired into
something that could be rewarded. Everything is linear in the text: ``str.find`` and ``str.count`` once per
tag, no backtracking.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SCORE_TAG = "score"
MAX_SCORE_CHARS = 16

_WHITESPACE = " \t\n\r\f\v"
_SCORE = re.compile(r"0(?:\.[0-9]+)?|1(?:\.0+)?")


@dataclass(slots=True)
class Tagged:
    """The parts of one tagged output.

    Args:
        fields: Contents by tag, for every tag that was opened and closed. Best effort: look at the flags
            before rewarding anything.
        score: The number in the score block; None unless ``score_ok``.
        answer_ok: The part before ``<score>`` is well formed. It does not depend on anything after
            ``<score>``, so that a format reward for the answer never pays for what the score says.
        score_ok: A score block follows the last other tag at once, holds a score, and ends the text.
        score_start: Character offset just after the opening ``<score>``, None if it was never opened
            after the last other tag. This is where the score channel begins.
        score_asked: Whether the tags that were asked for have a score among them.
    """

    fields: dict[str, str] = field(default_factory=dict)
    score: float | None = None
    answer_ok: bool = False
    score_ok: bool = False
    score_start: int | None = None
    score_asked: bool = True


def parse_score(text: str) -> float | None:
    """Read a verification score: an ASCII decimal in [0, 1], or None for anything else. Never raises.

    Accepted are ``0``, ``0.ddd``, ``1`` and ``1.000``, of at most 16 characters, with ASCII whitespace around
    them. Not accepted are signs, exponents, names (``nan``), digits of other scripts, and two spellings that
    float() would take: ``.9``, because a tokenizer may join its point with the ``>`` of the opening tag,
    which puts part of the score in the answer channel; and ``1.``, so that a score cut off at its point is
    not taken for a finished one.
    """
    text = text.strip(_WHITESPACE)
    if len(text) > MAX_SCORE_CHARS or not _SCORE.fullmatch(text):
        return None
    return float(text)


def parse_tagged(text: str, order: Sequence[str] = ("think", "answer", SCORE_TAG)) -> Tagged:
    """Read ``<think>..</think><answer>..</answer><score>..</score>`` (ADPO Table 1); ``text`` never raises.

    Well formed means: each tag before ``<score>`` is opened once and closed once, in this order, not nested,
    with nothing but ASCII whitespace before, between and after them up to ``<score>`` (or the end); no score
    markup inside them; then ``score_ok`` of ``Tagged``. Other text between the last tag and ``<score>`` was
    written in the answer channel and makes both flags False.

    Args:
        text: The model's output without its end token (``<|im_end|>`` after the score is not whitespace).
        order: The tags, in order; ``("tool_call", "score")`` for the mobile agent. ``score`` may be left out.
            Without any tag all of a text that is not blank is its ``answer``.

    Raises:
        ValueError: ``order`` names a tag twice, or has ``score`` before another tag.
    """
    if not order:
        return Tagged({"answer": text}, answer_ok=bool(text.strip(_WHITESPACE)), score_asked=False)
    leading, asks = _markup(tuple(order))
    opening, closing = f"<{SCORE_TAG}>", f"</{SCORE_TAG}>"
    last_close = leading[-1][2] if leading else ""

    tagged = Tagged(score_asked=asks)
    score_open = -1
    if asks:
        answer_end = text.find(last_close)
        score_open = text.find(opening, answer_end) if answer_end >= 0 else -1
    head = text if score_open < 0 else text[:score_open]

    position = 0
    tidy = not asks or (opening not in head and closing not in head)
    for tag, tag_open, tag_close in leading:
        start = head.find(tag_open, position)
        end = head.find(tag_close, start + len(tag_open)) if start >= 0 else -1
        if end < 0:
            tidy = False
            continue
        once = head.count(tag_open) == 1 and head.count(tag_close) == 1
        tidy = tidy and once and not head[position:start].strip(_WHITESPACE)
        tagged.fields[tag] = head[start + len(tag_open) : end]
        position = end + len(tag_close)
    head = head.rstrip(_WHITESPACE)
    adjoining = head.endswith(last_close) if leading else not head
    tagged.answer_ok = tidy and adjoining

    if score_open >= 0:
        tagged.score_start = score_open + len(opening)
        end = text.find(closing, tagged.score_start)
        if end >= 0:
            tagged.fields[SCORE_TAG] = text[tagged.score_start : end]
            if adjoining and not text[end + len(closing) :].strip(_WHITESPACE):
                tagged.score = parse_score(tagged.fields[SCORE_TAG])
    tagged.score_ok = tagged.score is not None
    return tagged


@lru_cache(maxsize=64)
def _markup(order: tuple[str, ...]) -> tuple[list[tuple[str, str, str]], bool]:
    """Return each tag before the score with its opening and its closing markup, and whether a score is asked
    for."""
    asks = SCORE_TAG in order
    if len(set(order)) != len(order) or (asks and order[-1] != SCORE_TAG):
        raise ValueError(
            f"parse_tagged: order {order} must be distinct tags, with {SCORE_TAG!r} last if at all"
        )
    return [(tag, f"<{tag}>", f"</{tag}>") for tag in order if tag != SCORE_TAG], asks


def token_ends(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, list[int]]:
    """Decode sampled tokens and say where in the text each one ends; nothing is ever tokenised again.

    A token's end is where the decoding of the tokens up to it stops agreeing with the whole text. So a token
    that holds only the first bytes of a character ends where that character begins, and the token that
    completes the character ends after it.

    Where tokens decode one by one to the same text (nearly always) that costs one decode for each distinct
    token. Around tokens that do not, prefixes are decoded, found by bisection: about log2(n) of them for each
    such place.

    Args:
        tokenizer: Any Hugging Face tokenizer.
        ids: n token ids as sampled.

    Returns:
        The text with special tokens kept, and n character offsets, never decreasing, the last ``len(text)``.
    """
    ids = [int(i) for i in ids]

    def decode(part: list[int]) -> str:
        return tokenizer.decode(part, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    text = decode(ids)
    by_id = {i: decode([i]) for i in set(ids)}
    pieces = [by_id[i] for i in ids]
    ends = [0] * len(ids)
    ranges = [(0, len(ids), 0, len(text))] if ids else []
    while ranges:
        low, high, start, stop = ranges.pop()  # tokens [low, high) make up text[start:stop]
        if high - low == 1:
            ends[low] = stop
        elif "".join(pieces[low:high]) == text[start:stop]:
            for k in range(low, high):
                start += len(pieces[k])
                ends[k] = start
        else:
            middle = (low + high) // 2
            # A prefix can agree by accident beyond its neighbours (an invalid byte reads as U+FFFD).
            split = min(max(_agreement(decode(ids[:middle]), text), start), stop)
            ranges += [(low, middle, start, split), (middle, high, split, stop)]
    return text, ends


def channel_lengths(ends: Sequence[int], boundary: int | None) -> int:
    """Return how many leading tokens belong to the answer channel; the rest belong to the score channel.

    A token belongs to the score only if it starts at or after ``boundary``. One that straddles it holds part
    of the opening tag and stays answer, so that no verification reward ever touches the tag.

    Args:
        ends: Where each token ends, from ``token_ends``.
        boundary: ``Tagged.score_start``; None (no score) makes every token answer.
    """
    if boundary is None:
        return len(ends)
    # A token starts where the one before it ends, and the first at 0.
    return min(1 + bisect_left(ends, boundary), len(ends)) if boundary > 0 else 0


def _agreement(prefix: str, text: str) -> int:
    """Return the length of the longest common beginning of two texts."""
    shorter = min(len(prefix), len(text))
    return next((k for k in range(shorter) if prefix[k] != text[k]), shorter)


SCORE_INSTRUCTION = (
    "Reason in <think></think>, answer in <answer></answer>, "
    "then rate in <score></score> from 0 to 1 how sure you are."
)
"""ADPO Table 1's request in our words."""

ANSWER_INSTRUCTION = "Reason in <think></think>, answer in <answer></answer>."
"""ADPO's request for the format of answers, without a score."""

RATE = "Is the answer above right? Rate it in <score></score>: 1 is surely right, 0 is surely wrong."
"""The request to a judge that has to write a score at once."""

CHECK = (
    "Check the answer above against the question in <think></think>, then rate it in <score></score>: "
    "1 is surely right, 0 is surely wrong."
)
"""The request to a judge that may think before it writes a score."""
