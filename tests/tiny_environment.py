"""A counter that tests act in: text, an image, an error, both ends, a reward, and every way to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from PIL import Image

from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import DataError


def described(name: str, text: str, **parameters: dict[str, Any]) -> dict[str, Any]:
    """A tool in OpenAI's form; all parameters are required."""
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": schema}}


TOOLS = [
    described("add", "Add a number.", number={"type": "integer", "description": "What is added."}),
    described("fail", "Fail in a way.", how={"type": "string", "enum": ["raise", "lose", "hang", "huge"]}),
]


class Counter(Environment):
    """Counts to the task's goal; above it the environment stops. The image is wider than the count by 10."""

    opened: list[Counter] = []
    """Those that are not closed yet."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.goal = self.count = self.round = 0
        self.closed = False
        self.message = ""
        Counter.opened.append(self)

    @property
    def tools(self) -> list[dict[str, Any]]:
        return TOOLS

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        if not isinstance(task.get("goal"), int):
            raise DataError("task: goal is no number")
        self.goal, self.count, self.round = task["goal"], seed, 0
        return self._shown()

    async def step(self, call: Call) -> StepResult:
        self.round += 1
        await asyncio.sleep(self.delay_s)
        match call.name, dict(call.arguments):
            case "add", {"number": int(number)}:
                self.count += number
                return self._shown(reward=float(number))
            case "fail", {"how": "lose"}:
                raise EnvironmentLost("the counter is broken")
            case "fail", {"how": "hang"}:
                await asyncio.sleep(60)
            case "fail", {"how": "huge"}:
                return StepResult(self.round, "x" * 3_000_000)
            case "fail", {"how": "raise"}:
                raise ZeroDivisionError("a fault with a secret in it")
        return StepResult(self.round, f"still {self.count}", error=f"there is no {call.name} like that")

    async def submitted(self, message: str) -> None:
        if message == "lose":
            raise EnvironmentLost("the counter is broken")
        self.message = message

    async def state(self) -> dict[str, Any] | None:
        heard = {"message": self.message} if self.message else {}
        return {"count": self.count, **heard} if self.goal else None

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            Counter.opened.remove(self)

    def _shown(self, reward: float | None = None) -> StepResult:
        image = Image.new("RGB", (10 + abs(self.count), 8), (self.round % 256, 20, 30))
        return StepResult(
            self.round,
            f"{self.count} of {self.goal}",
            [image],
            done=self.count == self.goal,
            truncated=self.count > self.goal,
            reward=reward,
            info={"count": self.count, "nested": [1, {"é": None}]},
        )
