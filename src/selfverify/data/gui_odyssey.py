"""GUI-Odyssey: one JSON file per episode, screenshots beside it, each step a row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data.actions import LONGEST_TEXT, Action, from_gui_odyssey, rows_of_episode, screen_of
from selfverify.data.fields import Images, Place, Record, Row, first, listed, number, optional, text, written


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
    episode = written(first(record, "episode_id") or place.file.stem, "episode_id", 500)
    category = optional(task, ["category"], LONGEST_TEXT)
    steps = listed(record.get("steps"), "steps")

    def action(step: int) -> Action:
        if not isinstance(steps[step], dict):
            raise DataError("it is no object")
        return from_gui_odyssey(steps[step], screen)

    def own(step: int, action: Action) -> Row:
        about = steps[step]
        screenshot = _screenshot(text(about.get("screenshot"), "screenshot", 4096), place.file, images.root)
        row: Row = {
            "images": images.refs(screenshot, place),
            "step_instruction": optional(about, ["low_level_instruction"], LONGEST_TEXT),
        }
        if boxes := _boxes(about.get("sam2_bbox"), screen):
            row["ui_boxes"] = boxes
        return row

    shared: Row = {
        "source": "GUI-Odyssey",
        "category": category,
        "categories": {} if category is None else {"category": [category]},
        "goal": goal,
        "screen": screen,
    }
    return rows_of_episode(episode, len(steps), shared, action, own)


def _screenshot(name: str, file: Path, root: Path) -> Path:
    """Return a screenshot's path; the data set has them in ``screenshots``, next to ``annotations``."""
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
