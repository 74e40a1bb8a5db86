"""Comparing a free-form answer with its target: what values decide, what math-verify is asked, which answers
vote together.

Both sides are read by `math_values.read`. Numbers, labels, lists and intervals of them are decided here.
An expression goes to math-verify in a worker process, as LaTeX in one box: never as a text in which it would
look for an answer, which pays for "1 2 3 42", and never through sympy's ``parse_expr``, which evaluates
Python.
It is not asked about letters, rare commands and huge powers that the target does not have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any, Literal

from selfverify.selection.rules import UNIT_MARK
from selfverify.tasks.math_numbers import MAX_WRITTEN, Exact, apart, number_latex, read_unit, size, tokens
from selfverify.tasks.math_text import words
from selfverify.tasks.math_values import Expression, Items, Label, Named, Number, Value, has_names, read

MAX_ASKED = 300
"""Characters of an expression that math-verify is asked about."""

Kind = Literal["integer", "float", "list", "text"]
Decision = Literal["right", "wrong", "ask"]


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
    if target.kind == "text":
        return _verdict(words(answer) == words(target.text))
    gold, own = read(target.text, target.unit), read(answer, target.unit)
    if gold is None or own is None:
        return _verdict(gold is own and words(answer) == words(target.text))
    if gold == own and isinstance(own, Expression) and not own.signs and len(own.latex) <= MAX_ASKED:
        return Comparison("right", own.latex, own.latex)  # it has a value to vote by
    return compare_values(gold, own, target)


def compare_values(gold: Value, own: Value, target: Target) -> Comparison:
    """Compare the value of an answer with that of its target."""
    if gold == own:
        return RIGHT
    if isinstance(gold, Named) or isinstance(own, Named):
        return _compare_named(gold, own, target)
    if isinstance(gold, Label) and isinstance(own, Label):
        # Of a time of day the half may be missing.
        return _verdict(len({v.text.replace(" ", "").removesuffix("|h") for v in (gold, own)}) == 1)
    if isinstance(gold, Label) or isinstance(own, Label):
        return WRONG
    if isinstance(gold, Expression) and isinstance(own, Expression) and gold.equation and own.equation:
        return _ask(gold, own)
    if any(isinstance(value, Expression) and value.equation for value in (gold, own)):
        return WRONG
    if isinstance(gold, Items) or isinstance(own, Items):
        return _compare_items(gold, own, target)
    if isinstance(gold, Number) and isinstance(own, Number):
        return _compare_numbers(gold, own, target)
    return _ask(gold, own)


def _compare_named(gold: Value, own: Value, target: Target) -> Comparison:
    """Compare values of which at least one has a name. Names count where both sides name a variable."""
    if any(isinstance(value, Expression) and value.equation for value in (gold, own)):
        named = isinstance(own, Named) or (isinstance(gold, Named) and gold.name)
        return _ask(gold, own) if named else WRONG
    g, a = (value if isinstance(value, Named) else Named("", value) for value in (gold, own))
    same = g.name == a.name or g.name.partition("_")[0] == a.name or a.name.partition("_")[0] == g.name
    if g.name and a.name and not same and {g.name, a.name} != {"y", "f(x)"}:
        return WRONG
    kinds = [value.kind if isinstance(value, Items) else "?" for value in (g.value, a.value)]
    if g.name.islower() and kinds[0] in ("()", "[]", "(]", "[)") and not kinds[1]:
        return WRONG  # "-1, 1" are roots and no interval
    told = [
        compare_values(left, right, target)
        for left in (g.value, g.rounded)
        for right in (a.value, a.rounded)
        if left is not None and right is not None
    ]
    return min(told, key=lambda one: ("right", "ask", "wrong").index(one.verdict))


_LOOSE: dict[str, tuple[str, ...]] = {"": ("", "{}"), "{}": ("", "{}"), "()": ("", "()")}
_LOOSE |= {"-": ("-", "~"), ":": (":", "~"), "~": ("-", ":", "~")}
"""The brackets, and the signs that join, which an answer may have instead of the target's."""


