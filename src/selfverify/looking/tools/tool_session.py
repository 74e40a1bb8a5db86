"""Visual tools as an environment that is served: a call brings the images that it is about."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from PIL import Image

from selfverify.connectors.openenv import ContentLimits, from_blocks
from selfverify.core.episode import Call, Environment, StepResult
from selfverify.core.errors import DataError
from selfverify.looking.tools.pictures import MOST_PIXELS, Gallery, SeenImage
from selfverify.looking.tools.toolbox import Toolbox
from selfverify.tasks.tool_calls import ToolError

IMAGES, NUMBERS, SPACES = "images", "numbers", "spaces"
"""Arguments of every call beside the tool's own: images as content blocks of the Model Context Protocol;
their numbers, by default 1, 2, ...; and for each width and height of the space in which its places are
written, by default its pixels."""
MOST_NUMBER, WIDEST = 1000, 1_000_000_000
"""The largest number of an image, and side of a space."""
LIMITS = ContentLimits(message_bytes=256 * 2**20, images=64, image_pixels=MOST_PIXELS)
_ADDED = {
    IMAGES: {
        "type": "array",
        "items": {"type": "object"},
        "description": "The images that the call is about, as content blocks: {type: image, data: base64}.",
    },
    NUMBERS: {
        "type": "array",
        "items": {"type": "integer"},
        "description": "For each image its number; by default 1, 2, ...",
    },
    SPACES: {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}},
        "description": "For each image width and height of the space in which places in it are written; by "
        "default its pixels.",
    },
}


class ToolSession(Environment):
    """A client of visual tools. Nothing is kept from call to call; all clients share the tools' models.

    What a tool makes stands in the observation: its words as text, its images, and for each of them in
    ``info["made"]`` the number of the image that it was made of, the region, and a label.

    Args:
        toolbox: The tools, which have their own deadline.
    """

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox, self._round = toolbox, 0

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`: the tools that are available here."""
        found = deepcopy(self.toolbox.schemas())
        for tool in found:
            tool["function"]["parameters"]["properties"] |= _ADDED
        return found

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """See `Environment`. There is nothing to be set up."""
        self._round = 0
        return StepResult(0)

    async def step(self, call: Call) -> StepResult:
        """See `Environment`. What cannot be done, and a tool that dies or takes too long, is an ``error``."""
        self._round += 1
        try:
            return await asyncio.to_thread(self._carried_out, call)
        except (ToolError, DataError) as error:
            return StepResult(self._round, error=str(error))

    async def close(self) -> None:
        """See `Environment`."""

    def _carried_out(self, call: Call) -> StepResult:
        own = {name: value for name, value in call.arguments.items() if name not in _ADDED}
        chosen = self.toolbox.chosen(call.name, own)
        gallery, brought = _gallery(call.arguments)
        about = images_asked(chosen.arguments.model_dump())
        if lacking := [number for number in about if number <= len(gallery) and number not in brought]:
            raise DataError(f"{IMAGES}: image {lacking[0]} is asked about, and the call does not bring it")
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
    _, images = from_blocks(arguments.get(IMAGES, []), LIMITS)
    numbers = arguments.get(NUMBERS, [*range(1, len(images) + 1)])
    spaces = arguments.get(SPACES, [[image.width, image.height] for image in images])
    count = len(images)
    if not _whole(numbers, count, MOST_NUMBER) or len({*numbers}) < count:
        raise DataError(
            f"{NUMBERS}: each of the {count} images needs one of its own, from 1 to {MOST_NUMBER}"
        )
    if not isinstance(spaces, list) or len(spaces) != count or not all(_whole(s, 2, WIDEST) for s in spaces):
        raise DataError(f"{SPACES}: each of the {count} images needs a width and a height, up to {WIDEST:,}")
    blank = Image.new("RGB", (1, 1))
    seen = [SeenImage(blank, blank)] * max(numbers, default=0)
    written = [(1, 1)] * len(seen)
    for number, image, (wide, high) in zip(numbers, images, spaces, strict=True):
        seen[number - 1], written[number - 1] = SeenImage(image, image), (wide, high)
    return Gallery(seen, spaces=written), numbers


def _whole(value: Any, count: int, most: int) -> bool:
    """Whether this is a list of so many whole numbers from 1 to ``most``."""
    return (
        isinstance(value, list)
        and len(value) == count
        and all(type(n) is int and 1 <= n <= most for n in value)
    )
