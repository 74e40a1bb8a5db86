"""A data file as recipes name it: by its path, or by its path and its reader's settings."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_serializer

from selfverify.core.config import Config, PathText
from selfverify.data import Rows, open_rows


class DataFile(Config):
    """A data file or folder, and how it is read (`selfverify.data.open_rows`)."""

    path: PathText = Field(min_length=1, description="The file, or a folder whose files belong together.")
    format: str | None = Field(None, description="The file's format, if it is not recognised (docs/data.md).")
    split: str | None = Field(None, description="The split to read, where there are several.")
    images: PathText | None = Field(
        None, description="Folder that images' paths start from; by default the file's own folder."
    )
    limit: int | None = Field(None, ge=1, description="Read this many rows only.")
    on_bad: Literal["skip", "refuse"] = Field(
        "skip",
        description="`skip` names, counts and leaves out rows that cannot be used; `refuse` stops at them.",
    )
    check_images: bool = Field(
        False, description="Decode every image on opening, so that broken ones count as broken rows."
    )

    def open(self) -> Rows:
        """Return the file's rows (`open_rows`)."""
        return open_rows(**dict(self))

    @model_serializer
    def _short(self) -> Any:
        """Return the settings that differ from their defaults; the path alone where no other does."""
        fields = type(self).model_fields
        told = {name: value for name, value in self if value != fields[name].default}
        return self.path if told.keys() == {"path"} else told


def _file(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | PurePath) else value


File = Annotated[DataFile | None, BeforeValidator(_file)]
