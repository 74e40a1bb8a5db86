"""Answers to queries: whether a message says what was asked for, however it words it."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal

from pydantic import model_validator

from selfverify.core.config import Config

_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_WORD = re.compile(r"[^\W_]+")
_TIME = re.compile(
    r"(?<![0-9:.])([0-9]{1,2})[:.]([0-9]{2})(?![0-9:])\s*([ap]\.?m\b)?|\b([0-9]{1,2})\s*([ap]\.?m\b)"
)
_NUMBER = re.compile(r"(?<![\w.])-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
_PLAIN_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_YES, _NO = frozenset({"yes", "true", "yeah", "correct"}), frozenset({"no", "false", "nope", "incorrect"})
LONGEST = 400
"""Longer messages are no answers."""


class Answer(Config):
    """What a message has to say.

    Args:
        form: How the message is read: ``text`` looks for the words of ``value``; ``number`` and ``time`` want
            one number or one time of day and no other; ``digits`` compares digits only, as of telephone
            numbers; ``yes-no`` takes the first of these words.
        value: What is right: a text, a number in digits, a time such as ``07:30``, ``yes`` or ``no``.
        others: For ``text``: wrong values. The one that is named first counts.
        given: Phrases of the question; a message may repeat them.
    """

    form: Literal["text", "number", "time", "digits", "yes-no"] = "text"
    value: str
    others: tuple[str, ...] = ()
    given: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _readable(self) -> Answer:
        """See that a message can give this answer: else a wrong one could count as right, or none could."""
        match self.form:
            case "yes-no":
                fits, form = self.value in ("yes", "no"), "yes or no"
            case "number":
                fits, form = (
                    _PLAIN_NUMBER.fullmatch(self.value) is not None,
                    "a number in digits, such as -1200.5",
                )
            case "time":
                found = _TIME.fullmatch(self.value)
                fits, form = _minutes(found) is not None, "a time of day such as 07:30"
            case "digits":
                fits, form = re.search("[0-9]", self.value) is not None, "a text with digits"
            case "text":
                fits, form = _WORD.search(self.value) is not None, "a text with words"
        if not fits:
            raise ValueError(f"the value {self.value[:80]!r} of the form {self.form} has to be {form}")
        return self

    def matches(self, message: str) -> bool:
        """Whether a message gives this answer. It comes from a model: nothing in it raises an error."""
        if len(message) > LONGEST:
            return False
        text = unicodedata.normalize("NFKC", message).casefold()
        if self.form == "text":
            return self._named_first(" ".join(_WORD.findall(text)))
        for phrase in self.given:
            text = text.replace(phrase.casefold(), " ")
        if self.form == "digits":
            wanted = "".join(re.findall("[0-9]", self.value))
            runs = re.findall(r"[0-9][0-9 ().\-]*", text)
            return [digits for run in runs if (digits := re.sub(r"\D", "", run))] == [wanted]
        if self.form == "yes-no":
            said = [word for word in _WORD.findall(text) if word in _YES | _NO]
            return bool(said) and (said[0] in _YES) == (self.value == "yes")
        if self.form == "time":
            return {_minutes(match) for match in _TIME.finditer(text)} == {_minutes(_TIME.match(self.value))}
        return _numbers(text) == {float(self.value)}

    def _named_first(self, text: str) -> bool:
        """Whether the value is named, and before any of the others; the longest of those that begin there."""
        places = []
        for phrase in (self.value, *self.others):
            words = " ".join(_WORD.findall(unicodedata.normalize("NFKC", phrase).casefold()))
            match = re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) if words else None
            if match:
                places.append((match.start(), -len(words), phrase != self.value))
        return bool(places) and not min(places)[2]


def _minutes(match: re.Match[str] | None) -> int | None:
    """Minutes since midnight; None where it is no time of day."""
    if match is None:
        return None
    hour, minute, half, alone, alone_half = match.groups()
    hours, minutes = int(hour or alone), int(minute or 0)
    half = half or alone_half
    if half:
        if not 1 <= hours <= 12:
            return None
        hours = hours % 12 + (12 if half[0] == "p" else 0)
    return hours * 60 + minutes if hours < 24 and minutes < 60 else None


def _numbers(text: str) -> set[float]:
    """The numbers that a text names, in digits or as words up to twenty."""
    found = {float(number.replace(",", "")) for number in _NUMBER.findall(text)}
    return found | {float(_NUMBERS.index(word)) for word in _WORD.findall(text) if word in _NUMBERS}
