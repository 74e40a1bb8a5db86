"""The tools that settings ask for."""

from __future__ import annotations

from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.looking.look_settings import LookSettings
from selfverify.looking.tools.cropping import Crop, ZoomIn
from selfverify.looking.tools.darknet import DarknetDetector
from selfverify.looking.tools.finding import GroundingTool, VisualSearch
from selfverify.looking.tools.ocr import Ocr
from selfverify.looking.tools.overlay import Overlay
from selfverify.looking.tools.segment import ImageSegment
from selfverify.looking.tools.terminate import Terminate
from selfverify.looking.tools.toolbox import Toolbox
from selfverify.looking.tools.visual_tool import VisualTool


def all_tools() -> list[VisualTool[Any]]:
    """The paper's tools and `terminate`, also those that are not available here."""
    detector = DarknetDetector()
    return [
        Crop(), ZoomIn(), GroundingTool(detector), VisualSearch(detector), Ocr(), ImageSegment(), Overlay(),
        Terminate(),
    ]  # fmt: skip


def make_toolbox(settings: LookSettings) -> Toolbox:
    """The tools that were asked for; all of them where none is named.

    Raises:
        ConfigError: There is no tool of a name, or one that was named is not available here.
    """
    tools = {tool.name: tool for tool in all_tools()}
    if unknown := sorted(set(settings.tools) - tools.keys()):
        raise ConfigError(f"there is no tool {unknown[0]!r} for looking; there are {', '.join(tools)}")
    for name in settings.tools:
        if why := tools[name].missing():
            raise ConfigError(f"the tool {name} is not available here: {why}")
    chosen = [tools[name] for name in settings.tools] or [*tools.values()]
    if settings.terminate == "refuse":
        chosen = [tool for tool in chosen if not isinstance(tool, Terminate)]
    return Toolbox(chosen, settings.tool_seconds)
