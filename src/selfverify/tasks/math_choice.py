"""Multiple choice: which option an answer commits to.

math-verify cannot do this (it finds no ``B`` in ``\\boxed{B}``), and searching a text for letters pays for
"A or B". Here the whole answer has to be a letter, an option's text, or a letter with its own option's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from selfverify.errors import DataError
from selfverify.tasks.math_numbers import Number, read_number, same_number
from selfverify.tasks.math_text import final_expression, plain, unwrap, words

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_LETTER = re.compile(
    r"(?:(?:option|choice) +)?(?:\((?P<a>[A-Za-z])\)|\[(?P<b>[A-Za-z])\]|(?P<c>[A-Za-z])(?![A-Za-z]))\s*"
    r"(?P<mark>[.):]?)\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)


def read_options(options: Any, name: str) -> dict[str, str]:
    """A row's options by letter.

    Raises:
        DataError: They are neither a list nor a mapping from single letters, too many, or empty.
    """
    if isinstance(options, Mapping):
        found = {
            str(letter).strip().upper(): str(text) for letter, text in options.items() if text is not None
        }
    elif isinstance(options, Sequence) and not isinstance(options, str):
        if len(options) > len(LETTERS):
            raise DataError(f"{name}: {len(options)} options; letters go to {len(LETTERS)}")
        found = dict(zip(LETTERS, map(str, options), strict=False))
    else:
        raise DataError(f"{name}: options is {type(options).__name__}, not a list or a mapping from letters")
    wrong = [letter for letter in found if letter not in LETTERS or len(letter) != 1]
    if wrong or len(found) < 2:
        raise DataError(f"{name}: options {sorted(found)} are not two or more single letters")
    return found


def find_target(answer: str, options: Mapping[str, str], by_text: bool, name: str) -> str:
    """The letter of the right option, from a letter or an option's text.

    Args:
        answer: The data's answer.
        options: Texts by letter.
        by_text: The data says that its answer is a text (MathVista): it is looked for among the texts first,
            which matters where the options are letters themselves.
        name: The problem, for errors.

    Raises:
        DataError: It is none of the options.
    """
    letter = _only_letter(final_expression(answer) or "", options)
    text = _by_text(answer, options)
    first, second = (text, letter) if by_text else (letter, text)
    found = first or second
    if found is None:
        raise DataError(f"{name}: the answer {answer[:60]!r} is none of the options {dict(options)}")
    return found


def read_choice(text: str, options: Mapping[str, str]) -> str | None:
    """The letter of the option that ``text`` commits to; None if that is none, or more than one.

    ``B``, ``(b)``, ``B.``, ``\\boxed{B}``, ``Answer: B``, ``Option B``, an option's text, ``B. its text``. A
    text that is another option's after the letter contradicts it; anything else after the letter must not
    name another option.
    """
    content = final_expression(text)
    if not content:
        return None
    by_text = _by_text(content, options)
    letter = _only_letter(content, options)
    if letter is not None and by_text is not None and letter != by_text:
        # Options that are letters themselves: what is written is a text and a letter. Letters were asked for.
        return letter
    if letter is not None or by_text is not None:
        return letter or by_text
    match = _LETTER.fullmatch(content)
    letter = _letter(match, options) if match is not None else None
    if match is None or letter is None:
        return None
    rest = unwrap(match["rest"])
    said = _by_text(rest, options) or _by_text(rest.removeprefix("(").removesuffix(")"), options)
    if said is not None:
        return letter if _spelt_alike(options[said], options[letter]) else None
    marked = bool(match["mark"]) or match["c"] is None
    return letter if marked and _names_no_other(rest, letter, options) else None


def right_letters(target: str, options: Mapping[str, str]) -> set[str]:
    """The target's letter, and those of options with the same text."""
    return {key for key, text in options.items() if key == target or _spelt_alike(text, options[target])}


def _letter(match: re.Match[str], options: Mapping[str, str]) -> str | None:
    letter = (match["a"] or match["b"] or match["c"]).upper()
    return letter if letter in options else None


def _only_letter(content: str, options: Mapping[str, str]) -> str | None:
    match = _LETTER.fullmatch(content)
    return _letter(match, options) if match is not None and not match["rest"] else None


def _by_text(content: str, options: Mapping[str, str]) -> str | None:
    """The option with this text, else the one that is the same number; None if several different ones are."""
    for same in (_spelt_alike, _same_number):
        found = [letter for letter, text in options.items() if same(text, content)]
        if found:
            return found[0] if all(_spelt_alike(options[f], options[found[0]]) for f in found) else None
    return None


def _spelt_alike(a: str, b: str) -> bool:
    (words_a, compact_a, _), (words_b, compact_b, _) = _read(a), _read(b)
    return bool(words_a) and (words_a == words_b or compact_a == compact_b)


def _same_number(a: str, b: str) -> bool:
    x, y = _read(a)[2], _read(b)[2]
    # Two options may differ in the percent sign only: here nothing is forgiven but spelling and a unit.
    return x is not None and y is not None and x.percent == y.percent and same_number(x, y)


@lru_cache(maxsize=4096)
def _read(text: str) -> tuple[str, str, Number | None]:
    """As words, as LaTeX and as a number."""
    text = unwrap(plain(text))
    return words(text), _compact(text), read_number(text)


def _compact(text: str) -> str:
    """LaTeX without what its spaces and single-character groups add."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"[\s$]", "", text))


def _names_no_other(rest: str, letter: str, options: Mapping[str, str]) -> bool:
    """Whether an explanation after "B." names neither another letter nor another option's text."""
    capitals = set(re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z])", rest))
    if capitals & (set(options) - {letter}):
        return False
    said, own = f" {words(rest)} ", words(options[letter])
    for other, text in options.items():
        spelt = words(text)
        if other != letter and spelt and spelt not in own and spelt in said:
            return False
    return True
