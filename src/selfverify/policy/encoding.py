"""From problems to prompts: token ids, positions and image features, each image encoded once."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from PIL.Image import Image
from torch import Tensor

from selfverify.errors import DataError
from selfverify.policy.loading import Loaded
from selfverify.rollouts.types import Problem


@dataclass(slots=True)
class PixelInput:
    """One preprocessed image: ``pixels`` [patches, values], ``grid`` [3] (frames, rows, columns)."""

    key: str
    pixels: Tensor
    grid: Tensor


@dataclass(slots=True)
class Prompt:
    """An encoded prompt.

    Args:
        problem_id: Named in errors.
        ids: ``[P]`` token ids, image placeholders expanded.
        positions: ``[axes, P]`` position ids.
        images: One entry per image, in order.
        next_position: The position of the token that follows.
    """

    problem_id: str
    ids: Tensor
    positions: Tensor
    images: list[PixelInput] = field(default_factory=list)
    next_position: int = 0


class VisionCache:
    """Image features by content, least recently used first out, at most ``limit_mb`` MiB on the device."""

    def __init__(self, limit_mb: float) -> None:
        self.limit = int(limit_mb * 2**20)
        self.used = 0
        self.hits = 0
        self.misses = 0
        self._items: OrderedDict[str, Tensor] = OrderedDict()

    def get(self, key: str) -> Tensor | None:
        """The features stored under ``key``, or None."""
        item = self._items.get(key)
        if item is None:
            self.misses += 1
            return None
        self.hits += 1
        self._items.move_to_end(key)
        return item

    def put(self, key: str, features: Tensor) -> None:
        """Store ``features`` and drop the oldest until the limit holds."""
        size = features.numel() * features.element_size()
        if key in self._items or size > self.limit:
            return
        self._items[key] = features
        self.used += size
        while self.used > self.limit:
            _, old = self._items.popitem(last=False)
            self.used -= old.numel() * old.element_size()

    def clear(self) -> None:
        """Forget everything (the vision tower changed)."""
        self._items.clear()
        self.used = 0


class Encoder:
    """Turns problems into prompts; preprocesses each distinct image once."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self._pixels: OrderedDict[str, PixelInput] = OrderedDict()

    def _image(self, image: Image, problem_id: str) -> PixelInput:
        try:
            rgb = image.convert("RGB")
        except Exception as error:
            # PIL raises many types for broken files; whichever it is, the problem must be named.
            raise DataError(f"problem {problem_id}: an image cannot be read ({error})") from error
        key = hashlib.blake2b(repr(rgb.size).encode() + rgb.tobytes(), digest_size=16).hexdigest()
        if key not in self._pixels:
            assert self.loaded.image_processor is not None
            try:
                made = self.loaded.image_processor(images=[rgb], return_tensors="pt")
            except ValueError as error:
                raise DataError(f"problem {problem_id}: an image of {rgb.size}: {error}") from error
            self._pixels[key] = PixelInput(key, made["pixel_values"], made["image_grid_thw"][0])
            if len(self._pixels) > 1024:
                self._pixels.popitem(last=False)
        return self._pixels[key]

    def prompt(self, problem: Problem) -> Prompt:
        """Encode one problem's messages up to the point where the policy begins to write.

        Raises:
            DataError: Placeholders and images do not match, or an image cannot be read.
        """
        tokenizer, family, model = self.loaded.tokenizer, self.loaded.family, self.loaded.model
        placeholder = family.placeholder(model)
        if problem.images and placeholder is None:
            raise DataError(f"problem {problem.id}: it has images but the model reads text only")
        images = [self._image(image, problem.id) for image in problem.images]
        if placeholder is not None:
            self._refuse_literal(tokenizer.convert_ids_to_tokens(placeholder), problem)
        ids = tokenizer.apply_chat_template(
            problem.messages, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        if placeholder is not None:
            ids = self._expand(ids, images, placeholder, problem.id)
        tensor = torch.tensor(ids, dtype=torch.long)
        grids = torch.stack([image.grid for image in images]) if images else None
        positions = family.positions(model, tensor, grids)
        return Prompt(problem.id, tensor, positions, images, int(positions.max()) + 1 if len(ids) else 0)

    @staticmethod
    def _refuse_literal(literal: str, problem: Problem) -> None:
        # With a literal token in the place of a missing part the counts agree, and the image is misplaced.
        for message in problem.messages:
            content = message.get("content") or []
            parts = [{"text": content}] if isinstance(content, str) else content
            if any(literal in str(part.get("text", "")) for part in parts):
                raise DataError(f"problem {problem.id}: a text contains the image token {literal}")

    def _expand(
        self, ids: list[int], images: list[PixelInput], placeholder: int, problem_id: str
    ) -> list[int]:
        merge = getattr(self.loaded.image_processor, "merge_size", 1) ** 2
        found = ids.count(placeholder)
        if found != len(images):
            raise DataError(
                f"problem {problem_id}: {found} image placeholders in the messages but {len(images)} images; "
                "each image needs one {'type': 'image'} part"
            )
        queue = iter(images)
        expanded: list[int] = []
        for token in ids:
            count = int(next(queue).grid.prod()) // merge if token == placeholder else 1
            expanded.extend([token] * count)
        return expanded


def image_features(
    loaded: Loaded, images: Sequence[PixelInput], cache: VisionCache | None
) -> dict[str, Tensor]:
    """Features ``[tokens, hidden]`` of every distinct image, by content key.

    With a ``cache`` (frozen vision tower) they come without gradients and each image passes through the
    tower once for as long as it stays cached; without one they carry gradients.
    """
    wanted = {image.key: image for image in images}
    features: dict[str, Tensor] = {}
    if cache is not None:
        features = {key: item for key in wanted if (item := cache.get(key)) is not None}
    missing = [image for key, image in wanted.items() if key not in features]
    if missing:
        device = loaded.model.device
        pixels = torch.cat([image.pixels for image in missing]).to(device)
        grids = torch.stack([image.grid for image in missing]).to(device)
        with torch.set_grad_enabled(cache is None and torch.is_grad_enabled()):
            made = loaded.family.image_features(loaded.model, pixels, grids)
        for image, item in zip(missing, made, strict=True):
            features[image.key] = item
            if cache is not None:
                # A slice of one big tensor would keep the whole of it alive.
                cache.put(image.key, item.clone())
    return features
