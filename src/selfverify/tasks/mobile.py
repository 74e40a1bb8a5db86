"""`mobile`: the next action on a phone, as a call of `mobile_use`, then a score (ADPO, appendix A)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field

from selfverify.data.actions import ACTIONS, BUTTONS, STATUSES, Action
from selfverify.errors import ConfigError, DataError
from selfverify.rollouts.tags import Tagged
from selfverify.rollouts.types import Problem
from selfverify.tasks.base import Demonstration, Judged, Metric, NotCounted, Space
from selfverify.tasks.canvas import Split
from selfverify.tasks.coordinates import Size
from selfverify.tasks.mobile_action import TOOL, moved, parse_tool_call, read_action, vote_key, write_call
from selfverify.tasks.mobile_scoring import PLACED, PROFILES, StepScore, counts, score_step
from selfverify.tasks.row_fields import RowTaskConfig, categories_of, one_image, space_of, text_field
from selfverify.tasks.rows import Row, Rows, Splits
from selfverify.tasks.strict_json import is_number

Profile = Literal[
    "adpo",
    "gui-odyssey",
    "os-atlas",
    "os-atlas-odyssey",
    "agentcpm-androidcontrol",
    "agentcpm-odyssey",
    "ui-r1",
    "gui-r1",
]


class MobileConfig(RowTaskConfig):
    """Options of `mobile`."""

    profile: Profile = Field("adpo", description="Whose rules decide what is right (docs/tasks-mobile.md).")
    history: int = Field(32, ge=0, description="Previous actions shown, the newest.")
    step_instruction: bool = Field(
        True, description="Show a step's own instruction where the row has one (AndroidControl-Low)."
    )


class Mobile:
    """Rows have ``goal``, ``images`` (the screenshot) and ``action``; see `selfverify.tasks.mobile_action`.

    They may have ``step_instruction``, ``history`` (earlier actions, or texts about them), ``screen`` (width
    and height that coordinates refer to; default: the screenshot's) and ``ui_boxes`` (of the target element).

    Args:
        config: Options, the data files among them.
        rows: Rows that are in memory, by split, instead of files.
    """

    name = "mobile"
    kind: Literal["discrete"] = "discrete"
    tags = ("tool_call", "score")
    metrics = (
        Metric("type_accuracy", "type"),
        Metric("grounding_accuracy", "grounding"),
        Metric("step_success", "arguments"),
    )

    def __init__(self, config: MobileConfig | None = None, rows: Mapping[Split, Rows] | None = None) -> None:
        self.config = config or MobileConfig()
        self.profile = PROFILES[self.config.profile]
        self.splits = Splits(self.config.files, rows)
        self._space: Space | None = None

    def use_space(self, space: Space) -> None:
        """See `selfverify.tasks.base.tell_space`."""
        self._space = space

    def count(self, split: Split) -> int:
        """See `Task.judge`."""
        return self.splits.count(split)

    def broken(self, split: Split) -> list[str]:
        """See `Splits.broken`."""
        return self.splits.broken(split)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`.

        Raises:
            ConfigError: How the policy writes places is not known (`tell_space`).
            NotCounted: The profile does not count steps like this one.
            DataError: The row is no step.
        """
        if self._space is None:
            raise ConfigError(
                "task mobile: how the policy writes places is not known; call "
                "task.use_space(policy.coordinate_space) before making problems (learn and evaluate do)"
            )
        row, id = self.splits.row(split, seed, index)
        name = f"{self.name}/{id}"
        image, goal = one_image(row, name), text_field(row, "goal", name)
        screen, space = _screen(row, image.size, name), space_of(self._space, image.size, name)
        target = _action(row.get("action"), screen, f"{name}: action")
        if not counts(self.profile, target):
            raise NotCounted(f"{name}: profile {self.config.profile} does not count {target['action']} steps")
        text = f"Goal: {goal}\n"
        if self.config.step_instruction and row.get("step_instruction"):
            text += f"Now: {text_field(row, 'step_instruction', name)}\n"
        steps = self._history(row, screen, space, name)
        text += f"Actions so far:{steps or ' none'}\nScreen:\n"
        system = {"role": "system", "content": [{"type": "text", "text": instructions(space)}]}
        user = {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]}
        meta = {
            "question": goal,
            "screen": screen,
            "space": space,
            "ui_boxes": _boxes(row, name),
            "categories": categories_of(row) | {"action": [target["action"]]},
        }
        kept = {key: row[key] for key in ("category", "source") if row.get(key) is not None}
        return Problem(name, [system, user], [image], target, meta | kept)

    def _history(self, row: Row, screen: Size, space: Size, name: str) -> str:
        steps = list(row.get("history") or [])
        first = max(0, len(steps) - self.config.history)
        lines = []
        for number, step in enumerate(steps[first:], start=first + 1):
            if not isinstance(step, str):
                # Its screen may have been turned the other way, so it may be off the present one.
                action = _read(step, f"{name}: history step {number}")
                step = write_call(moved(action, screen, space))
            lines.append(f"\n{number}. {step}")
        return "".join(lines)

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """0, 1 or 2; right, for contrast, AUC and AP as well, is a step whose type and parameters are."""
        call = parse_tool_call(tagged.fields.get("tool_call", ""))
        if call is None:
            return self.unreadable(problem)
        screen = problem.meta["screen"]
        action = moved(call, problem.meta["space"], screen)
        return _judged(self._score(problem, action), _rounded(action), vote_key(action, screen))

    def unreadable(self, problem: Problem) -> Judged:
        """The verdict on a malformed call: wrong in type, parameters and place."""
        return _judged(self._score(problem, None))

    def _score(self, problem: Problem, action: Action | None) -> StepScore:
        meta = problem.meta
        return score_step(self.profile, problem.target, action, meta["screen"], meta["ui_boxes"])

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """The target as a call; a wrong one is another place, direction, text or action.

        ``quality`` is half of the step's reward, so in [0, 1] as elsewhere.
        """
        screen, space = problem.meta["screen"], problem.meta["space"]
        shown = _other(problem.target, screen, rng) if wrong else problem.target
        call = write_call(moved(shown, screen, space))
        pieces = [
            ("context" if wrong else "answer", f"<tool_call>\n{call}\n"),
            ("answer", "</tool_call>"),
        ]
        return Demonstration(pieces, self._score(problem, shown).reward / 2)


