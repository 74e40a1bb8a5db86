"""Tools behind a server: what comes back equals what comes of them here, and every fault is to be read."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import numpy as np
import pytest
from tests.visual.tools.test_toolbox import Odd, gallery, run

from selfverify.connectors.content import to_blocks
from selfverify.connectors.endpoint import SessionLimits
from selfverify.connectors.server import EnvironmentServer, start_server
from selfverify.core.episode import Call, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.serving.backend import FreeQuestion
from selfverify.tasks.base import user_turn
from selfverify.tasks.tool_calls import ToolError
from selfverify.visual.config import VisualConfig
from selfverify.visual.task import VisualToolTask, make_toolbox
from selfverify.visual.tools.base import Found, Toolbox, ToolFault, VisualTool
from selfverify.visual.tools.crop import Crop, ZoomIn
from selfverify.visual.tools.gallery import Gallery, space_named
from selfverify.visual.tools.segment import GrabCut, ImageSegment
from selfverify.visual.tools.server import LIMITS, RemoteTool, ToolServer, ToolSession, behind_server
from serving_servers import Loop
from tables import yaml_cases

SEGMENT = {"image_index": 2, "bounding_box": [100, 100, 300, 300]}


class Cutting(ZoomIn):
    """Enlarges a part of an image, as slowly as tools with models."""

    at_once = False


def served(servers: Loop, *tools: VisualTool[Any], seconds: float = 30.0) -> str:
    """The address of a server of tools."""
    box = Toolbox(tools, seconds)
    server = EnvironmentServer({"looking": lambda: ToolSession(box)}, SessionLimits(content=LIMITS))
    return f"http://127.0.0.1:{servers.run(start_server(server, servers.stack))}"


def thousandths(seen: Gallery) -> Gallery:
    """The same images, in which places are written in thousandths."""
    return Gallery(seen.pictures, space_named("thousandths"))


def test_a_call_finds_what_it_finds_here(servers: Loop) -> None:
    """Words, pixels, where they are from; the places of faults are those that the model writes."""
    url = served(servers, Cutting())
    here, there = Toolbox([Cutting()]), Toolbox(behind_server([Cutting(), Crop()], url, 30.0))
    assert isinstance(there.tools["zoom_in"], RemoteTool) and isinstance(there.tools["crop"], Crop)
    assert there.schemas()[0] == here.schemas()[0]
    seen = thousandths(gallery(("black", "red", "blue")))
    one, other = (run(box, "zoom_in", SEGMENT, seen) for box in (here, there))
    assert one.text == other.text and len(one.images) == len(other.images) == 1
    [a], [b] = one.images, other.images
    assert np.array_equal(np.asarray(a.image), np.asarray(b.image)) and a.image.size == b.image.size
    assert (a.source, a.region, a.label) == (b.source, b.region, b.label) and b.source == 2
    for wrong in ({"bounding_box": [1100, 0, 1200, 500]}, {"image_index": 4}):
        said = []
        for box in (here, there):
            with pytest.raises(ToolError) as fault:
                run(box, "zoom_in", SEGMENT | wrong, seen)
            said.append(str(fault.value))
        assert said[0] == said[1] and ("1000" in said[0] or "1 to 3" in said[0])


def test_a_tool_that_takes_too_long_is_told(servers: Loop) -> None:
    """Whether the server gives it up or the client: the model reads which tool, and that it took too long."""
    gate = threading.Event()

    def wait() -> Found:
        gate.wait(20)
        return Found("late")

    seen, call = gallery(), {"image_index": 1}
    patient = RemoteTool(Odd(wait), ToolServer(served(servers, Odd(wait), seconds=0.1), 20.0))
    with pytest.raises(ToolError, match=r"odd took longer than 0\.1 s"):
        run(Toolbox([patient]), "odd", call, seen)
    hasty = RemoteTool(Odd(wait), ToolServer(served(servers, Odd(wait)), 0.5))
    assert hasty.missing() == ""
    with pytest.raises(ToolFault, match=r"odd has failed: .* odd took longer than 0\.5 s"):
        run(Toolbox([hasty]), "odd", call, seen)
    gate.set()


def test_a_server_that_is_gone_or_has_no_such_tool(servers: Loop) -> None:
    """Nothing is offered that cannot be called; who names it is told why."""
    for named in ([], ["segment"]):
        with pytest.raises(ConfigError, match=r"the server of tools cannot be asked: .*visual serve"):
            make_toolbox(VisualConfig(tool_server="http://127.0.0.1:9", tools=named))
    url = served(servers, Cutting())
    assert "does not have it" in ToolServer(url).missing("segment")
    left = make_toolbox(VisualConfig(tool_server=url))
    names = {tool["function"]["name"] for tool in left.schemas()}
    assert names == {"crop", "zoom_in", "overlay", "terminate"}


BLOCKS = to_blocks("", [gallery().pictures[0].full])


@yaml_cases
def test_calls_that_do_not_fit(more: dict[str, Any], said: str) -> None:
    """Anybody may call a server: what cannot be done is said, and the session goes on."""
    session = ToolSession(Toolbox([Cutting()]))
    arguments = {"image_index": 1, "bounding_box": [20, 10, 60, 30], "images": BLOCKS}
    given = arguments | more
    given["images"] = BLOCKS * 2 if given["images"] == "TWICE" else given["images"]

    async def ask() -> tuple[str, int]:
        wrong = await session.step(Call("zoom_in", given))
        right = await session.step(Call("zoom_in", arguments))
        return wrong.error, len(right.images)

    error, made = asyncio.run(ask())
    assert said in error and made == 1


def test_a_model_looks_with_a_server(servers: Loop) -> None:
    """The setting `tool_server` is all that it takes."""
    url = served(servers, ImageSegment(GrabCut()))
    looking = VisualToolTask(FreeQuestion(), VisualConfig(tool_server=url, tools=["segment"]))
    problem = Problem("p", user_turn("What?"), [gallery().pictures[0].full])
    episode = looking.look(looking.asked(problem))
    episode.reset()
    asked = {"image_index": 1, "bounding_boxes": [[50, 50, 400, 400]]}
    text = json.dumps({"thought": "", "action_name": "segment", "action": asked})
    reply = episode.step(PolicyTurn(text, [1], Finish.STOP, 0))
    assert len(reply.images) == 1 and episode.steps[0].error == "" and episode.steps[0].images == [2]
