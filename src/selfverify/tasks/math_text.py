"""Reading an answer as one plain expression, number or time: markup is taken off, nothing is guessed.

Texts are at most `MathConfig.max_answer_chars` long. No function raises an error, and each looks at a
character a bounded number of times.

Plain numbers are read exactly, compared, and given the key that equal ones share in a vote. math-verify takes
a process and a millisecond to compare two numbers; these rules take microseconds. The two agree but for what
docs/tasks-math.md lists (mixed numbers, units that differ, values near 0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("−–—﹣－", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f\u3000\t\r\n\f\v", " "),
        "％": "%", "×": r" \times ", "⋅": r" \cdot ", "·": r" \cdot ", "÷": "/", "°": r"^\circ ", "²": "^2",
        "³": "^3", "π": r" \pi ", "∞": r" \infty ", "≤": r" \le ", "≥": r" \ge ", "≠": r" \ne ",
        "±": r" \pm ", "½": r" \frac{1}{2}", "¼": r" \frac{1}{4}", "¾": r" \frac{3}{4}", "θ": r" \theta ",
        "，": ",", "∅": r" \emptyset ",
        "α": r" \alpha ", "β": r" \beta ", "γ": r" \gamma ", "∠": r" \angle ", "（": "(",
        "）": ")", "：": ":",
        "₀": "_0", "₁": "_1", "₂": "_2", "∈": r" \in ", "∪": r" \cup ", "′": "'",
    }
)  # fmt: skip
_REPLACED = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\\([%$#&])"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degree(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"√\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(begin|end)\{[bB]matrix\}"), r"\\\1{pmatrix}"),
    (re.compile(r" {2,}"), " "),
)
_WRAPS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ('"', '"'))
_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence),? +)?(?:the +)?(?:(?:final|correct) +)?"
    r"(?:answer|result|option|choice)(?: +is(?: *:)?| *:| *=) *",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_HEDGE = re.compile(r"(?:\b(?:or|and|not|either|nor|isn't|maybe)\b|[,;/])\W*$", re.IGNORECASE)
_TAIL = re.compile(r"[\s.,;:!$)\]*\\]*")


def plain(text: str) -> str:
    """Return a text as one line, with LaTeX spacing, styles and Unicode signs in their plainest form."""
    text = text.translate(_PLAIN)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text.strip()


def unwrap(text: str) -> str:
    """Return a text without the signs around the whole of it (``$..$``, ``**..**``) and its full stop."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if text.endswith((".", ";", ",")) and not text.endswith((r"\.", r"\;", r"\,")):
            text = text[:-1]
        for left, right in _WRAPS:
            inner = text[len(left) : -len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                # "$5$ or $6$" begins and ends with a dollar, too.
                if left not in inner and right not in inner:
                    text = inner
                break
    return text


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Return ``(start, end, content)`` of every ``\boxed{..}`` whose braces match."""
    found, at = [], 0
    while (match := _BOX.search(text, at)) is not None:
        depth, end = 1, match.end()
        while end < len(text) and depth:
            if text[end] == "\\":
                end += 1
            elif text[end] in "{}":
                depth += 1 if text[end] == "{" else -1
            end += 1
        if depth or end > len(text):
            break
        found.append((match.start(), end, text[match.end() : end - 1]))
        at = end
    return found


def final_expression(text: str) -> str | None:
    r"""Return the one expression that an answer commits to, `plain`; None if there is none or more than one.

    An answer with ``\boxed`` commits to what stands in the box. Several boxes must hold the same. The text
    before the first box must not end in an alternative ("5 or"); only punctuation and a unit may follow the
    last box. An answer without a box commits to all of its text but a phrase like "The answer is".
    """
    found = boxes(text)
    if not found and text.count("$") > 1:
        text = text.replace("$", " ")  # "$5$ or $6$": no wrap around the whole, and no amount of money alone
    if found:
        content = {plain(unwrap(inner)) for _, _, inner in found}
        if len(content) > 1:
            return None
        tail = text[found[-1][1] :]
        if any(_HEDGE.search(text[:start].rstrip(" \n$*\\([")) for start, _, _ in found[:1]):
            return None
        rest = unwrap(plain(tail.strip().lstrip("$").rstrip("$").removeprefix(r"\)").removeprefix(r"\]")))
        if len(rest) > 20 or re.search(r"[\d=]|\b(?:or|and|not)\b", rest, re.IGNORECASE):
            return None
        only = content.pop()
        return unwrap(only) if not rest or _TAIL.fullmatch(rest) else f"{unwrap(only)} {rest}"
    text = unwrap(plain(unwrap(text)))
    lead = _LEAD.match(text)
    return unwrap(text[lead.end() :]) if lead else text


def words(text: str) -> str:
    """Return a text as it is compared: without case, spaces, dollars and the punctuation around it."""
    return " ".join(text.replace("$", " ").casefold().split()).strip(" .,;:!?'\"*")


def balanced(text: str, deepest: int) -> bool:
    """Return whether brackets match in number, at most ``deepest`` deep.

    Their kinds may differ, as in half-open intervals.
    """
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > deepest:
                return False
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def elements(text: str) -> tuple[str, list[str]]:
    """Return the brackets around a list (``""``, ``"()"``, ``"[)"``, ``"{}"``, ...) and its elements.

    Commas, semicolons, "and" and "or" separate elements. A comma between digits with exactly three after it
    belongs to a number: ``1,234``. A text that is no list is one element without brackets.
    """
    text = text.strip()
    inner = text.replace(r"\{", "{").replace(r"\}", "}")
    kind = ""
    if len(inner) > 1 and inner[0] in "([{" and inner[-1] in ")]}" and _encloses(inner):
        kind, body = inner[0] + inner[-1], inner[1:-1]
    else:
        body = text
    parts = _split(body)
    if len(parts) == 1 and kind != "{}":
        return "", [text]
    return kind, [part.strip() for part in parts]


def _encloses(text: str) -> bool:
    """Return whether the last character closes the first bracket."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False


_SEPARATOR = re.compile(r"[,;()\[\]{}]|(?<=[\s,;])(?:and|or)(?=\s)", re.IGNORECASE)


def _split(text: str) -> list[str]:
    parts, start, depth = [], 0, 0
    for match in _SEPARATOR.finditer(text):
        found = match.group()
        if found in "([{":
            depth += 1
        elif found in ")]}":
            depth -= 1
        elif depth == 0 and not (found == "," and _thousands(text, match.start())):
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    # "5, and 6" has two separators in a row.
    return [part for part in parts if part.strip()] or [""]


def _thousands(text: str, at: int) -> bool:
    head = text[max(at - 4, 0) : at]
    digits = len(head) - len(head.rstrip("0123456789"))
    after = text[at + 1 : at + 5]
    return 1 <= digits <= 3 and after[:3].isdigit() and len(after) >= 3 and not after[3:].isdigit()


MAX_CHARS = 80
"""A longer text is no number here."""

_INT = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(
    rf"""(?P<sign>(?:[+-]\s*)?)
    (?:(?P<whole>{_INT})?\s*\\frac\s*(?:\{{\s*(?P<fn>{_INT})\s*\}}\s*\{{\s*(?P<fd>{_INT})\s*\}}|(?P<fn1>\d)\s*(?P<fd1>\d))
      |(?:(?P<mixed>{_INT})\s+)?(?P<n>{_INT})\s*/\s*(?P<d>{_INT})
      |(?P<decimal>(?:\d{{1,3}}(?:\ \d{{3}})+|{_INT})(?:\.\d+)?|\.\d+)
       (?:[eE](?P<e>[+-]?\d{{1,2}})|\s*(?:\\times|\\cdot|x|\*)\s*10\s*(?:\^|\*\*)\s*(?:\{{\s*(?P<p>[+-]?\s*\d{{1,2}})\s*\}}|(?P<p1>[+-]?\d{{1,2}})))?
    )
    \s*(?P<rest>.*)""",
    re.VERBOSE | re.ASCII,
)  # fmt: skip
_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
_PERCENT = ("%", "percent", "per cent", "pct")

_UNITS = """
mm millimeter millimeters millimetre millimetres|cm centimeter centimeters centimetre centimetres
|dm decimeter decimeters decimetre decimetres|m meter meters metre metres
|km kilometer kilometers kilometre kilometres|in inch inches|ft foot feet|yd yard yards|mi mile miles
|mg milligram milligrams|g gram grams|kg kilogram kilograms|lb lbs pound pounds|oz ounce ounces
|t ton tons tonnes|ms|s sec secs second seconds|min mins minute minutes
|h hr hrs hour hours|day days|week weeks|month months
|year years yr yrs|ml mL milliliter milliliters|l L liter liters litre litres|degree degrees deg ^\\circ
|dollar dollars USD|cent cents|euro euros EUR|yuan RMB|yen|rupee rupees|rad radian radians|N newton newtons
|J joule joules|kJ|W watt watts|kW|V volt volts|A amp amps ampere amperes|Pa|kPa|Hz hertz|K kelvin|mol
|unit units|people|persons|times|°C ^\\circC|°F ^\\circF|mph|sq|\\Omega ohm ohms|C coulomb coulombs
"""
_UNIT = {
    spelling: names[0]
    for names in (group.split() for group in _UNITS.replace("\n", " ").split("|"))
    for spelling in names
}
_ONE_UNIT = re.compile(
    r"(?P<how>(?:square|cubic|sq\.?|cu\.?)\s+)?(?P<name>\^\\circ\s*[CF]?|\\Omega|[A-Za-z]+)\.?"
    r"\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?|(?P<squared>squared|cubed))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written: 50 % is the value 50 with ``percent``.

    Args:
        value: The exact value as it is written.
        decimal: Whether it was written with a point or an exponent, and so may have been rounded.
        percent: Whether a percent sign followed.
        unit: The unit's usual sign, powers and quotients included (``cm^2``, ``km/h``); "" without one.
    """

    value: Fraction
    decimal: bool = False
    percent: bool = False
    unit: str = ""

    @property
    def worth(self) -> Fraction:
        """Return the value, for a percentage its hundredth."""
        return self.value / 100 if self.percent else self.value


def read_number(text: str, unit: str = "") -> Number | None:
    """Read ``text`` (`plain`) as one number, with nothing else in it but a unit.

    A number is an integer, a decimal, one with thousands (``1,234``), a fraction, a mixed number, a product
    with a power of ten, a percentage, or an amount of money. ``unit`` is one more unit that may follow it.
    Returns None for anything else, such as two numbers.
    """
    if len(text) > MAX_CHARS:
        return None
    text = text.strip()
    currency = ""
    for sign, name in _CURRENCY.items():
        for start in (sign, f"-{sign}", f"- {sign}"):
            if text.startswith(start):
                currency, text = name, start.removesuffix(sign) + text[len(start) :]
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    value, rest = _value(match), match["rest"]
    if len(rest) == 1 and rest.isalpha() and rest != unit and not text[:-1].endswith(" "):
        return None  # "2t" may well be a product
    read = _unit(rest, unit)
    if value is None or read is None:
        return None
    percent, name = read
    if currency and (name or percent):
        return None
    if match["sign"].startswith("-"):
        value = -value
    decimal = match["decimal"] is not None and ("." in match["decimal"] or _exponent(match) is not None)
    return Number(value, decimal, percent, name or currency)


def _exponent(match: re.Match[str]) -> str | None:
    return match["e"] or match["p"] or match["p1"]


def _value(match: re.Match[str]) -> Fraction | None:
    if match["decimal"] is not None:
        value = Fraction(re.sub("[ ,]", "", match["decimal"]))
        exponent = _exponent(match)
        return value * Fraction(10) ** int(exponent.replace(" ", "")) if exponent else value
    whole = match["whole"] or match["mixed"]
    top = _integer(match["fn"] or match["fn1"] or match["n"])
    bottom = _integer(match["fd"] or match["fd1"] or match["d"])
    if bottom == 0 or (whole is not None and top >= bottom):  # "3 5/2" is no mixed number
        return None
    return Fraction(top, bottom) + (_integer(whole) if whole else 0)


def _integer(text: str) -> int:
    return int(text.replace(",", ""))


def _unit(text: str, known: str) -> tuple[bool, str] | None:
    """Return whether ``text`` is a percent sign, and which unit it is; None if it is neither."""
    if not text:
        return False, ""
    if text.casefold() in _PERCENT:
        return True, ""
    if name := unit_name(text):
        return False, name
    return (False, known.casefold()) if known and text.casefold() == known.casefold() else None


def unit_name(text: str) -> str:
    """Return the usual sign of a unit (`Number.unit`); "" for one that is unknown here, or a percent sign."""
    if text in _CURRENCY:
        return _CURRENCY[text]
    parts = text.split("/") if "/" in text else text.split(" per ")
    names = [_one_unit(part.strip()) for part in parts]
    return "/".join(n for n in names if n) if len(names) <= 2 and all(names) else ""


def _one_unit(text: str) -> str | None:
    match = _ONE_UNIT.fullmatch(text)
    if match is None:
        return None
    spelt = match["name"].replace(" ", "")
    name = _UNIT.get(spelt) or _UNIT.get(spelt.lower() if len(spelt) > 2 else spelt)
    if name is None:
        return None
    power = match["power"] or {"squared": "2", "cubed": "3"}.get(match["squared"] or "")
    if match["how"]:
        if power:
            return None
        power = "2" if match["how"].startswith("s") else "3"
    return f"{name}^{power}" if power and power != "1" else name


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
      differ by a millionth of the target and by no more than 1e-6 (math-verify rounds to six decimals, which
      would make 0 right for every target below 5e-7).
    """
    if gold.unit and answer.unit and gold.unit != answer.unit:
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


def number_key(number: Number, precision: int | None = None) -> str:
    """Return a key that is equal for numbers of equal worth, such as ``1/2``, ``0.5`` and ``50%``."""
    return str(number.worth if precision is None else rounded(number.worth, precision))


def split_unit(text: str, known: str = "") -> tuple[str, str]:
    """Split an expression from the unit behind it (``2\\sqrt{3} cm``); the unit may be ""."""
    for words in (3, 2, 1):
        parts = text.rsplit(" ", words)
        if len(parts) == words + 1 and parts[0].strip():
            read = _unit(" ".join(parts[1:]).strip(), known)
            if read is not None and read[1]:
                return parts[0].strip(), read[1]
    return text, ""


_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Time:
    """A time of day: ``10:00 am`` and ``10:00 A.M.`` are the same, and ``22:00`` is ``10 pm``.

    Args:
        seconds: Since midnight, as far as the text tells: ``9:00`` may also be at 21 hours.
        half_known: Whether the half of the day is known: by ``am`` or ``pm``, or by an hour 0 or above 12.
        half_told: Whether ``am`` or ``pm`` stands there.
    """

    seconds: int
    half_known: bool
    half_told: bool = field(compare=False)


def read_time(text: str) -> Time | None:
    """Read a text that is a time with minutes, or one with ``am`` or ``pm``; None for anything else."""
    match = _TIME.fullmatch(text.strip())
    if match is None or (match[2] is None and match[4] is None):
        return None
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if minute > 59 or second > 59 or hour > (23 if match[4] is None else 12):
        return None
    told = match[4] is not None
    known = told or not 1 <= hour <= 12
    if told:
        if hour == 0:
            return None
        hour = hour % 12 + (12 if match[4] in "pP" else 0)
    return Time(hour * 3600 + minute * 60 + second, known, told)
