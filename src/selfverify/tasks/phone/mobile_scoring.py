"""Whether an action is the wanted one, by named rules: published evaluators disagree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from selfverify.data.gui_actions import ACTIONS, Action
from selfverify.tasks.coordinates import Size
from selfverify.tasks.phone import text_rules
from selfverify.tasks.phone.mobile_action import swipe_direction
from selfverify.tasks.phone.text_rules import TextRule

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
    text: TextRule = text_rules.word_f1
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
    text=text_rules.substring,
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
        "GUI-Odyssey, GUIOdyssey_action_matching.py", boxes=1.0, text=text_rules.odyssey, split=_SPLIT
    ),
    "os-atlas": ScoringProfile(
        "OS-Atlas, android_control/evaluation_unify.py",
        text=text_rules.os_atlas,
        split=_SPLIT,
        grounding="typed_clicks",
    ),
    "os-atlas-odyssey": ScoringProfile(
        "OS-Atlas, odyssey/evaluation_unify.py",
        text=text_rules.os_atlas_odyssey,
        split=_SPLIT,
        grounding="typed_placed",
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
        "GUI-R1, eval_omni.py",
        inclusive=False,
        text=text_rules.gui_r1,
        split=_SPLIT,
        grounding_needs_type=False,
    ),
}
"""By name. docs/tasks-mobile.md has them as a table."""


@dataclass(frozen=True, slots=True)
class StepScore:
    """What one action earned.

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
        action: What the model did.
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
