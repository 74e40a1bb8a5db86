"""Problems, what the policy is asked; the contents of messages; a task's three splits and their seeds.

The content of a message has the Hugging Face form: a text, or parts of which each is a text or an image.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from PIL.Image import Image

from selfverify.core.errors import DataError
from selfverify.core.images import image_part


@dataclass(slots=True)
class Problem:
    """A question with its images and the target that answers are judged by.

    Args:
        id: The problem's name, stable and unique inside its task; errors and stored samples use it.
        messages: Chat messages in the Hugging Face form. An image stands as ``{"type": "image"}`` in
            a message's content list, in the order of ``images``.
        images: The images that the placeholders refer to.
        target: The right answer, with which the task's reward compares others.
        meta: The task's own knowledge of the problem: what its judging and its demonstrations need
            (the digits shown, a noise level). Some keys have one meaning for all tasks, since evaluations,
            reports and the page read them:

            - ``question``: what is asked, without the request for a format
            - ``category``: one word for the kind of problem
            - ``categories``: lists of values by column; figures are broken down by them
            - ``options``: texts by letter
            - ``screen``: width and height that places in the target refer to; by default the image's
            - ``polygons``: outlines of the target's mask, each a list of points (x, y)
            - ``target_boxes``: boxes (x1, y1, x2, y2) of what is asked about, in pixels of the first image
            - ``ui_boxes``: boxes (x1, y1, x2, y2) of the target's element on the screen
        tools: The tools that the policy may call, as JSON schemas in the Hugging Face form; the model's chat
            template shows them.
        environment_begins: Whether the conversation's environment speaks before the policy (`Episode.reset`).
            The prompt, which a group shares, then ends with the messages.
    """

    id: str
    messages: list[dict[str, Any]]
    images: list[Image] = field(default_factory=list)
    target: Any = None
    meta: dict[str, Any] = field(default_factory=dict)
    tools: list[dict[str, Any]] = field(default_factory=list)
    environment_begins: bool = False

    def digest(self) -> str:
        """Return 16 hexadecimal digits of the question, the images' sizes and the target.

        The prompt is left out, since policies differ in it.
        """
        about = [self.meta.get("question"), self.target, [image.size for image in self.images]]
        text = json.dumps(about, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


BETWEEN = "\n\n"
"""Stands between a user's question and the rest of the same message."""


def content_parts(content: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A content as parts of its own: ``{"type": "text", "text": ...}``, ``{"type": "image", ...}``."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else [{**part} for part in content]


def joined_parts(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Copies of parts, in which texts that stand side by side are one."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if found and part.get("type") == found[-1].get("type") == "text":
            found[-1]["text"] += part["text"]
        else:
            found.append({**part})
    return found


def openai_parts(parts: Sequence[Mapping[str, Any]], images: Iterator[Image]) -> list[dict[str, Any]]:
    """Return parts of a content in OpenAI's form, each place of an image with the next image."""
    return [image_part(next(images)) if part["type"] == "image" else {**part} for part in parts]


def openai_messages(problem: Problem) -> list[dict[str, Any]]:
    """Return a problem's messages in OpenAI's form, with its images in their places.

    Raises:
        DataError: There are more or fewer places than images.
    """
    contents = [message.get("content") or "" for message in problem.messages]
    parts = [part for content in contents if not isinstance(content, str) for part in content]
    places = sum(part["type"] == "image" for part in parts)
    if places != len(problem.images):
        text = f"{places} places for images and {len(problem.images)} images"
        raise DataError(f"problem {problem.id}: {text}")
    left = iter(problem.images)
    return [
        {**message, "content": content if isinstance(content, str) else openai_parts(content, left)}
        for message, content in zip(problem.messages, contents, strict=True)
    ]


def content_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The words of a content, with nothing between its parts, as chat templates show them."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
"""All splits. The draws of a problem depend on its split's place here."""


def split_seeds(split: Split, seed: int, index: int) -> Iterator[int]:
    """Yield seeds for a problem without end; a task takes the first one that suits it.

    They are for problems whose contents are drawn. No two splits have a seed in common: a seed's remainder by
    the number of splits says whose it is.
    """
    rng = np.random.default_rng([seed, index])
    while True:
        yield int(rng.integers(2**29)) * len(SPLITS) + SPLITS.index(split)
