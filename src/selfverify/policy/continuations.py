"""What follows prompts: ragged lists of tokens as padded tensors.

Names of tensors in `policy` end in their axes: B prompts, G continuations of each, R tokens of a
continuation, P tokens of a prompt, L tokens of a whole row, N rows, H the hidden size, A the axes of position
ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL.Image import Image
from torch import Tensor

from selfverify.policy.families import ImageInput


@dataclass(slots=True)
class Continuation:
    """Tokens that follow a prompt; images only where the environment put some in.

    Args:
        tokens: Token ids, image placeholders expanded.
        images: One entry per image, in order.
        unexpanded: Token ids with one slot per image, for engines that expand prompts on their own; None
            where that is the same.
        pictures: The images themselves, for the same engines.
    """

    tokens: Sequence[int]
    images: list[ImageInput] = field(default_factory=list)
    unexpanded: list[int] | None = None
    pictures: list[Image] = field(default_factory=list)


RaggedTokens = Sequence[Sequence[Sequence[int] | Continuation]]
"""For each of B prompts up to G continuations: lists of tokens, or `Continuation` where images come in."""


@dataclass(slots=True)
class Continuations:
    """Continuations of B prompts: ids padded on the right, lengths, and B lists of G lists of images."""

    ids_bgr: Tensor
    lengths_bg: Tensor
    images: list[list[list[ImageInput]]]

    @classmethod
    def stack(cls, rows: RaggedTokens, pad: int, device: torch.device) -> Continuations:
        """Ragged continuations as tensors; groups of different size are filled up with empty ones."""
        groups = [[c if isinstance(c, Continuation) else Continuation(c) for c in group] for group in rows]
        size = max((len(group) for group in groups), default=0)
        groups = [group + [Continuation([])] * (size - len(group)) for group in groups]
        lengths = torch.tensor([[len(c.tokens) for c in group] for group in groups], dtype=torch.long)
        lengths = lengths.view(len(groups), size)
        ids = torch.full((*lengths.shape, max(int(lengths.max()), 1) if lengths.numel() else 1), pad)
        for b, group in enumerate(groups):
            for g, continuation in enumerate(group):
                ids[b, g, : len(continuation.tokens)] = torch.tensor(continuation.tokens, dtype=torch.long)
        images = [[continuation.images for continuation in group] for group in groups]
        return cls(ids.to(device), lengths.to(device), images)

    @property
    def mask_bgr(self) -> Tensor:
        """True at tokens, False at padding."""
        return torch.arange(self.ids_bgr.shape[2], device=self.ids_bgr.device) < self.lengths_bg[..., None]

    @property
    def has_images(self) -> bool:
        """Whether any continuation contains an image."""
        return any(images for group in self.images for images in group)

    def first(self, prompts: int, each: int) -> Continuations:
        """The first ``each`` continuations of the first ``prompts`` prompts."""
        images = [group[:each] for group in self.images[:prompts]]
        return Continuations(self.ids_bgr[:prompts, :each], self.lengths_bg[:prompts, :each], images)
