"""The settings of `selfverify data check`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from selfverify.core.config import CommandConfig


class CheckConfig(CommandConfig):
    """How a data file is read, and the model whose tokens are counted."""

    format: str | None = None
    """The file's format, if it is not recognised."""

    split: str | None = None
    """The split to read, where there are several."""

    images: Path | None = None
    """The folder that paths of images start from; by default the data file's."""

    limit: int | None = Field(None, ge=1)
    """The largest number of rows to read."""

    model: str = "builtin:digits"
    """The model whose tokens are counted; its weights are not loaded."""

    max_pixels: int | None = Field(None, ge=1)
    """The largest image area after resizing, as `policy.max_pixels` in a recipe."""

    samples: int = Field(2, ge=0)
    """The number of problems to show as the model sees them."""
