"""Goals: what has to be so in the end, and what evidence shows that it is (SmartSnap §3.3, §3.4).

A goal is plain data. From it and from facts follow the ground truth (`Goal.on_state`), what a set of exhibits
proves (`Goal.shown`), whether an exhibit has to do with the task (`Goal.relevant`) and a smallest sufficient
set of rounds (`minimal_evidence`). A verdict is True, False or, where nothing shows it, None: what is not
shown is not assumed (SmartSnap's "zero assumptions").

A goal's needs are records that have values (`Has`), records that are gone (`Absent`) and lists that are shown
whole (`Listed`). Each says, of the state, whether its sub-goals are reached and, of exhibits, what they show
of each. Where a goal is a query, `Answer` says whether a message has what was asked for, however it words
it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from selfverify.agents.evidence import Exhibit
from selfverify.agents.facts import Fact, Records, Scalar, Seen, listing, records_of, same
from selfverify.core.config import Config
from selfverify.core.errors import DataError

Values = dict[str, Scalar]


@dataclass(frozen=True, slots=True)
class Finding:
    """The proof of one sub-goal by exhibits.

    Args:
        about: The sub-goal in words.
        verdict: True or False where it is shown, else None.
        rounds: The rounds that show it.
        shown: The value that is shown, where one is asked for; None where nothing is, and for
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
        values: The values that it must have; each is a sub-goal.
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
        reached = [[same(record.get(a), v) for a, v in self.values.items()] for record in found]
        best = max(reached, key=sum, default=None)
        return [best is not None] * self._exists + (best or [False] * len(self.values))

    def shown(self, seen: Seen) -> list[Finding]:
        """Return the proof of each sub-goal."""
        records = seen.of_kind(self.kind)
        plain = {key: {a: v for a, (v, _) in record.items()} for key, record in records.items()}
        name = self.key if self.key is not None else _listed(self.match)
        article = "an" if self.kind[:1] in "aeiou" else "a"
        names = [f"there is {article} {self.kind} with {_listed(self.match)}"] * self._exists
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
    """A sub-goal of a count or a sum: all records with these values were shown, with these attributes.

    It asks something of the evidence only; on the state it always holds.

    Args:
        kind: The records' kind.
        match: The values.
        attributes: The attributes of each that have to be shown.
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


def _listed(values: Mapping[str, Scalar]) -> str:
    return " and ".join(f"{a} {v}" for a, v in values.items()) or "any values"


def _rank(findings: Sequence[Finding]) -> tuple[bool, int, int]:
    """Orders what candidates show: all shown, then not refuted, then how much is shown."""
    verdicts = [finding.verdict for finding in findings]
    return (all(v is True for v in verdicts), -verdicts.count(False), verdicts.count(True))


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
    """The answer that a message has to give.

    Args:
        form: How the message is read: ``text`` looks for the words of ``value``; ``number`` and ``time`` want
            one number or one time of day and no other; ``digits`` compares digits only, as of telephone
            numbers; ``yes-no`` takes the first of these words.
        value: The right answer: a text, a number in digits, a time such as ``07:30``, ``yes`` or ``no``.
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
                fits, form = bool(_PLAIN_NUMBER.fullmatch(self.value)), "a number in digits, such as -1200.5"
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


