r"""Numbers, units and algebra in a plain text: its tokens, and the grammars of expressions and of units.

Values are exact as long as they are rational. No function raises an error, and each is bounded: powers and
factorials that are too large have no value.
"""

from __future__ import annotations

import math
import operator
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

Exact = Fraction | float
"""A Fraction is exact; a float stands for an irrational number, and NaN for what has no value."""

TABLES: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("math_tables.yaml"))
"""The characters, commands, words and units by which answers are read."""
_TOKEN = re.compile(
    r"(?P<clock>(?<![\d:.])(?:(?:[01]?\d|2[0-3])(?::[0-5]\d){1,2}(?![\d:])(?:\s*[AaPp]\.?\s*[Mm](?![A-Za-z])\.?)?"
    r"|1?\d\s*[AaPp]\.?\s*[Mm](?![A-Za-z])\.?))"
    r"|(?P<number>(?:(?:(?<![_^])[1-9]\d{0,2}(?P<group>[,'_ ])\d{3}(?:(?P=group)\d{3})*(?!\d)|\d+)"
    r"(?:\.\d*(?:\(\d+\)|\\overline *\{\d+\})?)?|\.\d+)(?:(?<=[\d.])[eE](?P<e>[+-]?\d{1,4})(?![\w.]))?)"
    r"|(?P<word>[A-Za-z]+'*|平方|立方|[一-鿿]+)|(?P<command>\\(?:[A-Za-z]+|.))|(?P<other>\*\*|''|[<>!:]=|\S)",
    re.ASCII,
)
OPENING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}
CLOSING = frozenset(OPENING.values())
CURRENCY: dict[str, str] = TABLES["units"]["currencies"]
MULTIPLES: dict[str, int] = TABLES["multiples"]
MAX_BITS, MAX_WRITTEN, MAX_FACTORIAL, DEEPEST = 200_000, 1_000, 3_000, 20
"""Bounds: bits of what is computed exactly and of what is written out, factorials, brackets in brackets."""
MOST_POWER = 20
"""The largest power of a sum with letters or roots: expanded, it has a term for every way to choose."""


class Token(NamedTuple):
    """A part of a text: its kind, how it is written, whether a space stands before it, and in how many
    brackets it stands (brackets themselves as what is around them).
    """

    kind: str
    text: str
    spaced: bool = False
    depth: int = 0
    exponent: str | None = None


@lru_cache(maxsize=8192)
def tokens(text: str) -> tuple[Token, ...]:
    """Split a plain text into times, numbers, words, commands and signs.

    Where brackets do not match (their kinds are not told apart), or are too deep, the first depth is -1.
    """
    found, end, depth, fits = [], 0, 0, True
    for match in _TOKEN.finditer(text):
        written = match.group()
        depth -= written in CLOSING
        fits &= 0 <= depth <= DEEPEST
        found.append(Token(match.lastgroup or "other", written, match.start() > end, depth, match["e"]))
        depth += written in OPENING
        end = match.end()
    if found and (depth or not fits):
        found[0] = found[0]._replace(depth=-1)
    return tuple(found)


def written(parts: Sequence[Token]) -> str:
    """Return tokens as a text."""
    return "".join(f" {part.text}" if part.spaced else part.text for part in parts).strip()


# ------------------------------------------------------------------------------------------------- units

_PREFIXES, _METRIC, _RATES, _SCALES, _SHAPES = (
    TABLES["units"][name] for name in ("prefixes", "metric", "rates", "scales", "shapes")
)
_UNITS = dict(CURRENCY)
for _prefix, _long in {"": "", **_PREFIXES}.items():
    for _name, _spellings in (_METRIC if _prefix else TABLES["units"]["plain"] | _METRIC).items():
        _UNITS.setdefault(_prefix + _name, _prefix + _name)  # "ft" is a foot, no femtotonne
        for _spelling in (_name, *_spellings.split()):
            _short = len(_spelling) == 1 and _spelling.isascii()
            _UNITS.setdefault((_prefix if _short else _long) + _spelling, _prefix + _name)
