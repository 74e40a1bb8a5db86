"""Actions on a phone's screen in one form, and steps of AndroidControl and GUI-Odyssey in this form.

The form is the arguments of Qwen's `mobile_use`, in pixels of the screenshot: a dictionary with ``action``
(one of `ACTIONS`) and, by it, ``coordinate`` [x, y] and ``coordinate2`` [x, y], ``text``, ``button``,
``time`` (seconds), ``status``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data import fields
from selfverify.data.fields import (
    Images,
    Place,
    Record,
    Row,
    first,
    listed,
    number,
    optional,
    shown,
    text,
    written,
)
from selfverify.data.questions import common
from selfverify.data.tfrecord import forest_boxes

Action = dict[str, Any]

ACTIONS: dict[str, tuple[str, ...]] = {
    "key": ("text",),
    "click": ("coordinate",),
    "long_press": ("coordinate",),
    "swipe": ("coordinate", "coordinate2"),
    "type": ("text",),
    "system_button": ("button",),
    "open": ("text",),
    "wait": (),
    "terminate": ("status",),
}
"""The actions and the parameters that each needs."""
TIMED = ("long_press", "wait")
"""Actions that may have a ``time``, too, which data sets leave out."""
BUTTONS = ("Back", "Home", "Menu", "Enter")
STATUSES = ("success", "failure")
LONGEST_TEXT = 10_000
ANYWHERE = 100_000
"""The limit of coordinates in a history: earlier screens may have been turned, so theirs are not known."""


def check_action(action: Any, screen: tuple[int, int]) -> Action:
    """Return an action in canonical form, given as such or as a whole tool call.

    Raises:
        DataError: The value is no known action, a parameter is missing, unknown or malformed, or a place is
            not on the screen.
    """
    if isinstance(action, dict) and "arguments" in action:
        action = action["arguments"]
    if not isinstance(action, dict) or action.get("action") not in tuple(ACTIONS):
        raise DataError(f"its action is {shown(action)}; actions: {', '.join(ACTIONS)}")
    kind = action["action"]
    needed = {"action", *ACTIONS[kind]}
    allowed = needed | ({"time"} if kind in TIMED else set())
    if not needed <= action.keys() <= allowed:
        extra, missing = sorted(action.keys() - allowed), sorted(needed - action.keys())
        raise DataError(f"its action {kind} has {extra} too much and misses {missing}")
    found: Action = {"action": kind}
    for key in (*ACTIONS[kind], "time"):
        if key in action:
            found[key] = _parameter(key, action[key], screen)
    return found


def _parameter(key: str, value: Any, screen: tuple[int, int]) -> Any:
    match key:
        case "text":
            return fields.written(value, "action's text", LONGEST_TEXT)
        case "button" | "status":
            return _one_of(value, BUTTONS if key == "button" else STATUSES, key)
        case "time":
            seconds = number(value, "action's time")
            if seconds < 0:
                raise DataError(f"its action's time is {seconds} seconds")
            return seconds
        case _:
            return on_screen(value, screen, key)


def on_screen(point: Any, screen: tuple[int, int], name: str = "coordinate") -> list[int]:
    """Return a point rounded to whole pixels.

    Raises:
        DataError: The value is no point, or the point is not on the screen.
    """
    values = listed(point, name)
    if len(values) != 2:
        raise DataError(f"its {name} is {shown(point)}, not [x, y]")
    x, y = (round(number(v, name)) for v in values)
    if not (0 <= x <= screen[0] and 0 <= y <= screen[1]):
        raise DataError(f"its {name} {[x, y]} is not on the screen ({screen[0]} x {screen[1]})")
    return [x, y]


def from_android_control(action: Any, screen: tuple[int, int]) -> Action:
    """Return one of AndroidControl's actions (google-research/android_control) in canonical form.

    A ``scroll`` names where the content goes on; the finger moves the other way, here through the middle
    half of the screen.

    Raises:
        DataError: AndroidControl has no such action, or the action is not on the screen.
    """
    kind = action.get("action_type") if isinstance(action, dict) else None
    match kind:
        case "click" | "long_press":
            found = {"action": kind, "coordinate": [action.get("x"), action.get("y")]}
        case "scroll":
            found = _swipe_against(action.get("direction"), screen)
        case "input_text" | "type":
            found = {"action": "type", "text": action.get("text")}
        case "open_app":
            found = {"action": "open", "text": action.get("app_name")}
        case "navigate_home" | "navigate_back":
            found = {"action": "system_button", "button": "Home" if kind == "navigate_home" else "Back"}
        case "wait":
            found = {"action": "wait"}
        case _:
            raise DataError(f"its action is {shown(action)}, which AndroidControl does not have")
    return check_action(found, screen)


def _swipe_against(direction: Any, screen: tuple[int, int]) -> Action:
    width, height = screen
    near_x, far_x, near_y, far_y = width // 4, width - width // 4, height // 4, height - height // 4
    x, y = width // 2, height // 2
    ways = {
        "down": ([x, far_y], [x, near_y]),
        "up": ([x, near_y], [x, far_y]),
        "right": ([far_x, y], [near_x, y]),
        "left": ([near_x, y], [far_x, y]),
    }
    begin, end = ways[_one_of(direction, tuple(ways), "scroll direction")]
    return {"action": "swipe", "coordinate": begin, "coordinate2": end}


ODYSSEY_KEYS = {"KEY_HOME": "Home", "KEY_BACK": "Back", "KEY_APPSELECT": "Menu"}
"""GUI-Odyssey's keys as buttons. `mobile_use` describes Menu as the list of running applications."""


