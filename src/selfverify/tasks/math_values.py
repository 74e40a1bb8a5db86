r"""The one reader of answers: a plain text becomes a value, a label, or an expression that math-verify is
asked about.

`read` takes what `math_text.final_expression` returns. A `Number` is exact and may have a unit. A `Label` is
compared by its letters and digits: words, and what looks like arithmetic and is none (ranges, dates, scores,
codes, numbers in another base). `Items`, `Interval` (also of an inequality) and `Named` (``x = 5``) hold
values. Everything else is an `Expression` in LaTeX, into which all numbers are written as the values that
they are. No function raises an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from selfverify.tasks.math_numbers import (
    CURRENCY,
    DEEPEST,
    FUNCTION_NAMES,
    LONGEST,
    MULTIPLES,
    NUMBER_WORDS,
    TRIGONOMETRIC,
    Exact,
    Token,
    Unit,
    evaluate,
    latex_of,
    read_noun,
    read_unit,
    tokens,
    unit_name,
)
from selfverify.tasks.math_text import at_top, elements, words

_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
"""Most numbers: read at once."""
_TIME = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE | re.ASCII)
_JOINT = re.compile(
    r"(?<=[\w%$'\"})])\s*(?:(?P<dash>-|(?<![A-Za-z])to(?![A-Za-z]))|[:/x])\s*(?=[\d.$€£¥(\\-])", re.ASCII
)
"""What joins the numbers of a range, score, date, size or ratio."""
_CODE = re.compile(r"(?=\S*[A-Z])(?=\S*\d)[A-Z\d]+", re.ASCII)
_BASED = re.compile(r"\(?([\dA-F]+)\)?\s*_\s*[{(\s]*([1-9]\d?)[})\s]*", re.ASCII)
_RELATION = re.compile(r"[<>]=?|(?<![!:])=|!=|:=|\\(?:le|ge|ne|approx|in)(?![A-Za-z])")
_ORDER = {"<": (1, False), "\\le": (1, True), "<=": (1, True)}
_ORDER |= {">": (-1, False), "\\ge": (-1, True), ">=": (-1, True)}
"""Of a sign the side on which the larger value stands (1: right), and whether both may be equal."""
_MARKS = {
    "\\angle", "\\measuredangle", "\\triangle", "\\overline", "\\vec", "\\hat", "\\widehat", "\\mathbb",
    "\\overrightarrow", "\\mathcal", "\\odot",
}  # fmt: skip
"""Signs before a name that are no operation on a number."""
_NO_NAMES = {
    "not", "or", "and", "but", "if", "no", "nor", "e", "maybe", "either", "wrong", "incorrect", "never",
    "twice", "half", "double", "triple", "square", "squared", "cube", "cubed", "minus", "plus", "times",
    "root", "isn't", "circ", "infty", "emptyset", "cdot",
}  # fmt: skip
_PERCENT = {"%", "percent", "pct"}


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written: 50 % is the value 50 with ``percent``.

    Args:
        value: The exact value as it is written.
        decimal: Whether it was written with a point or an exponent, and so may have been rounded.
        percent: Whether a percent sign followed.
        unit: Base units with their powers, sorted (``(("h", -1), ("km", 1))``); empty without one.
    """

    value: Fraction
    decimal: bool = False
    percent: bool = False
    unit: Unit = ()

    @property
    def worth(self) -> Fraction:
        """Return the value, for a percentage its hundredth."""
        return self.value / 100 if self.percent else self.value


@dataclass(frozen=True, slots=True)
class Label:
    """Words or signs that are compared as they are; ``base`` is that of a number such as ``2516_8``, and
    ``measured`` what a code such as ``5V`` is as a number with a unit.
    """

    text: str
    base: str = ""
    measured: Number | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day: ``10:00 am`` and ``10:00 A.M.`` are the same, and ``22:00`` is ``10 pm``.

    Args:
        seconds: Since midnight, as far as the text tells: ``9:00`` may also be at 21 hours.
        half_known: Whether the half of the day is known: by ``am`` or ``pm``, or by an hour 0 or above 12.
    """

    seconds: int
    half_known: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """LaTeX for math-verify; its value where it has no letters; its unit; whether it is an equation."""

    latex: str
    value: Exact | None = None
    unit: Unit = ()
    equation: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """Several values: in brackets (``"()"``, ``"[)"``, ``"{}"``), joined (``"-"``, ``":"``, ``"/"``,
    ``"x"``), as a union (``"\\\\cup"``) or ``""``. Sets, unions and ``""`` have no order.
    """

    kind: str
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval, written as one or as an inequality of the variable ``name``; None is without a bound."""

    low: Value | None
    high: Value | None
    closed: tuple[bool, bool]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Named:
    """A value with its name: ``x = 5``. ``rounded`` is a decimal that stands behind a sign for "about"."""

    name: str
    value: Value
    rounded: Value | None = None