_BETWEEN_UNITS = {"\\cdot", "*", ".", "{", "}", "(", ")", "\\frac"}
HEDGES, DENIALS = frozenset(TABLES["hedges"]), frozenset(TABLES["denials"])
"""Words that add something to an answer, and words that take it back."""
CHANGES = HEDGES | {*TABLES["changes"].split()}
"""Words behind a number that make another number or no answer of it: "3 dozens" and "3 or more cats"."""
_NUMERALS = {word + end for word in TABLES["numerals"].split() for end in ("", "s", "es")}
_NO_NOUNS = CHANGES | DENIALS | _NUMERALS | {"of", "this", "thus"}
_SHORT_NOUNS = frozenset(TABLES["short_nouns"].split())

Unit = tuple[tuple[str, int], ...]
"""Base units with their powers, sorted: ``(("h", -1), ("km", 1))``."""


def unit_name(text: str) -> str | None:
    """Return a unit's usual sign: that of ``kilometers`` is ``km``; None for a word that is no unit."""
    found = _UNITS.get(text) or (_UNITS.get(text.lower()) if len(text) > 2 else None)
    # "ms" is no "m", but "mins" is "min".
    return found or (unit_name(text[:-1]) if len(text) > 2 and text.endswith("s") else None)


def read_unit(parts: Sequence[Token]) -> Unit | None:
    """Return base units with their powers: ``m s^{-2}`` and ``meters/second squared``; None for others."""
    found, sign, how = Counter[str](), 1, 1
    texts = [f" {part.text}" if part.spaced and part.kind == "number" else part.text for part in parts]
    if texts[-1] in ("/", "per", "\\frac", "\\cdot", "*") or texts[0] in (".", "\\cdot", "*"):
        return None
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
            power = _unit_power(texts, name if name and text.isalnum() else "")  # 5'3" is no volume
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


def read_noun(parts: Sequence[Token], one: bool) -> Unit | None:
    """Return what is counted, as a unit: up to three words, the last one in the plural ("3 red balls") or,
    with ``one``, in the singular ("1 cat"). As in names, up to three letters are a product ("1 xyz"), unless
    they are a usual word.
    """
    found = [part.text.casefold() for part in parts]
    last = found[-1]
    plural = (last.endswith("s") and len(last) > 3) or last in ("children", "men", "women")
    plural |= one and (len(last) > 3 or last in _SHORT_NOUNS) and last not in KNOWN_WORDS
    if not plural or len(found) > 3 or any(word in _NO_NOUNS or not word.isalpha() for word in found):
        return None
    return ((" ".join(found), 1),)


# ----------------------------------------------------------------------------------------------- algebra


class _Unreadable(Exception):
    """The text does not belong to the grammar, or its value is too large."""


TRIGONOMETRIC = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"])
FUNCTIONS = TRIGONOMETRIC | {"arcsin", "arccos", "arctan", "ln", "log", "exp"}
KNOWN_WORDS = FUNCTIONS | {"sqrt", "pi", "inf", "infinity"}
_CONSTANTS = {"\\pi": math.pi, "pi": math.pi, "e": math.e}
_CONSTANTS |= dict.fromkeys(("\\infty", "inf", "Inf", "infinity", "Infinity", "\\emptyset"), math.nan)
_ROOTS = {"\\sqrt": 2, "sqrt": 2, "√": 2, "∛": 3}
_STARTS = {*OPENING, *_CONSTANTS, *_ROOTS, "\\frac", "|"}
_OPERATORS = {"+": operator.add, "-": operator.sub}
_OPERATORS |= dict.fromkeys(("\\pm", "\\mp", "\\cup", "\\cap", "\\setminus"), lambda a, b: math.nan)
_SIGNS = {*_OPERATORS, *CLOSING, "\\cdot", "\\times", "\\circ", "\\le", "\\ge", "\\ne", "\\approx", "\\in"}
_CALLED, _INDEX = "fghFGHP", math.sqrt(3)
"""Letters that are functions before brackets; what makes a number of its own of a letter with an index."""
_GREEK = {f"\\{name}" for name in TABLES["greek"].split()}
COSTLY = "!"
"""A sign of expressions that would keep math-verify busy for seconds or take gigabytes."""


