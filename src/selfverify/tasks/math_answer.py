"""Comparing a free-form answer with its target: what values decide, what math-verify is asked, which answers
vote together.

Both sides are read by `math_values.read`. Numbers, labels, lists and intervals of them are decided here.
What one expression is goes to math-verify in a worker process, as LaTeX in one box: never as a text in which
it would look for an answer, which pays for "1 2 3 42", and never through sympy's ``parse_expr``, which
evaluates Python. What would keep it busy for seconds or take gigabytes is not asked (`is_costly`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any, Literal

from selfverify.selection.rules import UNIT_MARK
from selfverify.tasks.math_numbers import FUNCTION_NAMES, MAX_WRITTEN, number_latex, read_unit, size, tokens
from selfverify.tasks.math_text import depths, words
from selfverify.tasks.math_values import (
    Clock,
    Expression,
    Interval,
    Items,
    Label,
    Named,
    Number,
    Value,
    as_interval,
    has_names,
    number_of,
    read,
)

_ENDLESS = re.compile(
    r"\d{21}|\^\s*[{(]?\s*[-+]?\d{4}|\^\s*\{[^{}]*\^|\^\s*\{?\s*\([^()]*\^|\^\s*[\w.]+\s*\^|\d{4}\s*!|[)}\]!|]\s*!"
)
"""Huge powers, towers of powers, and factorials of large numbers or of expressions."""
_BRACED = re.compile(r"\{\s*(\d{1,3}|[A-Za-z])\s*\}(?=\s*!)")
_POWER = re.compile(r"[)}\]]\s*\^\s*[{(]?\s*[-+]?(\d+)")
_NUMBERS = re.compile(r"(?:[\d.\s{}+\-*/]|\\frac|\\cdot|\\times)*")
_ONE_TERM = re.compile(r"[^+\-!^]*")
_HEAVY = re.compile(r"\\(?:int|iint|iiint|oint|sum|prod|lim|limsup|liminf|binom|max|min|gcd|lcm)(?![A-Za-z])")
"""Signs that are evaluated only where the target has one of them, too."""
_SPACE = re.compile(
    r"(?<![\dA-Za-z.])\s+|\s+(?![\dA-Za-z.])|(?<=[\d.])\s+(?=[A-Za-z])|(?<=[A-Za-z])\s+(?=[\d.])"
)
"""Spaces that mean nothing: all but those between two numbers or two letters."""
_SUBSCRIPT = re.compile(r"_\s*(?:\w|\{[^{}]*\})")
_SIDE_BY_SIDE = re.compile(r"[\d.}](?:\s+|\s*[eE]\s*)[\d.]")
"""Two numbers are a product or a mixed number to LaTeX, and "3 e 8" is 300,000,000."""
_RUN = re.compile(r"\\?[A-Za-z]+")

MOST_POWER = 20
"""The largest power of a sum with letters or roots: expanded, it has a term for every way to choose."""
MAX_ASKED, DEEPEST_ASKED = 300, 12
"""Characters of an expression that math-verify is asked about, and brackets in brackets."""


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
    """Return what stands inside the bracket that closes at ``end``."""
    depth = 0
    for place in range(end, -1, -1):
        depth += (text[place] in ")]}") - (text[place] in "([{")
        if depth == 0:
            return text[place + 1 : end]
    return text[:end]


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
    if isinstance(gold, Expression) and isinstance(own, Expression):
        if _compact(gold.latex) == _compact(own.latex) and gold.unit == own.unit:
            costly = own.value is not None or is_costly(own.latex) or _HEAVY.search(own.latex)
            valued = not costly and _askable(own.latex, own.latex)
            return Comparison("right", own.latex, own.latex) if valued else RIGHT
    elif gold == own:
        return RIGHT
    return compare_values(gold, own, target)


def compare_values(gold: Value, own: Value, target: Target) -> Comparison:
    """Compare the value of an answer with that of its target."""
    gold, own = _as_asked(gold), _as_asked(own)
    if isinstance(gold, Named) or isinstance(own, Named):
        return _compare_named(gold, own, target)
    if isinstance(gold, Clock) or isinstance(own, Clock):
        return _verdict(gold == own)
    if isinstance(gold, Label) and gold.measured and isinstance(own, Number) and own.unit:
        gold = gold.measured
    if isinstance(own, Label) and own.measured and isinstance(gold, Number):
        own = own.measured
    if isinstance(gold, Label) or isinstance(own, Label):
        return _verdict(_same_label(gold, own))
    if (isinstance(gold, Expression) and gold.equation) or (isinstance(own, Expression) and own.equation):
        if isinstance(gold, Expression) and isinstance(own, Expression) and gold.equation and own.equation:
            return _ask(gold, own)
        return WRONG
    if isinstance(gold, Interval) or isinstance(own, Interval):
        return _compare_intervals(gold, own, target)
    if isinstance(gold, Items) or isinstance(own, Items):
        return _compare_items(gold, own, target)
    if isinstance(gold, Number) and isinstance(own, Number):
        return _verdict(_same(gold, own, target))
    return _ask(gold, own, target)


def _as_asked(value: Value) -> Value:
    """Take off a name that says nothing: that of ``= 5``, whose value may be rounded."""
    return value.value if isinstance(value, Named) and not value.name and value.rounded is None else value


def _compare_named(gold: Value, own: Value, target: Target) -> Comparison:
    """Compare values of which at least one has a name. Names count where both sides name a variable."""
    g, a = (value if isinstance(value, Named) else Named("", value) for value in (gold, own))
    if isinstance(gold, Expression) and gold.equation and isinstance(own, Named):
        return _ask(gold, Expression(f"{own.name} = {latex(own.value)}", equation=True))
    if isinstance(own, Expression) and own.equation:
        if isinstance(gold, Named) and gold.name:
            return _ask(Expression(f"{gold.name} = {latex(gold.value)}", equation=True), own)
        return WRONG
    same = g.name == a.name or g.name.partition("_")[0] == a.name or a.name.partition("_")[0] == g.name
    if g.name and a.name and not same and {g.name, a.name} != {"y", "f(x)"}:
        return WRONG
    found = WRONG
    for left in (g.value, g.rounded):
        for right in (a.value, a.rounded):
            if left is not None and right is not None:
                told = compare_values(left, right, target)
                if told.verdict == "right":
                    return told
                found = told if told.verdict == "ask" else found
    return found


def _same_label(gold: Value, own: Value) -> bool:
    if not isinstance(gold, Label):
        return False
    if isinstance(own, Label):
        if gold.base or own.base:
            return gold.text == own.text and gold.base == own.base
        return gold.text == own.text or "".join(gold.text.split()) == "".join(own.text.split())
    # The question names the base: an answer may leave it out, as it may a unit.
    return (
        bool(gold.base)
        and isinstance(own, Number)
        and size(own.value) <= MAX_WRITTEN
        and str(own.value) == gold.text
    )


def _compare_intervals(gold: Value, own: Value, target: Target) -> Comparison:
    left, right = as_interval(gold), as_interval(own)
    if left is None or right is None or left.closed != right.closed:
        return WRONG
    if left.name and right.name and left.name != right.name:
        return WRONG
    asked = None
    for a, b in ((left.low, right.low), (left.high, right.high)):
        if (a is None) != (b is None):
            return WRONG
        if a is not None and b is not None:
            told = compare_values(a, b, target)
            if told.verdict == "wrong":
                return WRONG
            asked = told if told.verdict == "ask" else asked
    return Comparison("ask", latex(left), latex(right)) if asked is not None else RIGHT


def _compare_items(gold: Value, own: Value, target: Target) -> Comparison:
    """Compare lists: of numbers and labels here, of other expressions by math-verify."""
    several = [isinstance(v, Expression) and ("\\pm" in v.latex or "\\cup" in v.latex) for v in (gold, own)]
    golds, owns = (value.items if isinstance(value, Items) else (value,) for value in (gold, own))
    if len(golds) != len(owns):
        # "\pm 3" is a list of two that has no comma.
        return _ask(gold, own, target) if any(several) and not all(several) else WRONG
    opened, kind = (value.kind if isinstance(value, Items) else "" for value in (gold, own))
    if {opened, kind} & {"-", ":", "/", "x", "\\cup", "\\cap"} and opened != kind:
        return WRONG
    if opened == "{}" and kind not in ("", "{}"):
        return WRONG
    if opened not in ("", "{}") and kind != opened and target.kind != "list" and (kind or opened != "()"):
        return WRONG
    named = has_names(golds)
    if opened == "" and kind not in ("", "{}") and len(golds) > 1 and not named:
        return WRONG
    ordered = opened not in ("", "{}", "\\cup", "\\cap") or named
    told = _matched(golds, owns, target, ordered)
    if told == "ask":
        return _ask(gold, own, target)
    return _verdict(told == "right")


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


def _same(gold: Number, answer: Number, target: Target) -> bool:
    kind = target.kind if target.kind in ("integer", "float") else None
    if not gold.unit and not gold.percent and target.unit:
        gold = Number(gold.value, gold.decimal, False, read_unit(tokens(target.unit)) or ())
    return same_number(gold, answer, target.precision if kind != "integer" else None, kind)


def _ask(gold: Value, own: Value, target: Target | None = None) -> Comparison:
    units = [value.unit if isinstance(value, (Number, Expression)) else () for value in (gold, own)]
    if target is not None and target.unit and not units[0]:
        units[0] = read_unit(tokens(target.unit)) or ()
    if units[0] and units[1] and units[0] != units[1]:
        return WRONG
    if isinstance(gold, Number) and gold.percent:
        return WRONG
    x, y = number_of(gold), number_of(own)
    if isinstance(x, float) and isinstance(y, float) and math.isclose(x, y, rel_tol=1e-12):
        return RIGHT
    if any(isinstance(value, Number) and size(value.value) > MAX_WRITTEN for value in (gold, own)):
        return WRONG  # no expression that math-verify is asked about is as large
    left, right = latex(gold), latex(own)
    if not _askable(left, right):
        return WRONG
    return Comparison("ask", left, right)


def latex(value: Value) -> str:
    """Return a value as LaTeX for math-verify."""
    match value:
        case Number():
            return number_latex(value.worth)
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
        case Interval():
            low = r"-\infty" if value.low is None else latex(value.low)
            high = r"\infty" if value.high is None else latex(value.high)
            return f"{'[' if value.closed[0] else '('}{low}, {high}{']' if value.closed[1] else ')'}"
        case Label():
            return value.text
        case Clock():
            return str(value.seconds)


def _askable(gold: str, answer: str) -> bool:
    """Whether the answer is one expression of a size and kind that math-verify can be trusted with."""
    deep = depths(answer)  # half-open intervals mix the kinds of brackets
    if len(answer) > MAX_ASKED or not answer.isascii():
        return False
    if deep and (min(deep) < 0 or max(deep) > DEEPEST_ASKED or deep[-1]):
        return False
    if is_costly(answer) and not is_costly(gold):
        return False
    if _HEAVY.search(answer) and not _HEAVY.search(gold):
        return False
    if _SIDE_BY_SIDE.search(_SUBSCRIPT.sub("", answer)):
        return False
    if answer.count("^") + answer.count("!") + answer.count("\\frac") > 40:
        return False
    letters = {letter for run in _RUN.findall(gold) if run[0] != "\\" for letter in run}
    for run in _RUN.findall(answer):
        known = run[0] == "\\" or len(run) == 1 or run.casefold() in FUNCTION_NAMES
        if len(run) == 1 and run not in letters and run.swapcase() in letters:
            return False  # to math-verify r is R
        if not known and not set(run) <= letters:
            return False  # a word, as in "5 minus 2" or "not 7"
    return True


def _verdict(right: bool) -> Comparison:
    return RIGHT if right else WRONG


def _compact(text: str) -> str:
    return _SPACE.sub("", text).replace(r"\{", "{").replace(r"\}", "}")


def decide(target: Target, told: dict[str, Any]) -> bool:
    """Return the verdict on two expressions, given what `math_worker.compare` found.

    With a data set's precision the values decide, as for plain numbers: math-verify finds ``2\\sqrt{3}``
    unequal to 3.46. Otherwise values have to be close, too: math-verify rounds to six decimals, which would
    make 0 right for every small target.
    """
    gold, answer = told["gold"], told["answer"]
    if gold is not None and answer is not None and target.precision is not None and target.kind != "integer":
        return same_number(Number(Fraction(gold)), Number(Fraction(answer)), target.precision, "float")
    return bool(told["equal"]) and told.get("close") is not False


def same_number(
    gold: Number,
    answer: Number,
    precision: int | None = None,
    kind: Literal["integer", "float"] | None = None,
) -> bool:
    """Return whether ``answer`` counts as the number ``gold``.

    * Two units that differ are a difference; one that is missing is not.
    * ``50%`` is ``0.5``, and ``50`` where one of the two has the sign: always if the target has it, and for
      a target above 1 if the answer has it.
    * With the data set's ``precision`` (MathVista) an integer must be that integer, whatever its decimals
      (``3.0``), and a float must round to the target: at most half a unit of the last decimal away, ends
      included.
    * Otherwise integers and fractions must be equal; where one of the two is written as a decimal, they may
      differ by a millionth of the target and by no more than 1e-6.
    """
    marked = (gold.unit or gold.percent) and (answer.unit or answer.percent)
    if marked and (gold.unit, gold.percent) != (answer.unit, answer.percent):
        return False
    target = gold.worth
    if gold.percent or answer.percent:
        if _near(gold.worth, answer.worth, gold.decimal or answer.decimal, precision, kind):
            return True
        if gold.percent == answer.percent or not (gold.percent or abs(gold.value) > 1):
            return False
        target = gold.value
    return _near(target, answer.value, gold.decimal or answer.decimal, precision, kind)


def _near(gold: Fraction, answer: Fraction, decimal: bool, precision: int | None, kind: str | None) -> bool:
    if kind == "integer":
        return gold == answer
    if precision is not None:
        return abs(rounded(gold, precision) - answer) * 2 <= Fraction(10) ** -precision
    if gold == answer:
        return True
    return decimal and abs(gold - answer) <= Fraction(1, 10**6) * min(abs(gold), Fraction(1))


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
            exact = found.value if precision is None else rounded(found.value, precision)
            unit = "".join(f"{UNIT_MARK}{name}^{power}" for name, power in found.unit)
            return _digits(exact / 100 if found.percent else exact) + unit
        case Clock():
            return f"{found.seconds} s" if found.half_known else f"{found.seconds // 60}:00"
        case Label():
            if found.measured:
                return _key(found.measured, precision)
            return f"{found.text}_{found.base}" if found.base else found.text
        case Named():
            return _key(found.value, precision, value)
        case Items() if (span := as_interval(found)) is not None:
            return _key(span, precision)
        case Items():
            keys = [_key(item, precision) for item in found.items]
            kind = found.kind or ("()" if has_names(found.items) else "{}")
            joined = ",".join(sorted(keys) if kind in ("{}", "\\cup", "\\cap") else keys)
            return f"{kind[0]}{joined}{kind[1]}" if len(kind) == 2 else f"{kind}({joined})"
        case Interval():
            low, high = ("" if side is None else _key(side, precision) for side in (found.low, found.high))
            return f"{'[' if found.closed[0] else '('}{low},{high}{']' if found.closed[1] else ')'}"
        case Expression():
            own = number_of(found)
            number = Fraction(value) if value is not None else None if own is None else Fraction(own)
            if number is None:
                return _compact(found.latex)
            simple = number.limit_denominator(10_000)
            if number and abs(simple - number) <= abs(number) * Fraction(1, 10**11):
                number = simple
            elif precision is None:
                return f"{_shown(number)}"
            return _digits(number if precision is None else rounded(number, precision))
    raise AssertionError(found)


def _digits(number: Fraction) -> str:
    return str(number) if size(number) < 300 else _shown(number)


def _shown(number: Fraction) -> str:
    """Return a number by eleven significant digits and its power of ten."""
    # Decimals hold what no float holds.
    top, bottom = Decimal(number.numerator), Decimal(number.denominator)
    found = Context(prec=11, rounding=ROUND_HALF_UP).divide(top, bottom)
    digits = "".join(map(str, found.as_tuple().digits))
    return f"{'-' if number < 0 else ''}{digits.ljust(11, '0')}e{found.adjusted()}" if number else "0"
