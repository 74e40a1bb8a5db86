"""AndroidControl: episodes in TFRecords (google-research/android_control), each step a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.actions import LONGEST_TEXT, Action, from_android_control, screen_of
from selfverify.data.example import forest_boxes
from selfverify.data.fields import Images, Place, Record, Row, shown, text

PICTURES = ("screenshots",)
HEAVY = ("accessibility_trees",)


def convert_android_control(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`.

    The last screenshot has no action in the file; like the published evaluators we add ``terminate`` there.
    ``ui_boxes`` holds the box of the element that is pressed: the smallest visible node of the step's
    accessibility forest around the place.
    """
    [episode] = record.get("episode_id") or [None]
    [goal] = record.get("goal") or [None]
    goal = text(goal, "goal", LONGEST_TEXT)
    screens, actions = record.get("screenshots") or [], record.get("actions") or []
    instructions = record.get("step_instructions") or []
    widths, heights = record.get("screenshot_widths") or [], record.get("screenshot_heights") or []
    if not len(screens) == len(widths) == len(heights) == len(actions) + 1 == len(instructions) + 1:
        raise DataError(
            f"episode {episode} has {len(screens)} screenshots, {len(widths)} widths, {len(heights)} "
            f"heights, {len(actions)} actions and {len(instructions)} step instructions"
        )
    trees = record.get("accessibility_trees")
    rows: list[Row | DataError] = []
    history: list[Action] = []
    for step, screenshot in enumerate(screens):
        added = step == len(actions)
        try:
            screen = screen_of(widths[step], heights[step])
            action = _action(None if added else actions[step], screen)
        except DataError as error:
            # Later steps would have to be asked with this one missing from their history.
            rows += [DataError(f"step {step} of episode {episode}: {error}")] * (
                1 if added else len(screens) - step
            )
            break
        row: Row = {
            "id": f"{episode}/{step}",
            "images": images.refs(screenshot, place),
            "source": "AndroidControl",
            "category": action["action"],
            "categories": {},
            "goal": goal,
            "step_instruction": None if added else instructions[step].strip() or None,
            "history": list(history),
            "action": action,
            "screen": screen,
            "episode": str(episode),
            "step": step,
            "added": added,
        }
        if trees is not None and step < len(trees) and action["action"] in ("click", "long_press"):
            row["ui_boxes"] = _pressed(forest_boxes(trees[step]), action["coordinate"])
        rows.append(row)
        history.append(action)
    return rows


def _pressed(boxes: list[list[int]], place: list[int]) -> list[list[int]]:
    x, y = place
    around = [box for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
    return [min(around, key=lambda box: (box[2] - box[0]) * (box[3] - box[1]))] if around else []


def _action(raw: Any, screen: tuple[int, int]) -> Action:
    if raw is None:
        return {"action": "terminate", "status": "success"}
    try:
        action = json.loads(raw)
    except (ValueError, RecursionError):
        raise DataError(f"its action {shown(raw)} is not JSON") from None
    return from_android_control(action, screen)
