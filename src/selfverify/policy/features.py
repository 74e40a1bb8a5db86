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
    """Keeps items by key, as many as fit into a limit. The least recently used item leaves first.

    Args:
        limit_mb: The limit in MiB.
        size: Gives an item's bytes.
    """

    def __init__(self, limit_mb: float, size: Callable[[Item], int]) -> None:
        self.limit = int(limit_mb * 2**20)
        self.size = size
        self.used = 0
        self._items: OrderedDict[str, Item] = OrderedDict()

    def get(self, key: str) -> Item | None:
        """Return the item stored under ``key``, or None."""
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def put(self, key: str, item: Item) -> None:
        """Store ``item`` and drop others until the limit holds. An item above the limit is not stored."""
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
    """Return features ``[placeholders, F]`` of every distinct image, by content key.

    With a ``cache`` (frozen vision tower) features carry no gradients, and an image passes through the tower
    once as long as it stays cached. Without a cache, features carry gradients.

    Raises:
        DataError: The model makes more or fewer features of an image than its prompt has places for.
    """
    wanted = {image.key: image for image in images}
    features: dict[str, Tensor] = {}
    if cache is not None:
        features = {key: item for key in wanted if (item := cache.get(key)) is not None}
    missing = [image for key, image in wanted.items() if key not in features]
    if missing:
        # Features of an image round differently beside other images, and which images are cached depends on
        # when the run was last resumed. On a CPU a resumed run has to give the same bits, so each goes alone.
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
                # A copy, because a slice would keep the whole batch's tensor alive.
                cache.put(image.key, item.clone())
    return features
