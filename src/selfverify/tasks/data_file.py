"""A data file as recipes name it: by its path, or with what else its reader has to be told."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_serializer

from selfverify.data import Rows, open_rows


class DataFile(BaseModel):
    """A data file or folder, and how it is read (`selfverify.data.open_rows`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1, description="The file, or a folder whose files belong together.")
    format: str | None = Field(None, description="Its format, if it is not recognised (docs/data.md).")
    split: str | None = Field(None, description="The split to read, where there are several.")
    images: str | None = Field(
        None, description="Folder that images' paths start from; the file's by default."
    )
    limit: int | None = Field(None, ge=1, description="Read this many rows only.")
    on_bad: Literal["skip", "refuse"] = Field(
        "skip", description="Leave rows that cannot be used out, named and counted, or stop at them."
    )
    check_images: bool = Field(
        False, description="Decode every image on opening, so that broken ones count as broken rows."
    )

    def open(self) -> Rows:
        """Its rows; see `open_rows`."""
        return open_rows(
            self.path,
            format=self.format,
            split=self.split,
            images=self.images,
            limit=self.limit,
            on_bad=self.on_bad,
            check_images=self.check_images,
        )

    @model_serializer
    def _short(self) -> Any:
        """What was said; the path alone where nothing else was."""
        fields = type(self).model_fields
        told = {name: getattr(self, name) for name in fields}
        told = {name: value for name, value in told.items() if value != fields[name].default}
        return self.path if told.keys() == {"path"} else told


def _file(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


File = Annotated[DataFile | None, BeforeValidator(_file)]
