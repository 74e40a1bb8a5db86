r"""Numbers and units in a plain text: its tokens, arithmetic without letters, and units with their powers.

Arithmetic is exact as long as it is rational. No function raises an error, and each is bounded: powers and
factorials that are too large have no value.
"""

from __future__ import annotations

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
    r"(?P<number>(?:(?<![_^])[1-9]\d{0,2}(?P<group>[,'_ ])\d{3}(?:(?P=group)\d{3})*(?!\d)|\d+)"
    r"(?:\.(?:\d+|(?=\\overline)|(?!\d)))?|\.\d+)(?:(?<=[\d.])[eE](?P<e>[+-]?\d{1,4})(?![\w.]))?"
    r"|(?P<word>[A-Za-z]+'*|平方|立方|[一-鿿]+)|(?P<command>\\(?:[A-Za-z]+|.))|(?P<other>\*\*|[<>!]=|\S)",
    re.ASCII,
)
GROUP = re.compile(r"[,'_ ]")
CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yuan", "₹": "rupee"}
CURRENCY |= {"USD": "dollar", "EUR": "euro"}
MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
NUMBER_WORDS = {*MULTIPLES, "percent", "squared", "cubed", "square", "cubic"}
MAX_BITS, MAX_WRITTEN, MAX_FACTORIAL, DEEPEST = 200_000, 1_000, 3_000, 20
"""Bounds: bits of what is computed exactly and of what is written out, factorials, brackets in brackets."""
LONGEST = 4_000
"""Python reads no longer text as a number."""


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
    "m": "meter metre 米", "g": "gram gramme 克", "s": "second sec 秒", "A": "ampere amp", "mol": "mole",
    "K": "kelvin", "N": "newton", "J": "joule", "W": "watt", "V": "volt", "C": "coulomb", "Hz": "hertz",
    "F": "farad", "Pa": "pascal", "ohm": "\\Omega", "H": "henry", "T": "tesla", "Wb": "weber", "S": "siemens",
    "VA": "", "cal": "calorie", "eV": "electronvolt", "Wh": "watthour", "l": "L liter litre 升", "bar": "",
    "B": "byte", "b": "bit", "lx": "lux", "Bq": "becquerel", "Gy": "gray", "lm": "lumen", "cd": "candela",
    "Ah": "", "t": "ton tonne 吨", "bps": "", "torr": "Torr",
}  # fmt: skip
_PLAIN_UNITS = {
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "lb": "pound", "oz": "ounce",
    "gal": "gallon", "min": "minute 分钟", "h": "hr hour 小时", "day": "d 天", "week": "", "month": "",
    "year": "yr 年 岁", "°": "degree deg 度", "rad": "radian", "dollar": "", "cent": "", "euro": "",
    "yuan": "RMB yen 元", "rupee": "", "unit": "个 只 本 条 张 棵 辆 种 件", "people": "person 人 名 位",
    "time": "次 倍", "rpm": "", "psi": "", "dB": "", "mmHg": "", "atm": "", "acre": "", "ha": "hectare",
    "knot": "", "amu": "", "AU": "", "'": "", '"': "", "cm": "厘米", "mm": "毫米", "km": "千米 公里",
    "kg": "千克 公斤",
}  # fmt: skip
_UNITS = {**CURRENCY, **{name: name for name in _METRIC | _PLAIN_UNITS}}
for _name, _spellings in (_METRIC | _PLAIN_UNITS).items():
    for _spelling in (_name, *_spellings.split()):
        # "ms" is no "m", but "mins" is "min".
        _UNITS |= {_spelling: _name} | ({f"{_spelling}s": _name} if len(_spelling) > 1 else {})
