"""What the readers of Parquet and Arrow share: finding columns of images, and leaving images on the disk."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.data.fields import Blob


def need_pyarrow(file: Path) -> None:
    """Check that pyarrow is installed.

    Raises:
        ConfigError: pyarrow is missing; the message says what to install.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{file}: reading this needs pyarrow; pip install 'selfverify[data]'")


def holds_images(kind: Any) -> bool:
    """Whether a column may hold images: bytes, the struct of bytes and path that `datasets` uses, or lists
    of these."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return holds_images(kind.value_type)
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def blobs(value: Any, load: Callable[[], Any]) -> Any:
    """Replace a cell's images by blobs, one for each image that ``value`` has.

    Args:
        value: The cell, possibly without the images' bytes.
        load: Returns the whole cell.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [
            None if item is None else Blob(lambda place=place: load()[place])  # type: ignore[misc]
            for place, item in enumerate(value)
        ]
    return Blob(load)
