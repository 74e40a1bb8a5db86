"""The settings of looking again: which tools there are, what they may show, and when looking ends."""

from __future__ import annotations

from typing import Literal

from PIL.Image import Image
from pydantic import Field, model_validator

from selfverify.core.config import Config

ANSWER_NOW = "You have looked enough. Call no more tools, and answer the question now."

Results = Literal["shown", "blanked", "swapped"]
"""How the images that tools make are shown to a model."""

SpaceName = Literal["pixels", "unit", "thousandths"]
"""How places are written: in pixels of the image as it is shown, in fractions or thousandths of its sides."""


class ToolModelsConfig(Config):
    """Models behind the tools: folders or hub ids, loaded when a tool is first called."""

    detector: str | None = None
    """The model with which `grounding` and `visual_search` find things (GroundingDINO, OWLv2)."""

    depth_model: str | None = None
    """The model of `depth` (Depth Anything, DPT)."""

    segment_model: str | None = None
    """The model of `segment` (SAM, SAM 2, SAM 3). By default GrabCut."""

    similarity_model: str | None = None
    """The model of `similarity` (CLIP, SigLIP)."""

    caption_model: str | None = None
    """The model of `caption` (BLIP, Florence-2, or a model that chats about images)."""

    tool_server: str | None = None
    """The address of a server of visual tools (`selfverify visual serve`), which does the work
    of all tools but `crop`, `zoom_in` and `overlay`. Its models are its own."""

    tool_device: str = "cpu"
    """Where the tools' models run: `cpu`, `cuda`, `cuda:1`."""


class EndingConfig(Config):
    """When a model ends looking, or is told to."""

    stop: str = Field("never", json_schema_extra={"option": "stop_looking"})
    """When looking ends before the last step: `never`, `after:N` steps, or verifier,
    where that has heard enough."""

    verifier: str | None = Field(None, json_schema_extra={"option": "stop_verifier"})
    """A folder or hub id of a model that hears each step; or URL#MODEL, behind a vLLM server."""

    verifier_base: str | None = Field(None, json_schema_extra={"option": "stop_verifier_base"})
    """The model that the verifier was trained from; by default the model below its adapter. Behind servers
    it is needed, as URL#MODEL."""

    rule: Literal["absolute", "signed"] | None = Field(None, json_schema_extra={"option": "stop_rule"})
    """Where the verifier has heard enough: Δr < ε (`signed`, Algorithm 1), or |Δr| < ε (`absolute`, §3.4 and
    Lemma 3.1); by default as its calibration says, without one `signed`."""

    epsilon: float | None = None
    """ε in nats, below 0 for most `signed` rules; by default that of the calibration beside the verifier."""

    on_stop: Literal["run", "skip"] = "run"
    """Whether the tool of the step with which looking ends still runs, as in the paper's
    Algorithm 1, or plan and call are taken back, and the answer comes from what was there before (`skip`)."""

    terminate: Literal["refuse", "accept"] = "accept"
    """Whether the model may end looking by itself, by answering or calling the tool terminate."""


class VisualBaseConfig(EndingConfig, ToolModelsConfig):
    """Settings, as people write them, of how a model looks again."""

    tools: list[str] = Field([], json_schema_extra={"option": "tool"})
    """A tool that the model may call; repeat the option. By default all that are available."""

    max_steps: int = Field(6, ge=1, le=100)
    """How many times the model may look; at the last step it is told to answer."""

    max_visual_tokens: int | None = Field(None, ge=1)
    """How many visual tokens the model may be shown, the question's images included. An image that would
    exceed them is left out, and the model is told to answer. For servers a token is 28 x 28 pixels."""

    calls: Literal["vts", "template"] = "vts"
    """How calls are asked for: as VTS-V's JSON, which the question describes, or by the chat
    template."""

    coordinates: Literal["family", SpaceName] = "family"
    """How the model writes places: as its family does (thousandths for a server's), or as
    named."""


class VisualToolConfig(VisualBaseConfig):
    """Whether and how a model looks at the images again (VTS-V)."""

    look: bool = False
    """Let the model look at the images again with tools, which `selfverify visual` lists. The tools' options,
    and those that end looking, need this one."""

    def settings(self) -> VisualConfig:
        """How the model looks."""
        return VisualConfig(**self.model_dump(exclude={"look"}))

    @model_validator(mode="after")
    def _only_with_look(self) -> VisualToolConfig:
        if not self.look:
            values, fields = self.model_dump(exclude={"look"}), VisualBaseConfig.model_fields
            given = [name for name, value in values.items() if value != fields[name].default]
            if given:
                raise ValueError(f"`{given[0]}` needs `look`")
        return self


class VisualConfig(VisualBaseConfig):
    """How a model looks again."""

    answer_each_step: bool = False
    """Whether the model is asked for an answer after every step, beside the conversation, which then goes on
    as though it had not been asked. So all rules can be compared on the same conversations."""

    results: Results = "shown"
    """How the images that tools make are shown: as they are; as a single colour (`blanked`); or, where the
    task can, replaced by what tools make of another problem's images (`swapped`). The latter
    two tell whether what is gained is gained by looking."""

    step_price: float = Field(0.0, ge=0, le=1)
    """The price of each step, taken off the reward of a right answer, down to 0: for training, so that a
    policy learns to end looking when it has seen enough."""

    errors_in_a_row: int = Field(3, ge=1)
    """Refused, failed or repeated calls in a row after which the model is told to answer."""

    tool_seconds: float = Field(60.0, gt=0)
    """How long a tool may take."""

    most_shown: int = Field(1_000_000, ge=64)
    """Pixels of the largest image that is shown; larger ones are shown smaller."""

    smallest: int = Field(4, ge=1)
    """Pixels of the shortest side of a part that is looked at."""

    announce: Literal["described", "number"] = "described"
    """The words before an image that a tool has made: its number, what it is and its size, or its number
    alone, which is cheaper for small models."""

    answer_now: str = ANSWER_NOW
    """The request for an answer when looking ends."""


PIXELS_PER_TOKEN = 28 * 28
"""Qwen2-VL and Qwen2.5-VL merge 28 x 28 pixels into one token."""


def estimated_tokens_of(image: Image) -> int:
    """Return an image's tokens as Qwen2-VL counts them, for models of which nothing is known."""
    return max(image.width * image.height // PIXELS_PER_TOKEN, 1)