_RATES = {"mph": ("mi", "h"), "kph": ("km", "h"), "kmh": ("km", "h"), "fps": ("ft", "s")}
_SCALES = {"C": "°C", "F": "°F", "celsius": "°C", "fahrenheit": "°F"}
_SHAPES = {"square": 2, "sq": 2, "平方": 2, "cubic": 3, "cu": 3, "立方": 3}
_BETWEEN_UNITS = {"\\cdot", "*", ".", "{", "}", "(", ")", "\\frac"}
_NO_NOUNS = {
    "plus", "minus", "less", "more", "than", "times", "equals", "versus", "perhaps", "unless", "this", "thus",
    "or", "and", "not", "no", "but", "to", "of", "halves", "thirds", "quarters", "fourths", "fifths",
    "sixths", "sevenths", "eighths", "ninths", "tenths", "hundredths", "thousandths", "tens", "dozens",
    "hundreds", "pairs", "thousands", "millions", "billions", "trillions", "guess", "does", "others", "dozen",
    "maybe", *MULTIPLES,
}  # fmt: skip
"""Words behind a number that make another number or no answer of it: "3 dozens" and "3 or more cats"."""

Unit = tuple[tuple[str, int], ...]
"""Base units with their powers, sorted: ``(("h", -1), ("km", 1))``."""


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
    return unit_name(text[:-1]) if len(text) > 2 and text.endswith("s") else None


def read_unit(parts: Sequence[Token]) -> Unit | None:
    """Return base units with their powers: ``m s^{-2}`` and ``meters/second squared``; None for others."""
    found, sign, how = Counter[str](), 1, 1
    texts = [f" {part.text}" if part.spaced and part.kind == "number" else part.text for part in parts]
    while texts:
        text = texts.pop(0)
        if text in ("/", "per") or (text == "}" and texts[:1] == ["{"]):
            sign = -1
        elif text in "$€£¥₹" and (found or (texts and texts[0] not in ("/", "per"))):
            return None
        elif text in _SHAPES and how == 1:
            how = _SHAPES[text]
        elif text in _RATES:
            found.update({_RATES[text][0]: sign, _RATES[text][1]: -sign})
        elif text not in _BETWEEN_UNITS:
            if (text == "^" and texts[:1] == ["\\circ"]) or (texts[:1] == ["\\Omega"] and text in _PREFIXES):
                text = "°" if text == "^" else f"{text}ohm"
                del texts[0]
            elif text == "\\mu" and texts:
                text = f"u{texts.pop(0)}".replace("\\Omega", "ohm")
            name = unit_name(text)
            if name == "°" and texts and (scale := _SCALES.get(texts[0], _SCALES.get(texts[0].lower()))):
                name = scale
                del texts[0]
            power = _unit_power(texts, name or "")
            if name is None or power is None or (how != 1 and power != 1):
                return None
            if name == "ms" and power < 0:  # metres a second, as it is often written
                found.update({"m": sign})
                name = "s"
            found.update({name: sign * how * power})
            how = 1
    return tuple(sorted(found.items())) if found and how == 1 else None


def _unit_power(texts: list[str], name: str) -> int | None:
    """Take a power from the front of the texts behind a unit; None where it is none."""
    if texts[:1] in (["squared"], ["cubed"]):
        return 2 if texts.pop(0) == "squared" else 3
    if texts[:1] in (["2"], ["3"]) and (name.endswith("m") or name in ("ft", "in", "mi")):  # m2
        return int(texts.pop(0))
    if texts[:1] != ["^"] or texts[:2] == ["^", "\\circ"]:
        return 1
    end = texts.index("}") + 1 if texts[1:2] == ["{"] and "}" in texts else 3 if texts[1:2] == ["-"] else 2
    written = "".join(texts[1:end]).strip("{ }")
    del texts[:end]
    return int(written) if written.removeprefix("-") in tuple("123456789") else None


def read_noun(parts: Sequence[Token]) -> Unit | None:
    """Return what is counted, as a unit: up to three words, the last one in the plural ("3 red balls")."""
    found = [part.text.casefold() for part in parts]
    plural = (found[-1].endswith("s") and len(found[-1]) > 3) or found[-1] in ("children", "men", "women")
    if not plural or len(found) > 3 or any(word in _NO_NOUNS or not word.isalpha() for word in found):
        return None
    return ((" ".join(found), 1),)


# --------------------------------------------------------------------------------------------- arithmetic


class _Unreadable(Exception):
    """The text is not arithmetic of numbers alone, or its value is too large."""


