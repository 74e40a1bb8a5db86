"""Image features: each distinct image passes through a frozen vision tower once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from selfverify.core.errors import DataError
from selfverify.policy.families import ImageInput
from selfverify.policy.loading import Loaded

Item = TypeVar("Item")

MISFIT = (
    "the model cannot take an image as its processor made it; does the folder's preprocessor_config.json "
    "belong to this model?"
)


def tensor_bytes(tensor: Tensor) -> int:
    """The bytes that a tensor takes in memory."""
    return tensor.numel() * tensor.element_size()


class ByteCache(Generic[Item]):
    """Keeps at most ``limit_mb`` MiB of items by key; ``size`` gives an item's bytes. The least recently used
    item leaves first."""

    def __init__(self, limit_mb: float, size: Callable[[Item], int]) -> None:
        self.limit = int(limit_mb * 2**20)
        self.size = size
        self.used = 0
        self._items: OrderedDict[str, Item] = OrderedDict()

    def get(self, key: str) -> Item | None:
        """The item stored under ``key``, or None."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def put(self, key: str, item: Item) -> None:
        """Store ``item`` and drop the oldest until the limit holds; one larger than the limit is not kept."""
        size = self.size(item)
        if key in self._items or size > self.limit:
            return
        self._items[key] = item
        self.used += size
        while self.used > self.limit:
            _, old = self._items.popitem(last=False)
            self.used -= self.size(old)


def image_features(
    loaded: Loaded, images: Sequence[ImageInput], cache: ByteCache[Tensor] | None
) -> dict[str, Tensor]:
    """Features ``[placeholders, F]`` of every distinct image, by content key.

    With a ``cache`` (frozen vision tower) features carry no gradients, and an image passes through the tower
    once for as long as it stays cached. Without a cache features carry gradients.

    Raises:
        DataError: The model makes more or fewer features of an image than its prompt has places for.
    """
    wanted = {image.key: image for image in images}
    features: dict[str, Tensor] = {}
    if cache is not None:
        features = {key: item for key in wanted if (item := cache.get(key)) is not None}
    missing = [image for key, image in wanted.items() if key not in features]
    if missing:
        # Beside others an image's features round differently, and which others are cached already depends on
        # when the run was last resumed. On a CPU, where that must not show, each image goes alone.
        alone = cache is not None and loaded.model.device.type == "cpu"
        batches = [[image] for image in missing] if alone else [missing]
        try:
            with torch.set_grad_enabled(cache is None and torch.is_grad_enabled()):
                made = [
                    item for batch in batches for item in loaded.family.image_features(loaded.model, batch)
                ]
        except (RuntimeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise DataError(f"{MISFIT} ({error})") from error
        for image, item in zip(missing, made, strict=True):
            if len(item) != image.placeholders:
                raise DataError(
                    f"the model makes {len(item)} features of an image for which its prompt has "
                    f"{image.placeholders} places; {MISFIT}"
                )
            features[image.key] = item
            if cache is not None:
                # A slice of one big tensor would keep the whole of it alive.
                cache.put(image.key, item.clone())
    return features
