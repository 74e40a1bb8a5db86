r"""Numbers and units in a plain text: its tokens, arithmetic without letters, and units with their powers.

Arithmetic is exact as long as it is rational. No function raises an error, and each is bounded: powers and
factorials that are too large have no value.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

Exact = Fraction | float
"""A Fraction is exact; a float stands for an irrational number."""

TOKEN = re.compile(
    r"(?P<number>(?:\d{1,3}(?P<group>[,'_ ])\d{3}(?:(?P=group)\d{3})*(?!\d)|\d+)"
    r"(?:\.(?:\d+|(?=\\overline)|(?!\d)))?|\.\d+)(?:(?<=[\d.])[eE](?P<e>[+-]?\d{1,4})(?![\w.]))?"
    r"|(?P<word>[A-Za-z]+'*)|(?P<command>\\(?:[A-Za-z]+|.))|(?P<other>\S)",
    re.ASCII,
)
GROUP = re.compile(r"[,'_ ]")
CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
MAX_BITS, MAX_FACTORIAL, DEEPEST = 200_000, 3_000, 20
"""Bounds of what is computed exactly, of the brackets in arithmetic, and of lists in lists."""


class Token(NamedTuple):
    """A part of a text: its kind, how it is written, and whether a space stands before it."""

    kind: str
    text: str
    spaced: bool
    exponent: str | None = None


@lru_cache(maxsize=8192)
def tokens(text: str) -> tuple[Token, ...]:
    """Split a plain text into numbers, words, commands and signs."""
    found, end = [], 0
    for match in TOKEN.finditer(text):
        kind = match.lastgroup if match.lastgroup not in ("e", "group") else "number"
        written = match.group()
        found.append(Token(kind or "other", written, match.start() > end, match["e"]))
        end = match.end()
    return tuple(found)


# ------------------------------------------------------------------------------------------------- units

_PREFIXES = frozenset("TGMkhdcmunpf")
_LONG = {"tera": "T", "giga": "G", "mega": "M", "kilo": "k", "hecto": "h", "deci": "d", "centi": "c"}
_LONG |= {"milli": "m", "micro": "u", "nano": "n", "pico": "p"}
_METRIC = {
    "m": "meter metre", "g": "gram gramme", "s": "second sec", "A": "ampere amp", "mol": "mole",
    "K": "kelvin", "N": "newton", "J": "joule", "W": "watt", "V": "volt", "C": "coulomb", "Hz": "hertz",
    "F": "farad", "Pa": "pascal", "ohm": "\\Omega", "H": "henry", "T": "tesla", "Wb": "weber", "S": "siemens",
    "VA": "", "cal": "calorie", "eV": "electronvolt", "Wh": "watthour", "l": "L liter litre", "bar": "",
    "B": "byte", "b": "bit", "lx": "lux", "Bq": "becquerel", "Gy": "gray", "lm": "lumen", "cd": "candela",
    "Ah": "",     "t": "ton tonne",
}  # fmt: skip
_PLAIN_UNITS = {
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "lb": "lbs pound", "oz": "ounce",
    "gal": "gallon", "min": "minute mins", "h": "hr hour hrs", "day": "days d", "week": "weeks", "kph": "kmh",
    "month": "months", "year": "yr yrs years", "°": "degree deg", "rad": "radian", "dollar": "USD dollars",
    "cent": "cents", "euro": "EUR euros", "yuan": "RMB", "yen": "", "rupee": "rupees", "unit": "units",
    "people": "", "person": "persons", "time": "times", "mph": "", "rpm": "", "psi": "", "dB": "", "mmHg": "",
    "atm": "", "acre": "acres", "ha": "hectare", "knot": "knots", "°C": "", "°F": "",
}  # fmt: skip
_UNITS = {name: name for name in _METRIC | _PLAIN_UNITS}
for _name, _spellings in (_METRIC | _PLAIN_UNITS).items():
    for _spelling in _spellings.split():
        _UNITS |= {_spelling: _name, f"{_spelling}s": _name}


def unit_name(text: str) -> str | None:
    """Return a unit's usual sign: that of ``kilometers`` is ``km``; None for a word that is no unit."""
    for spelling in (text, text.lower()) if len(text) > 2 else (text,):
        if spelling in _UNITS:
            return _UNITS[spelling]
        for prefix, sign in _LONG.items():
            if spelling.startswith(prefix) and _UNITS.get(spelling.removeprefix(prefix)) in _METRIC:
                return sign + _UNITS[spelling.removeprefix(prefix)]
    if text[:1] in _PREFIXES and (text[1:] in _METRIC or text[1:] == "L"):
        return text[0] + _UNITS[text[1:]]
    return None


