r"""The one reader of answers: a plain text becomes a value, a label, or an expression that math-verify is
asked about.

`read` takes what `math_text.final_expression` returns. A `Number` is exact and may have a unit. A `Label` is
compared by its letters and digits: words, and what looks like arithmetic and is none (ranges, dates, scores,
codes, numbers in another base). `Items`, `Span` (an inequality or an interval) and `Named` (``x = 5``) hold
values. Everything else is an `Expression` in LaTeX, into which all numbers are written as the values that
they are. No function raises an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from selfverify.tasks.math_numbers import (
    CURRENCY,
    DEEPEST,
    FUNCTION_NAMES,
    GROUP,
    TOKEN,
    TRIGONOMETRIC,
    Exact,
    Token,
    evaluate,
    number_latex,
    read_unit,
    tokens,
    unit_name,
)
from selfverify.tasks.math_text import words

_PLAIN_NUMBER = r"\d+(?:[.,]\d+)*\s*"
_LABELS = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"[+-]?{_PLAIN_NUMBER}(?:(?:-|\bto\b)\s*-?{_PLAIN_NUMBER})+",  # ranges, scores and dates: 10-20
        r"\d+\s*/\s*\d+\s*/\s*\d+",  # dates: 1/2/2010
        r"(?=\S*[A-Z])(?=\S*\d)[A-Z\d]+",  # codes: A1, 12A, H2O
        r"\d+(?:\s*x\s*\d+)+",  # sizes: 2x4
        r"\d+(?:\.\d+)?(?:\s*:\s*\d+(?:\.\d+)?)+",  # ratios: 3:4
    )
)
_DECIMAL = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)", re.ASCII)
"""Most numbers: read at once."""
_BASED = re.compile(r"([\dA-F]+)\s*_\s*(?:\{\s*)?([1-9]\d?)\s*\}?", re.ASCII)
_RELATION = re.compile(r"[<>]=?|(?<![!:])=|!=|:=|\\(?:le|ge|ne|approx|in)(?![A-Za-z])")
_SEPARATOR = re.compile(r"[,;()\[\]{}]|(?<=[\s,;])(?:and|or)(?=\s)|\\cup(?![A-Za-z])", re.IGNORECASE)
_NAME = re.compile(
    r"(?:(?:m\s*)?\\(?:angle|triangle|overline|vec|hat|bar|mathcal|mathbb)\s*)?\|?(?:\{\s*)?(?:\\[A-Za-z]+|[A-Za-z]{1,4})(?:\s*\})?"
    r"(?:_(?:\w{1,4}|\{[^{}]{1,12}\}))?'*(?:\(\s*[\w\s,\\.-]{1,12}\s*\))?\|?|(?:m\s*)?\\angle\s*\{?\s*\d\s*\}?"
    r"|(?:the )?[A-Za-z]{5,16}(?: of (?:the )?[A-Za-z]{1,16})?",
    re.ASCII,
)
_NOT_NAMES = {"not", "or", "and", "but", "if", "no", "nor", "e", "maybe", "either"}
_SIGNS = {"circ", "infty", "emptyset", "times", "cdot"}
_MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_WITH_NUMBERS = {*_MULTIPLES, "percent", "squared", "cubed", "square", "cubic"}
_TIME = re.compile(r"(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE | re.ASCII)
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
    unit: tuple[tuple[str, int], ...] = ()

    @property
    def worth(self) -> Fraction:
        """Return the value, for a percentage its hundredth."""
        return self.value / 100 if self.percent else self.value


@dataclass(frozen=True, slots=True)
class Label:
    """Words or signs that are compared as they are; ``base`` is that of a number such as ``2516_8``."""

    text: str
    base: str = ""


@dataclass(frozen=True, slots=True)
class Clock:
    """A time of day: ``10:00 am`` and ``10:00 A.M.`` are the same, and ``22:00`` is ``10 pm``.

    Args:
        seconds: Since midnight, as far as the text tells: ``9:00`` may also be at 21 hours.
        half_known: Whether the half of the day is known: by ``am`` or ``pm``, or by an hour 0 or above 12.
        half_told: Whether ``am`` or ``pm`` stands there.
    """

    seconds: int
    half_known: bool
    half_told: bool


@dataclass(frozen=True, slots=True)
class Expression:
    """LaTeX for math-verify; its value where it has no letters; its unit; whether it is an equation."""

    latex: str
    value: Exact | None = None
    unit: tuple[tuple[str, int], ...] = ()
    equation: bool = False


@dataclass(frozen=True, slots=True)
class Items:
    """Several values in brackets: ``""``, ``"()"``, ``"[)"``, ``"{}"``; without any and in ``{}`` they have
    no order.
    """

    kind: str
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Span:
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


Value = Number | Label | Clock | Expression | Items | Span | Named


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
    if _DECIMAL.fullmatch(text):
        return Number(Fraction(text), "." in text)
    if (found := _clock(text) or _label(text, unit)) is not None:
        return found
    if text[0] in "[{(" or text.startswith("\\{"):
        text = text.replace("\\{", "{").replace("\\}", "}") if "\\}" in text else text
    kind, parts = elements(text)
    relations = _at_top(text, _RELATION)
    if relations and (len(parts) == 1 or (kind == "" and _NAMES_TUPLE.match(text))):
        return _related(text, relations, unit)
    if (len(parts) > 1 or kind == "{}") and depth < DEEPEST:
        if "\\cup" in text or "\\cap" in text:
            return Expression(latex_of(text))
        items = [read(part.strip("'\" ") if kind else part, unit, depth + 1) for part in parts]
        if any(item is None for item in items):
            return None
        if not kind and all(isinstance(item, Label) and not item.base for item in items):
            return Label(words(text))  # a sentence with a comma
        return Items(kind, tuple(item for item in items if item is not None))
    return _single(text, unit)


_NAMES_TUPLE = re.compile(r"\(\s*[A-Za-z]\w?(?:\s*,\s*[A-Za-z]\w?)+\s*\)\s*(?:=|\\in)", re.ASCII)


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
    return Clock(hour * 3600 + minute * 60 + second, known, told)


def _label(text: str, unit: str) -> Label | None:
    """Return ranges, dates, scores, codes, numbers in another base, and words."""
    for pattern in _LABELS:
        if pattern.fullmatch(text):
            return Label("".join(text.replace(" to ", "-").split()).casefold())
    if (based := _BASED.fullmatch(text)) and not re.fullmatch(r"\d{1,3}(?:_\d{3})+", text):
        return Label(based[1], based[2])
    parts, known = tokens(text), FUNCTION_NAMES | {unit.casefold()}
    long = [
        part.text
        for part in parts
        if part.kind == "word" and len(part.text.rstrip("'")) > 1 and part.text.casefold() not in known
    ]
    signs = {part.text for part in parts if part.kind in ("command", "other")}
    if not long or signs & {"=", "<", ">", "\\le", "\\ge", "\\in", "\\approx"}:
        return None
    plain_words = not any(part.kind in ("number", "command") for part in parts) and not signs & set(
        "+*/^|_{}["
    )
    # Words with a number among them, such as a date, are words, too, where none of them can be a unit.
    strange = any(len(word) > 3 and unit_name(word) is None and word not in _WITH_NUMBERS for word in long)
    if plain_words or (strange and not signs & {"\\frac", "\\sqrt", "[", "{", "\\{"}):
        return Label(words(text))
    return None


def _related(text: str, relations: list[re.Match[str]], unit: str) -> Value | None:
    """Read an equation, an inequality, or membership in a set."""
    signs = [found.group() for found in relations]
    cuts = [0, *(place for found in relations for place in found.span()), len(text)]
    sides = [text[a:b].strip() for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    if set(signs) <= {"=", "\\approx"}:
        return _equal(sides, signs, unit)
    if signs == ["\\in"] and is_name(sides[0]):
        inner = read(sides[1], unit)
        return None if inner is None else Named(sides[0].replace(" ", ""), inner)
    order = {
        "<": (1, False),
        "\\le": (1, True),
        "<=": (1, True),
        ">": (-1, False),
        "\\ge": (-1, True),
        ">=": (-1, True),
    }
    if all(sign in order for sign in signs) and len(signs) <= 2 and all(sides):
        return _inequality(sides, [order[sign] for sign in signs], unit) or Expression(
            latex_of(text), equation=True
        )
    return Expression(latex_of(text), equation=True) if all(sides) else None


def _equal(sides: list[str], signs: list[str], unit: str) -> Value | None:
    if not sides[0]:  # "= 2.5", "≈ 2.5"
        sides, signs = sides[1:], signs[1:]
    if not all(sides) or not sides:
        return None
    if len(sides) == 1:
        return read(sides[0], unit)
    name = ""
    if is_name(sides[0]):
        name, sides, signs = sides[0].replace(" ", ""), sides[1:], signs[1:]
    elif len(sides) == 2 and is_name(sides[1]) and not is_name(sides[0]):
        name, sides, signs = sides[1].replace(" ", ""), sides[:1], []
    values = [read(side, unit) for side in sides]
    if any(value is None for value in values):
        return None
    if len(values) == 1 and values[0] is not None:
        return Named(name, values[0])
    if not name and len(sides) == 2 and signs == ["="] and any(number_of(value) is None for value in values):
        return Expression(latex_of(f"{sides[0]} = {sides[1]}"), equation=True)
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


def _close(a: Exact | None, b: Exact | None) -> bool:
    if a is None or b is None:
        return False
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    return math.isclose(a, b, rel_tol=1e-9)


def _rounds(exact: Exact | None, value: Value) -> bool:
    """Whether a decimal stands for a value up to half of its last place."""
    if not isinstance(value, Number) or exact is None:
        return False
    places = 0
    while (value.value * 10**places).denominator != 1 and places < 12:
        places += 1
    return abs(float(exact) - float(value.value)) <= 0.5000001 * 10.0**-places


def _inequality(sides: list[str], order: list[tuple[int, bool]], unit: str) -> Span | None:
    """Read ``x < 3``, ``3 > x`` or ``0 < x < 12.5`` as the interval of its variable."""
    if len({sign for sign, _ in order}) > 1:
        return None
    if order[0][0] < 0:
        sides, order = sides[::-1], order[::-1]
    name = [place for place, side in enumerate(sides) if is_name(side)]
    if len(name) != 1 or (len(sides) == 3 and name != [1]):
        return None
    [place] = name
    low = read(sides[place - 1], unit) if place else None
    high = read(sides[place + 1], unit) if place + 1 < len(sides) else None
    if (place and low is None) or (place + 1 < len(sides) and high is None):
        return None
    closed = (order[0][1] if place else False, order[-1][1] if place + 1 < len(sides) else False)
    return Span(low, high, closed, sides[place])


def is_name(text: str) -> bool:
    """Whether a text names something: ``x``, ``AB``, ``|AB|``, ``\\angle A``, ``f(2)``, ``(x, y)``,
    ``Area``.
    """
    text = text.strip()
    if text.startswith("(") and text.endswith(")") and "," in text:
        return all(is_name(part) for part in text[1:-1].split(","))
    if text.startswith("|") and not re.fullmatch(r"\|\s*[A-Z]{2,3}\s*\|", text):
        return False  # the value of x without its sign, and no length
    head = text.lstrip("\\").partition("(")[0].strip()
    if text.casefold() in _NOT_NAMES or head in FUNCTION_NAMES | _SIGNS:
        return False
    return _NAME.fullmatch(text) is not None and text.count("|") in (0, 2)


def _single(text: str, unit: str) -> Value | None:
    """Read one number with its unit, or one expression."""
    parts = tokens(text)
    currency, sign, start = "", "", 0
    if len(parts) > 1 and parts[0].text in ("-", "+") and parts[1].text in CURRENCY:
        sign, currency, start = parts[0].text, CURRENCY[parts[1].text], 2
    elif parts and parts[0].text in CURRENCY:
        currency, start = CURRENCY[parts[0].text], 1
    whole = [Token("other", "-", False), *parts[start:]] if sign == "-" else [*parts[start:]]
    body, percent, own, power = _without_unit(whole, unit)
    if body is None or (currency and (own or percent)):
        return None
    own = ((currency, 1),) if currency else own
    found = evaluate(body)
    if found is not None and isinstance(found[0], Fraction):
        return Number(found[0] * 10**power, found[1], percent, own)
    if percent or power:
        return None
    written = " ".join(part.text for part in body) if own and not currency else text
    return Expression(latex_of(written), found[0] if found else None, own)


def _without_unit(
    parts: list[Token], known: str
) -> tuple[list[Token] | None, bool, tuple[tuple[str, int], ...], int]:
    """Return the tokens before a unit, whether they are per cent, the unit, and a power of ten ("2
    million").
    """
    last = parts[-1].text if parts else ""
    if last in _PERCENT:
        cut = parts[:-1]
        return (cut if cut and cut[-1].text not in _PERCENT else None), True, (), 0
    if last in ("st", "nd", "rd", "th") or (
        last == "}" and len(parts) > 3 and parts[-2].text in ("st", "nd", "rd", "th")
    ):
        cut = parts[:-1] if last != "}" else parts[:-4]
        return (cut if len(cut) == 1 and cut[0].kind == "number" else parts), False, (), 0
    if last in _MULTIPLES and len(parts) > 1:
        return parts[:-1], False, (), _MULTIPLES[last]
    if known:
        wanted = tokens(known)
        tail = parts[len(parts) - len(wanted) :]
        if len(parts) > len(wanted) and [t.text.casefold() for t in tail] == [
            t.text.casefold() for t in wanted
        ]:
            return parts[: -len(wanted)], False, read_unit(wanted) or ((known.casefold(), 1),), 0
    for start in range(max(1, len(parts) - 12), len(parts)):
        head, tail = parts[start - 1], parts[start:]
        degree = tail[0].text == "^" and len(tail) > 1 and tail[1].text == "\\circ"
        if not degree and not (tail[0].kind in ("word", "command") or tail[0].text in ("$", "€")):
            continue
        if head.text in ("/", "^", "_", "*", "\\cdot", "\\times", "+", "-", "(", "{", "\\mu", "per"):
            continue
        # "2t" may well be a product; "2 t" is two tonnes, and "10cm" ten centimetres.
        if tail[0].kind == "word" and len(tail[0].text) == 1 and not tail[0].spaced:
            continue
        if degree and _in_function(parts[:start]):
            continue
        if (unit := read_unit(tail)) is not None and not (tail[0].text == "C" and head.text == "\\circ"):
            return parts[:start], False, unit, 0
    return parts, False, (), 0


def _in_function(parts: Sequence[Token]) -> bool:
    """Whether a degree behind these tokens belongs to the argument of a function: ``10\\sin 40``."""
    for part in reversed(parts):
        if part.text.lstrip("\\") in TRIGONOMETRIC:
            return True
        if part.text in ("+", "-", ")", "}", "*", "\\cdot", "\\times"):
            return False
    return False


def number_of(value: Value | None) -> Exact | None:
    """Return the value of a number or of an expression without letters; None for anything else."""
    if isinstance(value, Number):
        return value.worth
    if isinstance(value, Named):
        return number_of(value.value)
    return value.value if isinstance(value, Expression) else None


def elements(text: str) -> tuple[str, list[str]]:
    """Return the brackets around a list (``""``, ``"()"``, ``"[)"``, ``"{}"``, ...) and its elements.

    Commas, semicolons, "and" and "or" separate elements; a comma in a number is none. A text that is no list
    is one element without brackets.
    """
    text = text.strip()
    kind, body = "", text
    if len(text) > 1 and text[0] in "([{" and text[-1] in ")]}" and _encloses(text):
        kind, body = text[0] + text[-1], text[1:-1]
    parts, start = [], 0
    for match in _at_top(body, _SEPARATOR):
        if match.group() == "," and _inside_number(body, match.start()):
            continue
        parts.append(body[start : match.start()])
        start = match.end()
    # "5, and 6" has two separators in a row.
    parts = [part.strip() for part in (*parts, body[start:]) if part.strip()]
    if len(parts) < 2 and kind != "{}":
        return "", [text]
    return kind, parts or [""]


def _inside_number(text: str, at: int) -> bool:
    start = max(0, at - 3)
    match = TOKEN.search(text, next((i for i in range(start, at + 1) if text[i : i + 1].isdigit()), at))
    return match is not None and match.start() < at < match.end()


def _at_top(text: str, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return what a pattern finds outside of brackets."""
    if pattern.search(text) is None:
        return []
    depths, depth = [], 0
    for character in text:
        depth -= character in ")]}"
        depths.append(depth)
        depth += character in "([{"
    return [m for m in pattern.finditer(text) if depths[m.start()] == 0 and m.group() not in tuple("()[]{}")]


def _encloses(text: str) -> bool:
    """Return whether the last character closes the first bracket."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False


_TO_LATEX = (
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"\*"), r" \\cdot "),
    (re.compile(r"<="), r" \\le "),
    (re.compile(r">="), r" \\ge "),
    (re.compile(r"!="), r" \\ne "),
    (re.compile(r"(?<![A-Za-z\\])(pi|sin|cos|tan|ln|log|sqrt)(?![A-Za-z])"), r"\\\1 "),
    (re.compile(r"\\sqrt\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"(?<![A-Za-z\\])(?:infinity|inf)(?![A-Za-z])"), r"\\infty "),
    (re.compile(r"\^\\circ(?=.)|\^\\circ"), r" \\cdot \\frac{\\pi}{180} "),
)
"""What people write for LaTeX. A degree that is no unit is a factor of pi / 180."""


def latex_of(text: str) -> str:
    """Return a text as LaTeX in which every number is written as the value that it is."""
    out = []
    for part in tokens(text):
        written = part.text
        if part.kind == "number" and (part.exponent or GROUP.search(written)):
            found = evaluate([part])
            written = number_latex(found[0]) if found and isinstance(found[0], Fraction) else written
        out.append((" " if part.spaced else "") + written)
    made = "".join(out)
    for pattern, replacement in _TO_LATEX:
        made = pattern.sub(replacement, made)
    return made.strip()