Value = Number | Label | Clock | Expression | Items | Interval | Named


@lru_cache(maxsize=8192)
def read(text: str, unit: str = "", depth: int = 0) -> Value | None:
    """Read a plain text (`final_expression`); None where it says several things, or a false equation.

    Args:
        text: The text.
        unit: One more unit that may follow a number.
        depth: How many lists it stands in.
    """
    text = text.strip()
    if not text:
        return None
    if len(text) <= LONGEST and _DECIMAL.fullmatch(text):
        return Number(Fraction(text), not text.lstrip("+-").isdecimal())
    if (found := _clock(text)) is not None:
        return found
    if text[0] in "[{(" or text.startswith("\\{"):
        text = text.replace("\\{", "{").replace("\\}", "}") if "\\}" in text else text
    elif (
        text[0].isupper() and text[1:2] == "(" and depth < DEEPEST and elements(text[1:])[0] == "()"
    ):  # a point
        return None if (inner := read(text[1:], unit, depth + 1)) is None else Named(text[0], inner)
    kind, parts = elements(text)
    if kind == "{}" and parts == [""]:
        return Expression("\\emptyset")
    if len(parts) == 1 and ("|" in text or ":" in text) and depth < DEEPEST:  # {x | x > 3}
        head, _, rest = parts[0].replace(":", "|", 1).partition("|")
        if at_top(rest, _RELATION) and name_of(head.partition("\\in")[0]):
            return read(rest, unit, depth + 1)
    relations = at_top(text, _RELATION)
    tuples = len(relations) == 1 and (text[0] == "(" or relations[0].group() == "\\in")
    if relations and (len(parts) == 1 or (tuples and name_of(text[: relations[0].start()]))):
        return _related(text, relations, unit)
    if (len(parts) > 1 or kind == "{}") and depth < DEEPEST:
        return _several(text, kind, parts, unit, depth)
    return _joined(text, unit) or _single(text, unit)


def _several(text: str, kind: str, parts: list[str], unit: str, depth: int) -> Value | None:
    """Read the elements of a list, a set or a union."""
    items = [read(part.strip("'\" ") if kind else part, unit, depth + 1) for part in parts]
    found = tuple(item for item in items if item is not None)
    spans = len(found) == len(items) and all(as_interval(item) is not None for item in found)
    if "\\cap" in text or (kind != "\\cup" and "\\cup" in text) or (kind == "\\cup" and not spans):
        return Expression(latex_of(tokens(text)))
    if len(found) < len(items):
        return None
    if not kind and any(isinstance(item, Label) and not item.base for item in found):
        return _words(text)  # a sentence with a comma
    if not kind and all(isinstance(item, Interval) for item in found):
        kind = "\\cup" if " or " in text else "\\cap" if " and " in text else ""
    if not kind and has_names(found):
        found = tuple(sorted(found, key=lambda item: item.name if isinstance(item, Named) else ""))
    return Items(kind, found)


def has_names(items: Sequence[Value]) -> bool:
    """Whether values have names that tell them apart: ``x = 1, y = 2``, but not ``x = 1, x = 2``."""
    names = [item.name.partition("_")[0] for item in items if isinstance(item, Named)]
    return len(names) == len(items) and len(set(names)) > 1


def _joined(text: str, unit: str) -> Items | None:
    """Read ranges, scores, dates, sizes and ratios: they look like arithmetic and are none (``10-20 cm``)."""
    found = at_top(text, _JOINT)
    found = [match for match in found if match["dash"]] or found
    signs = {"-" if match["dash"] else match.group().strip() for match in found}
    if len(signs) != 1 or (signs == {"/"} and len(found) < 2):
        return None
    cuts = [0, *(place for match in found for place in match.span()), len(text)]
    values = []
    for a, b in zip(cuts[::2], cuts[1::2], strict=True):
        value, parts = read(text[a:b], unit), tokens(text[a:b])
        plain = isinstance(value, Clock) or (
            isinstance(value, Number)
            and sum(part.kind == "number" for part in parts) == 1
            and not {"!", "|", "^", "(", "{", "*", "/"} & {part.text for part in parts}
        )
        if value is None or not (plain or (signs == {":"} and number_of(value) is not None)):
            return None
        values.append(value)
    return Items(signs.pop(), tuple(values))


