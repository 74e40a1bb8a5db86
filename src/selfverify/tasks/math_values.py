r"""The one reader of answers: a plain text becomes a value, a label, or an expression that math-verify is
asked about.

`read` takes what `math_text.final_expression` returns. A `Number` may have a unit. A `Label` is compared by
its letters and digits: words, times of day, and codes. `Items` (also ranges, dates and scores, which look
like arithmetic and are none), `Interval` (also of an inequality) and `Named` (``x = 5``) hold values.
Everything else is an `Expression` in LaTeX, into which all numbers are written as the values that they are.
No function raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from selfverify.tasks.math_numbers import (
    CLOSING,
    CURRENCY,
    DENIALS,
    HEDGES,
    KNOWN_WORDS,
    MULTIPLES,
    OPENING,
    TABLES,
    TRIGONOMETRIC,
    Algebra,
    Exact,
    Token,
    Unit,
    apart,
    latex_of,
    read_noun,
    read_unit,
    tokens,
    unit_name,
    written,
)
from selfverify.tasks.math_text import words

_ORDER = {"<": (1, False), "\\le": (1, True), "<=": (1, True)}
_ORDER |= {">": (-1, False), "\\ge": (-1, True), ">=": (-1, True)}
"""Of a sign the side on which the larger value stands (1: right), and whether both may be equal."""
_RELATIONS = {"=", ":=", "\\approx", "\\in", "\\ne", "!=", *_ORDER}
_SEPARATORS = {",", ";", "and", "or", "And", "Or", "AND", "OR"}
_UNIONS = {"\\cup", "U"}
_ENDLESS = {"\\infty", "inf", "infinity"}
_JOINTS = {"-": "-", "to": "~", ":": ":", "/": "/", "x": "x"}
_MARKS = {f"\\{name}" for name in TABLES["marks"].split()}
"""Signs before a name that are no operation on a number."""
_NO_NAMES = HEDGES | DENIALS | {*TABLES["no_names"].split()}
_NUMBER_WORDS = {*MULTIPLES, "percent", "squared", "cubed", "square", "cubic"}
UNREAD = "?"
"""Stands among the signs of an expression that is none of the grammar, such as a matrix."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written: 50 % is the value 50 with ``percent``.

    Args:
        value: The value as it is written; a float where it is irrational.
        latex: The spelling, if the value is a float.
        decimal: Whether it was written with a point or an exponent, and so may have been rounded.
        percent: Whether a percent sign followed.
        unit: Base units with their powers, sorted (``(("h", -1), ("km", 1))``); empty without one. The base
            of a number such as ``2516_8`` is one, too.
        code: Whether the unit is part of it: ``12A`` is no 12.
        plain: Whether nothing but one number was written before the unit.
    """

    value: Exact
    latex: str = ""
    decimal: bool = False
    percent: bool = False
    unit: Unit = ()
    code: bool = False
    plain: bool = field(default=True, compare=False)

    @property
    def worth(self) -> Exact:
        """Return the value, for a percentage its hundredth."""
        return self.value / 100 if self.percent else self.value


@dataclass(frozen=True, slots=True)
class Label:
    """Words, codes and times of day, which are compared as they are."""

    text: str


@dataclass(frozen=True, slots=True)
class Expression:
    """LaTeX for math-verify; the letters and rare signs in it; whether it is an equation; its value, where
    letters have values of their own (`Algebra`), or NaN.
    """

    latex: str
    signs: frozenset[str] = frozenset()
    equation: bool = False
    value: Exact = field(default=math.nan, compare=False)


@dataclass(frozen=True, slots=True)
class Items:
    """Several values: in brackets (``"()"``, ``"[)"``, ``"{}"``; also the bounds of an inequality), joined
    (``"-"``, ``":"``, ``"x"``; ``"~"`` by "to", for a range or a ratio), as a union (``"\\\\cup"``) or
    ``""``. Sets, unions and ``""`` have no order.
    """

    kind: str
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A value with its name: ``x = 5``, ``x < 5``; ``rounded`` is a decimal behind a sign for "about"."""

    name: str
    value: Value
    rounded: Value | None = None


Value = Number | Label | Expression | Items | Named
Parts = Sequence[Token]


