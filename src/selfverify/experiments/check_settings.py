"""The settings of `selfverify data check`."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class CheckSettings(BaseModel):
    """How a data file is read, and the model whose tokens are counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str | None = Field(None, description="The file's format, if it is not recognised.")
    split: str | None = Field(None, description="The split to read, where there are several.")
    images: Path | None = Field(
        None, description="The folder that paths of images start from; by default the data file's."
    )
    limit: int | None = Field(None, ge=1, description="The largest number of rows to read.")
    model: str = Field(
        "builtin:digits", description="The model whose tokens are counted; its weights are not loaded."
    )
    max_pixels: int | None = Field(
        None, ge=1, description="The largest image area after resizing, as `policy.max_pixels` in a recipe."
    )
    samples: int = Field(2, ge=0, description="The number of problems to show as the model sees them.")