def _clock(text: str) -> Clock | None:
    """Return a time of day with minutes, or one with ``am`` or ``pm``."""
    match = _TIME.fullmatch(text)
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    told = match[4] is not None
    if minute > 59 or second > 59 or not (1 <= hour <= 12 if told else hour <= 23):
        return None
    known = told or not 1 <= hour <= 12
    hour = hour % 12 + (12 if match[4] in ("p", "P") else 0) if told else hour
    return Clock(hour * 3600 + minute * 60 + second, known)


def _related(text: str, relations: list[re.Match[str]], unit: str) -> Value | None:
    """Read an equation, an inequality, or membership in a set."""
    signs = [found.group() for found in relations]
    cuts = [0, *(place for found in relations for place in found.span()), len(text)]
    sides = [text[a:b].strip() for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    if set(signs) <= {"=", "\\approx"}:
        return _equal(sides, signs, unit)
    if signs == ["\\in"] and name_of(sides[0]):
        inner = read(sides[1], unit)
        return None if inner is None else Named(name_of(sides[0]), inner)
    if not all(sides):
        return None
    order = [_ORDER[sign] for sign in signs if sign in _ORDER]
    span = _inequality(sides, order, unit) if len(order) == len(signs) <= 2 else None
    return span or Expression(latex_of(tokens(text)), equation=True)


def _equal(sides: list[str], signs: list[str], unit: str) -> Value | None:
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
        value = read(sides[0], unit)
        return Named(name, value) if name and value is not None else value
    values = [_computed(side) or read(side, unit) for side in sides]
    if any(value is None for value in values):
        return None
    if not name and len(sides) == 2 and signs == ["="] and any(number_of(value) is None for value in values):
        return Expression(latex_of(tokens(f"{sides[0]} = {sides[1]}")), equation=True)
    rounded: Value | None = None
    last = values[-1]
    if signs[-1] == "\\approx":
        rounded, values = last, values[:-1]
    numbers = [number_of(value) for value in values]
    if any(x is None for x in numbers) and len(values) > 1:
        return None
    if any(not _close(numbers[0], x) for x in numbers[1:]):
        return None
    if rounded is not None and not _rounds(numbers[0], rounded):
        return None
    kept = values[-1] if values else last
    return Named(name, kept, rounded) if kept is not None else None


def _computed(text: str) -> Number | None:
    """Return the value of arithmetic, also of ``5-3``, which alone would be a score."""
    found = evaluate(tokens(text))
    return Number(found[0], found[1]) if found and isinstance(found[0], Fraction) else None


def _close(a: Exact | None, b: Exact | None) -> bool:
    if a is None or b is None:
        return False
    x, y = Fraction(a), Fraction(b)  # a float cannot hold every fraction
    exact = isinstance(a, Fraction) and isinstance(b, Fraction)
    return x == y if exact else abs(x - y) <= Fraction(1, 10**9) * max(abs(x), abs(y))


def _rounds(exact: Exact | None, value: Value) -> bool:
    """Whether a decimal stands for a value up to half of its last place."""
    if not isinstance(value, Number) or exact is None:
        return False
    places = 0
    while (value.value * 10**places).denominator != 1 and places < 12:
        places += 1
    return abs(Fraction(exact) - value.value) * 2 * 10**places <= Fraction(1_000_001, 1_000_000)


def _inequality(sides: list[str], order: list[tuple[int, bool]], unit: str) -> Interval | None:
    """Read ``x < 3``, ``3 > x`` or ``0 < x < 12.5`` as the interval of its variable."""
    if len({sign for sign, _ in order}) > 1:
        return None
    if order[0][0] < 0:
        sides, order = sides[::-1], order[::-1]
    name = [place for place, side in enumerate(sides) if name_of(side)]
    if len(name) != 1 or (len(sides) == 3 and name != [1]):
        return None
    [place] = name
    low = read(sides[place - 1], unit) if place else None
    high = read(sides[place + 1], unit) if place + 1 < len(sides) else None
    if (place and low is None) or (place + 1 < len(sides) and high is None):
        return None
    closed = (order[0][1] if place else False, order[-1][1] if place + 1 < len(sides) else False)
    return Interval(low, high, closed, name_of(sides[place]))


def name_of(text: str) -> str:
    """Return what a text names, without braces: ``x``, ``AB``, ``|AB|``, ``\\angle A``, ``f(2)``, ``(x, y)``,
    ``the area``; empty for anything else, such as ``2x``, ``xy`` and ``|x|``, which compute something.
    """
    text = text.strip()
    if text.startswith("(") and text.endswith(")") and "," in text:
        names = [name_of(part) for part in text[1:-1].split(",")]
        return f"({','.join(names)})" if all(names) else ""
    inside = text.strip("| ")
    if text.startswith("|") and text.endswith("|") and (inside.isupper() or inside.startswith(tuple(_MARKS))):
        text = inside  # a length; of a variable it would be another value
    parts = [part.text for part in tokens(text) if part.text not in ("{", "}")]
    function, marked = "", False
    if parts and parts[0].lstrip("\\") in TRIGONOMETRIC:
        function, parts = parts[0].lstrip("\\"), [part for part in parts[1:] if part not in ("(", ")")]
    while parts and (parts[0] in _MARKS or (parts[0] == "m" and parts[1:2] and parts[1] in _MARKS)):
        marked = parts.pop(0) in _MARKS
    if not parts or len(parts) > 12 or {part.casefold().lstrip("\\") for part in parts} & _NO_NAMES:
        return ""
    core, *rest = parts
    if all(part.isalpha() for part in parts) and len(parts) > 1:
        return " ".join(parts) if any(len(part) > 3 for part in parts) else ""
    word = core.strip("'\\")
    if not (word.isalpha() or (marked and word.isdecimal())) or word in FUNCTION_NAMES:
        return ""
    if not marked and (
        (word.islower() and 1 < len(word) < 4 and core[0] != "\\") or (function and word in "xyzt")
    ):
        return ""  # "xy" is a product, and the sine of an unknown no answer
    if rest[:1] == ["_"]:
        rest = rest[rest.index("(") :] if "(" in rest else []
    called = rest[:1] == ["("] and rest[-1] == ")" and rest.count("(") == 1 and not {*"+*/^"} & {*rest}
    return f"{function} {''.join(parts)}".strip() if called or not rest else ""


def _single(text: str, unit: str) -> Value | None:
    """Read one number with its unit, numbers with a unit each (``2 h 30 min``), words, or one expression."""
    parts = tokens(text)
    body, percent, own, power = _measured(parts, unit)
    value = evaluate(body)
    if value is not None and isinstance(value[0], Fraction):
        return Number(value[0] * Fraction(10) ** power, value[1], percent, own)
    starts = [
        at
        for at, part in enumerate(parts)
        if part.kind == "number" and not (at and parts[at - 1].text in "^-{")
    ]
    if len(starts) > 1 and starts[0] == 0:
        found = [_quantity(parts[a:b]) for a, b in zip(starts, [*starts[1:], len(parts)], strict=True)]
        if all(found):
            return Items("", tuple(one for one in found if one is not None))
    if (label := _label(text, parts, unit)) is not None or percent or power:
        return label
    return Expression(latex_of(body if own else parts), value[0] if value else None, own)


def _quantity(parts: Sequence[Token]) -> Number | None:
    """Return a number with its unit, which may stand close to it."""
    body, percent, own, power = _measured(parts, "", close=True)
    value = evaluate(body)
    if value is None or not isinstance(value[0], Fraction) or percent or power or not own:
        return None
    return Number(value[0], value[1], False, own)


def _label(text: str, parts: Sequence[Token], unit: str) -> Label | None:
    """Return codes, numbers in another base, and words."""
    code = "".join(part.text for part in parts if part.text not in "_{}") if text[0].isupper() else text
    if _CODE.fullmatch(code):
        return Label(code.casefold(), measured=_quantity(parts))
    if based := _BASED.fullmatch(text):
        return Label(based[1], based[2])
    for place, (part, after) in enumerate(pairwise(parts)):
        number = part.kind == "number" and not (place and parts[place - 1].text in ("_", "^"))
        if number and (after.kind == "number" or after.text == "_"):
            return _words(text)  # several numbers, such as an address
    known = FUNCTION_NAMES | {unit.casefold()}
    long = [
        part.text
        for part in parts
        if part.kind == "word" and len(part.text.rstrip("'")) > 1 and part.text.casefold() not in known
    ]
    signs = {part.text for part in parts if part.kind in ("command", "other")}
    if not long:
        return None
    if not any(part.kind in ("number", "command") for part in parts) and not signs & set("+*/^|_{}["):
        return _words(text)
    # Words with a number among them, such as a date, are words, too, where none of them can be a unit.
    strange = any(len(word) > 3 and unit_name(word) is None and word not in NUMBER_WORDS for word in long)
    strange = strange or any(a.text in long and b.kind == "number" and b.spaced for a, b in pairwise(parts))
    return _words(text) if strange and not signs & {"\\frac", "\\sqrt", "[", "{", "\\{"} else None


def _words(text: str) -> Label:
    return Label(words(text.replace(",", " ")))


def _measured(parts: Sequence[Token], known: str, close: bool = False) -> tuple[list[Token], bool, Unit, int]:
    """Return the tokens before a unit, whether they are per cent, the unit, and a power of ten ("2 million").

    Args:
        parts: The tokens.
        known: One more unit.
        close: Whether a unit of one letter may follow without a space.
    """
    at = 1 if parts and parts[0].text in "+-" else 0
    money = at + 1 if parts[at : at + 1] and parts[at].text == "US" else at
    currency = CURRENCY.get(parts[money].text) if money + 1 < len(parts) else None
    body = [*parts[:at], *parts[money + 1 :]] if currency else [*parts]
    body, percent, unit = _without_unit(body, known, close)
    power = MULTIPLES.get(body[-1].text, 0) if len(body) > 1 else 0
    if currency:
        if percent or any(times > 0 for _, times in unit):
            return [], False, (), 0
        unit = tuple(sorted((*unit, (currency, 1))))
    return body[:-1] if power else body, percent, unit, power


def _without_unit(parts: list[Token], known: str, close: bool) -> tuple[list[Token], bool, Unit]:
    last = parts[-1].text if parts else ""
    if last in _PERCENT:
        return parts[:-1], True, ()
    place = parts[-2 if last == "}" else -1].text if len(parts) > 1 else ""
    if place in ("st", "nd", "rd", "th") and parts[0].kind == "number" and len(parts) in (2, 3, 5):
        return parts[:1], False, ()
    wanted = tokens(known)
    if known and [t.text.casefold() for t in parts[-len(wanted) :]] == [t.text.casefold() for t in wanted]:
        return parts[: -len(wanted)], False, read_unit(wanted) or ((known.casefold(), 1),)
    for read_it in (read_unit, read_noun):
        for start in range(max(1, len(parts) - 12), len(parts)):
            if _begins_unit(parts, start, close) and (unit := read_it(parts[start:])) is not None:
                return parts[:start], False, unit
    return parts, False, ()


def _begins_unit(parts: list[Token], start: int, close: bool) -> bool:
    """Whether a unit may begin at a place: "2t" may be a product; "2 t" is two tonnes, "10cm" a length."""
    head, first = parts[start - 1], parts[start]
    if first.text == "^":
        return (
            parts[start + 1 : start + 2] != []
            and parts[start + 1].text == "\\circ"
            and not _in_function(parts[:start])
        )
    letters = (part.text for part in parts[:start] if part.kind == "word")
    if any(word not in FUNCTION_NAMES and word not in MULTIPLES and word != "e" for word in letters):
        return False
    if head.text in ("/", "^", "_", "*", "\\cdot", "\\times", "+", "-", "(", "{", "\\mu", "per"):
        return False
    if first.kind == "word" and len(first.text) == 1 and first.text.isascii():
        return close or first.spaced
    return (
        first.kind == "word"
        or first.text in CURRENCY
        or first.text in ("'", '"', "\\mu", "\\Omega", "\\frac")
    )


def _in_function(parts: Sequence[Token]) -> bool:
    """Whether a degree behind these tokens belongs to the argument of a function: ``10\\sin 40``."""
    for part in reversed(parts):
        if part.text.lstrip("\\") in TRIGONOMETRIC:
            return True
        if part.text in ("+", "-", ")", "}", "*", "\\cdot", "\\times"):
            return False
    return False


def as_interval(value: Value) -> Interval | None:
    """Return two values in brackets as an interval; None for anything else."""
    if isinstance(value, Interval):
        return value
    if not isinstance(value, Items) or len(value.items) != 2 or value.kind not in ("()", "[]", "(]", "[)"):
        return None
    low, high = (
        None if isinstance(item, Expression) and item.latex.strip("+- ") == "\\infty" else item
        for item in value.items
    )
    return Interval(low, high, (value.kind[0] == "[", value.kind[1] == "]"))


def number_of(value: Value | None) -> Exact | None:
    """Return the value of a number or of an expression without letters; None for anything else."""
    if isinstance(value, Number):
        return value.worth
    if isinstance(value, Named):
        return number_of(value.value)
    return value.value if isinstance(value, Expression) else None