def _compare_items(gold: Value, own: Value, target: Target) -> Comparison:
    """Compare lists: of numbers and labels here, of other expressions by math-verify."""
    golds, owns = (value.items if isinstance(value, Items) else (value,) for value in (gold, own))
    if len(golds) != len(owns):
        unions = [isinstance(value, Expression) and "\\cup" in value.latex for value in (gold, own)]
        return _ask(gold, own) if unions[0] != unions[1] else WRONG
    opened, kind = (value.kind if isinstance(value, Items) else "" for value in (gold, own))
    named = has_names(golds)
    agree = kind in _LOOSE.get(opened, (opened,))
    if len(opened) in (0, 2) and len(kind) == 2 and "{}" not in (opened, kind):
        agree |= target.kind == "list" or (not opened and (named or len(golds) == 1))
    agree |= {opened, kind} <= {"", "{}", "\\cup"} and not any(isinstance(v, Named) for v in (*golds, *owns))
    if not agree and not (target.kind == "list" and not kind and len(opened) == 2):
        return WRONG
    ordered = opened not in ("", "{}", "\\cup", "\\cap") or named
    told = _matched(golds, owns, target, ordered)
    return _ask(gold, own) if told == "ask" else _verdict(told == "right")


def _matched(golds: Iterable[Value], owns: Iterable[Value], target: Target, ordered: bool) -> Decision:
    left, right, doubt = list(golds), list(owns), False
    for gold in left:
        told = [compare_values(gold, own, target).verdict for own in (right[:1] if ordered else right)]
        place = next((i for wanted in ("right", "ask") for i, one in enumerate(told) if one == wanted), None)
        if place is None:
            return "wrong"
        doubt = doubt or told[place] == "ask"
        del right[place]
    return "ask" if doubt else "right"


def _compare_numbers(gold: Number, own: Number, target: Target) -> Comparison:
    if target.unit and not gold.unit and not gold.percent:
        gold = replace(gold, unit=read_unit(tokens(target.unit)) or ())
    irrational = [isinstance(value, float) for value in (gold.value, own.value)]
    if (target.precision is not None and target.kind != "integer") or not any(irrational):
        return _verdict(same_number(gold, own, target))
    distance = apart(gold.worth, own.worth)
    if not _same_units(gold, own) or distance > Fraction(1, 10**5):
        return WRONG
    return RIGHT if all(irrational) and distance <= Fraction(1, 10**12) else _ask(gold, own)


def _ask(gold: Value, own: Value) -> Comparison:
    """Have math-verify compare expressions, if the answer's signs are signs of the target."""
    left, right = latex(gold), latex(own)
    asks = left and right and len(right) <= MAX_ASKED and _signs(own) <= _signs(gold)
    return Comparison("ask", left, right) if asks else WRONG


def _signs(value: Value | None) -> frozenset[str]:
    match value:
        case Expression():
            return value.signs
        case Label():
            return frozenset([value.text])
        case Named():
            return _signs(value.value).union(filter(str.isalpha, value.name))
        case Items():
            return frozenset().union(*map(_signs, value.items))
    return frozenset()


def latex(value: Value) -> str:
    """Return a value as LaTeX for math-verify; empty for a number that is too long to be written."""
    match value:
        case Number():
            worth = value.worth
            if not isinstance(worth, Fraction):
                return value.latex
            return number_latex(worth) if size(worth) <= MAX_WRITTEN else ""
        case Expression():
            return value.latex
        case Named():
            return f"{value.name} = {latex(value.value)}" if value.name else latex(value.value)
        case Items():
            if value.kind in ("\\cup", "\\cap"):
                return f" {value.kind} ".join(map(latex, value.items))
            brackets = {"{}": (r"\{", r"\}"), "": ("", "")}
            pair = (value.kind[0], value.kind[1]) if len(value.kind) == 2 else ("(", ")")
            opened, closed = brackets.get(value.kind, pair)
            return f"{opened}{', '.join(map(latex, value.items))}{closed}"
        case Label():
            return value.text


def _verdict(right: bool) -> Comparison:
    return RIGHT if right else WRONG


def decide(target: Target, told: dict[str, Any]) -> bool:
    """Return the verdict on two expressions, given what `math_worker.compare` found.

    With a precision the values decide, as for plain numbers: math-verify finds ``10\\sin 40^\\circ``
    unequal to 6.43. Otherwise values have to be close, too: math-verify rounds to six decimals, which would
    make 0 right for every small target.
    """
    gold, answer = told["gold"], told["answer"]
    if gold is not None and answer is not None and target.precision is not None and target.kind != "integer":
        return same_number(Number(gold), Number(answer), target)
    return bool(told["equal"]) and told.get("close") is not False


