"""Visual tools behind a server, which several processes share: what is served, and its clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any, Generic

from PIL import Image
from pydantic import Field, TypeAdapter, ValidationError

from selfverify.connectors.content import ContentLimits, from_blocks, to_blocks
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError
from selfverify.tasks.tool_calls import ToolError, misfit, tool_schema
from selfverify.visual.tools.base import A, Arguments, Found, Toolbox, ToolFault, VisualTool
from selfverify.visual.tools.gallery import MOST_PIXELS, Gallery, Made, SeenImage

LIMITS = ContentLimits(message_bytes=256 * 2**20, images=64, image_pixels=MOST_PIXELS)
_Space = Annotated[list[Annotated[int, Field(ge=1, le=10**9)]], Field(min_length=2, max_length=2)]


class Brought(Arguments):
    """Arguments of every call beside the tool's own."""

    images: list[dict[str, Any]] = []
    """The images that the call is about, as content blocks: {type: image, data: base64}."""
    numbers: list[Annotated[int, Field(ge=1, le=1000)]] = []
    """For each image its number; by default 1, 2, ..."""
    spaces: list[_Space] = []
    """For each image width and height of the space in which places in it are written; by default its
    pixels."""


_ADDED: dict[str, Any] = tool_schema("", "", TypeAdapter(Brought))["function"]["parameters"]["properties"]


class ToolSession(Environment):
    """Visual tools as an environment that is served: a call brings the images that it is about.

    It is one client's session. Nothing is kept from call to call; all clients share the tools' models.

    The findings of a tool stand in the observation: its words as text, its images, and for each of them in
    ``info["made"]`` the number of the image that it was made of, the region, and a label.

    Args:
        toolbox: The tools, which have their own deadline.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox, self._round = toolbox, 0

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """The tools that are available here, each with arguments for the images that it is about."""
        found = deepcopy(self.toolbox.schemas())
        for tool in found:
            tool["function"]["parameters"]["properties"] |= _ADDED
        return found

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin at round 0. There is nothing to set up."""
        self._round = 0
        return StepResult(0)

    async def step(self, call: Call) -> StepResult:
        """Carry out a call. One that cannot be done, or whose tool dies or takes too long, is an
        ``error``."""
        self._round += 1
        try:
            return await asyncio.to_thread(self._carried_out, call)
        except (ToolError, DataError) as error:
            return StepResult(self._round, error=str(error))

    async def close(self) -> None:
        """Do nothing: images are kept by their content, not by session."""

    def _carried_out(self, call: Call) -> StepResult:
        own = {name: value for name, value in call.arguments.items() if name not in _ADDED}
        chosen = self.toolbox.chosen(call.name, own)
        gallery, brought = _gallery(call.arguments)
        about = images_asked(chosen.arguments.model_dump())
        if lacking := [number for number in about if number <= len(gallery) and number not in brought]:
            raise DataError(f"images: image {lacking[0]} is asked about, and the call does not bring it")
        found = self.toolbox.run(chosen, gallery)
        made = [
            {
                "source": one.source,
                "region": None if one.region is None else [*one.region],
                "label": one.label,
            }
            for one in found.images
        ]
        return StepResult(self._round, found.text, [one.image for one in found.images], info={"made": made})


def images_asked(arguments: Mapping[str, Any]) -> list[int]:
    """The numbers of the images that a tool's own arguments are about."""
    named = (value for name, value in arguments.items() if "image_ind" in name)
    return sorted({number for value in named for number in (value if isinstance(value, list) else [value])})


def _gallery(arguments: Mapping[str, Any]) -> tuple[Gallery, list[int]]:
    """The images of a call at their numbers, and these; images with others are there in name only.

    Raises:
        DataError: Images, numbers or spaces are none, or do not belong together.
    """
    try:
        brought = Brought.model_validate({name: arguments[name] for name in _ADDED if name in arguments})
    except ValidationError as error:
        raise DataError(misfit("a call", error)) from None
    _, images = from_blocks(brought.images, LIMITS)
    numbers = brought.numbers or [*range(1, len(images) + 1)]
    spaces = brought.spaces or [[*image.size] for image in images]
    if not len({*numbers}) == len(numbers) == len(spaces) == len(images):
        raise DataError(f"each of the {len(images)} images needs a number of its own, and one space")
    blank = Image.new("RGB", (1, 1))
    seen = [SeenImage(blank, blank)] * max(numbers, default=0)
    written = [(1, 1)] * len(seen)
    for number, image, (wide, high) in zip(numbers, images, spaces, strict=True):
        seen[number - 1], written[number - 1] = SeenImage(image, image), (wide, high)
    return Gallery(seen, spaces=written), numbers