TRIGONOMETRIC = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
_FUNCTIONS = TRIGONOMETRIC | {"arcsin", "arccos", "arctan", "ln", "log", "exp", "sqrt", "pi"}
FUNCTION_NAMES = _FUNCTIONS | {"inf", "infinity", "frac", "max", "min", "gcd", "lcm", "det", "mod"}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"\\pi": math.pi, "pi": math.pi, "e": math.e}
_STARTS = {*_CLOSING, *_CONSTANTS, "\\frac", "\\sqrt", "sqrt", "|"}


class _Arithmetic:
    """LaTeX without letters, read from left to right: a sum of products of powers.

    Every method reads one part of that grammar at the current place and returns its value. What is no
    arithmetic raises `_Unreadable`.
    """

    def __init__(self, parts: Sequence[Token]) -> None:
        self.parts, self.bars = list(reversed(parts)), 0

    def next(self) -> str:
        return self.parts[-1].text if self.parts else ""

    def take(self, *texts: str) -> str:
        """Take the next sign if it is one of ``texts``."""
        return self.parts.pop().text if self.next() in texts else ""

    def all(self) -> Exact:
        value = self.sum()
        if self.parts:
            raise _Unreadable
        return value

    def sum(self) -> Exact:
        value = self.product()
        while (sign := self.next()) in ("+", "-"):
            self.parts.pop()
            value += self.product() if sign == "+" else -self.product()
        return value

    def product(self) -> Exact:
        value = self.signed()
        while text := self.next():
            if text in ("*", "\\cdot", "\\times"):
                self.parts.pop()
                value *= self.signed()
            elif text == "/":
                self.parts.pop()
                value /= self.signed()
            elif text in _STARTS and not (text == "|" and self.bars):
                value *= self.power()
            else:
                break
        return value

    def signed(self) -> Exact:
        negative = False
        while (sign := self.next()) in ("+", "-"):
            self.parts.pop()
            negative ^= sign == "-"
        value = self.power()
        return -value if negative else value

    def power(self) -> Exact:
        value = self.atom()
        while self.take("!"):
            if isinstance(value, float) or value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
                raise _Unreadable
            value = Fraction(math.factorial(int(value)))
        return _power(value, self.signed()) if self.take("^", "**") else value

    def atom(self) -> Exact:
        if self.parts and self.parts[-1].kind == "number":
            return self.number()
        text = self.take(*_STARTS)
        if text == "\\frac":
            return self.argument() / self.argument()
        if text in ("\\sqrt", "sqrt"):
            degree = self.argument() if self.next() == "[" else Fraction(2)
            return _root(self.argument(), degree)
        if text == "|":
            self.bars += 1
            inner = self.sum()
            value = -inner if inner < 0 else inner
            self.bars -= 1
            if self.take("|"):
                return value
        elif text in _CLOSING:
            bars, self.bars = self.bars, 0
            value = self.sum()
            self.bars = bars
            if self.take(_CLOSING[text]):
                return value
        elif text:
            return _CONSTANTS[text]
        raise _Unreadable

    def argument(self) -> Exact:
        """Read the argument of a command: a group in brackets, or one sign (``\\frac12``)."""
        if self.parts and self.parts[-1].kind == "number" and (text := self.parts[-1].text).isdecimal():
            # LaTeX takes one digit; the others go on behind it.
            self.parts[-1:] = [Token("number", text[1:], True)] if text[1:] else []
            return Fraction(text[0])
        return self.atom()

    def number(self) -> Exact:
        """Read a number, and the fraction of a mixed one behind it."""
        token = self.parts.pop()
        value = self._literal(token)
        after = self.parts[-1:-4:-1]
        if (
            token.text.isdecimal()
            and [part.kind for part in after[::2]] == ["number"] * 2
            and after[1].text == "/"
        ):
            top, _, bottom = (self.parts.pop() for _ in range(3))
            part: Exact = self._literal(top) / self._literal(bottom)
        elif token.text.isdecimal() and self.take("\\frac"):
            part = self.argument() / self.argument()
            if isinstance(part, float):
                return value * part
        else:
            if after and after[0].kind == "number":
                raise _Unreadable  # two numbers
            return value
        if not 0 < part < 1:
            raise _Unreadable  # "3 7/2" is no mixed number
        return value + part

    def _literal(self, token: Token) -> Fraction:
        """Return the number of a token, with what repeats behind it: ``1.5e3``, ``0.\\overline{3}``."""
        if token.text.isdecimal():
            return Fraction(int(token.text))
        mantissa = token.text[: -len(token.exponent) - 1] if token.exponent else token.text
        value = Fraction(GROUP.sub("", mantissa).rstrip(".") or "0")
        if token.exponent:
            return value * Fraction(10) ** int(token.exponent)
        texts = [part.text for part in self.parts[-1:-5:-1]]
        if (
            texts[:2] == ["\\overline", "{"]
            and texts[3:] == ["}"]
            and "." in mantissa
            and texts[2].isdecimal()
        ):
            del self.parts[-4:]
            places = len(mantissa.partition(".")[2])
            return value + Fraction(int(texts[2]), (10 ** len(texts[2]) - 1) * 10**places)
        return value


