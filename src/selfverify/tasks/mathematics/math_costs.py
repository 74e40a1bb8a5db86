"""Which expressions would keep math-verify busy for seconds or take gigabytes."""

from __future__ import annotations

import re

_ENDLESS = re.compile(
    r"\d{21}|\^\s*[{(]?\s*[-+]?\d{4}|\^\s*\{[^{}]*\^|\^\s*\{?\s*\([^()]*\^|\^\s*[\w.]+\s*\^|\d{4}\s*!|[)}\]!]\s*!"
)
"""Huge powers, towers of powers, and factorials of large numbers or of expressions."""
_BRACED = re.compile(r"\{\s*(\d{1,3}|[A-Za-z])\s*\}(?=\s*!)")
_POWER = re.compile(r"[)}\]]\s*\^\s*[{(]?\s*[-+]?(\d+)")
_NUMBERS = re.compile(r"(?:[\d.\s{}+\-*/]|\\frac|\\cdot|\\times)*")
_ONE_TERM = re.compile(r"[^+\-!^]*")

MOST_POWER = 20
"""The largest power of a sum with letters or roots: expanded, it has a term for every way to choose."""


def is_costly(text: str) -> bool:
    """Whether an expression in LaTeX would take math-verify seconds."""
    text = _BRACED.sub(r"\1", text)
    if _ENDLESS.search(text):
        return True
    for match in _POWER.finditer(text):
        base = _inside(text, match.start())
        cheap = _NUMBERS.fullmatch(base) or _ONE_TERM.fullmatch(base)
        if len(match[1]) > 3 or (int(match[1]) > MOST_POWER and not cheap):
            return True
    return False


def _inside(text: str, end: int) -> str:
    """What stands inside the bracket that closes at ``end``."""
    depth = 0
    for place in range(end, -1, -1):
        depth += (text[place] in ")]}") - (text[place] in "([{")
        if depth == 0:
            return text[place + 1 : end]
    return text[:end]
