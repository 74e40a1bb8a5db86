"""When a typed text counts as the wanted one: the rules of published evaluators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

TextRule = Callable[[str, str], bool]
"""Whether the first text (the model's) counts as the second (the target)."""


def f1(found: int, wanted: int, shared: int) -> float:
    """Return the harmonic mean of precision and recall, given the numbers of words."""
    return 2 * shared / (found + wanted) if shared else 0.0


def word_f1(text: str, target: str) -> bool:
    """Return whether the texts are equal, or their word F1 is above 0.5, regardless of case (our rule).

    Words count as often as they occur. Qwen's and GUI-Odyssey's scorers take any part of the text, so that a
    policy under training would learn that "a" is part of nearly every text.
    """
    mine, theirs = Counter(text.casefold().split()), Counter(target.casefold().split())
    shared = (mine & theirs).total()
    return mine == theirs or f1(mine.total(), theirs.total(), shared) > 0.5


def substring(text: str, target: str) -> bool:
    """Return whether either contains the other, regardless of case (AgentCPM-GUI's port of Qwen's scorer)."""
    mine, theirs = text.strip().lower(), target.strip().lower()
    return mine in theirs or theirs in mine


def odyssey(text: str, target: str) -> bool:
    """Return whether either contains the other, or edits change at most half of the longer (GUI-Odyssey)."""
    mine, theirs = text.strip(), target.strip()
    if mine in theirs or theirs in mine:
        return True
    longest, shortest = max(len(mine), len(theirs)), min(len(mine), len(theirs))
    # An edit distance is at least the difference in length, so long texts need no table.
    return 2 * shortest >= longest and 2 * edit_distance(mine, theirs) <= longest


def os_atlas(text: str, target: str) -> bool:
    """Return whether the first words are equal regardless of case: "New delhi" is "new york" (OS-Atlas)."""
    return text.lower().split()[:1] == target.lower().split()[:1]


def os_atlas_odyssey(text: str, target: str) -> bool:
    """Return whether the set F1 of the whole commands, whose word TYPE agrees, is above 0.5 (OS-Atlas)."""
    return set_f1(f"TYPE {text}", f"TYPE {target}") > 0.5


def gui_r1(text: str, target: str) -> bool:
    """Return whether the set F1 is 0.5 or more; single words count if either contains the other (GUI-R1)."""
    mine, theirs = text.lower().split(), target.lower().split()
    if len(mine) == len(theirs) == 1:
        return mine[0] in theirs[0] or theirs[0] in mine[0]
    return set_f1(text, target) >= 0.5


def set_f1(text: str, target: str) -> float:
    """Return the F1 of the two sets of words, regardless of case."""
    mine, theirs = set(text.lower().split()), set(target.lower().split())
    return f1(len(mine), len(theirs), len(mine & theirs))


def edit_distance(a: str, b: str) -> int:
    """Return the fewest insertions, deletions and replacements that make ``b`` of ``a`` (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