class ToolServer:
    """A server of visual tools, as its clients see it. Each call is a session of its own, from any thread.

    Args:
        url: Where it is; the key that it wants stands in ``SELFVERIFY_ENVIRONMENT_KEY``.
        seconds: How long a call may take. One that takes longer is the tool's fault, which the model reads.
    """

    def __init__(self, url: str, seconds: float = 60.0) -> None:
        self.url, self.seconds = url, seconds
        self._lock = threading.Lock()
        self._names: frozenset[str] | None = None

    def missing(self, name: str) -> str:
        """Why the server does not have a tool; empty where it has."""
        if why := self.unreachable():
            return why
        known = self._names or ()
        return "" if name in known else f"the server of tools at {self.url} does not have it"

    def unreachable(self) -> str:
        """Why the server cannot be asked; empty where it has answered once."""
        with self._lock:
            if self._names is None:
                try:
                    self._names = frozenset(self._asked(None)[0])
                except (EnvironmentLost, DataError) as error:
                    return f"the server of tools cannot be asked: {error}"
        return ""

    def run(self, name: str, arguments: Mapping[str, Any], gallery: Gallery) -> Found:
        """Return the findings of a call.

        Raises:
            ToolError: It cannot be done.
            ToolFault: The server is gone, or has not answered in time.
        """
        numbers = images_asked(arguments)
        sent = {
            **arguments,
            "images": to_blocks("", [gallery.picture(number).full for number in numbers]),
            "numbers": numbers,
            "spaces": [list(gallery.written_in(number)) for number in numbers],
        }
        try:
            _, shown = self._asked(Call(name, sent))
        except (EnvironmentLost, DataError) as error:
            raise ToolFault(f"{name} has failed: {error}"[:500]) from None
        assert shown is not None
        if shown.error:
            raise ToolError(shown.error)
        made = shown.info.get("made")
        about = (
            made if isinstance(made, list) and len(made) == len(shown.images) else [{}] * len(shown.images)
        )
        return Found(
            shown.text, [_made(image, one, gallery) for image, one in zip(shown.images, about, strict=True)]
        )

    def _asked(self, call: Call | None) -> tuple[list[str], StepResult | None]:
        from selfverify.core import event_loop

        return event_loop.start(self._session(call)).result()

    async def _session(self, call: Call | None) -> tuple[list[str], StepResult | None]:
        """Return the names of the tools, and the result of a call, if there is one."""
        import os

        from selfverify.connectors.openenv import KEY_VARIABLE, RemoteConfig, RemoteEnvironment

        key = os.environ.get(KEY_VARIABLE)
        settings = RemoteConfig(self.url, key, reset_s=self.seconds, act_s=self.seconds, limits=LIMITS)
        server = RemoteEnvironment(settings)
        try:
            await server.reset({}, 0)
            names = [str(tool["function"]["name"]) for tool in server.tools]
            return names, None if call is None else await server.step(call)
        finally:
            await server.close()


class RemoteTool(VisualTool[A], Generic[A]):
    """A tool of ours whose work a server does: it is described, and its calls are checked, here.

    Args:
        tool: The tool.
        server: Does its work.
    """

    def __init__(self, tool: VisualTool[A], server: ToolServer) -> None:
        self.tool, self.server = tool, server
        # The descriptions of tools stand with their classes; these are those of the tool itself.
        self.name, self.also, self.arguments = tool.name, tool.also, tool.arguments  # type: ignore[misc]

    @property
    def schema(self) -> dict[str, Any]:
        return self.tool.schema

    def missing(self) -> str:
        return self.server.missing(self.tool.name)

    def read(self, arguments: Mapping[str, Any]) -> Arguments:
        return self.tool.read(arguments)

    def run(self, asked: A, gallery: Gallery) -> Found:
        return self.server.run(self.tool.name, asked.model_dump(mode="json"), gallery)


def behind_server(tools: Sequence[VisualTool[Any]], url: str, seconds: float) -> list[VisualTool[Any]]:
    """The tools, of which a server does the work of those that take longer than moving pixels."""
    server = ToolServer(url, seconds)
    return [tool if tool.at_once else RemoteTool(tool, server) for tool in tools]


def _made(image: Any, about: Any, gallery: Gallery) -> Made:
    """An image that the server's tool has made. The server's description of it is not relied on."""
    about = about if isinstance(about, Mapping) else {}
    source, region, label = about.get("source"), about.get("region"), about.get("label")
    known = type(source) is int and 1 <= source <= len(gallery)
    fits = isinstance(region, list) and len(region) == 4 and all(type(side) is int for side in region)
    return Made(
        image,
        source if known else None,
        (region[0], region[1], region[2], region[3]) if known and fits and region else None,
        label[:200] if isinstance(label, str) else "",
    )