class Algebra:
    """Numbers, functions and, if wanted, letters in LaTeX: a sum of products of powers.

    Every method reads one part of that grammar at the current place and returns its value, which is NaN where
    it has functions. A letter has a value of its own, so that expressions of one value are equal. A token
    that does not belong to the grammar raises `_Unreadable`, or ends it.

    Args:
        parts: The tokens.
        letters: Whether letters, functions and unknown commands belong to it.
    """

    def __init__(self, parts: Sequence[Token], letters: bool = False) -> None:
        self.rest, self.letters = list(reversed(parts)), letters
        self.signs: set[str] = set()
        self.decimal = False
        self._bars = self._sums = self._powers = 0

    def read(self) -> Exact | None:
        """Return the value of the tokens before ``rest`` (counted from the end), or None."""
        try:
            return self._sum()
        except (_Unreadable, ValueError, RecursionError):
            return None

    def _next(self) -> str:
        return self.rest[-1].text if self.rest else ""

    def _take(self, *texts: str) -> str:
        """Take the next sign if it is one of ``texts``."""
        return self.rest.pop().text if self._next() in texts else ""

    def _begins(self) -> bool:
        """Whether the next token may begin a factor."""
        if not self.rest:
            return False
        part = self.rest[-1]
        if part.kind == "number" or part.text in _STARTS:
            return True
        return self.letters and (part.kind == "word" or (part.kind == "command" and part.text not in _SIGNS))

    def _sum(self) -> Exact:
        value = self._product()
        while (sign := self._next()) in (_OPERATORS if self.letters else ("+", "-")):
            self.rest.pop()
            self._sums += 1
            value = _compute(_OPERATORS[sign], value, self._product())
        return value

    def _product(self) -> Exact:
        value = self._signed()
        while text := self._next():
            after = [part.text for part in self.rest[-2:-4:-1]]
            tens = text in ("x", "X") and after in (["10", "^"], ["10", "**"])  # x as in 3 x 10^5
            if tens or text in ("*", "\\cdot", "\\times", "/"):
                self.rest.pop()
                value = _compute(operator.truediv if text == "/" else operator.mul, value, self._signed())
            elif self._begins() and self.rest[-1].kind != "number" and not (text == "|" and self._bars):
                if (factor := self._try(self._power)) is None:
                    break
                value = _compute(operator.mul, value, factor)
            else:
                break
        return value

    def _signed(self) -> Exact:
        sign: float = 1
        while taken := self._take("+", "-", *(("\\pm", "\\mp") if self.letters else ())):
            sign *= {"+": 1, "-": -1}.get(taken, math.nan)
        value = self._power()
        return value if sign == 1 else _compute(operator.mul, value, sign)

    def _power(self) -> Exact:
        sums = self._sums
        value = self._atom()
        summed = self._sums > sums
        while self._take("!"):
            whole = isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= MAX_FACTORIAL
            value = Fraction(math.factorial(int(value))) if whole else self._beyond()
        if self._next() not in ("^", "**"):
            return value
        if self.rest[-2:-1] and self.rest[-2].text == "\\circ":
            if self.letters:
                del self.rest[-2:]
                return math.nan
            return value  # a unit
        powers = self._powers
        exponent = self._try(self._signed, "^", "**")
        if exponent is None:
            return value
        tower, self._powers = self._powers > powers, self._powers + 1
        times = max(exponent, -exponent)
        if self.letters and (tower or times >= 1_000 or (summed and times > MOST_POWER)):
            return self._beyond()
        if size(value) * times > MAX_BITS:
            return self._beyond()
        return _compute(_raise, value, exponent)

    def _try(self, part: Callable[[], Exact], *signs: str) -> Exact | None:
        """Read a part behind a sign, or end before both: in ``15^{th}`` and ``10 \\frac{m}{s}``."""
        rest = self.rest.copy()
        self._take(*signs)
        try:
            return part()
        except _Unreadable:
            if self.letters:
                raise
            self.rest = rest
            return None

    def _beyond(self) -> float:
        """Note what is too large to be computed."""
        if not self.letters:
            raise _Unreadable
        self.signs.add(COSTLY)
        return math.nan

    def _atom(self) -> Exact:
        if not self._begins():
            raise _Unreadable
        part = self.rest.pop()
        text = part.text
        if part.kind == "number":
            return self._number(part)
        if text == "\\frac":
            return self._fraction()
        if text in _ROOTS:
            degree = self._atom() if self._next() == "[" else Fraction(_ROOTS[text])
            return _root(self._argument() if text == "\\sqrt" else self._atom(), degree)
        if text == "|":
            self._bars += 1
            value = self._sum()
            self._bars -= 1
            if self._take("|"):
                return math.nan if self.letters and self.signs else max(value, -value)
        elif text in OPENING:
            bars, self._bars = self._bars, 0
            value = self._sum()
            while self.letters and self._take(",", ";"):
                self._sum()
                value = math.nan
            self._bars = bars
            if self._take(*(CLOSING if self.letters else (OPENING[text],))):
                return value
        elif text in _CONSTANTS:
            return _CONSTANTS[text]
        else:
            return self._letter(part)
        raise _Unreadable

    def _letter(self, part: Token) -> float:
        """Read a function, whose value is NaN, or a letter, a command, or a word as a product of letters."""
        if part.text.lstrip("\\") in FUNCTIONS:
            if self._take("_"):
                self._argument()
            if self._take("^"):
                self._argument()
            self._signed()
            return math.nan
        letters = [part.text] if part.kind == "command" else [*part.text]
        self.signs.update(letters)
        index: Exact = Fraction()
        if self._take("_"):
            index = self._argument()
        elif len(letters) == 1 and self._next().isdecimal() and not self.rest[-1].spaced:
            index = Fraction(self.rest.pop().text)  # x1
        called = letters[0] in _CALLED and self._next() == "("
        if called or (part.kind == "command" and part.text not in _GREEK):
            return math.nan
        # Any numbers would do of which no short expression makes another's.
        own = math.prod(1 + zlib.crc32(sign.encode()) / 2**32 for sign in letters)
        return own * float(1 + _compute(operator.mul, index, _INDEX))

    def _fraction(self) -> Exact:
        return _compute(operator.truediv, self._argument(), self._argument())

    def _argument(self) -> Exact:
        """Read the argument of a command: a group in brackets, or one sign (``\\frac12``)."""
        if self.rest and self.rest[-1].kind == "number" and (text := self.rest[-1].text).isdecimal():
            # LaTeX takes one digit; the others go on behind it.
            self.rest[-1:] = [Token("number", text[1:], True)] if text[1:] else []
            return Fraction(text[0])
        return self._atom()

    def _number(self, token: Token) -> Exact:
        """Read a number, and the fraction of a mixed one behind it."""
        value = self._literal(token)
        if not token.text.isdecimal():
            return value
        after = self.rest[-1:-4:-1]
        if [part.kind for part in after[::2]] == ["number"] * 2 and after[1].text == "/":
            top, _, bottom = (self.rest.pop() for _ in range(3))
            part: Exact = _compute(operator.truediv, self._literal(top), self._literal(bottom))
        elif self._next() == "\\frac":
            found = self._try(self._fraction, "\\frac")
            if found is None or isinstance(found, float):
                return value if found is None else _compute(operator.mul, value, found)
            part = found
        else:
            return value
        if not 0 < part < 1:
            raise _Unreadable  # "3 7/2" is no mixed number
        return value + part

    def _literal(self, token: Token) -> Fraction:
        """Return the number of a token: ``1.5e3``, ``0.\\overline{3}``, ``0.(3)``."""
        if token.text.isdecimal():
            if len(token.text) > MOST_POWER:
                self.signs.add(COSTLY)
            return Fraction(int(token.text))
        self.decimal |= "." in token.text or bool(token.exponent)
        mantissa = token.text[: -len(token.exponent) - 1] if token.exponent else token.text
        once, mark, again = mantissa.partition("\\" if "\\" in mantissa else "(")
        value = Fraction("".join(sign for sign in once if sign not in ",'_ ").rstrip("."))
        if token.exponent:
            return value * Fraction(10) ** int(token.exponent)
        if mark:
            digits = "".join(filter(str.isdecimal, again))
            places = len(once.partition(".")[2])
            return value + Fraction(int(digits), (10 ** len(digits) - 1) * 10**places)
        return value


