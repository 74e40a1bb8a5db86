r"""The forms of an answer to a maths problem: with tags around it, or free text that ends in it.

AdaPO's models answer freely ("The correct answer is: D. 90", ``\boxed{D}``), ADPO's in tags (its Table 1).
"""

from __future__ import annotations

import re
from typing import Literal

from selfverify.core.tags import SCORE_TAG
from selfverify.tasks.mathematics.math_text import boxes

Form = Literal["think-answer", "answer", "free"]

TAGS: dict[Form, tuple[str, ...]] = {
    "think-answer": ("think", "answer"),
    "answer": ("answer",),
    "free": (),
}
"""The tags of each form, without that of the score."""

_ASKED: dict[Form, str] = {
    "think-answer": "Work the problem out inside <think></think>, then give nothing but your final answer "
    "inside <answer></answer>.",
    "answer": "Give nothing but your final answer inside <answer></answer>.",
    "free": 'Work the problem out. End with a line that says "The answer is: " and your final answer.',
}
_GRADE = (
    "Now grade yourself: inside <score></score> write a number from 0 to 1 that tells how likely your answer "
    "is to be right. Go close to 1 when you trust it and close to 0 when you do not."
)
_SHOWN = {
    "think": "<think>your reasoning</think>",
    "answer": "<answer>your answer</answer>",
    SCORE_TAG: "<score>your score</score>",
}
_PHRASE = re.compile(
    r"\b(?:answer|option|choice)\b[*_ ]*(?:(?:is|was|would be|should be)\b[*_ ]*:?|:|=)[*_ ]*", re.IGNORECASE
)
_SHORT = 200
"""The length of a line that is an answer by itself, if a response consists of nothing else."""


def request(form: Form, score: bool) -> str:
    """Return the request for a form, in our words; with ``score`` ADPO Table 1's, which asks for one."""
    tags = [*TAGS[form], *([SCORE_TAG] if score else [])]
    parts = [_ASKED[form], *([_GRADE] if score else [])]
    if tags:
        parts += ["Your reply has this form:", *(_SHOWN[tag] for tag in tags)]
    return "\n".join(parts)


def reminder(tags: tuple[str, ...]) -> str:
    """Return what names the form once more, in the request for a second turn."""
    if not tags:
        return 'End with a line that says "The answer is: " and your final answer.'
    return f"Keep to the form {''.join(_SHOWN[tag] for tag in tags)}."


def committed(text: str) -> str | None:
    r"""Return the part of a free text that states its final answer; None if none does.

    That is what follows the last phrase such as "The correct answer is:", up to the end of its line or, where
    nothing follows there, the next line; or the line with the last ``\boxed``, if it comes later. A text of
    one short line is the answer itself. Nothing else is searched, and of several answers only the last one
    counts, so that listing many does not pay.
    """
    phrases = [*_PHRASE.finditer(text)]
    stated = phrases[-1] if phrases else None
    found = boxes(text)
    if found and (stated is None or found[-1][0] >= stated.start()):
        start, end, _ = found[-1]
        left, right = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        return text[left : right if right >= 0 else len(text)].strip()
    if stated is not None:
        lines = [line.strip().strip("*").strip() for line in text[stated.end() :].strip(" ").splitlines()]
        return next((line for line in lines[:3] if line), None)
    lines = text.strip().splitlines()
    return lines[0] if len(lines) == 1 and len(lines[0]) <= _SHORT else None
