"""Comparing a free-form answer with its target: what plain rules decide, what math-verify is asked.

The rules decide numbers, lists of numbers and words. Everything else that one expression can be goes to
math-verify in a worker process, as LaTeX in one box: never as a text in which it would look for an answer,
which pays for "1 2 3 42", and never through sympy's ``parse_expr``, which evaluates Python. What would keep
it busy for seconds or take gigabytes is not asked (`is_costly`). Multiple choice has rules of its own
(`read_choice`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from selfverify.tasks.math_text import (
    Number,
    balanced,
    elements,
    final_expression,
    number_key,
    plain,
    read_number,
    read_time,
    same_number,
    split_unit,
    unit_name,
    unwrap,
    words,
)

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
    """Whether an expression in LaTeX would keep math-verify busy for seconds or take gigabytes."""
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


Kind = Literal["integer", "float", "list", "text"]
Decision = Literal["right", "wrong", "ask"]

MAX_ASKED = 300
"""Characters of an expression that math-verify is asked about."""

_FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"),
        *("ln", "log", "exp", "sqrt", "pi", "inf", "infinity", "frac", "max", "min", "gcd", "lcm", "det"),
        *("mod", "or", "and"),
    }
)
_EQUALS = re.compile(r"(?<![<>!=:])=(?!=)")
_VARIABLE = re.compile(r"(?:\\[A-Za-z]+\s*)?[A-Za-z]{1,4}(?:_\{?\w{1,4}\}?)?(?:\([A-Za-z]\))?'?")
_NAMES = re.compile(rf"\(\s*{_VARIABLE.pattern}(?:\s*,\s*{_VARIABLE.pattern})*\s*\)|{_VARIABLE.pattern}")
"""A variable, or a tuple of them."""
_MEMBER = re.compile(rf"({_VARIABLE.pattern})\s*\\in(?![A-Za-z])\s*")
_TEXT = re.compile(r"[^\d\\=+*/^<>|_{}]*[A-Za-z]{2}[^\d\\=+*/^<>|_{}]*")
_SPACE = re.compile(
    r"(?<![\dA-Za-z.])\s+|\s+(?![\dA-Za-z.])|(?<=[\d.])\s+(?=[A-Za-z])|(?<=[A-Za-z])\s+(?=[\d.])"
)
"""Spaces that mean nothing: all but those between two numbers or two letters."""
_SUBSCRIPT = re.compile(r"_\s*(?:\w|\{[^{}]*\})")
_RUN = re.compile(r"\\?[A-Za-z]+")
_HEAVY = re.compile(r"\\(?:int|iint|iiint|oint|sum|prod|lim|limsup|liminf|binom|max|min|gcd|lcm)(?![A-Za-z])")
"""Signs that are evaluated only where the target has one of them, too."""
_TO_LATEX = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\*"), r" \\cdot "),
    (re.compile(r"<="), r" \\le "),
    (re.compile(r">="), r" \\ge "),
    (re.compile(r"!="), r" \\ne "),
    (re.compile(r"(?<![A-Za-z\\])(pi|sin|cos|tan|ln|log|sqrt)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])(?:infinity|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"\^\\circ\s*"), ""),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The data's answer and how it is to be compared.

    Args:
        text: One expression (`math_text.final_expression`).
        kind: The data set's answer type, None where it says nothing.
        precision: Decimals that the data set asks for.
        unit: The data set's unit, also accepted after a number; another one is wrong, if this is a known one.
    """

    text: str
    kind: Kind | None = None
    precision: int | None = None
    unit: str = ""

    @property
    def is_text(self) -> bool:
        """Whether the target is words: math-verify multiplies their letters, so that "cat" equals "act"."""
        if self.kind == "text":
            return True
        if read_number(self.text, self.unit) is not None or self.text.casefold() in _FUNCTIONS:
            return False
        return _TEXT.fullmatch(self.text) is not None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A verdict, and the two expressions that math-verify is to compare or, if equal, to evaluate."""

    verdict: Decision
    gold: str = ""
    answer: str = ""


RIGHT, WRONG = Comparison("right"), Comparison("wrong")


def compare(target: Target, answer: str) -> Comparison:
    """Compare an answer (`math_text.final_expression`) with its target."""
    if not answer:
        return WRONG
    if target.is_text:
        return RIGHT if words(answer) == words(target.text) else WRONG
    if _compact(answer) == _compact(target.text):
        hard = is_costly(answer) or _HEAVY.search(answer) or not _askable(answer, answer)
        if hard or _plain(answer):
            return RIGHT
        return Comparison("right", _latex(answer), _latex(answer))
    times = read_time(target.text), read_time(answer)
    if times[0] is not None and times[1] is not None:
        if times[0] == times[1]:
            return RIGHT
        if times[0].half_told or times[1].half_told:
            return WRONG  # without am and pm they may also be proportions
    if len(answer) == len(target.text) == 1 and not answer.isdigit():
        return WRONG  # to math-verify r is R
    gold, answer = _without_member(target.text, answer)
    if not _EQUALS.search(gold):
        read = _without_names(answer)
        if read is None:
            return WRONG
        answer = read
    elif not _EQUALS.search(answer):
        name, *values = _EQUALS.split(gold)
        if len(values) == 1 and _NAMES.fullmatch(name.strip()):
            gold = values[0].strip()
    x, y = _gold_number(gold, target), read_number(answer, target.unit)
    if x is not None and y is not None:
        return _verdict(_same(x, y, target))
    listed = _lists(target, gold, answer)
    return listed if listed is not None else _ask(target, gold, answer)


def decide(target: Target, equal: bool, gold: float | None, answer: float | None) -> bool:
    """Return the verdict on two expressions, given what math-verify found: equality and values.

    With a data set's precision the values decide, as for plain numbers: math-verify finds ``2\\sqrt{3}``
    unequal to 3.46. Without a precision, 0 is not equal to a target that rounds to 0.
    """
    if gold is not None and answer is not None and target.precision is not None and target.kind != "integer":
        return same_number(Number(Fraction(gold)), Number(Fraction(answer)), target.precision, "float")
    if equal and gold is not None and answer is not None:
        return abs(gold - answer) <= 1e-6 * abs(gold)
    return equal


def answer_key(answer: str, precision: int | None = None, value: float | None = None) -> str:
    """Return a key that is equal for answers that read as the same numbers, or are spelt alike.

    Args:
        answer: One expression (`math_text.final_expression`).
        precision: The number of decimals to which numbers are rounded.
        value: The value that math-verify found for an expression that is no plain number.
    """
    read = _without_names(answer) or answer
    if (time := read_time(read)) is not None and time.half_known:
        return f"{time.seconds} s"
    number = read_number(read)
    if number is None and value is not None and abs(value) < 1e12:
        number = Number(Fraction(value).limit_denominator(10**6))
    if number is not None:
        return number_key(number, precision)
    kind, parts = elements(read)
    numbers = [read_number(part) for part in parts]
    if len(parts) > 1 and all(numbers):
        keys = [number_key(n, precision) for n in numbers if n is not None]
        ordered = keys if kind not in ("", "{}") else sorted(keys)
        return (kind or "{}")[0] + ",".join(ordered) + (kind or "{}")[1]
    return _compact(read) if "\\" in read or re.search(r"\d", read) else words(read)


def _plain(answer: str) -> bool:
    """Whether `answer_key` needs no value: numbers, lists, words."""
    read = _without_names(answer) or answer
    return read_number(read) is not None or len(elements(read)[1]) > 1 or not re.search(r"[\\\d]", read)


def _verdict(right: bool) -> Comparison:
    return RIGHT if right else WRONG


def _same(gold: Number, answer: Number, target: Target) -> bool:
    kind = target.kind if target.kind in ("integer", "float") else None
    return same_number(gold, answer, target.precision if kind != "integer" else None, kind)


def _compact(text: str) -> str:
    return _SPACE.sub("", text).replace(r"\{", "{").replace(r"\}", "}")


def _without_member(gold: str, answer: str) -> tuple[str, str]:
    """Return both without ``x \\in`` before a set, unless they name different variables there."""
    mine, theirs = _MEMBER.match(gold), _MEMBER.match(answer)
    if mine and theirs and mine[1].strip() != theirs[1].strip():
        return gold, answer
    return gold[mine.end() :] if mine else gold, answer[theirs.end() :] if theirs else answer


def _without_names(answer: str) -> str | None:
    """Return ``5`` for ``x = 5``, element by element; None for several values (``3 = 4 = 5``)."""
    if "=" not in answer and "\\approx" not in answer and "≈" not in answer:
        return answer
    _, parts = elements(answer)
    if len(parts) > 1:
        read = [_value(part) for part in parts]
        return None if any(part is None for part in read) else ", ".join(part for part in read if part)
    return _value(answer)


def _value(text: str) -> str | None:
    parts = [part.strip() for part in _EQUALS.split(text.replace("\\approx", "=").replace("≈", "="))]
    if not all(parts):
        return None
    if read_number(parts[0]) is None:
        parts = parts[1:] or parts
    last = read_number(parts[-1])
    for part in parts[:-1]:
        number = read_number(part)
        if number is None or last is None or not same_number(number, last):
            return None
    return parts[-1]


def _lists(target: Target, gold: str, answer: str) -> Comparison | None:
    """Compare lists of numbers, and lists of different lengths; None if math-verify has to see them."""
    (opened, golds), (kind, parts) = elements(gold), elements(answer)
    if len(golds) != len(parts):
        # "\pm 3" is a list of two that has no comma.
        return None if ("\\pm" in gold) != ("\\pm" in answer) else WRONG
    if len(golds) == 1 and opened != "{}" and kind != "{}":
        return None
    left = [_gold_number(part, target) for part in golds]
    right = [read_number(part, target.unit) for part in parts]
    xs, ys = [n for n in left if n is not None], [n for n in right if n is not None]
    if len(xs) < len(golds) or len(ys) < len(parts):
        return None
    if opened in ("", "{}"):
        if kind in ("", "{}"):
            return _verdict(_same_set(xs, ys, target))
        if opened == "{}":
            return WRONG
    elif kind != opened and target.kind != "list" and (kind or opened != "()"):
        return WRONG
    return _verdict(all(_same(x, y, target) for x, y in zip(xs, ys, strict=True)))


def _gold_number(text: str, target: Target) -> Number | None:
    """Read a number of the target's; one without a unit is in the data set's."""
    number = read_number(text, target.unit)
    if number is None or number.unit or number.percent:
        return number
    return replace(number, unit=_unit_of(target))


def _unit_of(target: Target) -> str:
    return unit_name(plain(target.unit))


def _same_set(golds: list[Number], answers: list[Number], target: Target) -> bool:
    left = list(answers)
    for gold in golds:
        place = next((i for i, answer in enumerate(left) if _same(gold, answer, target)), None)
        if place is None:
            return False
        del left[place]
    return True


def _ask(target: Target, gold: str, answer: str) -> Comparison:
    (gold, gold_unit), (answer, unit) = split_unit(gold, target.unit), split_unit(answer, target.unit)
    gold_unit = gold_unit or _unit_of(target)
    if (gold_unit and unit and unit != gold_unit) or not _askable(gold, answer):
        return WRONG
    return Comparison("ask", _latex(gold), _latex(answer))


def _askable(gold: str, answer: str) -> bool:
    """Whether the answer is one expression of a size and kind that math-verify can be trusted with."""
    if len(answer) > MAX_ASKED or not answer.isascii() or not balanced(answer, 12):
        return False
    if is_costly(answer) and not is_costly(gold):
        return False
    if _HEAVY.search(answer) and not _HEAVY.search(gold):
        return False
    if re.search(r"[\d.}]\s+[\d.]", _SUBSCRIPT.sub("", answer)):
        return False  # two numbers side by side are a product or a mixed number to LaTeX
    if answer.count("^") + answer.count("!") + answer.count("\\frac") > 40:
        return False
    letters = {letter for run in _RUN.findall(gold) if run[0] != "\\" for letter in run}
    for run in _RUN.findall(answer):
        known = run[0] == "\\" or len(run) == 1 or run.casefold() in _FUNCTIONS
        if not known and not set(run) <= letters:
            return False  # a word, as in "5 minus 2" or "not 7"
    return True


def _latex(text: str) -> str:
    for pattern, replacement in _TO_LATEX:
        text = pattern.sub(replacement, text)
    return text.strip()


_LETTER = re.compile(
    r"(?:(?:option|choice) +)?(?:\((?P<a>[A-Za-z])\)|\[(?P<b>[A-Za-z])\]|(?P<c>[A-Za-z])(?![A-Za-z]))\s*"
    r"(?P<mark>[.):]?)\s*(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)


def read_choice(text: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that ``text`` commits to; None if it commits to none, or to several.

    math-verify cannot do this (it finds no ``B`` in ``\\boxed{B}``), and searching a text for letters pays
    for "A or B". Here the whole answer has to be a letter, an option's text, or a letter with its own
    option's text.

    Accepted are ``B``, ``(b)``, ``B.``, ``\\boxed{B}``, ``Answer: B``, ``Option B``, an option's text, and
    ``B. its text``. What follows the letter must not be or name another option.
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
    marked = bool(match["mark"]) or match["c"] is None
    return letter if marked and _names_no_other(rest, letter, options) else None


def right_letters(target: str, options: Mapping[str, str]) -> set[str]:
    """Return the target's letter, and the letters of options with the same text."""
    return {key for key, text in options.items() if key == target or _spelt_alike(text, options[target])}


def _by_text(content: str, options: Mapping[str, str]) -> str | None:
    """Return the option with this text, else the one that is this number; None if different ones are."""
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
    """Return a text as words, as LaTeX and as a number."""
    text = unwrap(plain(text))
    return words(text), _without_spaces(text), read_number(text)


def _without_spaces(text: str) -> str:
    """Return LaTeX without spaces, dollars and braces around single characters."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"[\s$]", "", text))


_JOIN = r"(?:\b(?:or|and|nor|vs)\b\.?|[/&,;|+-])"
_LONE = r"(?:(?:option|choice)\s+)?[(\[]?([A-Za-z])(?![A-Za-z])[)\].:]*"
_JOINED = re.compile(rf"\s*{_JOIN}\s*{_LONE}\s*(?:$|{_JOIN})", re.IGNORECASE)
"""Another letter right behind the first one: ``b. or c``, ``(B) / (c)``."""
_LETTERS = re.compile(rf"(?:\s*(?:{_JOIN}|{_LONE}))*\s*", re.IGNORECASE)
"""Nothing but letters: ``b) c) d)``."""


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