@lru_cache(maxsize=8192)
def read(text: str, unit: str = "") -> Value | None:
    """Read a plain text (`final_expression`); None where it says several things, or a false equation.

    Args:
        text: The text.
        unit: One more unit that may follow a number.
    """
    parts = tokens(text)
    return _read(parts, unit) if parts and parts[0].depth == 0 else None


def _read(parts: Parts, unit: str = "") -> Value | None:
    if not parts:
        return None
    if len(parts) == 1 and parts[0].kind in ("clock", "number"):
        return Label(_clock(parts[0].text)) if parts[0].kind == "clock" else _single(parts, unit)
    if parts[0].text.isupper() and _around(parts[1:]) == "()":  # a point
        inner = _read(parts[1:], unit)
        return Named(parts[0].text, inner) if isinstance(inner, Items) else _single(parts, unit)
    texts = {part.text for part in parts}
    if parts[0].text == "<" and parts[-1].text == ">":  # a vector
        return _read(tokens(f"({written(parts[1:-1])})"), unit)
    kind = _around(parts)
    kind, items = _elements(parts, kind) if kind or texts & (_SEPARATORS | _UNIONS) else ("", [parts])
    if not items[0]:
        return Expression("\\emptyset")
    if len(items) == 1 and texts & {"|", ":"}:
        head, *told = _cut(items[0], ("|", ":"))
        if len(told) == 1 and _relations(told[0]) and name_of(_cut(head, ("\\in",))[0]):  # {x | x > 3}
            return _read(told[0], unit)
    relations = _relations(parts) if texts & _RELATIONS else []
    if relations and (len(items) == 1 or (len(relations) == 1 and parts[relations[0]].text == "\\in")):
        return _related(parts, relations, unit)
    if not texts.isdisjoint(("\\pm", "\\mp")):
        items = [one for item in (items if kind in ("", "{}") else [parts]) for one in _both(item)]
        kind = "{}" if len(items) > 1 else ""
    if len(items) > 1 or kind == "{}":
        return _several(parts, kind, items, unit)
    return (_joined(parts, unit) if texts & _JOINTS.keys() else None) or _single(parts, unit)


def _relations(parts: Parts) -> list[int]:
    return [i for i in _top(parts) if parts[i].text in _RELATIONS]


def _top(parts: Parts) -> list[int]:
    """Return the places of tokens that stand outside of brackets."""
    return [i for i, part in enumerate(parts) if part.depth == parts[0].depth]


def _cut(parts: Parts, at: Collection[int | str]) -> list[Parts]:
    """Cut tokens at places, or at signs outside of brackets, which are left out."""
    places = [i for i in _top(parts) if i in at or parts[i].text in at]
    return [parts[a + 1 : b] for a, b in pairwise([-1, *places, len(parts)])]


def _around(parts: Parts) -> str:
    """Return the brackets around all of the tokens, without backslashes; empty if there are none."""
    if len(parts) < 2 or parts[0].text not in OPENING or _top(parts) != [0, len(parts) - 1]:
        return ""
    return parts[0].text[-1] + parts[-1].text[-1]


def _both(parts: Parts) -> list[Parts]:
    """Return a text with one sign for plus or minus with each of them; of these the minus joins no range."""
    at, *more = [i for i, part in enumerate(parts) if part.text in ("\\pm", "\\mp")] or [-1]
    if at < 0 or more:
        return [parts]
    signs = (parts[at]._replace(kind=kind, text=text) for kind, text in (("other", "+"), ("minus", "-")))
    return [[*parts[:at], sign, *parts[at + 1 :]] for sign in signs]


