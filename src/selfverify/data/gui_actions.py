"""Actions on a phone's screen in one form, steps in this form, and GUI-Odyssey's episodes.

AndroidControl's TFRecords are made into such steps by `reproduce/convert_android_control.py`.

The form is the arguments of Qwen's `mobile_use`, in pixels of the screenshot: a dictionary with ``action``
(one of `ACTIONS`) and, by it, ``coordinate`` [x, y] and ``coordinate2`` [x, y], ``text``, ``button``,
``time`` (seconds), ``status``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfverify.core.errors import DataError
from selfverify.data import fields
from selfverify.data.fields import Images, Place, Record, Row, listed, mapped, number, shown, text
from selfverify.data.questions import common

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
CHOICES = {"button": BUTTONS, "status": STATUSES}
ANYWHERE = 100_000
"""The limit of coordinates in a history: earlier screens may have been turned, so theirs are not known."""


def check_action(action: Any, screen: tuple[int, int]) -> Action:
    """Return an action in canonical form, given as such or as a whole tool call.

    Raises:
        DataError: The value is no known action, a parameter is missing, unknown or malformed, or a place is
            not on the screen.
    """
    action = mapped(action, "action")
    if "arguments" in action:
        action = mapped(action["arguments"], "action's arguments")
    kind = action.get("action")
    if kind not in tuple(ACTIONS):
        raise DataError(f"its action is {shown(action)}; actions: {', '.join(ACTIONS)}")
    needed = ACTIONS[kind]
    # In Parquet every action has the fields of all, null or empty where it has none.
    given = {key: v for key, v in action.items() if v is not None and (key in needed or v not in ("", []))}
    extra = sorted(given.keys() - {"action", *needed, *(("time",) if kind in TIMED else ())})
    if extra or not given.keys() >= {*needed}:
        missing = sorted({*needed} - given.keys())
        raise DataError(f"its action {kind} has {extra} too much and misses {missing}")
    checked = {key: _parameter(key, given[key], screen) for key in (*needed, "time") if key in given}
    return {"action": kind, **checked}


def _parameter(key: str, value: Any, screen: tuple[int, int]) -> Any:
    if key == "text":
        return fields.written(value, "action's text")
    if key == "time":
        if (seconds := number(value, "action's time")) < 0:
            raise DataError(f"its action's time is {seconds} seconds")
        return seconds
    if key in CHOICES:
        if value not in CHOICES[key]:
            raise DataError(f"its {key} is {shown(value)}, not one of {', '.join(CHOICES[key])}")
        return value
    x, y = _point(value, key)
    if max(x, y) <= 1 and not (x.is_integer() and y.is_integer()):
        raise DataError(f"its {key} {[x, y]} is within one pixel: parts of the sides have to be made pixels")
    x, y = round(x), round(y)
    if not (0 <= x <= screen[0] and 0 <= y <= screen[1]):
        raise DataError(f"its {key} {[x, y]} is not on the screen ({screen[0]} x {screen[1]})")
    return [x, y]


def _point(value: Any, name: str) -> list[float]:
    values = listed(value, name)
    if len(values) != 2:
        raise DataError(f"its {name} is {shown(value)}, not [x, y]")
    return [number(v, name) for v in values]


ODYSSEY_KEYS = {
    "KEY_HOME": "Home", "KEY_BACK": "Back", "KEY_APPSELECT": "Menu", "HOME": "Home", "BACK": "Back",
}  # fmt: skip
"""GUI-Odyssey's keys as buttons. `mobile_use` describes Menu as the list of running applications."""


def from_gui_odyssey(step: Any, screen: tuple[int, int]) -> Action:
    """Return a step's ``action`` and ``info`` (places in thousandths of the screen) in canonical form.

    Raises:
        DataError: GUI-Odyssey has no such action, or the action is not on the screen.
    """
    step = mapped(step, "step")
    kind, info = step.get("action"), step.get("info")
    key = info if kind == "CLICK" else kind
    match kind:
        case "CLICK" | "HOME" | "BACK" if isinstance(key, str) and key in ODYSSEY_KEYS:
            found: Action = {"action": "system_button", "button": ODYSSEY_KEYS[key]}
        case "CLICK" | "LONG_PRESS":
            [point] = _thousandths(info, screen, 1)
            found = {"action": kind.lower(), "coordinate": point}
        case "SCROLL":
            begin, end = _thousandths(info, screen, 2)
            found = {"action": "swipe", "coordinate": begin, "coordinate2": end}
        case "TYPE" | "TEXT":
            found = {"action": "type", "text": info}
        case "COMPLETE" | "INCOMPLETE" | "IMPOSSIBLE":
            found = {"action": "terminate", "status": "success" if kind == "COMPLETE" else "failure"}
        case _:
            raise DataError(
                f"its action is {shown(kind)} with {shown(info)}, which GUI-Odyssey does not have"
            )
    return check_action(found, screen)


