"""Colours and keys of the pictures."""

from __future__ import annotations

from selfverify_phone.apps import APPS

Colour = tuple[int, int, int]

PAGE: Colour = (240, 242, 246)
CARD: Colour = (255, 255, 255)
PAPER: Colour = (255, 255, 255)
INK: Colour = (28, 30, 36)
QUIET: Colour = (112, 117, 128)
FADED: Colour = (188, 192, 200)
LINES: Colour = (224, 227, 233)
DIM: Colour = (90, 92, 96)
KEYBOARD: Colour = (214, 218, 225)
KEY: Colour = (255, 255, 255)
ROWS_OF_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def accent(app: str) -> Colour:
    """An app's colour."""
    said = APPS[app].colour
    return (int(said[1:3], 16), int(said[3:5], 16), int(said[5:7], 16))