def _power(base: Exact, exponent: Exact) -> Exact:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if abs(exponent) * size(base) > MAX_BITS:
            raise _Unreadable
        return Fraction(base ** int(exponent))
    if base < 0:
        raise _Unreadable
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
    if sum(part.text in _CLOSING for part in parts) > DEEPEST:
        return None
    try:
        value = _Arithmetic(parts).all()
    except (_Unreadable, ArithmeticError, ValueError, RecursionError):
        return None
    if isinstance(value, float) and not (math.isfinite(value) and value):
        return None  # a float that vanished is not 0
    return value, any("." in part.text or part.exponent for part in parts if part.kind == "number")


def size(value: Fraction) -> int:
    """Return the bits of the longer part of a fraction. Python writes none of more than 14,000 in digits."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def number_latex(value: Fraction) -> str:
    """Return an exact number of at most `MAX_WRITTEN` bits as LaTeX."""
    top, bottom = abs(value.numerator), value.denominator
    made = str(top) if bottom == 1 else rf"\frac{{{top}}}{{{bottom}}}"
    return f"-{made}" if value < 0 else made


_TO_LATEX = {"**": "^", "*": " \\cdot ", "<=": " \\le ", ">=": " \\ge ", "!=": " \\ne "}
_TO_LATEX |= {name: f"\\{name} " for name in _FUNCTIONS}
_TO_LATEX |= dict.fromkeys(("inf", "Inf", "infinity", "Infinity"), "\\infty ")
"""What people write for LaTeX."""
_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")


def latex_of(parts: Sequence[Token]) -> str:
    """Return tokens as LaTeX in which numbers are written as their values. A degree is pi / 180."""
    out: list[str] = []
    texts = [part.text for part in parts]
    for at, part in enumerate(parts):
        written = _TO_LATEX.get(texts[at], texts[at])
        if part.kind == "number":
            if texts[at + 1 : at + 3] == ["^", "\\circ"] and (value := _exact(part)) is not None:
                angle = value / 180
                written = rf"\frac{{{angle.numerator}\pi}}{{{angle.denominator}}}"
                texts[at + 1] = texts[at + 2] = ""
            elif (part.exponent or GROUP.search(written)) and (value := _exact(part)) is not None:
                written = number_latex(value)
            elif at and parts[at - 1].kind == "word" and len(texts[at - 1]) == 1 and not part.spaced:
                written = f"_{{{written}}}"  # x1
        elif texts[at : at + 2] == ["^", "\\circ"]:
            written, texts[at + 1] = " \\cdot \\frac{\\pi}{180} ", ""
        out.append((" " if part.spaced else "") + written)
    return _ROOT.sub(r"\\sqrt{\1}", "".join(out)).strip()


def _exact(part: Token) -> Fraction | None:
    """Return the value of a number, unless it is too long to be written out."""
    found = evaluate([part])
    exact = found[0] if found else None
    return exact if isinstance(exact, Fraction) and size(exact) <= MAX_WRITTEN else None
