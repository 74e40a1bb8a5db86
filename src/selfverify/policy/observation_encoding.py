"""An environment's words as tokens: the chat template's text around it, its words without special meaning.

The template is rendered once with marks in place of the words. So a template's own end tokens and headers are
those it writes for any conversation, and nothing inside the words can be taken for them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from PIL.Image import Image

from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.policy.chat import (
    TemplateRefusal,
    TooLongError,
    chat_text,
    check_beginnings,
    find_opening,
    has_too_many_characters,
    reply_parts,
    without_surrogates,
)
from selfverify.policy.encoding import Encoder, longest_row, no_image_here
from selfverify.policy.families import ImageInput
from selfverify.policy.packing import Continuation

_ANSWERS = ("ANSWER", "THOUGHT\n</think>\n\nANSWER")
"""Answers that stand for the policy's: one without thoughts, one behind thoughts that the prompt begins."""
_NO_THOUGHTS = "<think>\n\n</think>\n\n"
"""How a prompt begins a message without thoughts (Qwen3 with ``enable_thinking: false``); in earlier messages
the template leaves it out."""


@dataclass(slots=True)
class _Frame:
    """The text that the template writes between an answer, or the prompt, and the next answer.

    Args:
        pieces: Its texts; between two of them stands what was said, or an image where the slot is.
        words: For each gap the number of the text part that stands in it.
    """

    pieces: list[str]
    words: list[int]