def _thousandths(info: Any, screen: tuple[int, int], count: int) -> list[list[float]]:
    points = [_point(point, "info") for point in listed(info, "info")]
    if len(points) != count:
        raise DataError(f"its info {shown(info)} has {len(points)} points, not {count}")
    return [[x * screen[0] / 1000, y * screen[1] / 1000] for x, y in points]


def screen_of(width: Any, height: Any) -> tuple[int, int]:
    """Return a screen's size in whole pixels.

    Raises:
        DataError: A side is no number, or less than a pixel.
    """
    found = int(number(width, "screen's width")), int(number(height, "screen's height"))
    if min(found) < 1:
        raise DataError(f"its screen is {found[0]} x {found[1]}")
    return found


STEP = ("goal", "step_instruction", "history", "action", "screen", "ui_boxes", "episode", "step", "added")
"""The columns of a step besides those that all rows have."""


def convert_mobile(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert steps in canonical form; without ``screen`` the screenshot's size counts.

    An optional field is missing if it is None or an empty text.
    """
    row = common(record, images, place)
    screenshot = fields.one_image(row["images"])
    given = {name: record[name] for name in STEP if record.get(name) is not None and record[name] != ""}
    has_screen = "screen" in given
    screen = screen_of(*_point(given["screen"], "screen")) if has_screen else images.size(screenshot)
    row["goal"] = text(given.get("goal"), "goal")
    step = given.get("step_instruction")
    row["step_instruction"] = None if step is None else text(step, "step_instruction")
    steps = enumerate(listed(given.get("history", []), "history"), start=1)
    row["history"] = [_earlier(step, number) for number, step in steps]
    row |= {"action": check_action(given.get("action"), screen), "screen": screen}
    if "ui_boxes" in given:
        row["ui_boxes"] = [fields.sides(box, "ui_boxes") for box in listed(given["ui_boxes"], "ui_boxes")]
        if any(x1 > x2 or y1 > y2 for x1, y1, x2, y2 in row["ui_boxes"]):
            raise DataError(f"its ui_boxes {shown(row['ui_boxes'])} have to be [x1, y1, x2, y2]")
    return [row | {name: given[name] for name in STEP[-3:] if name in given}]


def _earlier(step: Any, number: int) -> Action | str:
    """Return step ``number`` of a history: an action, or words about one."""
    try:
        if isinstance(step, str) and not step.lstrip().startswith("{"):
            return text(step, "text")
        return check_action(step, (ANYWHERE, ANYWHERE))
    except DataError as error:
        raise DataError(f"history step {number}: {error}") from None


def convert_gui_odyssey(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert a JSON file, which is one episode with screenshots beside it; each step is a row.

    Places are converted from thousandths to pixels of the device's screen.
    """
    device, task = (mapped(record.get(name), name) for name in ("device_info", "task_info"))
    screen = screen_of(device.get("w"), device.get("h"))
    episode = fields.written(fields.first(record, "episode_id") or place.file.stem, "episode_id")
    shared: Record = {
        "source": "GUI-Odyssey", "category": fields.optional(task, "category"),
        "goal": text(fields.first(task, "instruction", "task"), "instruction"),
        "screen": screen, "episode": episode,
    }  # fmt: skip
    rows: list[Row | DataError] = []
    history: list[Action] = []
    steps = listed(record.get("steps"), "steps")
    for at, step in enumerate(steps):
        try:
            action = from_gui_odyssey(step, screen)
        except DataError as error:
            fault = DataError(f"step {at} of episode {episode}: {error}")
            is_typed = isinstance(step, dict) and step.get("action") in ("TYPE", "TEXT")
            if not is_typed or step.get("info"):
                return [*rows, *[fault] * (len(steps) - at)]
            # What types nothing changes nothing, so that the later steps are what they were.
            rows.append(fault)
            continue
        try:
            screenshot = text(step.get("screenshot"), "screenshot")
            about = {
                "id": f"{episode}/{at}", "step": at, "action": action, "history": history,
                "image": _screenshot(screenshot, place.file, images.root),
                "step_instruction": fields.optional(step, "low_level_instruction"),
                "ui_boxes": _boxes(step.get("sam2_bbox"), screen) or None,
            }  # fmt: skip
            rows += convert_mobile(shared | about, place, images)
        except DataError as error:
            rows.append(DataError(f"step {at} of episode {episode}: {error}"))
        history.append(action)
    return rows


def _screenshot(name: str, file: Path, root: Path) -> Path:
    """Return a screenshot's path; the data set has them in ``screenshots``, next to ``annotations``."""
    for folder in (root, root / "screenshots", file.parent.parent / "screenshots"):
        if (folder / name).is_file():
            return folder / name
    return root / name


def _boxes(box: Any, screen: tuple[int, int]) -> list[list[float]]:
    if not box or len(listed(box, "sam2_bbox")) != 4:
        return []
    corners = zip(fields.sides(box, "sam2_bbox"), (*screen, *screen), strict=True)
    return [[value * side / 1000 for value, side in corners]]
