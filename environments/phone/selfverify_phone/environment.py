"""The phone as an environment: sessions, calls and observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from selfverify.agents.tools import Address
from selfverify.core.config import Config
from selfverify.core.episode import Call, Environment, StepResult
from selfverify.core.errors import DataError
from selfverify_phone.apps import APPS
from selfverify_phone.phone_tasks import PhoneTask, Start, free_phone, given_task, make_task, read
from selfverify_phone.playing import perform
from selfverify_phone.rendering.picture import picture
from selfverify_phone.rendering.writing import terse, xml
from selfverify_phone.system.device import HOME, Phone, Refused
from selfverify_phone.tools import schemas


class PhoneConfig(Config):
    """How the phone is shown and touched."""

    address: Address = Field(
        "ids", description="How calls name what they touch: by ids, or by bounds as the paper's tools do."
    )
    text: Literal["xml", "terse"] = Field(
        "xml", description="The screen in words: compressed XML with bounds, or a few words with ids only."
    )
    show: Literal["text", "png", "both"] = Field("text", description="What an observation holds.")
    first_screen: Literal["asked", "given"] = Field(
        "asked", description="Whether the agent has to call get_current_xml for the first screen."
    )

    @model_validator(mode="after")
    def _possible(self) -> PhoneConfig:
        if self.address == "ids" and self.show == "png":
            raise ValueError("a picture shows no ids: use address bounds, or show both")
        if self.address == "bounds" and self.text == "terse" and self.show == "text":
            raise ValueError("terse screens have no bounds: use address ids, or text xml, or show both")
        return self


class _Reset(BaseModel):
    """What a session can be reset to: a template, a task as plain JSON, or a phone without any task."""

    model_config = ConfigDict(extra="forbid")

    template: str | None = None
    start: Start = "home"
    hostile: bool = False
    task: dict[str, Any] | None = None
    free: bool = False


def reset_phone(task: Mapping[str, Any], seed: int) -> tuple[PhoneTask | None, Phone]:
    """The task that a session is reset to, None for a free one, and the phone at its beginning.

    Args:
        task: As `PhoneEnvironment` describes it.
        seed: Decides whatever is random.

    Raises:
        DataError: There is no such task.
    """
    asked = read(_Reset, task)
    if (asked.template is not None) + (asked.task is not None) + asked.free != 1:
        raise DataError("phone task: it must have one of `template`, `task` and `free`")
    if asked.free:
        return None, free_phone(seed, asked.hostile)
    if asked.task is not None:
        made = given_task(asked.task)
    else:
        made = make_task(str(asked.template), seed, asked.start, asked.hostile)
    return made, made.phone()


class PhoneEnvironment(Environment):
    """A session on a phone of our own.

    `reset` takes ``{"template": NAME}``, to be drawn with the seed, with ``"start": "home"`` (the default) or
    ``"app"`` and ``"hostile": true`` for contents that try to deceive (`contents.hostile`); or
    ``{"task": {...}}``, a task as `PhoneTask.record` writes it; or ``{"free": true}``, a phone whose contents
    the seed draws and that nothing is asked of.

    An observation's ``info`` has the ``facts`` that its screen shows, and ``app`` and ``screen``.

    Args:
        options: How the phone is shown and touched.
    """

    waits = False

    def __init__(self, options: PhoneConfig | None = None) -> None:
        self.options = PhoneConfig() if options is None else options
        self.phone: Phone | None = None
        self.task: PhoneTask | None = None
        self._round = 0

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return schemas(self.options.address, [name for name in APPS if name != HOME])

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`."""
        self.task, self.phone = reset_phone(task, seed)
        self._round = 0
        return self._shown() if self.options.first_screen == "given" else StepResult(0, info={"facts": []})

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        phone = self._open()
        self._round += 1
        try:
            perform(phone, call)
        except Refused as error:
            return self._shown(str(error))
        return self._shown()

    async def state(self) -> dict[str, Any] | None:
        """Everything that is so (``facts``), and the phone's whole ``state``."""
        phone = self._open()
        return {"facts": [list(fact) for fact in phone.facts()], "state": phone.copy().state}

    async def close(self) -> None:
        """See `Environment`."""
        self.phone = None

    def _open(self) -> Phone:
        if self.phone is None:
            raise DataError("phone: the session has not been reset, or it is closed")
        return self.phone

    def _shown(self, error: str = "") -> StepResult:
        phone = self._open()
        look = phone.look()
        words = ""
        if self.options.show != "png":
            words = xml(look) if self.options.text == "xml" else terse(look)
        seen = self.options.show != "text"
        images = [picture(look, phone.beneath(), phone.state["clock"])] if seen else []
        info = {
            "facts": [list(fact) for fact in look.facts],
            "app": look.app,
            "screen": phone.frame["screen"],
        }
        return StepResult(self._round, words, images, error, info=info)
