"""Cases and verdicts in few words, for judges too small to follow a prompt.

A case is one line of words in small letters::

    task set an alarm for 06:10. § says done. § rounds 7 § 7 tap r6 ¶ alarm ¶ time 06:10 ¶ label yoga

and a verdict says of each demand whether it is shown, in which round, and what follows::

    there is a alarm with time 06:10 7 yes § success

``§`` stands before each round and ``¶`` at the end of each line. Neither can stand in what others have
written, so that no screen can begin a round.
"""

from __future__ import annotations

import re

from selfverify.agents.cases import Case
from selfverify.agents.exhibits import Vote
from selfverify.agents.fenced import LONGEST_MESSAGE, LONGEST_SCREEN, Rendered
from selfverify.agents.judges.opinions import LONGEST, Opinion
from selfverify.agents.needs import Finding
from selfverify.core.environment import Call
from selfverify.tasks.tool_episode import shortened

QUESTION = "Is it done?"
"""What stands before a case."""
PART, LINE = "§", "¶"
VERDICTS = ("success", "failure", "irrelevant")
SHOWN = {True: "yes", False: "no", None: "unseen"}

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

    Each demand comes with what the evidence shows of it. The verdict is the ground truth, also where the
    evidence does not show it; only evidence that has nothing to do with the task is called so instead.

    Raises:
        ValueError: The goal or the truth is not known.
    """
    if case.goal is None or case.truth is None:
        raise ValueError(f"problem {case.name} has no goal, or nobody knows whether it is reached")
    evidence = case.submission.evidence
    findings = [*case.goal.shown(evidence, case.submission.message).findings]
    if case.goal.answer is not None:
        # First what the answer rests on, then the answer.
        findings = [*findings[1:], findings[0]]
    relevant = not evidence or any(case.goal.relevant(exhibit) for exhibit in evidence)
    verdict = "irrelevant" if not relevant else "success" if case.truth.complete else "failure"
    return f" {f' {LINE} '.join(map(_found, findings))} {PART} {verdict}"


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


def _found(finding: Finding) -> str:
    about = _words(finding.about.rpartition(": ")[2], LONGEST_MESSAGE)
    number = f" {max(finding.rounds)}" if finding.rounds else ""
    return f"{about}{number} {SHOWN[finding.verdict]}"


def _called(call: Call | None) -> str:
    if call is None:
        return "start"
    return _words(" ".join([call.name, *map(str, call.arguments.values())]), LONGEST_MESSAGE)


def _words(text: str, longest: int) -> str:
    """The words of others: small letters, one space between two, without what stands for our own marks."""
    plain = shortened(text.encode("utf-8", "replace").decode(), longest).translate(_OURS).casefold()
    return f" {LINE} ".join(" ".join(line.split()) for line in plain.splitlines() if line.strip())