def from_gui_odyssey(step: Any, screen: tuple[int, int]) -> Action:
    """Return a step's ``action`` and ``info`` (places in thousandths of the screen) in canonical form.

    Raises:
        DataError: GUI-Odyssey has no such action, or the action is not on the screen.
    """
    kind, info = step.get("action"), step.get("info")
    match kind:
        case "CLICK" if isinstance(info, str) and info in ODYSSEY_KEYS:
            found: Action = {"action": "system_button", "button": ODYSSEY_KEYS[info]}
        case "CLICK" | "LONG_PRESS":
            [point] = _thousandths(info, screen, 1)
            found = {"action": kind.lower(), "coordinate": point}
        case "SCROLL":
            begin, end = _thousandths(info, screen, 2)
            found = {"action": "swipe", "coordinate": begin, "coordinate2": end}
        case "TYPE" | "TEXT":
            found = {"action": "type", "text": info}
        case "COMPLETE" | "INCOMPLETE":
            found = {"action": "terminate", "status": "success" if kind == "COMPLETE" else "failure"}
        case _:
            raise DataError(
                f"its action is {shown(kind)} with {shown(info)}, which GUI-Odyssey does not have"
            )
    return check_action(found, screen)


def _thousandths(info: Any, screen: tuple[int, int], count: int) -> list[list[float]]:
    points = listed(info, "info")
    if len(points) != count:
        raise DataError(f"its info {shown(info)} has {len(points)} points, not {count}")
    return [
        [number(v, "info") * side / 1000 for v, side in zip(listed(point, "info"), screen, strict=False)]
        for point in points
    ]


def screen_of(width: Any, height: Any) -> tuple[int, int]:
    """Return a screen's size in whole pixels.

    Raises:
        DataError: A side is no number, or less than a pixel.
    """
    found = int(number(width, "screen's width")), int(number(height, "screen's height"))
    if min(found) < 1:
        raise DataError(f"its screen is {found[0]} x {found[1]}")
    return found


def _one_of(value: Any, known: tuple[str, ...], name: str) -> str:
    if value not in known:
        raise DataError(f"its {name} is {shown(value)}, not one of {', '.join(known)}")
    return str(value)


def convert_mobile(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. Takes steps in canonical form; without ``screen`` the screenshot's size counts.

    An optional field is missing if it is None or an empty text. NaN is an error here: tables, in which NaN
    stands for an empty cell, cannot hold such rows.
    """
    row = common(record, images, place)
    screenshot = fields.one_image(row["images"])
    given = {name: value for name, value in record.items() if not (value is None or value == "")}
    if "screen" in given:
        sides = listed(given["screen"], "screen")
        if len(sides) != 2:
            raise DataError(f"its screen is {shown(sides)}, not (width, height)")
        screen = screen_of(*sides)
    else:
        screen = images.size(screenshot)
    row["goal"] = text(given.get("goal"), "goal", LONGEST_TEXT)
    step = given.get("step_instruction")
    row["step_instruction"] = None if step is None else text(step, "step_instruction", LONGEST_TEXT)
    row["history"] = [
        _earlier(step, number)
        for number, step in enumerate(listed(given.get("history", []), "history"), start=1)
    ]
    row |= {"action": check_action(given.get("action"), screen), "screen": screen}
    if "ui_boxes" in given:
        row["ui_boxes"] = [fields.sides(box, "ui_boxes") for box in listed(given["ui_boxes"], "ui_boxes")]
    return [row]


def _earlier(step: Any, number: int) -> Action | str:
    """Return step ``number`` of a history: an action, or words about one."""
    try:
        if isinstance(step, str):
            return text(step, "text", LONGEST_TEXT)
        return check_action(step, (ANYWHERE, ANYWHERE))
    except DataError as error:
        raise DataError(f"history step {number}: {error}") from None


def rows_of_episode(
    episode: str, steps: int, shared: Row, action: Callable[[int], Action], own: Callable[[int, Action], Row]
) -> list[Row | DataError]:
    """Return the rows of an episode, whose ``history`` is the actions before them.

    A step whose action cannot be read takes the later ones with it, since their history would lack it.

    Args:
        episode: The episode's id.
        steps: The number of its steps.
        shared: The fields that are the same in all rows.
        action: Returns a step's action, or raises DataError.
        own: Returns the other fields of a step with this action, or raises DataError.
    """
    rows: list[Row | DataError] = []
    history: list[Action] = []
    for step in range(steps):
        named = f"step {step} of episode {episode}"
        try:
            done = action(step)
        except DataError as error:
            rows += [DataError(f"{named}: {error}")] * (steps - step)
            break
        try:
            about: Row = {"id": f"{episode}/{step}", "episode": episode, "step": step}
            about |= {"history": list(history), "action": done}
            rows.append({**shared, **about, **own(step, done)})
        except DataError as error:
            rows.append(DataError(f"{named}: {error}"))
        history.append(done)
    return rows


def convert_android_control(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. Takes an episode in TFRecords (google-research/android_control); each step is a row.

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


def is_gui_odyssey(record: Record) -> bool:
    """Whether a JSON object is an episode."""
    return {"steps", "task_info"} <= record.keys()


def convert_gui_odyssey(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """See `Convert`. Takes a JSON file, which is one episode with screenshots beside it; each step is a row.

    Places are converted from thousandths to pixels of the device's screen.
    """
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