def _elements(parts: Parts, kind: str) -> tuple[str, list[Parts]]:
    """Return the brackets around a list (``""``, ``"()"``, ``"[)"``, ``"{}"``, ...) and its elements.

    Commas, semicolons, "and" and "or" separate elements. A text that is no list is one element.
    """
    inside = parts[1:-1] if kind else parts
    found = _cut(inside, (",", ";") if kind else _SEPARATORS)
    if unions := [i for i in _top(inside)[1:] if inside[i].text in _UNIONS and inside[i - 1].text in CLOSING]:
        return ("", [parts]) if kind or len(found) > 1 else ("\\cup", _cut(inside, unions))
    if kind and len(found) == 1:  # "1,234" is a number, and "(1,234)" a point
        groups = [i for i in _top(inside) if inside[i].kind == "number" and inside[i].text.count(",") == 1]
        if len(groups) == 1:
            [at] = groups
            left, right = inside[at].text.split(",")
            one, other = inside[at]._replace(text=left), inside[at]._replace(text=right)
            found = [[*inside[:at], one], [other, *inside[at + 1 :]]]
    # "5, and 6" has two separators in a row.
    found = [part for part in found if part] or [()]
    return (kind, found) if len(found) > 1 or kind == "{}" else ("", [parts])


def _several(parts: Parts, kind: str, slices: Sequence[Parts], unit: str) -> Value | None:
    """Read the elements of a list, a set or a union."""
    if kind:
        slices = [tokens(written(part).strip("'\"")) if part[0].text in "'\"" else part for part in slices]
    found = tuple(item for part in slices if (item := _read(part, unit)) is not None)
    spans = len(found) == len(slices) and all(_is_span(item) for item in found)
    signs = {part.text for part in parts}
    if "\\cap" in signs or ("\\cup" in signs and kind != "\\cup") or (kind == "\\cup" and not spans):
        return _expression(parts)
    if len(found) < len(slices):
        return None
    if kind == "{}" and found == (Expression("\\emptyset"),):
        return Label("{{}}")  # a set of one, which is not empty
    if not kind and any(isinstance(item, Label) for item in found):
        return Label(_words(parts))  # a sentence with a comma
    if not kind and spans and (signs & _ENDLESS or any(isinstance(item, Named) for item in found)):
        kind = "\\cup" if "or" in signs else "\\cap" if "and" in signs else ""
    if not kind and has_names(found):
        if "or" in signs:
            return None  # "x = 1 or y = 2" is no point
        found = tuple(sorted(found, key=lambda item: item.name if isinstance(item, Named) else ""))
    return Items(kind or ("{}" if "or" in signs else ""), found)  # "1 or 2" is no point


def _is_span(value: Value) -> bool:
    """Whether a value is an interval, written as one or as an inequality."""
    inner = value.value if isinstance(value, Named) else value
    return isinstance(inner, Items) and len(inner.items) == 2 and inner.kind in ("()", "[]", "(]", "[)")


def has_names(items: Sequence[Value]) -> bool:
    """Whether values have names that tell them apart: ``x = 1, y = 2``, but not ``x = 1, x = 2``."""
    names = [item.name.partition("_")[0] for item in items if isinstance(item, Named)]
    return len(names) == len(items) and len(set(names)) > 1


def _joined(parts: Parts, unit: str) -> Items | None:
    """Read ranges, scores, dates, sizes and ratios: they look like arithmetic and are none (``10-20 cm``)."""
    places: dict[str, list[int]] = {}
    for i in _top(parts)[1:]:
        sign = _JOINTS.get(parts[i].text) if parts[i].kind != "minus" else None
        before, *after = parts[i - 1 : i + 2 : 2]
        ends = before.kind in ("number", "word", "clock") or before.text in _ENDS
        if sign and ends and after and (after[0].kind in _BEGIN or after[0].text in _BEGIN):
            places.setdefault(sign, []).append(i)
    sign = "-" if "-" in places else next(iter(places), "")
    if not sign or (sign != "-" and len(places) > 1) or (sign == "/" and len(places[sign]) < 2):
        return None
    values = []
    for part in _cut(parts, places[sign]):
        value = _read(part, unit)
        plain = isinstance(value, Number) and (value.plain or sign in ":~")
        if value is None or not (plain or part[0].kind == "clock"):
            return None
        values.append(value)
    # 2012/05/01 is 2012-05-01.
    return Items("-" if sign == "/" else sign, tuple(values))


_ENDS = {*CLOSING, *CURRENCY, "%", "'", '"', "\\circ", "\\%"}
_BEGIN = {"number", "clock", "command", "(", "-", *CURRENCY}
"""Texts that may stand before and behind the sign of a range."""


