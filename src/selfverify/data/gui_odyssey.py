"""GUI-Odyssey: one JSON file per episode, screenshots beside it, each step a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.actions import LONGEST_TEXT, Action, from_gui_odyssey, screen_of
from selfverify.data.fields import Images, Place, Record, Row, first, listed, number, text


def is_gui_odyssey(record: Record) -> bool:
    """Whether a JSON object is an episode."""
    return {"steps", "task_info"} <= record.keys()


def convert_gui_odyssey(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. Places are converted from thousandths to pixels of the device's screen."""
    device, task = record.get("device_info"), record.get("task_info")
    if not isinstance(device, dict) or not isinstance(task, dict):
        raise DataError("it has no device_info or no task_info")
    screen = screen_of(device.get("w"), device.get("h"))
    goal = text(first(task, "instruction", "task"), "instruction", LONGEST_TEXT)
    episode = text(first(record, "episode_id") or place.file.stem, "episode_id", 500)
    category = _text(task, "category")
    rows: list[Row | DataError] = []
    history: list[Action] = []
    steps = listed(record.get("steps"), "steps")
    for number_, step in enumerate(steps):
        try:
            if not isinstance(step, dict):
                raise DataError("it is no object")
            action = from_gui_odyssey(step, screen)
        except DataError as error:
            # Later steps would have to be asked with this one missing from their history.
            rows += [DataError(f"step {number_}: {error}")] * (len(steps) - number_)
            break
        try:
            screenshot = text(step.get("screenshot"), "screenshot", 4096)
            row: Row = {
                "id": f"{episode}/{number_}",
                "images": images.refs(_screenshot(screenshot, place.file, images.root), place),
                "source": "GUI-Odyssey",
                "category": category,
                "categories": {} if category is None else {"category": [category]},
                "goal": goal,
                "step_instruction": _text(step, "low_level_instruction"),
                "history": list(history),
                "action": action,
                "screen": screen,
                "episode": episode,
                "step": number_,
            }
            if boxes := _boxes(step.get("sam2_bbox"), screen):
                row["ui_boxes"] = boxes
            rows.append(row)
        except DataError as error:
            rows.append(DataError(f"step {number_}: {error}"))
        history.append(action)
    return rows


def _text(record: Record, name: str) -> str | None:
    found = first(record, name)
    return None if found is None else text(found, name, LONGEST_TEXT)


def _screenshot(name: str, file: Path, root: Path) -> Path:
    """Where a screenshot is; the data set has them in ``screenshots``, next to ``annotations``."""
    for folder in (root, root / "screenshots", file.parent.parent / "screenshots"):
        if (folder / name).is_file():
            return folder / name
    return root / name


def _boxes(box: Any, screen: tuple[int, int]) -> list[list[float]]:
    values = listed(box, "sam2_bbox") if box else []
    if len(values) != 4:
        return []
    sides = (*screen, *screen)
    return [[number(v, "sam2_bbox") * side / 1000 for v, side in zip(values, sides, strict=True)]]
