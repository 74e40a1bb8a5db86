"""What a request may cost at most, as far as that can be known before it is worked on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfverify.looking.visual_budget import PIXELS_PER_TOKEN
from selfverify.remote.judge import MAX_TOKENS
from selfverify.remote.prompt_size import prompt_tokens
from selfverify.serving.backend import ASSUMED_TOKENS, Ask, Backend

_REQUEST = 64
"""Tokens with which a judge is asked for a score, at most, and those of a chat template's marks."""

_SHOWN_TOKENS = 512
"""Tokens of the text with which a tool's result is shown, at most, as a rule."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Tokens that are set aside for a request.

    Args:
        prompt: Those of its prompt, read once.
        most: All that it may read and write.
    """

    prompt: int
    most: int


def foreseen_of_choosing(backend: Backend, ask: Ask, passes: bool) -> Foreseen:
    """Return what drawing candidates and choosing one may take.

    Args:
        backend: Draws and judges.
        ask: The question.
        passes: Whether the question goes to a server as it is, which reads it once.
    """
    prompt, n = _prompt_of(ask), ask.best_of.n
    each = _most(ask.body, backend.assumed_tokens)
    if ask.look is not None:
        drawing = n * _conversation(backend, ask, prompt, each)
    else:
        drawing = (1 if passes else backend.readings(ask)) * prompt + n * each
    judging = backend.judgings(ask) * (prompt + each + _REQUEST + MAX_TOKENS)
    return Foreseen(prompt, drawing + n * judging)


def foreseen_of_verifying(ask: Ask, answers: Sequence[str]) -> Foreseen:
    """Return what judging given answers may take: each is read behind the question."""
    prompt = _prompt_of(ask)
    read = prompt_tokens({"input": answers}) + len(answers) * (prompt + _REQUEST)
    return Foreseen(prompt, read + len(answers) * MAX_TOKENS)


def foreseen_of_passing(body: Mapping[str, Any], texts: int, each: int | None) -> Foreseen:
    """Return what a request may take that a server answers without us: ``texts`` of ``each`` tokens."""
    prompt = prompt_tokens(body)
    return Foreseen(prompt, prompt + texts * (ASSUMED_TOKENS if each is None else each))


def _prompt_of(ask: Ask) -> int:
    return prompt_tokens(ask.body) + sum(map(_of_pixels, (picture.pixels for picture in ask.pictures)))


def _most(body: Mapping[str, Any], assumed: int) -> int:
    """Return how long a candidate may be: the larger of both limits, since some servers know only one."""
    given = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
    return max((int(most) for most in given if most is not None), default=assumed)


def _conversation(backend: Backend, ask: Ask, prompt: int, each: int) -> int:
    """Return what a conversation may take that looks at the images again.

    Each turn reads what was said and shown before, unless the model keeps it.
    """
    assert ask.look is not None
    turns = ask.look.limits.turns + 1  # the last step may be asked about anew
    largest = max(picture.pixels for picture in ask.pictures)
    shown = _of_pixels(min(largest, ask.look.settings.most_shown)) + _SHOWN_TOKENS
    tools = prompt_tokens({"tools": ask.look.toolbox.schemas()})
    if backend.keeps_conversations:
        return prompt + tools + turns * (each + shown)
    return turns * (prompt + tools + each) + turns * (turns - 1) // 2 * (each + shown)


def _of_pixels(pixels: int) -> int:
    return -(-pixels // PIXELS_PER_TOKEN)