@dataclass(frozen=True, slots=True)
class Truth:
    """The ground truth.

    Args:
        complete: Whether the task is done.
        subgoals: Whether each sub-goal is reached (AndroidLab's Sub-SR counts them).
    """

    complete: bool
    subgoals: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof that a submission gives.

    Args:
        verdict: True where every sub-goal is shown, False where one is shown not to be reached or the answer
            is wrong, None where something is not shown.
        findings: Of each sub-goal, in order; of a query the answer comes first.
    """

    verdict: bool | None
    findings: tuple[Finding, ...]


class Goal(Config):
    """The state that has to be reached: all ``needs`` and, for a query, the right answer.

    Args:
        kind: AndroidLab's two kinds of tasks: an operation changes something, a query asks for something.
        needs: For an operation what must be so; for a query what the answer rests on.
        answer: The answer that a query's message must give.
    """

    kind: Literal["operation", "query"] = "operation"
    needs: tuple[Need, ...]
    answer: Answer | None = None

    @model_validator(mode="after")
    def _can_be_missed(self) -> Goal:
        """Check that a goal is not reached without any action, and that it can be reached."""
        if self.kind == "query" and self.answer is None:
            raise ValueError("a query needs an `answer`")
        if self.kind == "operation" and self.answer is not None:
            raise ValueError("an `answer` belongs to a query; set `kind` to query")
        if self.kind == "operation" and all(isinstance(need, Listed) for need in self.needs):
            raise ValueError("an operation needs a need of type has or absent, or is done from the start")
        return self

    @classmethod
    def read(cls, data: Any, name: str = "goal") -> Goal:
        """The goal that plain JSON describes, as in `Problem.target`.

        Raises:
            DataError: It describes none; ``name`` says whose goal it is.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            place = ".".join(map(str, fault["loc"])) or "it"
            raise DataError(f"{name}: {place}: {fault['msg']}") from error

    def on_state(self, facts: Iterable[Sequence[Scalar]], message: str = "") -> Truth:
        """The ground truth: the facts are all that is so, and what is not among them is not so.

        An operation has the sub-goals of its needs; a query has one, its answer.
        """
        records = records_of(facts)
        reached = [ok for need in self.needs for ok in need.on_state(records)]
        if self.kind == "query":
            right = self.answer is not None and self.answer.matches(message)
            return Truth(right and all(reached), (right,))
        return Truth(all(reached), tuple(reached))

    def shown(self, exhibits: Iterable[Exhibit], message: str = "") -> Proof:
        """Return the proof that exhibits give; where two disagree, the later one counts."""
        findings: list[Finding] = []
        if self.answer is not None:
            findings.append(Finding("the answer", self.answer.matches(message)))
        seen = Seen(exhibits)
        findings += [finding for need in self.needs for finding in need.shown(seen)]
        verdicts = [finding.verdict for finding in findings]
        verdict = False if False in verdicts else None if None in verdicts else True
        return Proof(verdict, tuple(findings))

    def relevant(self, exhibit: Exhibit) -> bool:
        """Whether an exhibit shows any part of the goal's subject, also one that tells that the goal is
        missed."""
        return any(self.concerns(fact) for fact in exhibit.seen.info.get("facts", ()))

    def concerns(self, fact: Sequence[Scalar]) -> bool:
        """Whether a fact is about a record or a list of the goal's."""
        subject = str(fact[0])
        about = listing(subject)
        kind, _, key = subject.partition("/")
        for need in self.needs:
            if about is not None:
                if about.kind == need.kind:
                    return True
            elif kind == need.kind and (not isinstance(need, Has) or need.key in (None, key)):
                return True
        return False


def minimal_evidence(
    history: Sequence[Exhibit], goal: Goal, message: str = "", largest: int = 5
) -> tuple[int, ...] | None:
    """A smallest set of rounds that proves a goal; the latest of the smallest ones.

    A round that a later one refutes proves nothing, so the whole history must prove the goal, too.

    Args:
        history: All exhibits of a session.
        goal: The goal that is to be proven.
        message: The final message.
        largest: The most rounds that are tried together.

    Returns:
        The rounds in order, or None where no set of this size proves it.
    """
    if goal.shown(history, message).verdict is not True:
        return None
    latest: dict[frozenset[Fact], Exhibit] = {}
    for exhibit in sorted(history, key=lambda e: e.seen.round):
        facts = frozenset((f[0], f[1], f[2]) for f in exhibit.seen.info.get("facts", ()) if goal.concerns(f))
        if facts:
            latest[facts] = exhibit
    useful = sorted(latest.values(), key=lambda e: -e.seen.round)
    for size in range(1, largest + 1):
        for chosen in combinations(useful, size):
            if goal.shown(chosen, message).verdict is True:
                return tuple(sorted(exhibit.seen.round for exhibit in chosen))
    return None
