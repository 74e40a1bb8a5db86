"""A tiny environment for tests: rooms with lamps, one screen per room."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL import Image

from selfverify.agents.episode import AgentConfig, AgentEpisode
from selfverify.agents.evidence import submit_tool
from selfverify.agents.goals import Goal
from selfverify.agents.judges.config import JuryConfig
from selfverify.agents.judges.jury import Jury, RulesJudge
from selfverify.core.episode import (
    Call,
    Environment,
    EnvironmentLost,
    EpisodeResult,
    Observation,
    PolicyTurn,
    StepResult,
)
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.tasks.base import user_turn


def schema(name: str, **properties: str) -> dict[str, Any]:
    """A tool whose arguments have these types."""
    typed = {key: {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": typed, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [schema("look"), schema("go", room="string"), schema("switch", lamp="string"), schema("cut")]


class Lamps(Environment):
    """The task names the rooms and their lamps; words of it can be written on a screen.

    `cut` ends the task; an unknown lamp is an error that counts, an unknown room one that does not.
    """

    waits = False

    def __init__(self, pixels: bool = False, lose: str = "") -> None:
        self.pixels, self.lose = pixels, lose
        self.closed, self.calls, self.message = 0, list[Call](), ""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        return TOOLS

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        self._loses("reset")
        self.rooms = {room: dict.fromkeys(lamps, False) for room, lamps in task["rooms"].items()}
        self.text = task.get("text", "")
        self.room, self.round, self.seed, self.done = next(iter(self.rooms)), 0, seed, False
        return self._screen()

    async def step(self, call: Call) -> StepResult:
        self._loses(call.name)
        self.calls.append(call)
        error = ""
        match call.name, call.arguments:
            case "go", {"room": room}:
                if room not in self.rooms:
                    return self._screen(f"there is no room {room}")
                self.room = room
            case "switch", {"lamp": lamp}:
                lamps = self.rooms[self.room]
                if lamp in lamps:
                    lamps[lamp] = not lamps[lamp]
                else:
                    error = f"there is no lamp {lamp} in here"
            case "cut", _:
                self.done = True
            case "look", _:
                pass
            case _:
                error = "that does not fit"
        self.round += 1
        return self._screen(error)

    async def submitted(self, message: str) -> None:
        self._loses("submitted")
        self.message = message

    async def state(self) -> dict[str, Any] | None:
        self._loses("state")
        return {"facts": [fact for room in self.rooms for fact in self._facts(room)]}

    async def close(self) -> None:
        self.closed += 1

    def _facts(self, room: str) -> list[list[Any]]:
        return [[f"lamp/{lamp}", "on", on] for lamp, on in self.rooms[room].items()]

    def _screen(self, error: str = "") -> StepResult:
        lit = [f"{lamp}: {'on' if on else 'off'}" for lamp, on in self.rooms[self.room].items()]
        images = [Image.new("RGB", (8, 8), (50 * len(self.room), sum("on" in x for x in lit), 7))]
        return StepResult(
            self.round, "\n".join([self.room, *lit, self.text]).strip(), images if self.pixels else [], error,
            self.done, info={"facts": self._facts(self.room)},
        )  # fmt: skip

    def _loses(self, what: str) -> None:
        if what == self.lose:
            raise EnvironmentLost(f"the power is gone ({what})")


class Waiting(Lamps):
    """Waits a moment in each call, or for ever in one."""

    waits = True
    hang = ""

    async def step(self, call: Call) -> StepResult:
        await asyncio.sleep(60 if call.name == self.hang else 0.001)
        return await super().step(call)


TASK: dict[str, Any] = {"rooms": {"hall": ["door"], "kitchen": ["oven", "sink"]}}
GOAL = Goal.read({"needs": [{"type": "has", "kind": "lamp", "key": "oven", "values": {"on": True}}]})
PROBLEM = Problem(
    "lamps/0", user_turn("Switch on the oven's lamp.", images=0), target=TASK,
    meta={"question": "Switch on the oven's lamp.", "steps": 2}, tools=[*TOOLS, submit_tool("chosen")],
)  # fmt: skip
RULES = Jury(RulesJudge(), JuryConfig(votes=1, deciding=1))


def calls(name: str, **arguments: Any) -> str:
    """A message with one call."""
    return f"Now I {name}.\n<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


LOOK, KITCHEN = calls("look"), calls("go", room="kitchen")
OVEN, WRONG = calls("switch", lamp="oven"), calls("switch", lamp="sun")
UNKNOWN = calls("go", room="moon")


def submit(*rounds: Any, message: Any = "The oven's lamp is on.") -> str:
    """A message that hands in evidence."""
    return calls("submit", message=message, evidences=[*rounds])


def episode(
    make: Callable[[], Environment] = Lamps,
    jury: Jury | None = RULES,
    settings: AgentConfig | None = None,
    turns: int = 8,
    task: Mapping[str, Any] = TASK,
    goal: Goal | None = GOAL,
    problem: Problem = PROBLEM,
) -> AgentEpisode:
    """An episode in the rooms."""
    settings = settings or AgentConfig()
    looking = frozenset({"look"})
    return AgentEpisode(problem, make, task, 3, jury, settings, turns, goal, looking)


def hold(
    *turns: str, last: Finish = Finish.STOP, **settings: Any
) -> tuple[AgentEpisode, list[Observation], EpisodeResult]:
    """A conversation without a policy: what is said is given, and how its last turn ended.

    Returns:
        The episode, the replies with the first one in front (empty where nothing is shown), the ending.
    """
    held = episode(**settings)
    try:
        replies = [held.reset() or Observation()]
        for number, text in enumerate(turns[: held.turns]):
            finish = last if number + 1 == len(turns) else Finish.STOP
            replies.append(held.step(PolicyTurn(text, [], finish, number)))
            if replies[-1].done:
                assert number + 1 == len(turns), "it was over before"
                break
        else:
            held.cut_short()
        return held, replies, held.result()
    finally:
        held.release()


def words(reply: Observation) -> str:
    """What a reply says."""
    return "".join(part.get("text", "") for part in reply.content)  # type: ignore[union-attr]
