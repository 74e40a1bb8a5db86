"""What all settings that become options of commands have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Settings that forbid unknown keys and do not change. The text below a field describes it to people."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
