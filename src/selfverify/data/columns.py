"""What Parquet and Arrow files share: which columns hold images, and leaving those on the disk."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfverify.data.fields import Blob
from selfverify.errors import ConfigError


def need_pyarrow(file: Path) -> None:
    """Say what to install.

    Raises:
        ConfigError: pyarrow is not there.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"{file}: reading this needs pyarrow; pip install 'selfverify[data]'")


def holds_images(kind: Any) -> bool:
    """Whether a column's type is bytes, the struct of bytes and path that `datasets` uses, or a list of
    either."""
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return holds_images(kind.value_type)
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def blobs(value: Any, load: Callable[[], Any]) -> Any:
    """Blobs in the places of a cell's images, of which ``value`` tells how many there are.

    Args:
        value: The cell, which may lack the images' bytes.
        load: The whole cell.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [
            None if item is None else Blob(lambda place=place: load()[place])  # type: ignore[misc]
            for place, item in enumerate(value)
        ]
    return Blob(load)
