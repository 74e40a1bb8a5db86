"""Multiple choice: the letter of the option that an answer commits to.

math-verify cannot do this (it finds no ``B`` in ``\\boxed{B}``), and searching a text for letters pays for
"A or B". Here the whole answer has to be a letter, an option's text or value, or a letter with its own
option's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from selfverify.tasks.math_answer import compare_values, same_number
from selfverify.tasks.math_text import final_expression, plain, unwrap, words
from selfverify.tasks.math_values import Named, Number, Value, read

_LETTER = re.compile(
    r"(?:(?:option|choice) +)?(?:\((?P<a>[A-Za-z])\)|\[(?P<b>[A-Za-z])\]|(?P<c>[A-Za-z])(?![A-Za-z]))\s*"
    r"(?P<mark>[.):]|(?<=\s)-+(?=\s))?\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_DENIED = re.compile(
    r"(?:(?:is|was|are|would be)\b\s*)?(?:not|no|wrong|incorrect|false|never|isn't)\b", re.IGNORECASE
)
_AFFIRMED = re.compile(
    r"(?:is(?: the)?(?: (?:correct|right|best|final))*(?: (?:answer|option|choice))?|选?项)", re.IGNORECASE
)
_JOIN = r"(?:\b(?:or|and|nor|vs)\b\.?|[/&,;|+-])"
_LONE = r"(?:(?:option|choice)\s+)?[(\[]?([A-Za-z])(?![A-Za-z])[)\].:]*"
_JOINED = re.compile(rf"\s*{_JOIN}\s*{_LONE}\s*(?:$|{_JOIN})", re.IGNORECASE)
"""Another letter right behind the first one: ``b. or c``, ``(B) / (c)``."""
_LETTERS = re.compile(rf"(?:\s*(?:{_JOIN}|{_LONE}))*\s*", re.IGNORECASE)
"""Nothing but letters: ``b) c) d)``."""


def read_choice(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that ``text`` commits to; None if it commits to none, or to several.

    Accepted are ``B``, ``(b)``, ``B.``, ``\\boxed{B}``, ``Answer: B``, ``Option B``, an option's text or
    value, and ``B. its text``. What follows the letter must not deny it, and not be or name another option.
    """
    content = final_expression(text)
    if not content:
        return None
    match = _LETTER.fullmatch(content)
    letter = (match["a"] or match["b"] or match["c"]).upper() if match is not None else ""
    if match is not None and letter in options and not match["rest"]:
        return letter  # even if it is another option's text: letters were asked for
    by_text = _by_text(content, options)
    if by_text is not None or match is None or letter not in options:
        return by_text
    rest = unwrap(match["rest"])
    said = _by_text(rest, options) or _by_text(rest.removeprefix("(").removesuffix(")"), options)
    if said is not None:
        return letter if _spelt_alike(options[said], options[letter]) else None
    if _AFFIRMED.fullmatch(rest):
        return letter
    marked = bool(match["mark"]) or match["c"] is None
    if not marked or _DENIED.match(rest):
        return None
    return letter if _names_no_other(rest, letter, options) else None


def right_letters(target: str, options: Mapping[str, str]) -> set[str]:
    """Return the target's letter, and the letters of options with the same text."""
    return {key for key, text in options.items() if key == target or _spelt_alike(text, options[target])}


def _by_text(content: str, options: Mapping[str, str]) -> str | None:
    """Return the option with this text, else the one of this value; None if different ones are."""
    for same in (_spelt_alike, _same_value):
        found = [letter for letter, text in options.items() if same(text, content)]
        if found:
            return found[0] if all(_spelt_alike(options[f], options[found[0]]) for f in found) else None
    return None


def _spelt_alike(a: str, b: str) -> bool:
    (words_a, compact_a, _), (words_b, compact_b, _) = _read(a), _read(b)
    return bool(words_a) and (words_a == words_b or compact_a == compact_b)


def _same_value(a: str, b: str) -> bool:
    x, y = _read(a)[2], _read(b)[2]
    if isinstance(x, Number) and isinstance(y, Number):
        # Two options may differ in the percent sign only: here nothing is forgiven but spelling and a unit.
        return x.percent == y.percent and same_number(x, y)
    if x is None or y is None or isinstance(x, Number) or isinstance(y, Number):
        return False
    return compare_values(x, y).verdict == "right"


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[str, str, Value | None]:
    """Return a text as words, as LaTeX and as a value."""
    text = unwrap(plain(text))
    value = read(text)
    compact = re.sub(r"\{(\w)\}", r"\1", re.sub(r"[\s$]", "", text))
    return words(text), compact, value.value if isinstance(value, Named) and value.rounded is None else value


def _names_no_other(rest: str, letter: str, options: Mapping[str, str]) -> bool:
    """Whether an explanation after "B." names neither another letter nor another option's text.

    Small letters are words and variables, but for those that are joined to the first letter or stand alone.
    """
    joined = _JOINED.match(rest)
    small = set(re.findall(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])", rest)) if _LETTERS.fullmatch(rest) else set()
    if ({found.upper() for found in small} | ({joined[1].upper()} if joined else set())) & (
        set(options) - {letter}
    ):
        return False
    capitals = set(re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z])", rest))
    if capitals & (set(options) - {letter}):
        return False
    said, own = f" {words(rest)} ", words(options[letter])
    for other, text in options.items():
        spelt = words(text)
        if other != letter and spelt and spelt not in own and spelt in said:
            return False
    return True