def _clock(text: str) -> str:
    """Return a time of day in one form: ``10:00 am`` is ``10 A.M.``, ``22:00`` is ``10 pm``, and ``9:00`` may
    be either half of the day; `compare_values` takes it for the morning.
    """
    digits = "".join(sign if sign.isdecimal() else " " for sign in text).split()
    hour, minute, second = (int(part) for part in (*digits, "0", "0")[:3])
    half = next((sign for sign in text.casefold() if sign in "ap"), "")
    hour = hour % 12 + 12 * (half == "p") if half else hour
    known = half or not 1 <= hour <= 12
    return f"{hour:02}:{minute:02}:{second:02}{'|h' if known else ''}"


def _related(parts: Parts, relations: list[int], unit: str) -> Value | None:
    """Read an equation, an inequality, or membership in a set."""
    signs = [parts[i].text for i in relations]
    sides = _cut(parts, relations)
    if set(signs) <= {"=", ":=", "\\approx"}:
        return _equal(sides, signs, unit)
    if signs == ["\\in"] and (name := name_of(sides[0])):
        inner = _read(sides[1], unit)
        return None if inner is None else Named(name, inner)
    if not all(sides):
        return None
    order = [_ORDER[sign] for sign in signs if sign in _ORDER]
    span = _inequality(sides, order, unit) if len(order) == len(signs) <= 2 else None
    return span or _equation(parts, sides)


def _equation(parts: Parts, sides: Sequence[Parts]) -> Expression:
    return Expression(latex_of(parts), frozenset().union(*(_expression(side).signs for side in sides)), True)


def _equal(sides: list[Parts], signs: list[str], unit: str) -> Value | None:
    if not sides[0]:  # "= 2.5", "≈ 2.5"
        sides, signs = sides[1:], signs[1:]
    if not all(sides) or not sides:
        return None
    name = ""
    while len(sides) > 1 and (found := name_of(sides[0])):
        name, sides, signs = name or found, sides[1:], signs[1:]
    if not name and len(sides) == 2 and (found := name_of(sides[1])):
        name, sides, signs = found, sides[:1], []
    if len(sides) == 1:
        value = _read(sides[0], unit)
        return Named(name, value) if name and value is not None else value
    # "5-3" alone would be a score.
    values = [_quantity(side, unit) or _read(side, unit) for side in sides]
    numbers = [value for value in values if isinstance(value, Number)]
    if len(numbers) < len(values):
        both = [*sides[0], Token("other", "=", True), *sides[1]]
        plain = not name and signs == ["="] and None not in values
        return _equation(both, sides) if plain else None
    rounded = numbers.pop() if signs[-1] == "\\approx" else None
    first = numbers[0].worth
    if any(apart(first, number.worth) > Fraction(1, 10**9) for number in numbers):
        return None
    if rounded is not None and apart(first, rounded.worth) > Fraction(1, 50):
        return None
    return Named(name, numbers[-1], rounded)


def _inequality(sides: list[Parts], order: list[tuple[int, bool]], unit: str) -> Named | None:
    """Read ``x < 3``, ``3 > x`` or ``0 < x < 12.5`` as the interval of its variable."""
    if len({sign for sign, _ in order}) > 1:
        return None
    if order[0][0] < 0:
        sides, order = sides[::-1], order[::-1]
    if len(sides) == 2 and name_of(sides[0]):
        sides, order = [tokens("-\\infty"), *sides], [(1, False), *order]
    elif len(sides) == 2:
        sides, order = [*sides, tokens("\\infty")], [*order, (1, False)]
    low, name, high = _read(sides[0], unit), name_of(sides[1]), _read(sides[2], unit)
    if not name or low is None or high is None:
        return None
    return Named(name, Items(("[" if order[0][1] else "(") + ("]" if order[1][1] else ")"), (low, high)))


