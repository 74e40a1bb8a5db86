"""Goals: what has to be so in the end, and what evidence shows that it is (SmartSnap §3.3, §3.4).

A goal is plain data. From it and from facts follow the ground truth (`Goal.on_state`), what a set of exhibits
proves (`Goal.shown`), whether an exhibit has to do with the task (`Goal.relevant`) and a smallest sufficient
set of rounds (`minimal_evidence`). A verdict is True, False or, where nothing shows it, None: what is not
shown is not assumed (SmartSnap's "zero assumptions").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from selfverify.agents.exhibits import Exhibit
from selfverify.agents.facts import Fact, Scalar, Seen, listing, records_of
from selfverify.agents.needs import Finding, Has, Listed, Need
from selfverify.agents.query_answers import Answer
from selfverify.core.config import Config
from selfverify.core.errors import DataError


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
    """What a submission proves.

    Args:
        verdict: True where every sub-goal is shown, False where one is shown not to be reached or the answer
            is wrong, None where something is not shown.
        findings: Of each sub-goal, in order; of a query the answer comes first.
    """

    verdict: bool | None
    findings: tuple[Finding, ...]


class Goal(Config):
    """What has to be so: all ``needs`` and, for a query, the right answer.

    Args:
        kind: AndroidLab's two kinds of tasks: an operation changes something, a query asks for something.
        needs: For an operation what must be so; for a query what the answer rests on.
        answer: What a query's message must say.
    """

    kind: Literal["operation", "query"] = "operation"
    needs: tuple[Need, ...]
    answer: Answer | None = None

    @model_validator(mode="after")
    def _can_be_missed(self) -> Goal:
        """See that doing nothing does not reach the goal, and that something does."""
        if self.kind == "query" and self.answer is None:
            raise ValueError("a query needs an `answer`")
        if self.kind == "operation" and self.answer is not None:
            raise ValueError("an `answer` belongs to a query; set `kind` to query")
        if self.kind == "operation" and all(isinstance(need, Listed) for need in self.needs):
            raise ValueError(
                "an operation needs a need of type has or absent; else it is done from the start"
            )
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
        """What exhibits prove; where two disagree, the later one counts."""
        findings: list[Finding] = []
        if self.answer is not None:
            findings.append(Finding("the answer", self.answer.matches(message)))
        seen = Seen(exhibits)
        findings += [finding for need in self.needs for finding in need.shown(seen)]
        verdicts = [finding.verdict for finding in findings]
        verdict = False if False in verdicts else None if None in verdicts else True
        return Proof(verdict, tuple(findings))

    def relevant(self, exhibit: Exhibit) -> bool:
        """Whether an exhibit shows anything of what the goal is about, be it that the goal is missed."""
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

    What a later round refutes proves nothing, so the whole history must prove the goal, too.

    Args:
        history: All exhibits of a session.
        goal: What is to be proven.
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
