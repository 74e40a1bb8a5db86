"""Visual tools behind a server (`tool_session`), which several processes share."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Generic

from selfverify.connectors.openenv import to_blocks
from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import DataError
from selfverify.looking.tools.pictures import Gallery, Made
from selfverify.looking.tools.tool_session import IMAGES, LIMITS, NUMBERS, SPACES, images_asked
from selfverify.looking.tools.toolbox import ToolFault
from selfverify.looking.tools.visual_tool import A, Arguments, Found, VisualTool
from selfverify.tasks.tool_calls import ToolError


class ToolServer:
    """A server of visual tools. Each call is a session of its own, so that it may come from any thread.

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
        """What a call finds.

        Raises:
            ToolError: It cannot be done.
            ToolFault: The server is gone, or has not answered in time.
        """
        numbers = images_asked(arguments)
        sent = {
            **arguments,
            IMAGES: to_blocks("", [gallery.picture(number).full for number in numbers]),
            NUMBERS: numbers,
            SPACES: [list(gallery.written_in(number)) for number in numbers],
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
        """The names of the tools, and what came of a call, if there is one."""
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
        # What describes a tool stands with its class; these are those of the tool itself.
        self.name, self.also, self.arguments = tool.name, tool.also, tool.arguments  # type: ignore[misc]

    @property
    def schema(self) -> dict[str, Any]:
        """See `VisualTool`."""
        return self.tool.schema

    def missing(self) -> str:
        """See `VisualTool`."""
        return self.server.missing(self.tool.name)

    def read(self, arguments: Mapping[str, Any]) -> Arguments:
        """See `VisualTool`."""
        return self.tool.read(arguments)

    def run(self, asked: A, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        return self.server.run(self.tool.name, asked.model_dump(mode="json"), gallery)


def behind_server(tools: Sequence[VisualTool[Any]], url: str, seconds: float) -> list[VisualTool[Any]]:
    """The tools, of which a server does the work of those that take longer than moving pixels."""
    server = ToolServer(url, seconds)
    return [tool if tool.at_once else RemoteTool(tool, server) for tool in tools]


def _made(image: Any, about: Any, gallery: Gallery) -> Made:
    """An image that the server's tool has made. What it says of it is not relied on."""
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
