"""When a typed text counts as the wanted one: the rules of published evaluators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

TextRule = Callable[[str, str], bool]
"""Whether the first text (the model's) counts as the second (the target)."""


def f1(found: int, wanted: int, shared: int) -> float:
    """Harmonic mean of precision and recall of ``shared`` words."""
    return 2 * shared / (found + wanted) if shared else 0.0


def word_f1(text: str, target: str) -> bool:
    """Equal, or word F1 above 0.5, regardless of case; words count as often as they occur. This rule is ours.

    Not the substring rule that Qwen's and GUI-Odyssey's scorers have: a policy under training would learn
    that "a" is part of nearly every text.
    """
    mine, theirs = Counter(text.casefold().split()), Counter(target.casefold().split())
    shared = (mine & theirs).total()
    return mine == theirs or f1(mine.total(), theirs.total(), shared) > 0.5


def substring(text: str, target: str) -> bool:
    """Either contains the other, regardless of case (AgentCPM-GUI's port of Qwen's scorer)."""
    mine, theirs = text.strip().lower(), target.strip().lower()
    return mine in theirs or theirs in mine


def odyssey(text: str, target: str) -> bool:
    """Either contains the other, or half of the longer one agrees in edit distance (GUI-Odyssey's scorer)."""
    mine, theirs = text.strip(), target.strip()
    if mine in theirs or theirs in mine:
        return True
    longest, shortest = max(len(mine), len(theirs)), min(len(mine), len(theirs))
    # An edit distance is at least the difference in length, so long texts need no table.
    return 2 * shortest >= longest and 2 * edit_distance(mine, theirs) <= longest


def os_atlas(text: str, target: str) -> bool:
    """Equal, or set F1 above 0.5, of the first word only: "new delhi" counts as "new york pizza"."""
    return _first(text) == _first(target) or set_f1(_first(text), _first(target)) > 0.5


def os_atlas_odyssey(text: str, target: str) -> bool:
    """Set F1 above 0.5 of the whole command, whose word TYPE always agrees."""
    return set_f1(f"TYPE {text}", f"TYPE {target}") > 0.5


def gui_r1(text: str, target: str) -> bool:
    """Set F1 of 0.5 or more; single words count if either contains the other."""
    mine, theirs = text.lower().split(), target.lower().split()
    if len(mine) == len(theirs) == 1:
        return mine[0] in theirs[0] or theirs[0] in mine[0]
    return set_f1(text, target) >= 0.5


def set_f1(text: str, target: str) -> float:
    """F1 of the two sets of words, regardless of case."""
    mine, theirs = set(text.lower().split()), set(target.lower().split())
    return f1(len(mine), len(theirs), len(mine & theirs))


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's: insertions, deletions and replacements that make ``b`` of ``a``."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


def _first(text: str) -> str:
    words = text.split()
    return words[0] if words else ""
