"""`mobile`: the next action on a phone, as a call of `mobile_use`, then a score (ADPO, appendix A)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from selfverify.core.problem import Problem, Split
from selfverify.core.tags import SCORE_TAG, Tagged
from selfverify.data.fields import Row
from selfverify.data.gui_actions import ACTIONS, BUTTONS, STATUSES, Action, convert_mobile
from selfverify.tasks.base import Demonstration, Metric, NotCounted, ScoredTaskConfig, Verdict
from selfverify.tasks.mobile_scoring import (
    PLACED,
    PROFILES,
    TOOL,
    StepScore,
    moved,
    parse_tool_call,
    score_step,
    vote_key,
    write_call,
)
from selfverify.tasks.row_task import RowSequence, RowTask, RowTaskConfig, Size

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


class MobileConfig(ScoredTaskConfig, RowTaskConfig):
    """Options of `mobile`."""

    profile: Profile = Field(
        "adpo", description="The published rules that decide what is right (docs/tasks-mobile.md)."
    )
    history: int = Field(32, ge=0, description="The most previous actions that are shown, the newest ones.")
    step_instruction: bool = Field(
        False,
        description="Show a step's own instruction where the row has one (AndroidControl-Low). Without it "
        "the goal and the actions so far are all that is said (AndroidControl-High, and ADPO's prompt).",
    )


class Mobile(RowTask):
    """Take the next action on a phone.

    Rows have ``goal``, ``images`` (the screenshot) and ``action`` (see `mobile_scoring`). They may have
    ``step_instruction``, ``history`` (earlier actions, or texts about them), ``screen`` (the width and height
    that coordinates refer to; by default the screenshot's) and ``ui_boxes`` (boxes of the target element).

    Args:
        config: The task's options, the data files among them.
        rows: Rows in memory by split, instead of files.
    """

    convert = staticmethod(convert_mobile)
    needs = ("goal", "action")
    name = "mobile"
    summary = "the next action on a phone, from data files (discrete)"
    config_class = MobileConfig
    config: MobileConfig
    tags = ("tool_call", "score")
    writes_places = True
    metrics = (
        Metric("type_accuracy", "type"),
        Metric("grounding_accuracy", "grounding"),
        Metric("step_success", "arguments"),
    )

    def __init__(
        self, config: MobileConfig | None = None, rows: Mapping[Split, RowSequence] | None = None
    ) -> None:
        super().__init__(config, rows)
        self.profile = PROFILES[self.config.profile]

    def ask(self, row: Row, id: str) -> Problem:
        """See `RowTask.ask`."""
        image, screen = row["images"][0].open(), row["screen"]
        space = self.space_of(image.size, id)
        target = {k: list(map(float, v)) if isinstance(v, list) else v for k, v in row["action"].items()}
        if target["action"] not in self.profile.counted:
            raise NotCounted(f"{id}: profile {self.config.profile} does not count {target['action']} steps")
        text = f"Goal: {row['goal']}\n"
        if self.config.step_instruction and row["step_instruction"]:
            text += f"Now: {row['step_instruction']}\n"
        text += f"Actions so far:{self._history(row, space) or ' none'}\nScreen:\n"
        system = {
            "role": "system",
            "content": [{"type": "text", "text": instructions(space, SCORE_TAG in self.tags)}],
        }
        user = {"role": "user", "content": [{"type": "text", "text": text}, {"type": "image"}]}
        meta = {
            "question": row["goal"],
            "screen": screen,
            "space": space,
            "ui_boxes": row.get("ui_boxes", []),
            "categories": row["categories"] | {"action": [target["action"]]},
        }
        kept = {key: row[key] for key in ("category", "source") if row[key] is not None}
        return Problem(id, [system, user], [image], target, meta | kept)

    def _history(self, row: Row, space: Size) -> str:
        first = max(0, len(row["history"]) - self.config.history)
        lines = []
        for number, step in enumerate(row["history"][first:], start=first + 1):
            # A step's screen may have been turned the other way, so it may be off the present one.
            shown = step if isinstance(step, str) else write_call(moved(step, row["screen"], space))
            lines.append(f"\n{number}. {shown}")
        return "".join(lines)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Reward a step by 0, 1 or 2. It counts as right if both its type and its parameters are."""
        call = parse_tool_call(tagged.fields.get("tool_call", ""))
        if call is None:
            return self.unreadable(problem)
        screen = problem.meta["screen"]
        action = moved(call, problem.meta["space"], screen)
        return _judged(self._score(problem, action), _rounded(action), vote_key(action, screen))

    def unreadable(self, problem: Problem) -> Verdict:
        """Return the verdict on a malformed call: wrong in type, parameters and place."""
        return _judged(self._score(problem, None))

    def _score(self, problem: Problem, action: Action | None) -> StepScore:
        meta = problem.meta
        return score_step(self.profile, problem.target, action, meta["screen"], meta["ui_boxes"])

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """Show the target as a call; a wrong call has another place, direction, text or action.

        ``quality`` is half of the step's reward, so that it lies in [0, 1] as for other tasks.
        """
        screen, space = problem.meta["screen"], problem.meta["space"]
        shown = _other(problem.target, screen, rng) if wrong else problem.target
        call = write_call(moved(shown, screen, space))
        quality = self._score(problem, shown).reward / 2
        return Demonstration.of(f"<tool_call>\n{call}\n", "</tool_call>", wrong, quality)


def _judged(score: StepScore, answer: Action | None = None, key: str | None = None) -> Verdict:
    parts = {"type": float(score.type), "arguments": float(score.success)}
    if score.grounding is not None:
        parts["grounding"] = float(score.grounding)
    return Verdict(score.reward, score.success, answer, key, quality=float(score.success), parts=parts)


def _rounded(action: Action) -> Action:
    return {
        key: [round(v, 2) for v in value] if isinstance(value, list) else value
        for key, value in action.items()
    }


@lru_cache(maxsize=256)
def instructions(space: Size, score: bool = True) -> str:
    """Return the system message: what the tool takes on a screen of ``space``, and how to answer.

    With ``score`` it asks for one behind the call.
    """
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
    rate = "then rate in <score></score> from 0 to 1 how sure you are that it is right."
    return (
        "You use a phone. Given a goal, the actions so far and the screen as it is now, take the next "
        f"action.\n<tools>\n{json.dumps(tool)}\n</tools>\n"
        f'Write one call, <tool_call>\n{{"name": "{TOOL}", "arguments": {{...}}}}\n</tool_call>'
        + (f", {rate}" if score else ".")
    )


def _other(target: Action, screen: Size, rng: np.random.Generator) -> Action:
    """Return a plausible action that is not the target."""
    name = target["action"]
    if name in PLACED:
        x, y = target["coordinate"]
        # A quarter to three quarters of each side further on; behind an edge the opposite one follows.
        dx, dy = rng.uniform(0.25, 0.75, 2) * screen
        return target | {"coordinate": [float((x + dx) % screen[0]), float((y + dy) % screen[1])]}
    if name == "swipe":
        return target | {"coordinate": target["coordinate2"], "coordinate2": target["coordinate"]}
    if name == "system_button":
        others = [button for button in BUTTONS if button != target["button"]]
        return target | {"button": others[rng.integers(len(others))]}
    return {"action": "system_button", "button": "Back"}
