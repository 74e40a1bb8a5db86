"""Image features, which a frozen vision tower makes once for each distinct image, and offloading.

Offloading keeps activations in the host's memory between the forward and the backward pass (`offloaded`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from selfverify.core.errors import DataError
from selfverify.policy.families import ImageInput
from selfverify.policy.loading import Loaded

Item = TypeVar("Item")

MISFIT = (
    "the model cannot take an image as its processor made it; does the folder's preprocessor_config.json "
    "belong to this model?"
)


class ByteCache(Generic[Item]):
    """Keeps items by key, as many as fit into a limit. The least recently used item leaves first.

    Args:
        limit_mb: The limit in MiB.
        size: Gives an item's bytes; by default those of a tensor.
    """

    def __init__(self, limit_mb: float, size: Callable[[Item], int] = attrgetter("nbytes")) -> None:
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
    loaded: Loaded, images: Sequence[ImageInput], cache: ByteCache[Tensor] | None, tokens: int
) -> dict[str, Tensor]:
    """Return features ``[placeholders, F]`` of every distinct image, by content key.

    With a ``cache`` (frozen vision tower) features carry no gradients, and an image passes through the tower
    once as long as it stays cached. Without a cache, features carry gradients.

    Args:
        loaded: The model.
        images: Images of any number.
        cache: See above.
        tokens: How many features the tower makes at once, unless one image has more; without limit where
            gradients are wanted, which keep what the tower has computed anyway.

    Raises:
        DataError: The model makes more or fewer features of an image than its prompt has places for.
    """
    wanted = {image.key: image for image in images}
    features: dict[str, Tensor] = {}
    if cache is not None:
        features = {key: item for key in wanted if (item := cache.get(key)) is not None}
    missing = [image for key, image in wanted.items() if key not in features]
    learns = cache is None and torch.is_grad_enabled()
    # Features of an image round differently beside other images, and which images are cached depends on
    # when the run was last resumed. On a CPU a resumed run has to give the same bits, so each goes alone.
    alone = cache is not None and loaded.model.device.type == "cpu"
    # Where several processes learn they must call the tower equally often.
    batches = [missing] if learns and missing else few_at_once(missing, 1 if alone else tokens)
    for batch in batches:
        try:
            with torch.set_grad_enabled(learns):
                made = loaded.family.image_features(loaded.model, batch)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError):
                raise  # the device has failed, and no other image would do
            raise DataError(f"{MISFIT} ({error})") from error
        for image, item in zip(batch, made, strict=True):
            if len(item) != image.placeholders:
                raise DataError(
                    f"the model makes {len(item)} features of an image for which its prompt has "
                    f"{image.placeholders} places; {MISFIT}"
                )
            # A copy, because a slice would keep the whole batch's tensor alive.
            features[image.key] = item if learns else item.clone()
            if cache is not None:
                cache.put(image.key, features[image.key])
    return features


def few_at_once(images: Iterable[ImageInput], tokens: int) -> list[list[ImageInput]]:
    """Lists of images in order, each of at most ``tokens`` placeholders or of one image."""
    found: list[list[ImageInput]] = []
    used = 0
    for image in images:
        used += image.placeholders
        if not found or used > tokens:
            found.append([])
            used = image.placeholders
        found[-1].append(image)
    return found


def offloaded(model: nn.Module) -> Any:
    """A context for a forward pass, in which the tensors that autograd saves go to the host's memory.

    Weights stay where they are. `torch.autograd.graph.save_on_cpu` would copy them, too.
    """
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(saved: Tensor) -> tuple[torch.device, Tensor]:
        if saved.untyped_storage().data_ptr() in weights:
            return saved.device, saved
        pinned = saved.device.type == "cuda"
        copy = torch.empty(saved.shape, dtype=saved.dtype, layout=saved.layout, pin_memory=pinned)
        return saved.device, copy.copy_(saved)

    def unpack(kept: tuple[torch.device, Tensor]) -> Tensor:
        device, saved = kept
        return saved.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