def read_unit(parts: Sequence[Token]) -> tuple[tuple[str, int], ...] | None:
    """Return base units with their powers: ``m s^{-2}`` and ``meters/second squared``; None for anything
    else.
    """
    found, sign, how, at = Counter[str](), 1, 1, 0
    while at < len(parts):
        text = parts[at].text
        at += 1
        if text in ("/", "per"):
            sign = -1
            continue
        if text in ("\\cdot", "*", ".", "{", "}"):
            continue
        if text in ("square", "sq", "cubic", "cu"):
            how = 2 if text.startswith("s") else 3
            continue
        if text == "^" and at < len(parts) and parts[at].text == "\\circ":
            scale = parts[at + 1].text if at + 1 < len(parts) else ""
            name: str | None = f"°{scale}" if scale in ("C", "F") else "°"
            at += 2 if scale in ("C", "F") else 1
        elif text == "\\mu" and at < len(parts):
            name, at = unit_name("u" + parts[at].text.replace("\\Omega", "ohm")), at + 1
        elif (
            parts[at - 1].kind == "word"
            and len(text) == 1
            and text in _PREFIXES
            and at < len(parts)
            and parts[at].text == "\\Omega"
        ):
            name, at = text + "ohm", at + 1
        else:
            money = at == 1 and (at == len(parts) or parts[at].text in ("/", "per"))
            name = (CURRENCY.get(text) if money else None) or unit_name(text)
        if name is None:
            return None
        power, at = _unit_power(parts, at)
        if power is None or (how != 1 and power != 1):
            return None
        found[name] += sign * how * power
        how = 1
    return tuple(sorted(found.items())) if found and how == 1 else None


def _unit_power(parts: Sequence[Token], at: int) -> tuple[int | None, int]:
    if at < len(parts) and parts[at].text in ("squared", "cubed"):
        return (2 if parts[at].text == "squared" else 3), at + 1
    if at >= len(parts) or parts[at].text != "^" or (at + 1 < len(parts) and parts[at + 1].text == "\\circ"):
        return 1, at
    rest = [part.text for part in parts[at + 1 : at + 5]]
    inner = (
        rest[1 : rest.index("}")]
        if rest[:1] == ["{"] and "}" in rest
        else rest[: 2 if rest[:1] == ["-"] else 1]
    )
    written = "".join(inner)
    if not re.fullmatch(r"-?[1-9]", written):
        return None, at
    return int(written), at + 1 + len(inner) + (2 if rest[:1] == ["{"] else 0)


# --------------------------------------------------------------------------------------------- arithmetic


class _Unreadable(Exception):
    """Something that is no arithmetic without letters, or is too large."""


