"""The settings of looking: which tools there are, and when it ends."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfverify.core.settings import Settings
from selfverify.looking.tools.pictures import SpaceName

ANSWER_NOW = "You have looked enough. Call no more tools, and answer the question now."


class ToolModels(Settings):
    """Models behind the tools: folders or hub ids, loaded when a tool is first called."""

    detector: str | None = None
    """With --look: what `grounding` and `visual_search` find things with (GroundingDINO, OWL-ViT). By default
    the packaged YOLOv3-tiny, where it is installed, which knows COCO's 80 words only."""

    depth_model: str | None = None
    """With --look: what `depth` measures with (Depth Anything, DPT)."""

    segment_model: str | None = None
    """With --look: what `segment` works with (SAM). By default GrabCut."""

    similarity_model: str | None = None
    """With --look: what `similarity` compares with (CLIP, SigLIP)."""

    caption_model: str | None = None
    """With --look: what `caption` describes with (BLIP, or a model that chats about images)."""

    tool_device: str = "cpu"
    """With --look: where the tools' models run: `cpu`, `cuda`, `cuda:1`."""


class LookSettings(ToolModels):
    """How a model looks again."""

    tools: list[str] = []
    """The tools; by default all that are available here."""

    max_steps: int = Field(6, ge=1, le=100)
    """The most steps; with the last of them the model is told to answer."""

    stop: str = "never"
    """When looking ends before that: `never`, `after:N` steps, or where the `verifier` has heard enough."""

    verifier: str | None = None
    """With `stop: verifier`: its folder or hub id."""

    verifier_base: str | None = None
    """What the verifier was trained from; by default the model below its adapter."""

    rule: Literal["absolute", "signed"] | None = None
    """Whether the verifier has heard enough where |Δr| < ε (`absolute`, the paper), or where Δr < ε
    (`signed`); by default as its calibration says."""

    epsilon: float | None = None
    """ε in nats; by default that of the calibration beside the verifier."""

    on_stop: Literal["run", "skip"] = "run"
    """Whether the tool of the step with which looking ends still runs, as in the paper's Algorithm 1, or plan
    and call are dropped, and the answer comes from what was there before."""

    terminate: Literal["refuse", "accept"] = "accept"
    """Whether the model may end looking by itself, by answering or calling `terminate`."""

    answer_each_step: bool = False
    """Whether the model is asked for an answer after every step, beside the conversation, which then goes on
    as though it had not been asked. So all rules can be compared on the same conversations."""

    calls: Literal["vts", "template"] = "vts"
    """How calls are asked for: as VTS-V's JSON, which the question describes, or by the chat template."""

    coordinates: Literal["family", SpaceName] = "family"
    """How the model writes places: as its family does (thousandths for a server's), or as named."""

    errors_in_a_row: int = Field(3, ge=1)
    """Refused, failed or repeated calls in a row after which the model is told to answer."""

    tool_seconds: float = Field(60.0, gt=0)
    """How long a tool may take."""

    most_shown: int = Field(1_000_000, ge=64)
    """Pixels of the largest image that is shown; larger ones are shown smaller."""

    smallest: int = Field(4, ge=1)
    """Pixels of the shortest side of a part that is looked at."""

    announce: Literal["described", "number"] = "described"
    """What is said before an image that a tool has made: its number, what it is and its size, or its number
    alone, which is cheaper for small models."""

    answer_now: str = ANSWER_NOW
    """What the model is told when looking ends."""