def _same_units(gold: Number, answer: Number) -> bool:
    """Whether units allow for equality: one that is missing does, unless it is the target's code (``12A``) or
    the base of the answer.
    """
    if not answer.unit and not answer.percent:
        return not gold.code
    if not gold.unit and not gold.percent:
        return not any(name.startswith("_") for name, _ in answer.unit)
    return (gold.unit, gold.percent) == (answer.unit, answer.percent)


def same_number(gold: Number, answer: Number, target: Target) -> bool:
    """Return whether ``answer`` counts as the number ``gold``.

    * Two units that differ are a difference; one that is missing is not.
    * ``50%`` is ``0.5``, and ``50`` where one of the two has the sign: always if the target has it, and for
      a target above 1 if the answer has it.
    * With the data set's ``precision`` (MathVista) an integer must be that integer, with any decimals of zero
      (``3.0``), and a float must round to the target: at most half a unit of the last decimal away, ends
      included.
    * Otherwise integers and fractions must be equal; where one of the two is written as a decimal, they may
      differ by a millionth of the target and by no more than 1e-6.
    """
    if not _same_units(gold, answer):
        return False
    decimal = gold.decimal or answer.decimal
    if _near(gold.worth, answer.worth, decimal, target):
        return True
    if gold.percent == answer.percent or not (gold.percent or max(gold.value, -gold.value) > 1):
        return False
    return _near(gold.value, answer.value, decimal, target)


def _near(left: Exact, right: Exact, decimal: bool, target: Target) -> bool:
    gold, answer = Fraction(left), Fraction(right)
    if target.precision is not None and target.kind != "integer":
        return abs(rounded(gold, target.precision) - answer) * 2 <= Fraction(10) ** -target.precision
    near = decimal and target.kind != "integer"
    return gold == answer or (near and abs(gold - answer) <= Fraction(1, 10**6) * min(abs(gold), Fraction(1)))


def rounded(value: Fraction, precision: int) -> Fraction:
    """Round ``value`` to ``precision`` decimals, halves away from 0."""
    scaled = value * 10**precision
    sign = -1 if scaled < 0 else 1
    return Fraction(sign * int(abs(scaled) + Fraction(1, 2)), 10**precision)


def answer_key(answer: str, precision: int | None = None, value: str | float | None = None) -> str:
    """Return a key that is equal for answers that read as the same value, or are spelt alike.

    Args:
        answer: One expression (`math_text.final_expression`).
        precision: The number of decimals to which numbers are rounded.
        value: The value that math-verify found for an expression that is no plain number, in decimal digits.
    """
    found = read(answer)
    return words(answer) if found is None else _key(found, precision, value)


def _key(found: Value, precision: int | None, value: str | float | None = None) -> str:
    match found:
        case Number():
            number = _number_key(found.value, precision, found.percent)
            return number + "".join(f"{UNIT_MARK}{name}^{power}" for name, power in found.unit)
        case Label():
            return found.text
        case Named():
            return _key(found.value, precision, value)
        case Items():
            keys = [_key(item, precision) for item in found.items]
            kind = found.kind.replace("~", "-") or ("()" if has_names(found.items) else "{}")
            joined = ",".join(sorted(keys) if kind in ("{}", "\\cup", "\\cap") else keys)
            return f"{kind[0]}{joined}{kind[1]}" if len(kind) == 2 else f"{kind}({joined})"
        case Expression():
            if value is not None:
                return _number_key(float(value), precision)
            known = -math.inf < found.value < math.inf and not found.equation
            return f"={_number_key(found.value, None)}" if known else found.latex


def _number_key(value: Exact, precision: int | None, percent: bool = False) -> str:
    """Return a fraction, or of an irrational number eleven significant digits and its power of ten."""
    exact, number = isinstance(value, Fraction), Fraction(value)
    if not exact:
        simple = number.limit_denominator(10_000)
        exact = abs(simple - number) <= abs(number) * Fraction(1, 10**11)
        number = simple if exact else number
    if precision is not None:
        exact, number = True, rounded(number, precision)
    number = number / 100 if percent else number
    if exact and size(number) < 300:
        return str(number)
    # Decimals hold what no float holds.
    top, bottom = Decimal(number.numerator), Decimal(number.denominator)
    found = Context(prec=11, rounding=ROUND_HALF_UP).divide(top, bottom)
    digits = "".join(map(str, found.as_tuple().digits))
    return f"{'-' if number < 0 else ''}{digits.ljust(11, '0')}e{found.adjusted()}" if number else "0"