TRIGONOMETRIC = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
FUNCTION_NAMES = TRIGONOMETRIC | {"arcsin", "arccos", "arctan", "ln", "log", "exp", "sqrt", "pi"}
FUNCTION_NAMES |= {"inf", "infinity", "frac", "max", "min", "gcd", "lcm", "det", "mod"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_OPERATORS = {"+": "+", "-": "-", "*": "*", "/": "/", "^": "**", "\\cdot": "*", "\\times": "*"}
_CONSTANTS = {"\\pi": "pi", "pi": "pi", "e": "e"}


def _written(parts: list[Token], numbers: list[Fraction]) -> str:
    """Write LaTeX without letters in Python's syntax; ``n[3]`` stands for the fourth of ``numbers``.

    Raises:
        _Unreadable: It is something else.
    """
    out, at = [""], 0

    def number(value: Fraction) -> str:
        numbers.append(value)
        return f"n[{len(numbers) - 1}]"

    def group() -> str:
        """Return the argument of a command: a group in brackets, or one sign (``\\frac12``)."""
        nonlocal at
        if at >= len(parts):
            raise _Unreadable
        token = parts[at]
        if token.text in _CLOSING:
            end = _closes(parts, at)
            inner, at = parts[at + 1 : end], end + 1
            return f"({_written(inner, numbers)})"
        if token.kind == "number" and len(token.text) > 1 and token.text.isdecimal():
            parts[at] = Token(
                "number", token.text[1:], True
            )  # LaTeX takes one digit; the others go on behind it
            return number(Fraction(token.text[0]))
        at += 1
        return _written([token], numbers)

    while at < len(parts):
        token, last = parts[at], out[-1]
        side_by_side = bool(last) and last not in "+-**/!"
        if token.text in _OPERATORS:
            out.append(_OPERATORS[token.text])
            at += 1
        elif token.text == "!":
            out[-1] = f"f({out[-1]})"
            at += 1
        elif token.kind == "number":
            if side_by_side:
                raise _Unreadable  # two numbers
            value, at = _read_literal(parts, at)
            made = number(value)
            if token.text.isdecimal() and [part.kind for part in parts[at : at + 3 : 2]] == ["number"] * 2:
                if parts[at + 1].text != "/":
                    raise _Unreadable
                made, at = f"m({made}, {_written(parts[at : at + 3], numbers)})", at + 3
            elif token.text.isdecimal() and at < len(parts) and parts[at].text == "\\frac":
                at += 1
                made = f"m({made}, {group()}/{group()})"
            out.append(made)
        else:
            at += 1
            if token.text == "\\frac":
                made = f"({group()}/{group()})"
            elif token.text in ("\\sqrt", "sqrt"):
                degree = group() if at < len(parts) and parts[at].text == "[" else number(Fraction(2))
                made = f"r({group()}, {degree})"
            elif token.text == "|":
                end = next((i for i in range(at, len(parts)) if parts[i].text == "|"), None)
                if end is None:
                    raise _Unreadable
                made, at = f"a({_written(parts[at:end], numbers)})", end + 1
            elif token.text in _CLOSING:
                at -= 1
                made = group()
            elif token.text in _CONSTANTS:
                made = _CONSTANTS[token.text]
            else:
                raise _Unreadable
            out += ["*", made] if side_by_side else [made]
    return "".join(out)


def _closes(parts: Sequence[Token], start: int) -> int:
    """Return the place of the bracket that closes the one at ``start``."""
    depth = 0
    for place in range(start, len(parts)):
        depth += (parts[place].text in _CLOSING) - (parts[place].text in _CLOSING.values())
        if depth == 0 and parts[place].text == _CLOSING[parts[start].text]:
            return place
    raise _Unreadable


def _read_literal(parts: Sequence[Token], at: int) -> tuple[Fraction, int]:
    """Return the number that begins at a token, and where it ends: ``1.5e3``, ``0.\\overline{3}``."""
    token, texts = parts[at], [part.text for part in parts[at + 1 : at + 5]]
    mantissa = token.text[: -len(token.exponent) - 1] if token.exponent else token.text
    value = Fraction(GROUP.sub("", mantissa).rstrip(".") or "0")
    if token.exponent:
        return value * Fraction(10) ** int(token.exponent), at + 1
    if texts[:2] == ["\\overline", "{"] and texts[3:] == ["}"] and "." in mantissa and texts[2].isdecimal():
        places = len(mantissa.partition(".")[2])
        return value + Fraction(int(texts[2]), (10 ** len(texts[2]) - 1) * 10**places), at + 5
    return value, at + 1


def _value(node: ast.expr, numbers: Sequence[Fraction]) -> Exact:
    """Return the value of what `_written` made; nothing else can stand in it."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=int(place))):
            return numbers[place]
        case ast.Name(id=name):
            return math.pi if name == "pi" else math.e
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, numbers)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, numbers)
        case ast.BinOp(left=a, op=ast.Pow(), right=b):
            return _power(_value(a, numbers), _value(b, numbers))
        case ast.BinOp(left=a, op=op, right=b):
            x, y = _value(a, numbers), _value(b, numbers)
            if isinstance(op, ast.Div):
                return x / y
            return x * y if isinstance(op, ast.Mult) else x + y if isinstance(op, ast.Add) else x - y
        case ast.Call(func=ast.Name(id="a"), args=[inner]):
            return max(_value(inner, numbers), -_value(inner, numbers))
        case ast.Call(func=ast.Name(id="m"), args=[whole, part]):
            x, y = _value(whole, numbers), _value(part, numbers)
            if isinstance(y, float):
                return x * y
            if not 0 < y < 1:
                raise _Unreadable  # "3 7/2" is no mixed number
            return x + y
        case ast.Call(func=ast.Name(id="f"), args=[inner]):
            value = _value(inner, numbers)
            if isinstance(value, float) or value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
                raise _Unreadable
            return Fraction(math.factorial(int(value)))
        case ast.Call(func=ast.Name(id="r"), args=[inner, degree]):
            return _root(_value(inner, numbers), _value(degree, numbers))
    raise _Unreadable


def _power(base: Exact, exponent: Exact) -> Exact:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > MAX_BITS:
            raise _Unreadable
        return Fraction(base ** int(exponent))
    found: Exact = float(base) ** float(exponent)
    return found


def _root(value: Exact, degree: Exact) -> Exact:
    if isinstance(degree, float) or degree.denominator != 1 or degree < 2 or (value < 0 and degree % 2 == 0):
        raise _Unreadable
    sign, n = (-1 if value < 0 else 1), int(degree)
    if isinstance(value, Fraction):
        parts = [abs(value.numerator), value.denominator]
        roots = [round(part ** (1 / n)) if part < 2**52 else 0 for part in parts]
        if [root**n for root in roots] == parts:
            return Fraction(sign * roots[0], roots[1])
    return sign * float(abs(float(value)) ** (1 / n))


def evaluate(parts: Sequence[Token]) -> tuple[Exact, bool] | None:
    """Return the value of arithmetic without letters, and whether a decimal stands in it; None for others."""
    numbers: list[Fraction] = []
    if sum(part.text in _CLOSING for part in parts) > DEEPEST:
        return None
    try:
        value = _value(ast.parse(_written([*parts], numbers), mode="eval").body, numbers)
    except (_Unreadable, SyntaxError, ArithmeticError, ValueError, IndexError, RecursionError, MemoryError):
        return None
    if isinstance(value, complex) or (isinstance(value, float) and not (math.isfinite(value) and value)):
        return None  # a float that vanished is not 0
    return value, any("." in part.text or part.exponent for part in parts if part.kind == "number")


def number_latex(value: Fraction) -> str:
    """Return an exact number as LaTeX."""
    top, bottom = abs(value.numerator), value.denominator
    made = str(top) if bottom == 1 else rf"\frac{{{top}}}{{{bottom}}}"
    return f"-{made}" if value < 0 else made
