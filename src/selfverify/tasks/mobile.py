"""`mobile`: the next action on a phone, as a call of `mobile_use`, then a score (ADPO, appendix A).

A model calls Qwen2.5-VL's `mobile_use` tool. In our canonical form an action is a dict with ``action`` and
the parameters of that action:

=================  ==========================================================================================
``click``          ``coordinate`` [x, y]
``long_press``     ``coordinate`` [x, y]; ``time`` in seconds is optional
``swipe``          ``coordinate`` and ``coordinate2``, where the finger begins and ends
``type``, ``key``  ``text``
``open``           ``text``, the app's name
``system_button``  ``button``: Back, Home, Menu or Enter
``wait``           ``time`` in seconds is optional
``terminate``      ``status``: success or failure
=================  ==========================================================================================

In data files, targets and results coordinates are pixels of the screen; a model writes them in its own space.

Published evaluators disagree on which actions and which typed texts count, so each has its rules by name
(`PROFILES`, `TextRule`).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field

from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG, Tagged
from selfverify.data.fields import Row
from selfverify.data.gui_actions import ACTIONS, BUTTONS, STATUSES, TIMED, Action, convert_mobile
from selfverify.tasks.base import Demonstration, Metric, NotCounted, ScoredTaskConfig, Verdict
from selfverify.tasks.row_task import RowTask, RowTaskConfig, Size, convert
from selfverify.tasks.tool_calls import is_number, read_json

TextRule = Callable[[str, str], bool]
"""Whether the first text (the model's) counts as the second (the target)."""


def f1(found: int, wanted: int, shared: int) -> float:
    """Return the harmonic mean of precision and recall, given the numbers of words."""
    return 2 * shared / (found + wanted) if shared else 0.0


def word_f1(text: str, target: str) -> bool:
    """Return whether the texts are equal, or their word F1 is above 0.5, regardless of case (our rule).

    Words count as often as they occur. Qwen's and GUI-Odyssey's scorers take any part of the text, so that a
    policy under training would learn that "a" is part of nearly every text.
    """
    mine, theirs = Counter(text.casefold().split()), Counter(target.casefold().split())
    shared = (mine & theirs).total()
    return mine == theirs or f1(mine.total(), theirs.total(), shared) > 0.5


def substring(text: str, target: str) -> bool:
    """Return whether either contains the other, regardless of case (AgentCPM-GUI's port of Qwen's scorer)."""
    mine, theirs = text.strip().lower(), target.strip().lower()
    return mine in theirs or theirs in mine


def odyssey(text: str, target: str) -> bool:
    """Return whether either contains the other, or edits change at most half of the longer (GUI-Odyssey)."""
    mine, theirs = text.strip(), target.strip()
    if mine in theirs or theirs in mine:
        return True
    longest, shortest = max(len(mine), len(theirs)), min(len(mine), len(theirs))
    # An edit distance is at least the difference in length, so long texts need no table.
    return 2 * shortest >= longest and 2 * edit_distance(mine, theirs) <= longest


def os_atlas(text: str, target: str) -> bool:
    """Return whether the first words are equal regardless of case: "New delhi" is "new york" (OS-Atlas)."""
    return text.lower().split()[:1] == target.lower().split()[:1]


def os_atlas_odyssey(text: str, target: str) -> bool:
    """Return whether the set F1 of the whole commands, whose word TYPE agrees, is above 0.5 (OS-Atlas)."""
    return set_f1(f"TYPE {text}", f"TYPE {target}") > 0.5


def gui_r1(text: str, target: str) -> bool:
    """Return whether the set F1 is 0.5 or more; single words count if either contains the other (GUI-R1)."""
    mine, theirs = text.lower().split(), target.lower().split()
    if len(mine) == len(theirs) == 1:
        return mine[0] in theirs[0] or theirs[0] in mine[0]
    return set_f1(text, target) >= 0.5


def set_f1(text: str, target: str) -> float:
    """Return the F1 of the two sets of words, regardless of case."""
    mine, theirs = set(text.lower().split()), set(target.lower().split())
    return f1(len(mine), len(theirs), len(mine & theirs))


def edit_distance(a: str, b: str) -> int:
    """Return the fewest insertions, deletions and replacements that make ``b`` of ``a`` (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


TOOL = "mobile_use"
MAX_CHARS = 8192
"""Longer tool calls are malformed."""
MAX_NUMBER = 100_000.0
"""Larger coordinates and times are malformed."""
_PLACES = ("coordinate", "coordinate2")
_KEY_CELL = 0.07
"""Side of a vote's cells in screen diagonals, half of ADPO's tolerance: places in one cell are within it."""


def parse_tool_call(text: str) -> Action | None:
    """Return the action that the inside of ``<tool_call>`` calls for, in the model's space. Never raises.

    It has to be ``{"name": "mobile_use", "arguments": {...}}`` and nothing else: no other or repeated keys,
    every parameter `mobile_use`'s own and of its type, those that the action needs present and texts not
    empty. Parameters that the action does not use are checked and left out.
    """
    if len(text) > MAX_CHARS:
        return None
    try:
        call = read_json(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or call.keys() != {"name", "arguments"} or call["name"] != TOOL:
        return None
    given = call["arguments"]
    if not isinstance(given, dict) or not all(key in _CHECKS and _CHECKS[key](v) for key, v in given.items()):
        return None
    kind = given.get("action")
    if kind is None or not given.keys() >= set(ACTIONS[kind]):
        return None
    used = ("action", *ACTIONS[kind], *(("time",) if kind in TIMED else ()))
    kept = {key: given[key] for key in used if key in given}
    return {key: [float(v) for v in value] if key in _PLACES else value for key, value in kept.items()}


def _is_point(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_plain, value))


def _is_plain(value: Any) -> bool:
    return is_number(value) and abs(value) <= MAX_NUMBER  # False for NaN


_CHECKS: dict[str, Any] = {
    "action": lambda value: isinstance(value, str) and value in ACTIONS,
    "coordinate": _is_point,
    "coordinate2": _is_point,
    "text": lambda value: isinstance(value, str) and bool(value.strip()),
    "time": lambda value: _is_plain(value) and value >= 0,
    "button": lambda value: isinstance(value, str) and value in BUTTONS,
    "status": lambda value: isinstance(value, str) and value in STATUSES,
}


def moved(action: Action, source: Size, target: Size) -> Action:
    """Return the action with its coordinates converted from a space of one size to a space of another."""
    return action | {key: convert(action[key], source, target) for key in _PLACES if key in action}


def swipe_direction(action: Action) -> str | None:
    """Return where the finger goes by the larger distance (up or down if both are equal); None if nowhere."""
    (x1, y1), (x2, y2) = action["coordinate"], action["coordinate2"]
    dx, dy = x2 - x1, y2 - y1
    if dx == dy == 0:
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def write_call(action: Action) -> str:
    """Return the tool call for an action in the model's space, its coordinates rounded to whole numbers.

    ``<`` is written as JSON's escape, so that no text of an action can look like a tag.
    """
    shown = {key: [round(v) for v in value] if key in _PLACES else value for key, value in action.items()}
    call = json.dumps({"name": TOOL, "arguments": shown}, ensure_ascii=False)
    return call.replace("<", "\\u003c")


def vote_key(action: Action, screen: Size) -> str:
    """Return a key that is equal for actions that count as the same answer in a majority vote.

    Places are compared by square cells of 0.07 screen diagonals, counted from the top left: two in one cell
    are less than 0.1 diagonals apart, within ADPO's tolerance of 0.14. Neighbours across a cell's edge count
    as different. Swipes are the same by direction, texts regardless of case and spacing; times say nothing.
    """
    name = action["action"]
    said: Sequence[Any] = ()
    if name == "swipe":
        said = [swipe_direction(action)]
    elif "coordinate" in action:
        cell = _KEY_CELL * math.hypot(*screen)
        said = [math.floor(value / cell) for value in action["coordinate"]]
    elif "text" in action:
        said = [" ".join(action["text"].casefold().split())]
    else:
        said = [action[key] for key in ("button", "status") if key in action]
    return json.dumps([name, *said])


PLACED = ("click", "long_press")


@dataclass(frozen=True, slots=True)
class ScoringProfile:
    """One evaluator's rules.

    Args:
        source: Where the rules come from.
        threshold: Largest distance of a click from the target, in ``unit``.
        unit: ``diagonal``: the distance in pixels over the screen's diagonal. ``sides``: the Euclidean
            distance of x over the width and y over the height. ``pixels``: the distance in pixels of a screen
            scaled to 1080 x 2400.
        inclusive: Whether a click exactly at the threshold counts.
        boxes: How much boxes of the target element are enlarged, within which a click counts at any
            distance; None ignores them.
        text: When a typed text or an app's name counts.
        split: Actions whose button or status makes a type of its own: PRESS_HOME is not PRESS_BACK.
        status: Whether the status of ``terminate`` is compared.
        merged: Actions that count as other actions.
        buttons: Buttons that count as other buttons.
        counted: Actions whose steps take part in the figures.
        grounding: Over which steps grounding accuracy is taken: those whose target is a click or a long press
            (``placed``), a click (``clicks``), or such a one whose type was answered right (``typed_...``).
        grounding_needs_type: Whether a click at the right place needs the right type as well.
    """

    source: str
    threshold: float = 0.14
    unit: Literal["diagonal", "sides", "pixels"] = "sides"
    inclusive: bool = True
    boxes: float | None = None
    text: TextRule = word_f1
    split: frozenset[str] = frozenset()
    status: bool = True
    merged: Mapping[str, str] = field(default_factory=dict)
    buttons: Mapping[str, str] = field(default_factory=dict)
    counted: frozenset[str] = frozenset(ACTIONS)
    grounding: Literal["placed", "clicks", "typed_placed", "typed_clicks"] = "clicks"
    grounding_needs_type: bool = True


_SPLIT = frozenset({"system_button", "terminate"})
_AGENTCPM = ScoringProfile(
    "AgentCPM-GUI, evaluator.py on GUI-Odyssey",
    boxes=1.2,
    text=substring,
    status=False,
    merged={"long_press": "click", "terminate": "wait"},
    buttons={"Menu": "Home"},
    counted=frozenset(ACTIONS) - {"open"},
)

PROFILES: dict[str, ScoringProfile] = {
    "adpo": ScoringProfile(
        "ADPO, appendix A; what that does not say is ours: texts, grounding over clicks and long presses",
        unit="diagonal",
        inclusive=False,
        grounding="placed",
    ),
    "gui-odyssey": ScoringProfile(
        "GUI-Odyssey, GUIOdyssey_action_matching.py", boxes=1.0, text=odyssey, split=_SPLIT
    ),
    "os-atlas": ScoringProfile(
        "OS-Atlas, android_control/evaluation_unify.py", text=os_atlas, split=_SPLIT, grounding="typed_clicks"
    ),
    "os-atlas-odyssey": ScoringProfile(
        "OS-Atlas, odyssey/evaluation_unify.py", text=os_atlas_odyssey, split=_SPLIT, grounding="typed_placed"
    ),
    "agentcpm-androidcontrol": replace(
        _AGENTCPM, source="AgentCPM-GUI, evaluator.py on AndroidControl", threshold=0.04
    ),
    "agentcpm-odyssey": _AGENTCPM,
    "ui-r1": ScoringProfile(
        "UI-R1, eval_ac.py",
        threshold=0.14 * 1080,
        unit="pixels",
        inclusive=False,
        counted=frozenset({"click"}),
    ),
    "gui-r1": ScoringProfile(
        "GUI-R1, eval_omni.py", inclusive=False, text=gui_r1, split=_SPLIT, grounding_needs_type=False
    ),
}
"""By name. docs/tasks-mobile.md has them as a table."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """The reward of one action.

    Args:
        type: Whether the action is of the target's type.
        arguments: Whether its parameters are right as well.
        grounding: Whether its place is right; None where the step does not count for grounding accuracy.
    """

    type: bool
    arguments: bool
    grounding: bool | None

    @property
    def success(self) -> bool:
        """Whether type and parameters are right."""
        return self.type and self.arguments

    @property
    def reward(self) -> float:
        """0, 1 or 2: one for the type, one more for the parameters (ADPO, appendix A)."""
        return float(self.type) + float(self.success)


def score_step(
    profile: ScoringProfile,
    target: Action,
    action: Action | None,
    screen: Size,
    boxes: Sequence[Sequence[float]] = (),
) -> StepScore:
    """Score an action, or None for an answer that could not be read.

    Args:
        profile: The rules.
        target: The wanted action, in pixels of the screen, as ``action`` and ``boxes`` are.
        action: The model's action.
        screen: The screen's width and height.
        boxes: Boxes (x1, y1, x2, y2) of the target element.
    """
    placed = target["action"] in PLACED
    typed = action is not None and _kind(profile, action) == _kind(profile, target)
    hit = placed and action is not None and action["action"] in PLACED
    hit = hit and _hits(profile, target, action or {}, screen, boxes)
    grounding = None
    counted = placed if profile.grounding.endswith("placed") else _kind(profile, target) == "click"
    if counted and (typed or not profile.grounding.startswith("typed")):
        grounding = hit and (typed or not profile.grounding_needs_type)
    if action is None or not typed:
        return StepScore(False, False, grounding)
    return StepScore(True, hit if placed else _agrees(profile, target, action), grounding)


def _kind(profile: ScoringProfile, action: Action) -> str:
    """Return an action's type as a profile sees it."""
    name: str = action["action"]
    if name in profile.split:
        name += f" {action.get('button', '')}{action.get('status', '')}"
    return profile.merged.get(name, name)


def _hits(
    profile: ScoringProfile, target: Action, action: Action, screen: Size, boxes: Sequence[Sequence[float]]
) -> bool:
    (x, y), (tx, ty), (width, height) = action["coordinate"], target["coordinate"], screen
    if profile.boxes is not None and any(_inside(x, y, box, profile.boxes) for box in boxes):
        return True
    if profile.unit == "diagonal":
        distance = math.hypot(x - tx, y - ty) / math.hypot(width, height)
    else:
        across, down = (1.0, 1.0) if profile.unit == "sides" else (1080.0, 2400.0)
        distance = math.hypot((x - tx) / width * across, (y - ty) / height * down)
    return distance <= profile.threshold if profile.inclusive else distance < profile.threshold


def _inside(x: float, y: float, box: Sequence[float], scale: float) -> bool:
    x1, y1, x2, y2 = box
    across, down = (x2 - x1) * scale / 2, (y2 - y1) * scale / 2
    return abs(x - (x1 + x2) / 2) <= across and abs(y - (y1 + y2) / 2) <= down


def _agrees(profile: ScoringProfile, target: Action, action: Action) -> bool:
    """Whether the parameters of two actions of one type, that are no clicks, agree."""
    name = target["action"]
    if name == "swipe":
        direction = swipe_direction(action)
        return direction is not None and direction == swipe_direction(target)
    if name in ("type", "open"):
        return profile.text(action["text"], target["text"])
    if name == "key":
        return bool(action["text"].strip().lower() == target["text"].strip().lower())
    if name == "system_button":
        mine, theirs = (profile.buttons.get(a["button"], a["button"]) for a in (action, target))
        return bool(mine == theirs)
    return not profile.status or action.get("status") == target.get("status")


Profile = Literal[
    "adpo", "gui-odyssey", "os-atlas", "os-atlas-odyssey", "agentcpm-androidcontrol", "agentcpm-odyssey",
    "ui-r1", "gui-r1",
]  # fmt: skip


class MobileConfig(ScoredTaskConfig, RowTaskConfig):
    """Options of `mobile`."""

    profile: Profile = "adpo"
    """The published rules that decide what is right (docs/tasks-mobile.md)."""

    history: int = Field(32, ge=0)
    """The most previous actions that are shown, the newest ones."""

    step_instruction: bool = False
    """Show a step's own instruction where the row has one (AndroidControl-Low). Without it the goal and the
    actions so far are all that is said (AndroidControl-High, and ADPO's prompt)."""


class Mobile(RowTask):
    """Take the next action on a phone.

    Rows have ``goal``, ``images`` (the screenshot) and ``action`` (see above). They may have
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

    def ask(self, row: Row, id: str) -> Problem:
        image, screen = row["images"][0].open(), row["screen"]
        space = self.space_of(image.size, id)
        target = {k: list(map(float, v)) if isinstance(v, list) else v for k, v in row["action"].items()}
        if target["action"] not in PROFILES[self.config.profile].counted:
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
        answer = {k: [round(v, 2) for v in value] if k in _PLACES else value for k, value in action.items()}
        return _judged(self._score(problem, action), answer, vote_key(action, screen))

    def unreadable(self, problem: Problem) -> Verdict:
        """Return the verdict on a malformed call: wrong in type, parameters and place."""
        return _judged(self._score(problem, None))

    def _score(self, problem: Problem, action: Action | None) -> StepScore:
        meta, profile = problem.meta, PROFILES[self.config.profile]
        return score_step(profile, problem.target, action, meta["screen"], meta["ui_boxes"])

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
