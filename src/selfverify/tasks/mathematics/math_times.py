"""Times of day: ``10:00 am`` and ``10:00 A.M.`` are the same, and ``22:00`` is ``10 pm``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TIME = re.compile(r"([0-9]{1,2})(?::([0-9]{2})(?::([0-9]{2}))?)?\s*(?:([ap])\.?\s*m\.?)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Time:
    """A time of day.

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
