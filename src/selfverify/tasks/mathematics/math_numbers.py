"""Plain numbers: reading them exactly, comparing them, and the key that equal ones share in a vote.

math-verify takes a process and a millisecond to compare two numbers; these rules take microseconds. The two
agree but for what docs/tasks-math.md lists (mixed numbers, units that differ, values near 0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

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
    """Read ``text`` (`math_text.plain`) as one number, with nothing else in it but a unit.

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
