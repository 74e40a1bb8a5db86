"""AndroidControl: episodes in TFRecords (google-research/android_control), each step a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.actions import LONGEST_TEXT, Action, from_android_control, rows_of_episode, screen_of
from selfverify.data.example import forest_boxes
from selfverify.data.fields import Images, Place, Record, Row, shown, text, written


def convert_android_control(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`.

    The last screenshot has no action in the file; like the published evaluators we add ``terminate`` there.
    ``ui_boxes`` holds the box of the element that is pressed: the smallest visible node of the step's
    accessibility forest around the place.
    """
    episode = written(_only(record, "episode_id"), "episode_id", 500)
    goal = text(_only(record, "goal"), "goal", LONGEST_TEXT)
    lists = ("screenshots", "screenshot_widths", "screenshot_heights", "actions", "step_instructions")
    screenshots, widths, heights, actions, instructions = (record.get(name, []) for name in lists)
    if not len(screenshots) == len(widths) == len(heights) == len(actions) + 1 == len(instructions) + 1:
        counts = ", ".join(
            f"{len(record.get(name, []))} {name.removeprefix('screenshot_')}" for name in lists
        )
        raise DataError(f"episode {episode} has {counts}; the last two have to be one less")
    trees = record.get("accessibility_trees", [])

    def screen(step: int) -> tuple[int, int]:
        return screen_of(widths[step], heights[step])

    def action(step: int) -> Action:
        if step == len(actions):
            return {"action": "terminate", "status": "success"}
        return from_android_control(_read(actions[step]), screen(step))

    def own(step: int, action: Action) -> Row:
        added = step == len(actions)
        # Some steps have an empty instruction.
        asked = (
            None
            if added or not instructions[step]
            else text(instructions[step], "step_instruction", LONGEST_TEXT)
        )
        row: Row = {
            "images": images.refs(screenshots[step], place),
            "category": action["action"],
            "step_instruction": asked,
            "screen": screen(step),
            "added": added,
        }
        if step < len(trees) and action["action"] in ("click", "long_press"):
            if not isinstance(trees[step], bytes):
                raise DataError(f"its accessibility tree is {shown(trees[step])}, not bytes")
            row["ui_boxes"] = _pressed(forest_boxes(trees[step]), action["coordinate"])
        return row

    shared: Row = {"source": "AndroidControl", "categories": {}, "goal": goal}
    return rows_of_episode(episode, len(screenshots), shared, action, own)


def _only(record: Record, name: str) -> Any:
    values = record.get(name, [])
    if len(values) > 1:
        raise DataError(f"its {name} is {shown(values)}, not one value")
    return values[0] if values else None


def _pressed(boxes: list[list[int]], place: list[int]) -> list[list[int]]:
    x, y = place
    around = [box for box in boxes if box[0] <= x <= box[2] and box[1] <= y <= box[3]]
    return [min(around, key=lambda box: (box[2] - box[0]) * (box[3] - box[1]))] if around else []


def _read(action: Any) -> Any:
    try:
        return json.loads(action)
    except (TypeError, ValueError, RecursionError):
        raise DataError(f"its action {shown(action)} is not JSON") from None
