"""AndroidWorld's actions as tools: each returns the action that its server is sent.

Source: google-research/android_world, ``android_world/env/json_action.py`` and ``env/actuation.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from selfverify.tasks.tool_calls import Tool

Pixel = Annotated[int, Field(ge=0, le=10_000, description="Pixels from the left or the top.")]
Direction = Literal["up", "down", "left", "right"]


class _Actions:
    """One method per action, by AndroidWorld's name of it."""

    def click(self, x: Pixel, y: Pixel) -> dict[str, Any]:
        """Tap a place."""
        return {"x": x, "y": y}

    def double_tap(self, x: Pixel, y: Pixel) -> dict[str, Any]:
        """Tap a place twice."""
        return {"x": x, "y": y}

    def long_press(self, x: Pixel, y: Pixel) -> dict[str, Any]:
        """Hold a place."""
        return {"x": x, "y": y}

    def scroll(self, direction: Direction) -> dict[str, Any]:
        """Scroll to what lies in a direction; the finger moves the other way."""
        return {"direction": direction}

    def swipe(self, direction: Direction) -> dict[str, Any]:
        """Move the finger over the screen in a direction."""
        return {"direction": direction}

    def input_text(
        self,
        text: Annotated[str, Field(max_length=4_000)],
        x: Pixel,
        y: Pixel,
        clear_text: Annotated[bool, Field(description="Whether what is there goes first.")] = False,
    ) -> dict[str, Any]:
        """Tap a field, type a text into it, and press Enter."""
        return {"text": text, "x": x, "y": y, "clear_text": clear_text}

    def open_app(self, app_name: str) -> dict[str, Any]:
        """Open an app."""
        return {"app_name": app_name}

    def navigate_home(self) -> dict[str, Any]:
        """Go to the home screen."""
        return {}

    def navigate_back(self) -> dict[str, Any]:
        """Go back."""
        return {}

    def keyboard_enter(self) -> dict[str, Any]:
        """Press Enter."""
        return {}

    def wait(self) -> dict[str, Any]:
        """Wait until the screen is still."""
        return {}

    def answer(self, text: Annotated[str, Field(max_length=4_000)]) -> dict[str, Any]:
        """Tell the user the answer to a question; status ends the task."""
        return {"text": text}

    def status(self, goal_status: Literal["complete", "infeasible"]) -> dict[str, Any]:
        """End the task: it is done, or cannot be done."""
        return {"goal_status": goal_status}


ACTIONS: dict[str, Tool] = {
    name: Tool(function) for name, function in vars(_Actions).items() if not name.startswith("_")
}
"""The tools by name; `Tool.function` takes None for the object that the method is of."""
