"""How prompts and their continuations share a row, and the keys and values of growing continuations.

Ragged lists of tokens that follow prompts become padded tensors (`Continuations`).

Names of tensors in `policy` end in their axes: B prompts, G continuations of each, R tokens of a
continuation, P tokens of a prompt, L tokens of a whole row, N rows, H the hidden size, A the axes of position
ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from PIL.Image import Image
from torch import Tensor

from selfverify.policy.flash import Sizes

if TYPE_CHECKING:
    from selfverify.policy.families import ImageInput

Masks = tuple[Tensor | None, Tensor | None]
"""Numbers added to the scores of a prompt's keys and of a continuation's own; None where all are seen."""

Places = tuple[Tensor, Tensor]
"""Two ``[B', G']``: of which prompts, and which of their G continuations; an index of a ``[B, G, ...]``."""


@dataclass(slots=True)
class SharedLayout:
    """How a row is laid out, and for generation the keys and values seen so far.

    Args:
        mode: ``packed`` (prompt and continuations in one forward), ``prefill`` (prompts only, their keys
            and values are kept) or ``grow`` (new tokens of each of the G continuations, equally many; shorter
            ones are padded on the right).
        prompt_lengths: ``[B]`` true prompt lengths; prompts are padded on the right to P.
        prompt_width: P.
        continuations: G.
        prompt_keys: Keys and values ``[2, B, K, P, D]`` of each layer (``prefill``, ``grow``).
        own_keys: Keys and values ``[2, B, G, K, room, D]`` of each layer (``grow``), without gaps.
        scores_at_once: How many attention scores of a layer may exist at a time where tokens grow; None
            is no limit.
        least_room: Own tokens that there is room for at first, by default ``FIRST_ROOM``.
        starts: ``[B, G]`` how many own tokens each continuation has before the new ones (``grow``).
        longest: The largest of ``starts``, known without asking the device.
        even: Whether all ``starts`` are equal.
        prompt_images: ``[B, P]`` number of the image that a token belongs to, -1 for text, where an image's
            tokens see each other both ways; None where every token sees only what stands before it.
        own_images: ``[B, G, R]`` the same of the continuations' new tokens.
        is_part: Whether it is a view of another layout's rows (`part`).
        masks: Made by the first layer that has a window of this size, for the other layers.
        windows: The sliding window of each layer that has attended in the latest pass, by its number.
    """

    FIRST_ROOM: ClassVar[int] = 64

    mode: Literal["packed", "prefill", "grow"]
    prompt_lengths: Tensor
    prompt_width: int
    continuations: int = 1
    prompt_keys: dict[int, Tensor] = field(default_factory=dict)
    own_keys: dict[int, Tensor] = field(default_factory=dict)
    scores_at_once: int | None = None
    least_room: int = FIRST_ROOM
    starts: Tensor | None = None
    longest: int = 0
    even: bool = True
    prompt_images: Tensor | None = None
    own_images: Tensor | None = None
    is_part: bool = False
    masks: dict[int | None, Masks] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)
    _columns: Tensor | None = None
    _sizes: Sizes | None = None
    _kept_sizes: Sizes | None = None

    def sizes(self) -> Sizes | None:
        """The prompt lengths if any prompt is padded; fetched from the device once, as every layer asks."""
        if self._sizes is None:
            self._sizes = Sizes(self.prompt_lengths)
        return self._sizes if any(size != self.prompt_width for size in self._sizes.listed) else None

    def kept_sizes(self, more: int = 0) -> Sizes | None:
        """How many own tokens ``[B*G]`` continuations have, and ``more``, the same in all layers of a pass;
        None where all have as many."""
        if self.even or self.starts is None:
            return None
        if self._kept_sizes is None:
            self._kept_sizes = Sizes(self.starts.flatten() + more)
        return self._kept_sizes

    def take_prompt(self, row: int, other: SharedLayout, problem: int) -> None:
        """Put a prompt of another layout in the place of the prompt ``row``."""
        self.prompt_lengths[row] = other.prompt_lengths[problem]
        for number, pair in self.prompt_keys.items():
            pair[:, row] = other.prompt_keys[number][:, problem]
        self._sizes = None

    def to_grow(
        self, continuations: int, scores_at_once: int, problems: list[int] | None = None
    ) -> SharedLayout:
        """Return a layout of ``continuations`` rows, all still empty, behind each prefilled prompt.

        With ``problems`` behind copies of these prompts, each as often as it is named.
        """
        lengths, keys = self.prompt_lengths, self.prompt_keys
        if problems is not None:
            lengths, keys = lengths[problems], {number: pair[:, problems] for number, pair in keys.items()}
        return SharedLayout(
            "grow", lengths, self.prompt_width, continuations, keys, scores_at_once=scores_at_once
        )

    def place(self, starts: Tensor, longest: int, even: bool, own_images: Tensor | None = None) -> None:
        """Say where the tokens of the next forward stand; see the class for the arguments."""
        self.starts, self.longest, self.even, self.own_images = starts, longest, even, own_images
        self.masks.clear()
        self._kept_sizes = self._columns = None

    def select(
        self, at: Places, columns: int | None = None, more: int = 0, release: bool = False
    ) -> SharedLayout:
        """A copy of some continuations.

        Args:
            at: Which, of the different prompts of its rows, in order.
            columns: The own tokens to copy, with room for ``more`` behind them; None copies all the room.
            more: See ``columns``.
            release: Whether each layer is dropped here once it has been copied.
        """
        problems = at[0][:, 0]
        all_problems = len(problems) == len(self.prompt_lengths)
        copy = SharedLayout(
            self.mode,
            self.prompt_lengths[problems],
            self.prompt_width,
            at[0].shape[1],
            dict(self.prompt_keys) if all_problems else {},
            scores_at_once=self.scores_at_once,
        )
        if not all_problems:
            for number in [*self.prompt_keys]:
                pair = self.prompt_keys.pop(number) if release else self.prompt_keys[number]
                copy.prompt_keys[number] = pair[:, problems]
        for number in [*self.own_keys]:
            pair = self.own_keys.pop(number) if release else self.own_keys[number]
            few = pair[:, *at, :, :columns]
            if columns is not None:
                few = torch.cat([few, few.new_zeros(*few.shape[:4], more, few.shape[5])], dim=4)
            copy.own_keys[number] = few
        return copy

    def part(self, first: int, end: int, columns: int) -> SharedLayout:
        """The rows of the problems ``first`` to ``end``, all continuations of each, as a view.

        Tokens added to the view are kept here, up to ``columns`` own ones.
        """
        for number, pair in [*self.own_keys.items()]:
            self._make_room(number, pair, columns)
        few = slice(first, end)
        return SharedLayout(
            self.mode,
            self.prompt_lengths[few],
            self.prompt_width,
            self.continuations,
            {number: pair[:, few] for number, pair in self.prompt_keys.items()},
            {number: pair[:, few] for number, pair in self.own_keys.items()},
            scores_at_once=self.scores_at_once,
            is_part=True,
        )

    def put_back(self, copy: SharedLayout, at: Places, first: int, end: int) -> None:
        """Take the own keys in columns ``first`` to ``end`` from a `select`ed copy that has grown since."""
        for number, theirs in copy.own_keys.items():
            self._make_room(number, theirs, end)
            self.own_keys[number][:, *at, :, first:end] = theirs[..., first:end, :]

    def _make_room(self, number: int, like: Tensor, columns: int) -> None:
        """Room for ``columns`` own tokens in layer ``number``; it grows by doubling.

        While a layer grows, its old keys are held beside the new ones, those of other layers are not.
        """
        kept = self.own_keys.get(number)
        have = 0 if kept is None else kept.shape[4]
        if have >= columns:
            return
        room = max(columns, 2 * have, self.least_room)
        # Zeros: the mask hides places that are not written yet, and must not meet a NaN.
        shape = 2, len(self.prompt_lengths), self.continuations, like.shape[-3], room, like.shape[-1]
        wider = like.new_zeros(shape)
        if kept is not None:
            wider[..., :have, :] = kept
        self.own_keys[number] = wider

    def add(self, number: int, key: Tensor, value: Tensor) -> Tensor:
        """Keep new tokens' keys and values, each ``[B, G, K, R, D]``.

        Returns:
            ``[2, B, G, K, T, D]`` all that the rows have.
        """
        assert self.starts is not None
        r, end = key.shape[3], self.longest + key.shape[3]
        self._make_room(number, key, end)
        kept = self.own_keys[number]
        if self.even:
            torch.stack([key, value], out=kept[..., self.longest : end, :])
        else:
            if self._columns is None:
                self._columns = self.starts[..., None] + torch.arange(r, device=key.device)
            fresh = torch.stack([key, value])
            kept.scatter_(4, self._columns[:, :, None, :, None].expand_as(fresh), fresh)
        return kept[..., :end, :]


class Carrier:
    """Holds a layout on its way through a model: FSDP copies dataclasses at each module that it wraps."""

    def __init__(self, layout: SharedLayout) -> None:
        self.layout = layout


@dataclass(slots=True)
class Continuation:
    """Tokens that follow a prompt; images only where the environment put some in.

    Args:
        tokens: Token ids, image placeholders expanded.
        images: One entry per image, in order.
        unexpanded: Token ids with one slot per image, which read as words; None where that is the same.
        pictures: The images themselves, for engines that encode them on their own.
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
