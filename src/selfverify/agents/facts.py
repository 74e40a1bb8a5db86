"""Facts: what is so in an environment, and what of it a screen shows.

A fact is ``(subject, attribute, value)``. There are two sorts of subjects:

- A record, ``kind/key``: ``("alarm/3", "time", "07:30")``, ``("setting/wifi", "value", False)``.
- A list of records: all of a kind (``"alarm"``), those with one value (``"event?day=May 12"``), or those
  whose value contains a text (``"contact?name~bob"``). Its one attribute is ``count``. A screen that shows a
  list's count and as many of its records shows the list whole, so that it also proves what is not there.

An environment declares facts, of its state and of every observation (``info["facts"]``); ground truth, judges
by rules and minimal evidence are all derived from them (`agents.goals`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from selfverify.agents.evidence import Exhibit
from selfverify.core.errors import DataError

Scalar = str | int | bool
Fact = tuple[str, str, Scalar]
Records = dict[str, dict[str, dict[str, Scalar]]]
"""Attributes by kind and key."""

COUNT = "count"


def same(one: Scalar | None, other: Scalar | None) -> bool:
    """Whether two values are equal; texts are compared without regard to case and spaces around words."""
    if isinstance(one, str) and isinstance(other, str):
        return one == other or _plain(one) == _plain(other)
    return type(one) is type(other) and one == other


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def check_facts(facts: object) -> None:
    """Check that an environment has declared facts.

    Raises:
        DataError: The values are not facts.
    """
    if not isinstance(facts, Sequence) or isinstance(facts, str):
        raise DataError(f"facts are a list of [subject, attribute, value], not {facts!r:.80}")
    for fact in facts:
        # Environments may declare hundreds after each call, so that this is written for speed.
        if isinstance(fact, list | tuple) and len(fact) == 3:
            subject, attribute, value = fact
            told = type(value) is int or (isinstance(value, int | str) and listing(str(subject)) is None)
            if told and isinstance(subject, str) and isinstance(attribute, str):
                continue
        raise DataError(
            f"{fact!r:.80} is no fact: it has to be [subject, attribute, value] with a text, a whole "
            "number or true or false as value; of a list it is the number of its records"
        )


class Listing(NamedTuple):
    """A list of records, as the subject of its count names it."""

    kind: str
    attribute: str = ""
    operator: str = ""
    value: str = ""

    @classmethod
    def of(cls, kind: str, attribute: str = "", operator: str = "", value: str = "") -> str:
        """Return the subject under which the count of a list is declared."""
        return f"{kind}?{attribute}{operator}{value}" if attribute else kind

    def has(self, record: Mapping[str, Scalar]) -> bool | None:
        """Whether a record is in the list; None where its attribute is not known."""
        if not self.attribute:
            return True
        if self.attribute not in record:
            return None
        value = record[self.attribute]
        if self.operator == "~":
            return isinstance(value, str) and _plain(self.value) in _plain(value)
        return same(str(value) if not isinstance(value, str) else value, self.value)


@lru_cache(maxsize=4096)
def listing(subject: str) -> Listing | None:
    """The list that a subject names; None where it names a record."""
    kind, _, condition = subject.partition("?")
    if "/" in kind:
        return None
    for place, sign in enumerate(condition):
        if sign in "~=":
            return Listing(kind, condition[:place], sign, condition[place + 1 :])
    return Listing(kind)


def records_of(facts: Iterable[Sequence[Scalar]]) -> Records:
    """The records that facts make up; counts are left out."""
    records: Records = {}
    for subject, attribute, value in facts:
        kind, slash, key = str(subject).partition("/")
        if slash and "?" not in kind:
            records.setdefault(kind, {}).setdefault(key, {})[str(attribute)] = value
    return records


@dataclass(slots=True)
class _Count:
    """The last count of a list, with the records that were shown while it stood."""

    number: int
    round: int
    members: set[str] = field(default_factory=set)

    @property
    def whole(self) -> bool:
        return len(self.members) == self.number


class Seen:
    """The facts that exhibits show, taken together; where two disagree, the later one counts.

    Args:
        exhibits: In any order.
    """

    def __init__(self, exhibits: Iterable[Exhibit]) -> None:
        self.records: dict[str, dict[str, dict[str, tuple[Scalar, int]]]] = {}
        """Values, each with the round that shows it, by kind, key and attribute."""
        self._counts: dict[Listing, _Count] = {}
        for exhibit in sorted(exhibits, key=lambda e: e.seen.round):
            self._add(exhibit.seen.round, exhibit.seen.info.get("facts", ()))

    def _add(self, round: int, facts: Iterable[Sequence[Scalar]]) -> None:
        here: dict[str, dict[str, dict[str, Scalar]]] = {}
        counts: list[tuple[Listing, int]] = []
        for subject, attribute, value in facts:
            subject, attribute = str(subject), str(attribute)
            if (about := listing(subject)) is not None:
                counts.append((about, int(value)))
                continue
            kind, _, key = subject.partition("/")
            here.setdefault(kind, {}).setdefault(key, {})[attribute] = value
            self.records.setdefault(kind, {}).setdefault(key, {})[attribute] = (value, round)
        for about, number in counts:
            members = {key for key, record in here.get(about.kind, {}).items() if about.has(record)}
            last = self._counts.get(about)
            if last is None or last.number != number:
                self._counts[about] = _Count(number, round, members)
            else:
                last.round, last.members = round, last.members | members

    def of_kind(self, kind: str) -> dict[str, dict[str, tuple[Scalar, int]]]:
        """The records of a kind that were shown and are not known to be gone."""
        found = self.records.get(kind, {})
        return {key: record for key, record in found.items() if not self._gone(kind, key, record)}

    def _gone(self, kind: str, key: str, record: Mapping[str, tuple[Scalar, int]]) -> bool:
        """Whether a list that had to have the record was later shown whole without it."""
        values = {attribute: value for attribute, (value, _) in record.items()}
        last = max(round for _, round in record.values())
        for about, count in self._counts.items():
            later = about.kind == kind and count.whole and count.round > last
            if later and about.has(values) and key not in count.members:
                return True
        return False

    def whole(self, kind: str, where: Mapping[str, Scalar]) -> tuple[set[str], int] | None:
        """The keys of a list, shown whole, in which every record with these values must be, and its round.

        The latest such list; None where none was shown whole.
        """
        best: tuple[set[str], int] | None = None
        for about, count in self._counts.items():
            fits = about.kind == kind and count.whole and about.has(where) is True
            if fits and (best is None or count.round > best[1]):
                best = (count.members, count.round)
        return best
