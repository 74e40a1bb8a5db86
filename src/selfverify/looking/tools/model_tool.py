"""Visual tools whose model people name."""

from __future__ import annotations

from typing import ClassVar, Generic

from selfverify.looking.tools.hub_models import missing_model
from selfverify.looking.tools.visual_tool import A, VisualTool


class ModelTool(VisualTool[A], Generic[A]):
    """A tool that is available where a model is named for it.

    Args:
        model: A folder or a hub id; None where none is named.
        device: Where it runs.

    Attributes:
        setting: The field of `ToolModels` that names the model.
    """

    setting: ClassVar[str]

    def __init__(self, model: str | None = None, device: str = "cpu") -> None:
        self.model, self.device = model, device

    def missing(self) -> str:
        """See `VisualTool`."""
        return missing_model(self.model, self.setting)

    @property
    def named(self) -> str:
        """The model; only a tool that is not `missing` has one."""
        assert self.model is not None
        return self.model