class ReplyEncoder:
    """Turns replies to what the policy has said into tokens, for one problem after another."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder, self.loaded = encoder, encoder.loaded
        self._special = encoder.special
        self._slot = self._special.slot
        self._frames: dict[tuple[str, str, str, bool], _Frame] = {}

    def encode(self, problem: Problem, reply: Observation, turn: int) -> Continuation:
        """Tokens from the end of the policy's message to the beginning of its next one.

        The policy may have written the first of them itself (`without_written_end`).

        Raises:
            ConfigError: The model's chat template cannot continue a conversation in this way; or the reply
                shows an image to a model of an unknown family.
            DataError: The reply is not of the form that `Observation` describes; or it shows images that
                cannot be read, or to a model that reads none; or it has far more characters than the model's
                context holds; or the tokenizer would read something in it as a special token.
            TooLongError: The reply alone is longer than the model's context.
        """
        return self._encode(problem, reply, f"{problem.id}, turn {turn}", first=False)

    def opening(self, problem: Problem, reply: Observation | None) -> Continuation:
        """Tokens from the end of a prompt behind which the environment speaks first to the policy's message.

        Without a ``reply`` they are those that the prompt lacks.

        Raises:
            ConfigError: See `encode`.
            DataError: See `encode`.
        """
        name = f"{problem.id}, before the first turn"
        return self._encode(problem, reply or Observation([]), name, first=True)

    def _encode(self, problem: Problem, reply: Observation, named: str, first: bool) -> Continuation:
        where = f"problem {named}"
        parts = reply_parts(reply, where)
        texts = [without_surrogates(part["text"]) for part in parts if part["type"] == "text"]
        limit, characters = longest_row(self.loaded.model), sum(map(len, texts)) + len(parts)
        if has_too_many_characters(characters, limit):  # each part takes work, also an empty one
            said = f"the reply has {characters} characters and the model reads {limit} tokens"
            raise DataError(f"{where}: {said}")
        check_beginnings(self.loaded.tokenizer, texts, limit, f"{where}: the reply's")
        places = len(parts) - len(texts)
        if places != len(reply.images):
            raise DataError(
                f"{where}: the reply has {places} places for images and {len(reply.images)} images"
            )
        if reply.images and not self.loaded.family.shares_prompts:
            raise ConfigError(no_image_here(self.loaded, named))
        if reply.images and self._slot is None:
            raise DataError(f"{where}: the reply shows an image but the model reads text only")
        frame = self._frame(problem, reply.role, parts, first)
        pictures, images = list[Image](), list[ImageInput]()
        for image in reply.images:
            # A copy: an environment may go on drawing on its screen, or close it, before it is learnt from.
            rgb = self.encoder.rgb(image, named)
            pictures.append(rgb.copy() if rgb is image else rgb)
            images.append(self.encoder.image(pictures[-1], named, several=True))
            taken = sum(one.placeholders for one in images)
            if limit is not None and taken > limit:
                raise TooLongError(
                    f"{where}: {len(images)} of the reply's {len(reply.images)} images take {taken} tokens "
                    f"and the model reads {limit}"
                )
        tokens = self._tokens(frame, texts, [image.text for image in images], where)
        unexpanded = self._tokens(frame, texts, [self._slot or ""] * len(images), where) if images else None
        return Continuation(tokens, images, unexpanded, pictures)

    def check(self, problem: Problem, reply: Observation) -> None:
        """Check that the chat template can show a reply of this form.

        Raises:
            ConfigError: It cannot.
            DataError: The reply is not of the form that `Observation` describes.
        """
        self._frame(problem, reply.role, reply_parts(reply, f"problem {problem.id}"), first=False)

    def _frame(self, problem: Problem, role: str, parts: Sequence[dict[str, Any]], first: bool) -> _Frame:
        """Return the text that the template writes around a reply of this form; rendered once for each
        problem and form."""
        form = "".join("i" if part["type"] == "image" else "t" for part in parts)
        key = (problem.id, role, form, first)
        if key in self._frames:
            return self._frames[key]
        # Special tokens in its words do not matter here.
        problem, _ = self._special.marked(problem)
        marks = [f"REPLY{number}WORDS" for number in range(form.count("t"))]
        left = iter(marks)
        content = [
            {"type": "image"} if kind == "i" else {"type": "text", "text": next(left)} for kind in form
        ]
        try:
            rest = (
                find_opening(self.loaded, problem).rest(self.loaded, problem, role, content)
                if first
                else self._rest(problem, {"role": role, "content": content})
            )
        except TemplateRefusal as error:
            raise ConfigError(
                f"problem {problem.id}: the model's chat template cannot continue a conversation "
                f"({error.reason}); another turn needs one that takes user, assistant and {role} messages"
            ) from error
        split = re.split("REPLY([0-9]+)WORDS", rest or "")  # texts, and between them the marks' numbers
        texts, order = split[::2], [int(number) for number in split[1::2]]
        if rest is None or sorted(order) != [*range(len(marks))]:
            changed = (
                f"with a {role} message behind the prompt it writes another prompt"
                if first
                else f"with an answer and a {role} message it writes other text before the answer than the "
                "prompt the model answered"
            )
            raise ConfigError(
                f"problem {problem.id}: the model's chat template cannot continue a conversation: {changed}, "
                "or leaves the message out"
            )
        slots = rest.count(self._slot) if self._slot else 0
        if slots != form.count("i"):
            raise ConfigError(
                f"problem {problem.id}: the model's chat template writes {slots} images of a {role} message "
                f"that has {form.count('i')}"
            )
        self._frames[key] = _Frame(texts, order)
        return self._frames[key]

    def _rest(self, problem: Problem, reply: dict[str, Any]) -> str | None:
        """Return the text that the template writes behind an answer; None where it changes what stands before
        that."""
        before = chat_text(self.loaded, problem)
        for answer in _ANSWERS:
            said = {"role": "assistant", "content": [{"type": "text", "text": answer}]}
            whole = chat_text(self.loaded, replace(problem, messages=[*problem.messages, said, reply]))
            for begun in (before, before.removesuffix(_NO_THOUGHTS)):
                if whole.startswith(begun + answer):
                    return whole.removeprefix(begun + answer)
        return None

    def _tokens(self, frame: _Frame, texts: Sequence[str], images: Sequence[str], where: str) -> list[int]:
        """The frame with texts and images in it, as tokens of which only the frame's own mean anything."""
        shown = partial(self._special.filled, images=iter(images))
        whole = frames = shown(frame.pieces[0])
        ranges = []
        for number, piece in zip(frame.words, frame.pieces[1:], strict=True):
            ranges.append((len(whole), len(whole) + len(texts[number])))
            piece = shown(piece)
            whole, frames = whole + texts[number] + piece, frames + piece
        tokenizer = self.loaded.tokenizer
        cuts = [0, *self._special.cuts(whole, ranges), len(whole)]
        runs = [whole[a:b] for a, b in itertools.pairwise(cuts)]
        # A tokenizer may see special tokens where no cut was made, as behind its normaliser.
        *parts, own = tokenizer([*runs, frames], add_special_tokens=False)["input_ids"]
        ids = [i for part in parts for i in part]
        if sum(i in self._special.meant for i in ids) != sum(i in self._special.meant for i in own):
            raise DataError(f"{where}: the reply cannot be written without special tokens of the model")
        return ids


def without_written_end(said: Sequence[int], reply: Continuation) -> Continuation:
    """``reply`` without the end of the policy's message, where the policy has ``said`` that itself."""
    if not said or not reply.tokens or said[-1] != reply.tokens[0]:
        return reply
    unexpanded = None if reply.unexpanded is None else reply.unexpanded[1:]
    return Continuation(list(reply.tokens[1:]), reply.images, unexpanded, reply.pictures)
