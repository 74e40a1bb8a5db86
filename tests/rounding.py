"""By how much two computations of the same numbers may differ, in one place.

In which order a kernel adds, and what it fuses, depends on the processor. So what is to be exact is computed
in float64, and float32 has room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

ROOM = {torch.float64: 1e-10, torch.float32: 1e-4}
"""The largest difference that is rounding, relative to the largest value."""


def assert_close(found: Any, expected: Any, size: float | None = None, name: str = "") -> None:
    """Compare tensors, numbers or lists of them, up to `ROOM` of the largest expected value.

    Args:
        found: Has the type of ``expected``. Lists and numbers have the default one, which is float32.
        expected: What it should be.
        size: What the room is relative to, where that is not the largest value: a difference of large
            numbers, or a sum whose parts cancel, has their rounding.
        name: Stands in the message.
    """
    expected = torch.as_tensor(expected).detach()
    found = torch.as_tensor(found, dtype=None if isinstance(found, Tensor) else expected.dtype).detach()
    if size is None:
        size = float(expected.abs().max()) if expected.numel() else 0.0
    room = ROOM[expected.dtype] * size
    torch.testing.assert_close(found, expected, rtol=0, atol=room, msg=lambda text: f"{name}\n{text}".strip())


def assert_gradients_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare gradients by the name of their parameter, each relative to its largest value.

    Or to a tenth of the largest of all: a gradient that is 0 on paper, such as that of a key's bias, is the
    rounding of its parts.
    """
    assert found.keys() == expected.keys()
    largest = {name: float(wanted.abs().max()) for name, wanted in expected.items()}
    for name, wanted in expected.items():
        assert_close(found[name], wanted, max(largest[name], max(largest.values()) / 10), name)


@contextmanager
def float64() -> Iterator[None]:
    """Within this nothing that is in float64 is rounded on the way, and what is made anew is in float64.

    Norms, rotary embeddings and output heads compute in float32 whatever the weights are. What transformers
    calls eager attention is the one thing that still does.
    """
    cast, put, default = Tensor.to, Tensor.__setitem__, torch.get_default_dtype()

    def to(tensor: Tensor, *args: Any, **settings: Any) -> Tensor:
        stays = tensor.dtype == torch.float64 and args == (torch.float32,)
        return tensor if stays else cast(tensor, *args, **settings)

    def set_item(tensor: Tensor, place: Any, value: Any) -> None:
        """Of another type, which would be an error."""
        put(tensor, place, cast(value, tensor.dtype) if isinstance(value, Tensor) else value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "__setitem__", set_item)
        patch.setattr(Tensor, "to", to)
        patch.setattr(Tensor, "float", lambda tensor: to(tensor, torch.float32))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