def _judged(score: StepScore, answer: Action | None = None, key: str | None = None) -> Judged:
    parts = {"type": float(score.type), "arguments": float(score.success)}
    if score.grounding is not None:
        parts["grounding"] = float(score.grounding)
    return Judged(score.reward, score.success, answer, key, quality=float(score.success), parts=parts)


def _rounded(action: Action) -> Action:
    return {
        key: [round(v, 2) for v in value] if isinstance(value, list) else value
        for key, value in action.items()
    }


@lru_cache(maxsize=256)
def instructions(space: Size) -> str:
    """The system message: what the tool takes on a screen of ``space``, and how to answer."""
    point = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    parameters = {
        "action": {
            "type": "string",
            "enum": list(ACTIONS),
            "description": "click or long_press a place; swipe from one place to another; type text into the "
            "field that has the focus; open an app by name; press a system_button or another key; wait for "
            "the screen to change; terminate when the goal is reached or cannot be.",
        },
        "coordinate": point | {"description": "Where to click or press, or where a swipe begins."},
        "coordinate2": point | {"description": "Where a swipe ends."},
        "text": {"type": "string", "description": "For type, key and open."},
        "time": {"type": "number", "description": "Seconds, for long_press and wait."},
        "button": {"type": "string", "enum": list(BUTTONS), "description": "For system_button."},
        "status": {"type": "string", "enum": list(STATUSES), "description": "For terminate."},
    }
    tool = {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": f"Acts on a phone's touchscreen of {space[0]}x{space[1]}. A place is [x, y], "
            "counted from the top left corner; aim at the middle of what is meant.",
            "parameters": {"type": "object", "properties": parameters, "required": ["action"]},
        },
    }
    return (
        "You use a phone. Given a goal, the actions so far and the screen as it is now, take the next "
        f"action.\n<tools>\n{json.dumps(tool)}\n</tools>\n"
        f'Write one call, <tool_call>\n{{"name": "{TOOL}", "arguments": {{...}}}}\n</tool_call>, '
        "then rate in <score></score> from 0 to 1 how sure you are that it is right."
    )


def _read(value: Any, name: str) -> Action:
    try:
        return read_action(value)
    except ValueError as error:
        raise DataError(f"{name}: {error}") from None


def _action(value: Any, screen: Size, name: str) -> Action:
    action = _read(value, name)
    places = [action[key] for key in ("coordinate", "coordinate2") if key in action]
    if not all(0 <= value <= side for place in places for value, side in zip(place, screen, strict=True)):
        raise DataError(f"{name}: {action} is not on its screen of {screen[0]} x {screen[1]} pixels")
    return action


def _screen(row: Row, size: Size, name: str) -> Size:
    screen = row.get("screen")
    if screen is None:
        return size
    is_pair = isinstance(screen, (list, tuple)) and len(screen) == 2
    if not is_pair or not all(is_number(side) and side >= 1 for side in screen):
        raise DataError(f"{name}: screen has to be (width, height), not {screen!r:.80}")
    return int(screen[0]), int(screen[1])


def _boxes(row: Row, name: str) -> list[list[float]]:
    boxes = row.get("ui_boxes") or []
    for box in boxes:
        if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(is_number(v) for v in box):
            raise DataError(f"{name}: ui_boxes has to hold [x1, y1, x2, y2], not {box!r:.80}")
    return [[float(v) for v in box] for box in boxes]


def _other(target: Action, screen: Size, rng: np.random.Generator) -> Action:
    """A plausible action that is not the target."""
    name = target["action"]
    if name in PLACED:
        x, y = target["coordinate"]
        # Half a screen further on, around its edges: in x and y at least a quarter of the side away.
        dx, dy = rng.uniform(0.25, 0.75, 2) * screen
        return target | {"coordinate": [float((x + dx) % screen[0]), float((y + dy) % screen[1])]}
    if name == "swipe":
        return target | {"coordinate": target["coordinate2"], "coordinate2": target["coordinate"]}
    if name == "system_button":
        others = [button for button in BUTTONS if button != target["button"]]
        return target | {"button": others[rng.integers(len(others))]}
    return {"action": "system_button", "button": "Back"}
