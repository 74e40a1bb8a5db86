"""What a reply holds: its texts and images, checked before any work is done on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfverify.core.episode import Reply
from selfverify.core.errors import DataError

CHARACTERS_PER_TOKEN = 64
"""Words of more characters than this for each token of the model's context are not tokenised at all."""
_NO_LIMIT = 2**18
"""Tokens of the context of a model whose settings name none."""
_FEWEST = 4
"""Characters per token of the shortest beginning that is looked at."""


class TooLongError(DataError):
    """A reply that alone takes more tokens than the model reads."""


def reply_parts(reply: Reply, where: str) -> list[dict[str, Any]]:
    """A reply's content as parts.

    Raises:
        DataError: The reply is not of the form that `Reply` describes; ``where`` is named.
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
    """The parts' texts, with ``?`` in place of surrogates, which JSON can hold and no tokenizer takes."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def check_length(tokenizer: Any, texts: Sequence[str], parts: int, limit: int | None, where: str) -> None:
    """Refuse what the model cannot read, without tokenising all of it.

    Beginnings of the text are tokenised, each twice as long as the one before, until one fills the context.

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
    limit = _NO_LIMIT if limit is None else limit
    characters = sum(len(text) for text in texts) + parts
    if characters > CHARACTERS_PER_TOKEN * limit:
        raise DataError(f"{where}: the reply has {characters} characters and the model reads {limit} tokens")
    size = _FEWEST * limit
    whole = "".join(texts) if characters > size else ""
    while size < len(whole):
        tokens = len(tokenizer(whole[:size], add_special_tokens=False)["input_ids"])
        if tokens > limit:
            raise TooLongError(
                f"{where}: the reply's first {size} characters take {tokens} tokens and the model reads "
                f"{limit}"
            )
        size *= 2
