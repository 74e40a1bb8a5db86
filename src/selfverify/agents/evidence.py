"""Exhibits: an agent's proof of what it did, as it chooses and judges read them (SmartSnap §3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import model_validator

from selfverify.core.config import Config
from selfverify.core.episode import Call, StepResult
from selfverify.tasks.tool_calls import short_name


@dataclass(frozen=True, slots=True)
class Exhibit:
    """An atomic fact of a session: a call and what the environment showed right after it.

    The paper's (a_e, s_{e+1}); the round of ``seen`` is its number, by which the agent names it.

    Args:
        call: The call; None for what the reset showed.
        seen: The observation as the environment made it.
    """

    call: Call | None
    seen: StepResult


@dataclass(frozen=True, slots=True)
class Submission:
    """The message and the evidence that an agent hands in.

    Args:
        message: The final message, to a query the answer.
        evidence: The exhibits that it has chosen, in order of their rounds.
        history: All exhibits of the session, for judges that read more than what was chosen.
    """

    message: str
    evidence: Sequence[Exhibit]
    history: Sequence[Exhibit] = ()


@dataclass(frozen=True, slots=True)
class Vote:
    """One judge's opinion of a submission.

    Args:
        valid: Whether the evidence has to do with the task; evidence that proves a failure is valid.
        success: Whether the evidence proves that the task is done; never without ``valid``.
        words: The judge's reasons.
        rounds: The rounds to which the reasons refer.
        about: The cost and the origin of the vote, as plain JSON.
    """

    valid: bool
    success: bool
    words: str = ""
    rounds: tuple[int, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)


SUBMIT = "submit"
"""The tool that hands in evidence and ends a conversation."""

Source = Literal["chosen", "last", "all", "message"]
"""The evidence that a judge reads beside the message. ``chosen``: what the agent has chosen; ``last``: the
last screen; ``all``: every one; ``message``: nothing. The last three are what the paper argues against (§3.2,
Fig. 2b)."""


class EvidenceConfig(Config):
    """Settings that say what counts as evidence."""

    source: Source = "chosen"
    """What the judge reads: the exhibits that the agent has chosen, the last screen, all screens, or the
    message alone (the baselines, in which `submit` takes a message only)."""

    judged: Source | None = None
    """What the judge reads in place of that, while the agent goes on to hand in what `source` says and is
    charged for it; null is the same as `source`."""

    last_screen: bool = False
    """Show the judge the last screen behind the exhibits that were chosen, so that evidence which was undone
    later does not pass. It is not charged for."""

    @property
    def read(self) -> Source:
        """The evidence that the judge reads."""
        return self.judged or self.source

    @model_validator(mode="after")
    def _check(self) -> EvidenceConfig:
        if self.judged == "chosen" and self.source != "chosen":
            raise ValueError(f"judged=chosen: with source={self.source} the agent chooses nothing")
        return self


def submit_tool(source: Source) -> dict[str, Any]:
    """`SUBMIT` in OpenAI's form for tools."""
    told = "What was done, in a sentence or two; to a question, its answer."
    properties: dict[str, Any] = {"message": {"type": "string", "description": told}}
    if source == "chosen":
        properties["evidences"] = {
            "type": "array",
            "items": {"type": "integer"},
            "description": "The numbers of the rounds that prove it: each stands above its screen as "
            "'## Round N'. Each number once.",
        }
    return {
        "type": "function",
        "function": {
            "name": SUBMIT,
            "description": "Hand in the finished task with its proof. This ends the task.",
            "parameters": {"type": "object", "properties": properties, "required": [*properties]},
        },
    }


def read_submission(
    arguments: Mapping[str, Any], seen: Sequence[Exhibit], config: EvidenceConfig
) -> tuple[str, list[Exhibit], str]:
    """The message and the exhibits that a call of `SUBMIT` hands in.

    A set that is empty, names a round twice, one that the agent was not shown, or what is no whole number is
    refused; nothing of it is repaired.

    Args:
        arguments: As the agent has written them.
        seen: The exhibits that the agent was shown.
        config: Says what counts.

    Returns:
        The message, the chosen exhibits in order of their rounds, and why the submission is refused; this is
        empty where it is not. A refused one has no exhibits.
    """
    chooses = config.source == "chosen"
    message, named = arguments.get("message"), arguments.get("evidences", [])
    if not isinstance(message, str):
        return "", [], "`message` is no text"
    if unknown := arguments.keys() - ({"message", "evidences"} if chooses else {"message"}):
        return message, [], f"{SUBMIT} has no argument {short_name(min(unknown))}"
    if not chooses:
        return message, [], ""
    # True and False are whole numbers to Python.
    if not isinstance(named, list) or not all(type(number) is int for number in named):
        return message, [], "`evidences` is no list of whole numbers"
    if not named:
        return message, [], "no evidence"
    if len(set(named)) != len(named):
        return message, [], "a round is named twice"
    by_round = {exhibit.seen.round: exhibit for exhibit in seen}
    if missing := sorted(set(named) - by_round.keys()):
        return message, [], f"there is no round {missing[0]}"
    return message, [by_round[number] for number in sorted(named)], ""


def shown_to_judge(
    chosen: Sequence[Exhibit], history: Sequence[Exhibit], config: EvidenceConfig
) -> list[Exhibit]:
    """The exhibits that a judge reads, in order of their rounds.

    Args:
        chosen: The rounds that the agent has chosen.
        history: All that the session has shown, also what the agent was not shown (the screen after a reset).
        config: Whether the judge reads these, the last, all, or none.
    """
    if config.read == "message":
        return []
    if config.read == "all":
        return list(history)
    last = list(history[-1:])
    if config.read == "last":
        return last
    fresh = [exhibit for exhibit in last if config.last_screen and exhibit not in chosen]
    return [*chosen, *fresh]