def name_of(parts: Parts) -> str:
    """Return what tokens name, without braces: ``x``, ``AB``, ``|AB|``, ``\\angle A``, ``f(2)``, ``(x, y)``,
    ``the area``; empty for anything else, such as ``2x``, ``xy`` and ``|x|``, which compute something.
    """
    if _around(parts) == "()" and len(found := _cut(parts[1:-1], (",",))) > 1:
        names = [name_of(part) for part in found]
        return f"({','.join(names)})" if all(names) else ""
    texts = [part.text for part in parts if part.text not in ("{", "}")]
    if len(texts) > 2 and texts[0] == texts[-1] == "|" and (texts[1].isupper() or texts[1] in _MARKS):
        texts = texts[1:-1]  # a length; of a variable it would be another value
    function, marked = "", False
    if texts and texts[0].lstrip("\\") in TRIGONOMETRIC:
        function, texts = texts[0].lstrip("\\"), [text for text in texts[1:] if text not in ("(", ")")]
    while texts and (texts[0] in _MARKS or (texts[0] == "m" and texts[1:2] and texts[1] in _MARKS)):
        marked = texts.pop(0) in _MARKS
    if not texts or len(texts) > 12 or {text.casefold().lstrip("\\") for text in texts} & _NO_NAMES:
        return ""
    core, *rest = texts
    if all(text.isalpha() for text in texts) and len(texts) > 1:
        return " ".join(texts) if any(len(text) > 3 for text in texts) else ""
    word = core.strip("'\\")
    if not (word.isalpha() or (marked and word.isdecimal())) or word in KNOWN_WORDS | {"frac"}:
        return ""
    if not marked and (
        (word.islower() and 1 < len(word) < 4 and core[0] != "\\") or (function and word in "xyzt")
    ):
        return ""  # "xy" is a product, and the sine of an unknown no answer
    if rest[:1] == ["_"]:
        rest = rest[rest.index("(") :] if "(" in rest else []
    called = rest[:1] == ["("] and rest[-1] == ")" and rest.count("(") == 1 and not {*"+*/^"} & {*rest}
    return f"{function} {''.join(texts)}".strip() if called or not rest else ""


def _single(parts: Parts, unit: str) -> Value | None:
    """Read one number with its unit, numbers with a unit each (``2 h 30 min``), words, or one expression."""
    if (value := _quantity(parts, unit)) is not None:
        return value
    starts = [i for i, part in enumerate(parts) if part.kind == "number" and parts[i - 1].text not in "^-{"]
    if len(starts) > 1 and starts[0] == 0:
        found = [_quantity(parts[a:b], close=True) for a, b in pairwise([*starts, len(parts)])]
        if all(one and one.unit for one in found):
            given = [one for one in found if one]
            if given[0].unit == _DEGREE:
                given = [replace(one, unit=_OF_ANGLES.get(one.unit, one.unit)) for one in given]
            return Items("", tuple(given))
    return _label(parts) or _expression(parts)


_DEGREE: Unit = (("°", 1),)
_OF_ANGLES: dict[Unit, Unit] = {(("ft", 1),): (("min", 1),), (("in", 1),): (("s", 1),)}
"""Behind degrees ``'`` and ``"`` are no feet and inches."""


def _quantity(parts: Parts, known: str = "", close: bool = False) -> Number | None:
    """Read arithmetic and what may follow: per cent, a multiple ("2 million"), a unit, what is counted.

    Args:
        parts: The tokens.
        known: One more unit.
        close: Whether a unit of one letter may follow without a space.
    """
    at = 1 if parts[0].text in "+-" else 0
    money = at + 1 if parts[at : at + 1] and parts[at].text == "US" else at
    currency = CURRENCY.get(parts[money].text) if money + 1 < len(parts) else None
    bare = [*parts[:at], *parts[money + 1 :]] if currency else parts
    algebra = Algebra(bare)
    value = algebra.read()
    if value is None or (isinstance(value, float) and not (math.isfinite(value) and abs(value) > 1e-9)):
        return None  # a float that vanished is not 0
    rest, body = algebra.rest[::-1], bare[: len(bare) - len(algebra.rest)]
    power = MULTIPLES.get(rest[0].text, 0) if rest else 0
    rest = rest[1:] if power else rest
    percent = written(rest) in ("%", "\\%", "percent", "per cent", "pct")
    irrational = isinstance(value, float)
    unit = () if percent or not rest else _unit(rest, known, close, one=-1 <= value <= 1)
    if unit is None or (irrational and (currency or percent or power)):
        return None
    if currency:
        if percent or any(times > 0 for _, times in unit):
            return None
        unit = tuple(sorted((*unit, (currency, 1))))
    code = len(rest) == 1 and rest[0].kind == "word" and rest[0].text.isupper() and not rest[0].spaced
    latex = latex_of(body) if irrational else ""
    plain = len(body) == at + 1
    return Number(value * 10**power if power else value, latex, algebra.decimal, percent, unit, code, plain)


