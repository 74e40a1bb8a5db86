"""What a goal asks for: records that have values, records that are gone, lists that are shown whole.

Each need says, of the state, whether its sub-goals are reached and, of exhibits, what they show of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from selfverify.agents.facts import Records, Scalar, Seen, same
from selfverify.core.config import Config

Values = dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class Finding:
    """What exhibits show of one sub-goal.

    Args:
        about: The sub-goal in words.
        verdict: True or False where it is shown, else None.
        rounds: The rounds that show it.
        shown: What is shown in the place of a value that is asked for; None where nothing is, and for
            sub-goals of another sort.
    """

    about: str
    verdict: bool | None
    rounds: tuple[int, ...] = ()
    shown: Scalar | None = None


class Has(Config):
    """A record has these values.

    Args:
        kind: The record's kind.
        key: The record's key, where it is known beforehand, as of a setting.
        match: Values by which the record is recognised.
        values: What it must have; each is a sub-goal.
        new: Whether the record has to be made first; that it is there is a sub-goal then.
        before: For a new one: the keys of the records that were there before, which do not count.
    """

    type: Literal["has"] = "has"
    kind: str
    key: str | None = None
    match: Values = {}
    values: Values = {}
    new: bool = False
    before: tuple[str, ...] = ()

    def on_state(self, records: Records) -> list[bool]:
        """Whether each sub-goal is reached; of several records that match, the best one counts."""
        found = [record for _, record in self._candidates(records.get(self.kind, {}))]
        best = max(
            ([same(r.get(a), v) for a, v in self.values.items()] for r in found), key=sum, default=None
        )
        return [best is not None] * self._exists + (best or [False] * len(self.values))

    def shown(self, seen: Seen) -> list[Finding]:
        """What is shown of each sub-goal."""
        records = seen.of_kind(self.kind)
        plain = {key: {a: v for a, (v, _) in record.items()} for key, record in records.items()}
        name = self.key if self.key is not None else _listed(self.match)
        names = [f"there is {_a(self.kind)} with {_listed(self.match)}"] * self._exists
        names += [f"{self.kind} {name}: {a} is {v}" for a, v in self.values.items()]
        best: list[Finding] | None = None
        for key, record in self._candidates(plain):
            rounds = {records[key][a][1] for a in self.match}
            here = [Finding(names[0], True, tuple(sorted(rounds)))] * self._exists
            for (attribute, value), about in zip(self.values.items(), names[self._exists :], strict=True):
                if attribute in record:
                    at, shown = tuple(sorted(rounds | {records[key][attribute][1]})), record[attribute]
                    here.append(Finding(about, same(shown, value), at, shown))
                else:
                    here.append(Finding(about, None))
            if best is None or _rank(here) > _rank(best):
                best = here
        if best is not None:
            return best
        whole = seen.whole(self.kind, self.match) if self.key is None else None
        if whole and all(key in self.before or self._differs(plain.get(key, {})) for key in whole[0]):
            return [Finding(about, False, (whole[1],)) for about in names]
        return [Finding(about, None) for about in names]

    @property
    def _exists(self) -> int:
        return int(self.new or not self.values)

    def _candidates(
        self, records: Mapping[str, Mapping[str, Scalar]]
    ) -> list[tuple[str, Mapping[str, Scalar]]]:
        keys = [self.key] if self.key is not None else list(records)
        found = [(key, records[key]) for key in keys if key in records and key not in self.before]
        return [(k, r) for k, r in found if all(same(r.get(a), v) for a, v in self.match.items())]

    def _differs(self, record: Mapping[str, Scalar]) -> bool:
        return any(a in record and not same(record[a], v) for a, v in self.match.items())


class Absent(Config):
    """No record has these values.

    Args:
        kind: The records' kind.
        match: The values.
        key: A record that has to be gone; it is not enough that its values are others now.
    """

    type: Literal["absent"] = "absent"
    kind: str
    match: Values
    key: str | None = None

    def on_state(self, records: Records) -> list[bool]:
        """Whether the one sub-goal is reached."""
        found = records.get(self.kind, {})
        there = any(all(same(r.get(a), v) for a, v in self.match.items()) for r in found.values())
        return [not there and self.key not in found]

    def shown(self, seen: Seen) -> list[Finding]:
        """Proven by a list, shown whole, that would have to have the record; disproven by the record."""
        about = f"there is no {self.kind} with {_listed(self.match)}"
        records = seen.of_kind(self.kind)
        for record in records.values():
            if all(a in record and same(record[a][0], v) for a, v in self.match.items()):
                return [Finding(about, False, tuple(sorted({record[a][1] for a in self.match})))]
        whole = seen.whole(self.kind, self.match)
        if whole is None:
            return [Finding(about, None)]
        rounds = {whole[1]}
        for key in whole[0]:
            record = records.get(key, {})
            if key == self.key:
                return [Finding(about, False, (whole[1],))]
            other = [a for a, v in self.match.items() if a in record and not same(record[a][0], v)]
            if not other:
                return [Finding(about, None)]
            rounds.add(record[other[0]][1])
        return [Finding(about, True, tuple(sorted(rounds)))]


class Listed(Config):
    """All records with these values are shown, as far as the attributes go: what a count or a sum rests on.

    It asks something of the evidence only; on the state it always holds.

    Args:
        kind: The records' kind.
        match: The values.
        attributes: What has to be shown of each.
    """

    type: Literal["listed"] = "listed"
    kind: str
    match: Values = {}
    attributes: tuple[str, ...] = ()

    def on_state(self, records: Records) -> list[bool]:
        """No sub-goal."""
        return []

    def shown(self, seen: Seen) -> list[Finding]:
        """True where a whole list has been shown with all that is needed, else None."""
        about = f"every {self.kind} with {_listed(self.match)} is shown"
        whole = seen.whole(self.kind, self.match)
        if whole is None:
            return [Finding(about, None)]
        records, rounds = seen.of_kind(self.kind), {whole[1]}
        for key in whole[0]:
            record = records.get(key, {})
            if any(a in record and not same(record[a][0], v) for a, v in self.match.items()):
                continue
            covered = [a for a in (*self.match, *self.attributes) if a in record]
            if len(covered) < len(self.match) + len(self.attributes):
                return [Finding(about, None)]
            rounds |= {record[a][1] for a in covered}
        return [Finding(about, True, tuple(sorted(rounds)))]


Need = Annotated[Has | Absent | Listed, Field(discriminator="type")]


def _a(noun: str) -> str:
    """A record's kind with its article."""
    return f"{'an' if noun[:1] in 'aeiou' else 'a'} {noun}"


def _listed(values: Mapping[str, Scalar]) -> str:
    return " and ".join(f"{a} {v}" for a, v in values.items()) or "any values"


def _rank(findings: Sequence[Finding]) -> tuple[bool, int, int]:
    """Orders what candidates show: all shown, then not refuted, then how much is shown."""
    verdicts = [finding.verdict for finding in findings]
    return (all(v is True for v in verdicts), -verdicts.count(False), verdicts.count(True))
