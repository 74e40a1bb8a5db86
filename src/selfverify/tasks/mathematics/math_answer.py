"""Comparing a free-form answer with its target: what plain rules can decide, and what math-verify is asked.

The rules decide numbers, lists of numbers and words. Everything else that one expression can be goes to
math-verify in a worker process, as LaTeX in one box: never as a text in which it would look for an answer,
which pays for "1 2 3 42", and never through sympy's ``parse_expr``, which evaluates Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from selfverify.tasks.mathematics.math_costs import is_costly
from selfverify.tasks.mathematics.math_numbers import (
    Number,
    number_key,
    read_number,
    same_number,
    split_unit,
    unit_name,
)
from selfverify.tasks.mathematics.math_text import balanced, elements, plain, words
from selfverify.tasks.mathematics.math_times import read_time

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