def _compute(operation: Callable[[Exact, Exact], Exact], a: Exact, b: Exact) -> Exact:
    """Return NaN for what is not defined, or not held by a float."""
    try:
        return operation(a, b)
    except ArithmeticError:
        return math.nan


def _raise(base: Exact, exponent: Exact) -> Exact:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        return Fraction(base ** int(exponent))
    return math.nan if base < 0 else float(base) ** float(exponent)


def _root(value: Exact, degree: Exact) -> Exact:
    if isinstance(degree, float) or degree.denominator != 1 or degree < 2 or (value < 0 and degree % 2 == 0):
        return math.nan
    sign, n = (-1 if value < 0 else 1), int(degree)
    root = _compute(lambda a, b: abs(float(a)) ** (1 / float(b)), value, degree)
    if isinstance(value, Fraction) and math.isfinite(root) and n < 100:
        exact = Fraction(root).limit_denominator(10**6)
        root = exact if exact**n == abs(value) else root
    return sign * root


def size(value: Exact) -> int:
    """Return the bits of the longer part of a fraction. Python writes none of more than 14,000 in digits."""
    if isinstance(value, float):
        return 1
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def number_latex(value: Fraction) -> str:
    """Return an exact number of at most `MAX_WRITTEN` bits as LaTeX."""
    top, bottom = abs(value.numerator), value.denominator
    made = str(top) if bottom == 1 else rf"\frac{{{top}}}{{{bottom}}}"
    return f"-{made}" if value < 0 else made


