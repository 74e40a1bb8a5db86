"""What all settings that become options of commands have in common."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Settings(BaseModel):
    """Settings that forbid unknown keys and do not change. The text below a field describes it to people."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


PathText = Annotated[str, BeforeValidator(_as_text)]
"""A path, which stays a text; given as a `pathlib.Path` it becomes one."""
