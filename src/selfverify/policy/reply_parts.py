"""What a reply holds, and how long texts may be: checked before any work is done on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfverify.core.episode import Observation
from selfverify.core.errors import DataError

CHARACTERS_PER_TOKEN = 64
"""Words of more characters than this for each token of the model's context are not tokenised at all."""
_NO_LIMIT = 2**18
"""Tokens of the context of a model whose settings name none."""
_FEWEST = 4
"""Characters per token of the shortest beginning that is looked at."""


class TooLongError(DataError):
    """A text that alone takes more tokens than the model reads."""


def reply_parts(reply: Observation, where: str) -> list[dict[str, Any]]:
    """A reply's content as parts.

    Raises:
        DataError: The reply is not of the form that `Observation` describes; ``where`` is named.
    """
    if reply.role not in ("user", "tool"):
        raise DataError(f"{where}: the reply's role is {reply.role!r}, and only user and tool reply")
    if not isinstance(reply.images, list | tuple):
        raise DataError(f"{where}: the reply's images are no list")
    if isinstance(reply.content, str):
        return [{"type": "text", "text": reply.content}]
    if not isinstance(reply.content, list | tuple):
        raise DataError(f"{where}: the reply's content is neither a text nor a list of parts")
    for part in reply.content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "image" and not (kind == "text" and isinstance(part.get("text"), str)):
            raise DataError(
                f"{where}: the reply has a part that is neither an image nor a text: {str(part)[:100]}"
            )
    return list(reply.content)


def reply_texts(parts: Sequence[dict[str, Any]]) -> list[str]:
    """The parts' texts, without surrogates."""
    return [without_surrogates(part["text"]) for part in parts if part["type"] == "text"]


def without_surrogates(text: str) -> str:
    """A text with ``?`` in place of surrogates, which JSON can hold and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode("utf-8")


def has_too_many_characters(characters: int, limit: int | None) -> bool:
    """Whether a text is longer than any that a model of ``limit`` tokens could read (None: it says none)."""
    return characters > CHARACTERS_PER_TOKEN * (_NO_LIMIT if limit is None else limit)


def check_length(tokenizer: Any, texts: Sequence[str], parts: int, limit: int | None, where: str) -> None:
    """Refuse a reply that the model cannot read, without tokenising all of it.

    Args:
        tokenizer: The model's.
        texts: The words of a reply.
        parts: How many parts the reply has; each takes work, also an empty one.
        limit: The tokens that the model reads; None where its settings do not say.
        where: What errors name.

    Raises:
        DataError: There are so many characters that the reply is none a person meant.
        TooLongError: The beginning alone fills the context.
    """
    characters = sum(len(text) for text in texts) + parts
    if has_too_many_characters(characters, limit):
        raise DataError(f"{where}: the reply has {characters} characters and the model reads {limit} tokens")
    check_beginnings(tokenizer, texts, limit, f"{where}: the reply's")


def check_beginnings(tokenizer: Any, texts: Sequence[str], limit: int | None, whose: str) -> None:
    """Refuse a text whose beginning fills a model's context; each is twice as long as the one before.

    Args:
        tokenizer: The model's.
        texts: The text in pieces.
        limit: The tokens that the model reads; None where its settings do not say.
        whose: What errors name.

    Raises:
        TooLongError: One does.
    """
    limit = _NO_LIMIT if limit is None else limit
    size = _FEWEST * limit
    whole = "".join(texts) if sum(map(len, texts)) > size else ""
    while size < len(whole):
        tokens = len(tokenizer(whole[:size], add_special_tokens=False)["input_ids"])
        if tokens > limit:
            raise TooLongError(
                f"{whose} first {size} characters take {tokens} tokens and the model reads {limit}"
            )
        size *= 2
