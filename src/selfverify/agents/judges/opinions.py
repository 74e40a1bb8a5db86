"""Reading a judge's answer as a vote, or finding out why it counts for nothing.

Only the final content is read, never a judge's thoughts. It has to be of the exact form that was asked for;
an answer in which a verdict stands twice, or in other words, is no vote.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from selfverify.agents.exhibits import Vote
from selfverify.agents.fenced import Rendered

Quotations = Literal["warn", "invalidate"]
"""What becomes of a vote that quotes what stands nowhere: it counts and is marked, or counts for nothing."""

LONGEST = 100_000
"""Characters of an answer that is read."""

_TAGS = ("Reasoning", "ValidEvidence", "Verdict")
_FORM = re.compile(
    r"\s*<Reasoning>(?P<words>.*)</Reasoning>"
    r"\s*<ValidEvidence>\s*(?P<valid>True|False)\s*</ValidEvidence>"
    r"\s*<Verdict>\s*(?P<verdict>SUCCESS|FAILURE)\s*</Verdict>\s*",
    re.DOTALL,
)
_QUOTED = re.compile(r"\"([^\"\n]{1,400})\"|“([^“”\n]{1,400})”")
_ONE_ROUND = re.compile(r"\bround\s*#?(\d{1,9})\b", re.IGNORECASE)
_MORE_ROUNDS = re.compile(
    r"\brounds\s*((?:#?\d{1,9}(?:\s*,\s*|\s*&\s*|\s*(?:,\s*)?and\s+|\b))+)", re.IGNORECASE
)
_FROM_TO = re.compile(r"\brounds\s*#?(\d{1,9})\s*(?:-|–|—|to\b|through\b)\s*#?(\d{1,9})\b", re.IGNORECASE)
_LEFT_OUT = re.compile(r"\.\.\.|…|\[…\]|\[\.\.\.\]")


class Opinion(NamedTuple):
    """What an answer comes to.

    Args:
        vote: The vote; None where the answer is none.
        missing: Why it is none; else empty.
    """

    vote: Vote | None
    missing: str = ""


def read_opinion(text: str, case: Rendered, quotations: Quotations = "warn") -> Opinion:
    """The vote in a judge's answer. Nothing raises on it.

    A vote counts only if it can be traced: every round that it names was shown to the judge, and a vote for
    success names one. Rounds inside quotations are words of the screen and name nothing. Evidence that is not
    valid is a failure, also where the answer says otherwise.

    Args:
        text: The final content of the answer; thoughts that a model has written before it, up to
            ``</think>``, are left out.
        case: What the judge has read.
        quotations: What becomes of a vote with an altered quotation. The vote's ``about`` counts them.
    """
    if len(text) > LONGEST:
        return Opinion(None, f"the answer is longer than {LONGEST} characters")
    final = text.partition("</think>")[2] if "</think>" in text else text
    found = _FORM.fullmatch(final)
    if found is None or any(final.count(f"<{tag}>") + final.count(f"</{tag}>") != 2 for tag in _TAGS):
        return Opinion(None, "the answer is not of the form that was asked for")
    words = found["words"].strip()
    valid = found["valid"] == "True"
    success = valid and found["verdict"] == "SUCCESS"
    rounds = _named_rounds(words)
    if strange := sorted(rounds - case.rounds):
        return Opinion(None, f"it names round {strange[0]}, which it was not shown")
    if success and not rounds:
        return Opinion(None, "it finds success and names no round")
    quoted = _quotations(words)
    read = " ".join(case.text.split()) if quoted else ""
    altered = [quote for quote in quoted if not _stands_in(quote, read)]
    if altered and quotations == "invalidate":
        return Opinion(None, f"it quotes what is not there: {altered[0][:80]!r}")
    about = {"quotations": len(quoted), "altered_quotations": len(altered)}
    return Opinion(Vote(valid, success, words, tuple(sorted(rounds)), about))


def _named_rounds(words: str) -> set[int]:
    plain = _QUOTED.sub(" ", words)
    lists = " ".join(match[1] for match in _MORE_ROUNDS.finditer(plain))
    lists += "".join(f" {match[1]} {match[2]}" for match in _FROM_TO.finditer(plain))
    return {int(match[1]) for match in _ONE_ROUND.finditer(plain)} | {
        int(number) for number in re.findall(r"\d+", lists)
    }


def _quotations(words: str) -> list[str]:
    """The texts between quotation marks; those with something left out come in parts."""
    whole = [match[1] or match[2] for match in _QUOTED.finditer(words)]
    parts = [part.strip() for text in whole for part in _LEFT_OUT.split(text)]
    return [part for part in parts if part]


def _stands_in(quote: str, read: str) -> bool:
    """Whether a judge has read what it quotes: line breaks and a sentence's last mark do not count."""
    wanted = " ".join(quote.split())
    return any(form in read for form in (wanted, wanted.rstrip(".,;:!?")))