_TO_LATEX = TABLES["latex"] | {name: f"\\{name}" for name in (*FUNCTIONS, "sqrt", "pi")}
"""Spellings that people use in place of LaTeX."""
_BINDING = {"^", "_", "/", "**", "\\frac", *_ROOTS}
"""Texts behind which a number belongs to them, before it is divided."""


def latex_of(parts: Sequence[Token]) -> str:
    """Return tokens as LaTeX in which numbers are written as their values. A degree is pi / 180."""
    out: list[str] = []
    roots: set[int] = set()
    texts = [*(part.text for part in parts), "", "", ""]
    for at, part in enumerate(parts):
        made, before = _TO_LATEX.get(texts[at], texts[at]), texts[at - 1] if at else ""
        sign, after = texts[at + 1], texts[at + 2]
        index = len(before) == 1 and parts[at - 1].kind == "word" and not part.spaced
        degrees = sign == "^" and after == "\\circ"
        divided = sign == "/" and made.isdecimal() and after.isdecimal() and not index
        if divided and before not in _BINDING and texts[at + 3] not in ("^", "**", "!"):
            made = rf"\frac{{{made}}}{{{after}}}"  # 1/2x is a half of x
            texts[at + 1 : at + 3] = ["", ""]
        elif part.kind == "number" and made:
            simple = not degrees and made.replace(".", "").isdecimal()
            value = None if simple else Algebra([part]).read()
            if isinstance(value, Fraction) and size(value) <= MAX_WRITTEN:
                made = number_latex(value)
                if degrees:
                    made = rf"\frac{{{value.numerator}\pi}}{{{180 * value.denominator}}}"
                    texts[at + 1 : at + 3] = ["", ""]
            elif index:
                made = f"_{{{made}}}"  # x1
            elif before in _ROOTS and before != "\\sqrt":
                made = f"{{{made}}}"
        elif part.kind == "word" and made.endswith("'"):  # math-verify would drop the primes
            made = made.rstrip("'") + "_{" + "prime" * made.count("'") + "}"
        elif made == "^" and sign == "-" and after.isalnum() and (after.isdecimal() or len(after) == 1):
            made = f"^{{-{after}}}"
            texts[at + 1 : at + 3] = ["", ""]
        elif made == "^" and sign == "\\circ":
            made, texts[at + 1] = "\\cdot\\frac{\\pi}{180}", ""
        elif made in ("^", "_") and sign == "{" and texts[at + 3] == "}" and after.isalnum():
            if len(after) == 1 and not "".join(texts[at + 4 : at + 5]).isalnum():
                texts[at + 1] = texts[at + 3] = ""  # x^{2} is x^2, but \log_{2} 8 is not \log_28
        elif made == "(" and before in _ROOTS:
            made = "{"
            roots.add(part.depth)
        elif made == ")" and part.depth in roots:
            made = "}"
            roots.remove(part.depth)
        apart = made[:1].isalnum() and out and out[-1][-1:].isalnum()
        out.append(f" {made}" if apart else made)
    return "".join(out)


def apart(a: Exact, b: Exact) -> Fraction:
    """Return by how much numbers differ, relative to the larger one: nothing for equal ones."""
    x, y = Fraction(a), Fraction(b)
    return abs(x - y) / max(abs(x), abs(y)) if x != y else Fraction()
