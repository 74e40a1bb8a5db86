"""Screens of the phone side by side, for the documentation.

python docs/phone_sheet.py docs/phone.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.playing import perform
from selfverify_phone.rendering.picture import picture

SHOWN = (
    ("contacts-add", 0, 0, False),
    ("settings-volume", 1, 4, False),
    ("contacts-add", 1, 5, False),
    ("clock-add", 3, 4, False),
    ("calendar-add-place", 2, 9, False),
    ("money-limit-and-spend", 1, 2, False),
    ("music-like", 0, 3, False),
    ("maps-route", 0, 4, False),
    ("reader-mark", 2, 9, False),
    ("contacts-star", 2, 1, True),
)
"""Templates with their seeds, the calls of the expert that are carried out, and whether contents deceive."""
WIDTH, GAP, COLUMNS = 216, 12, 5


def main(path: Path) -> None:
    """Write the picture."""
    shots = []
    for name, seed, calls, hostile in SHOWN:
        task = make_task(name, seed, hostile=hostile)
        phone = task.phone()
        for call in carry_out(task.phone(), [*task.solve, *task.prove])[:calls]:
            perform(phone, call)
        shot = picture(phone.look(), phone.beneath(), phone.state["clock"])
        shots.append(shot.resize((WIDTH, WIDTH * shot.height // shot.width), Image.Resampling.LANCZOS))
    height = shots[0].height
    rows = -(-len(shots) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (WIDTH + GAP) - GAP, rows * (height + GAP) - GAP), "white")
    for i, shot in enumerate(shots):
        sheet.paste(shot, (i % COLUMNS * (WIDTH + GAP), i // COLUMNS * (height + GAP)))
    sheet.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
