"""Cases and verdicts in few words, for judges too small to follow a prompt.

A case is one line of words in small letters::

    task set an alarm for 06:10. § says done. § rounds 7 § 7 tap r6 ¶ alarm ¶ time 06:10 ¶ label yoga

and a verdict says of each demand what is shown, in which round, whether that is right, and what follows::

    label yoga yoga 7 yes § success

``§`` stands before each round and ``¶`` at the end of each line. Neither can stand in what others have
written, so that no screen can begin a round.
"""

from __future__ import annotations

import re

from selfverify.agents.evidence import Vote
from selfverify.agents.facts import Scalar, Seen
from selfverify.agents.goals import Absent, Goal, Listed, Need
from selfverify.agents.judges.case import LONGEST, LONGEST_MESSAGE, LONGEST_SCREEN, Case, Opinion, Rendered
from selfverify.agents.judges.own_judge import ShortForm
from selfverify.core.episode import Call
from selfverify.tasks.tool_episode import shortened

SMALL_JUDGE = "builtin:phone-judge"
"""The judge that ships: it reads terse screens of the phone, in the short form."""
QUESTION = "Is it done?"
"""What stands before a case."""
PART, LINE = "§", "¶"
ONLY, PLAIN = "main", "value"
"""The key of what there is only one of, and the attribute of what has only one: both say nothing."""
VERDICTS = ("success", "failure", "irrelevant")
SHOWN = {True: "yes", False: "no", None: "unseen"}
"""What is said of a demand, behind the round that shows it."""
ANSWERED = {True: "right", False: "wrong", None: "unseen"}
"""What is said of an answer, behind the right one: in other words, as a number there is no round."""

_OURS = str.maketrans({PART: "?", LINE: "?"})
_NAMED = re.compile(rf" (\d{{1,9}}) (?:{SHOWN[True]}|{SHOWN[False]})(?= {LINE}|$)")


def short_case(case: Case) -> Rendered:
    """A case as a small judge reads it; pictures are not shown to it."""
    shown = case.submission.evidence
    parts = [
        f"task {_words(case.instruction, LONGEST_MESSAGE)}",
        f"says {_words(case.submission.message, LONGEST_MESSAGE)}",
        f"rounds {case.rounds}",
    ]
    for exhibit in shown:
        refused = f" {LINE} refused" if exhibit.seen.error else ""
        screen = _words(exhibit.seen.text, LONGEST_SCREEN)
        parts.append(f"{exhibit.seen.round} {_called(exhibit.call)}{refused} {LINE} {screen}")
    # Every word has a space before it, so that it is the same token wherever it stands.
    return Rendered(" " + f" {PART} ".join(parts), [], frozenset(e.seen.round for e in shown))


def short_verdict(case: Case) -> str:
    """What a judge should say of a case whose goal and ground truth are known.

    Each demand comes with what the evidence shows of it, and in which round. The verdict is the ground truth,
    also where the evidence does not show it; only evidence that has nothing to do with the task is called so
    instead. Nothing is said that cannot be read somewhere: of a question's answer only where it is shown.

    Raises:
        ValueError: The goal or the truth is not known.
    """
    if case.goal is None or case.truth is None:
        raise ValueError(f"problem {case.name} has no goal, or nobody knows whether it is reached")
    evidence = case.submission.evidence
    words = _demands(case.goal, Seen(evidence), case.submission.message)
    relevant = not evidence or any(case.goal.relevant(exhibit) for exhibit in evidence)
    verdict = "irrelevant" if not relevant else "success" if case.truth.complete else "failure"
    return f" {f' {LINE} '.join(words)} {PART} {verdict}"


def _demands(goal: Goal, seen: Seen, message: str) -> list[str]:
    """Of each sub-goal what it is, what is shown of it, in which round, and whether that is right."""
    words, asks = [], goal.answer is None
    known = True
    for need in goal.needs:
        findings = need.shown(seen)
        known = known and all(finding.verdict is True for finding in findings)
        said = _asked(need, asks)
        for about, finding in zip(said, findings, strict=True):
            at = f" {max(finding.rounds)}" if finding.rounds else ""
            value = "" if finding.shown is None else f" {_value(finding.shown)}"
            words.append(f"{about}{value}{at} {SHOWN[finding.verdict]}")
    if goal.answer is not None:
        right = goal.answer.matches(message)
        shown = f"{_value(goal.answer.value)} {ANSWERED[right]}" if known else ANSWERED[None]
        words.append(f"answer {shown}")
    return words


def _asked(need: Need, asks: bool) -> list[str]:
    """A need's sub-goals in few words. What a question asks for is not in it: nobody could know it."""
    matched = " ".join(map(_value, need.match.values()))
    if isinstance(need, Absent):
        return [f"no {need.kind} {matched}".strip()]
    if isinstance(need, Listed):
        return [f"every {need.kind} {matched}".strip()]
    exists = need.new or not need.values
    # Which record it is: said already, or by its values, or by its key where that is no number.
    named = "" if exists else matched
    if need.key is not None and not need.key.isdigit() and need.key != ONLY:
        named = need.key
    values = []
    for attribute, value in need.values.items():
        about = named if named and attribute == PLAIN else f"{named} {attribute}".strip()
        values.append(f"{about} {_value(value)}" if asks else about)
    return [f"{need.kind} {matched}".strip()] * exists + values


def _value(value: Scalar) -> str:
    """A value as screens write it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return _words(str(value), LONGEST_MESSAGE)


def read_short(text: str, case: Rendered) -> Opinion:
    """The vote in a small judge's answer. Nothing raises on it.

    It counts only where it has the form of `short_verdict` and names no round that was not shown. As small
    judges may judge by a message alone, success need not name one.

    Args:
        text: What the judge has said.
        case: What it has read.
    """
    words, mark, verdict = text[:LONGEST].strip().rpartition(f" {PART} ")
    if not mark or verdict not in VERDICTS or PART in words:
        return Opinion(None, "the answer is not of the form that was asked for")
    rounds = {int(number) for number in _NAMED.findall(words)}
    if strange := sorted(rounds - case.rounds):
        return Opinion(None, f"it names round {strange[0]}, which it was not shown")
    reasons = words.replace(f" {LINE} ", "\n")
    return Opinion(Vote(verdict != "irrelevant", verdict == "success", reasons, tuple(sorted(rounds))))


def _called(call: Call | None) -> str:
    if call is None:
        return "start"
    return _words(" ".join([call.name, *map(str, call.arguments.values())]), LONGEST_MESSAGE)


def _words(text: str, longest: int) -> str:
    """The words of others: small letters, one space between two, without what stands for our own marks.

    Lines of a list lose their dash.
    """
    plain = shortened(text.encode("utf-8", "replace").decode(), longest).translate(_OURS).casefold()
    lines = (" ".join(line.split()).removeprefix("- ") for line in plain.splitlines())
    return f" {LINE} ".join(line for line in lines if line)


SHORT = ShortForm(QUESTION, short_case, read_short)
"""What `judge.own.form=short` is on the phone."""
