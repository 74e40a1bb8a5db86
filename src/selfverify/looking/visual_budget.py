"""How many visual tokens a conversation may be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from PIL.Image import Image

PIXELS_PER_TOKEN = 28 * 28
"""Qwen2-VL and Qwen2.5-VL merge 28 x 28 pixels into one token."""
TokensOf = Callable[[Image], int]
"""How many visual tokens an image takes as it is shown."""


def estimated_tokens_of(image: Image) -> int:
    """Those of Qwen2-VL, for models of which nothing is known."""
    return max(image.width * image.height // PIXELS_PER_TOKEN, 1)


class VisualBudget:
    """Counts what is shown.

    Args:
        most: The most visual tokens; None is no limit, and nothing is counted.
        tokens_of: Counts an image's.
    """

    def __init__(self, most: int | None, tokens_of: TokensOf) -> None:
        self.most, self.tokens_of = most, tokens_of
        self.shown = 0
        """Visual tokens so far."""

    def begin(self, images: Iterable[Image]) -> None:
        """Count the question's images, which are shown in any case."""
        if self.most is not None:
            self.shown = sum(self.tokens_of(image) for image in images)

    def takes(self, image: Image) -> bool:
        """Whether an image may be shown, which then counts."""
        if self.most is None:
            return True
        more = self.tokens_of(image)
        if self.shown + more > self.most:
            return False
        self.shown += more
        return True