def _unit(parts: Parts, known: str, close: bool, one: bool) -> Unit | None:
    """Return the unit that stands behind a number, or the base of a number; None for other things."""
    texts = [part.text for part in parts if part.text not in "^{}()"]
    if texts in (["st"], ["nd"], ["rd"], ["th"]):
        return ()
    if texts[:1] == ["_"]:
        based = len(texts) == 2 and texts[1].isdecimal() and len(texts[1]) < 3
        return ((f"_{texts[1]}", 1),) if based else None
    first = parts[0]
    if len(first.text) == 1 and first.text.islower() and not (close or first.spaced):
        return None  # "2t" may be a product; "2 t" is two tonnes, "10cm" a length
    if known and written(parts).casefold() == known.casefold():
        return read_unit(tokens(known)) or ((known.casefold(), 1),)
    return read_unit(parts) or read_noun(parts, one and first.spaced)


def _label(parts: Parts) -> Label | None:
    """Return words, codes and chemical formulas; None for what may be a product of letters."""
    code = "".join(part.text for part in parts if part.text not in ("_", "{", "}"))
    glued = parts[0].text.isupper() or not any(part.spaced for part in parts)
    if (code.isalnum() and code.isupper() and not code.isalpha() and glued) or _is_formula(code):
        return Label(code.replace("^", "").casefold())  # "AB12", "H_2O", "Mg(OH)_2", "SO_4^{2-}"
    long = [part for part in parts if part.kind == "word" and len(part.text.rstrip("'")) > 1]
    long = [part for part in long if part.text.casefold() not in KNOWN_WORDS]
    for i, (a, b) in enumerate(pairwise(parts)):
        number = a.kind == "number" and (not i or parts[i - 1].text not in ("_", "^"))
        dated = a in long and b.spaced and b.kind == "number"
        if dated or (number and (b.kind == "number" or b.text == "_")):
            return Label(_words(parts))  # a date, an address
    signs = {part.text for part in parts if part.kind in ("command", "other")}
    if not long or signs & {"\\frac", "\\sqrt", "[", "{", "\\{"}:
        return None
    counts = any(part.kind in ("number", "command") for part in parts) or signs & set("+*/^|_")
    told = [part.text for part in long if len(part.text) > 3 and part.text not in _NUMBER_WORDS]
    return None if counts and all(unit_name(text) for text in told) else Label(_words(parts))


def _is_formula(code: str) -> bool:
    """Whether a text without subscripts' marks is a chemical formula: symbols of elements, also in brackets,
    two or more of them with a number, or any with a charge.
    """
    if code == code.lower():
        return False
    body = code.rstrip("+-")
    charged = len(code) - len(body) == 1
    if charged and "^" in body:
        body, _, number = body.partition("^")
        charged = not number or number.isdecimal()
    first, *water = body.translate(_NO_BRACKETS).split("\\cdot")
    symbols = "".join([first, *water])
    if not symbols.isalnum() or not first[:1].isupper() or not all(part[:1].isdecimal() for part in water):
        return False
    followed = all(b.isupper() or b.isdecimal() or a.isupper() for a, b in pairwise(symbols))
    several = sum(map(str.isupper, symbols)) > 1 and not symbols.isalpha()
    return followed and (charged or several)


_NO_BRACKETS = str.maketrans("", "", "()[]")


def _words(parts: Parts) -> str:
    return words(written(parts).replace(",", " "))


def _expression(parts: Parts) -> Expression:
    """Return LaTeX with the letters in it; for what is not of the grammar all its words and commands."""
    algebra = Algebra(parts, letters=True)
    signs, value = algebra.signs, algebra.read()
    if value is None or algebra.rest:
        told = {part.text for part in parts if part.kind in ("word", "command") or not part.text.isascii()}
        signs |= {UNREAD, *told, *(sign for text in told if text.isalpha() for sign in text)}
        value = math.nan
    return Expression(latex_of(parts).removeprefix("+"), frozenset(signs), value=value)
