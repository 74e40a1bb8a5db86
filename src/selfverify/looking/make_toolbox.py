"""The tools that settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import ConfigError
from selfverify.looking.look_settings import ToolModels, VisualConfig
from selfverify.looking.tools.caption import ImageCaptioner
from selfverify.looking.tools.cropping import Crop, ZoomIn
from selfverify.looking.tools.depth import Depth
from selfverify.looking.tools.finding import GroundingTool, VisualSearch
from selfverify.looking.tools.grabcut import GrabCut
from selfverify.looking.tools.hub_models import missing_model
from selfverify.looking.tools.ocr import Ocr
from selfverify.looking.tools.overlay import Overlay
from selfverify.looking.tools.sam import Sam
from selfverify.looking.tools.segment import ImageSegment
from selfverify.looking.tools.similarity import Similarity
from selfverify.looking.tools.terminate import Terminate
from selfverify.looking.tools.tool_server import RemoteTool, behind_server
from selfverify.looking.tools.toolbox import Toolbox
from selfverify.looking.tools.visual_tool import VisualTool
from selfverify.looking.tools.zero_shot import ZeroShotDetector

MODELS = ("detector", "depth_model", "segment_model", "similarity_model", "caption_model")
"""The settings that name models of tools."""


def all_tools(models: ToolModels, seconds: float = 60.0) -> list[VisualTool[Any]]:
    """The paper's ten tools and `terminate`, also those that are not available here.

    Args:
        models: The models behind them, or the server that has them.
        seconds: How long such a server may take.
    """
    if models.tool_server is not None:
        here = models.model_copy(update={"tool_server": None})
        return behind_server(all_tools(here), models.tool_server, 0.95 * seconds)
    device = models.tool_device
    detector = ZeroShotDetector(models.detector, device=device)
    sam = models.segment_model
    return [
        Crop(),
        ZoomIn(),
        GroundingTool(detector),
        VisualSearch(detector),
        Depth(models.depth_model, device),
        Ocr(),
        ImageSegment(GrabCut() if sam is None else Sam(sam, device)),
        ImageCaptioner(models.caption_model, device),
        Similarity(models.similarity_model, device),
        Overlay(),
        Terminate(),
    ]


def make_toolbox(settings: VisualConfig, known: Sequence[VisualTool[Any]] | None = None) -> Toolbox:
    """The tools that were asked for; all of them where none is named.

    Args:
        settings: Which tools.
        known: What is chosen from, by default `all_tools`; their models are loaded once.

    Raises:
        ConfigError: There is no tool of a name, one that was named is not available here, a model that was
            named is not there, or the server of tools cannot be asked.
    """
    tools = {
        tool.name: tool for tool in (all_tools(settings, settings.tool_seconds) if known is None else known)
    }
    if unknown := sorted(set(settings.tools) - tools.keys()):
        raise ConfigError(f"there is no tool {unknown[0]!r} for looking; there are {', '.join(tools)}")
    servers = {tool.server for tool in tools.values() if isinstance(tool, RemoteTool)}
    if unreachable := "; ".join(filter(None, (server.unreachable() for server in servers))):
        raise ConfigError(f"{unreachable}; start one with `selfverify visual serve`, or name none")
    for field in MODELS:
        named = getattr(settings, field)
        if named is not None and (why := missing_model(named, field)):
            raise ConfigError(why)
    for name in settings.tools:
        if why := tools[name].missing():
            raise ConfigError(f"the tool {name} is not available here: {why}")
    chosen = [tools[name] for name in settings.tools] or [*tools.values()]
    if settings.terminate == "refuse":
        chosen = [tool for tool in chosen if not isinstance(tool, Terminate)]
    return Toolbox(chosen, settings.tool_seconds)
