"""What tasks over rows share: their files' options, and reading a row's fields."""

from __future__ import annotations

from PIL.Image import Image
from pydantic import Field

from selfverify.errors import DataError
from selfverify.tasks.base import Space, TaskConfig
from selfverify.tasks.canvas import Split
from selfverify.tasks.coordinates import Size
from selfverify.tasks.data_file import DataFile, File
from selfverify.tasks.rows import Row, row_images


class RowTaskConfig(TaskConfig):
    """Where a task's rows are. A path alone is enough; `DataFile` has what else can be said."""

    train: File = Field(None, description="Data file or folder of the training problems.")
    validation: File = Field(None, description="The same for validation, in the file's order.")
    test: File = Field(None, description="The same for testing, in the file's order.")

    @property
    def files(self) -> dict[Split, DataFile | None]:
        """By split."""
        return {"train": self.train, "validation": self.validation, "test": self.test}


def categories_of(row: Row) -> dict[str, list[str]]:
    """What results are broken down by: the row's values by column. A text alone is one value."""
    if row.get("categories") is not None:
        return {
            column: [values] if isinstance(values, str) else list(values)
            for column, values in row["categories"].items()
        }
    return {"category": [str(row["category"])]} if row.get("category") is not None else {}


def text_field(row: Row, key: str, name: str) -> str:
    """A field that has to hold text.

    Raises:
        DataError: It does not; ``name`` says which problem's.
    """
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{name}: {key} has to be text, not {value!r:.80}")
    return value.strip()


def one_image(row: Row, name: str) -> Image:
    """A row's only image, read.

    Raises:
        DataError: There is none, there are several, or it cannot be read.
    """
    images = row.get("images")
    if not isinstance(images, (list, tuple)) or len(images) != 1:
        raise DataError(f"{name}: images has to be a list of one image, not {images!r:.80}")
    return row_images(row, name)[0]


def space_of(space: Space, size: Size, name: str) -> Size:
    """The space in which the policy writes places in an image of ``size``.

    Raises:
        DataError: The image processor refuses images of this size.
    """
    try:
        return space(size)
    except ValueError as error:
        raise DataError(f"{name}: an image of {size[0]} x {size[1]} pixels: {error}") from None
