"""The calls that the phone understands: those of every screen (`agents.tools`), fitted to this phone.

Handing in (`submit`) is not the phone's business.
"""

from __future__ import annotations

from typing import Any

from selfverify.agents.tools import Address, ScreenTools
from selfverify_phone.system.device import LONGEST_TEXT


def schemas(address: Address, apps: list[str]) -> list[dict[str, Any]]:
    """The tools in OpenAI's form.

    On this phone one list at most moves on a screen, wherever the finger starts. So with ids a swipe names no
    element.

    Args:
        address: How what is touched is named: by its ``id``, or by its bounds, whose middle is touched.
        apps: What can be launched.
    """
    tools = ScreenTools(address).schemas
    named = {tool["function"]["name"]: tool["function"] for tool in tools}
    takes = {name: function["parameters"] for name, function in named.items()}
    takes["launch"]["properties"]["app"] = {"type": "string", "enum": apps}
    takes["type"]["properties"]["text_input"]["maxLength"] = LONGEST_TEXT
    if address == "ids":
        named["swipe"]["description"] = "Move a finger over the screen. Returns the screen afterwards."
        takes["swipe"]["properties"].pop("id")
        takes["swipe"]["required"].remove("id")
    return tools
