"""What small policies need: few words a screen, all of them known."""

from __future__ import annotations

import re
from random import Random

import pytest

from selfverify_phone.apps import APPS, switch_on
from selfverify_phone.contents import words
from selfverify_phone.contents.world import World
from selfverify_phone.rendering.writing import terse
from selfverify_phone.system.device import HOME, Phone, Refused
from selfverify_phone.system.forms import field

MOST = 60
PIECE = re.compile(r"[a-z]+|\d+|[^\w\s]|\n")


def vocabulary() -> frozenset[str]:
    """All words that a screen may show, in small letters, numbers and what agents type apart."""
    listed = [value for value in vars(words).values() if isinstance(value, tuple)]
    drawn = [*listed, words.SPOTS, *words.SPOTS.values()]
    return frozenset(
        word for said in drawn for text in said for word in re.findall("[a-z]+", text.casefold())
    )


def walk(seed: int, steps: int) -> list[str]:
    """Screens on a random way through the phone."""
    rng, screens = Random(seed), []
    phone = switch_on(Phone.fresh(World(rng).data, popup=rng.choice(list(APPS))))
    for _ in range(steps):
        look = phone.look()
        screens.append(terse(look))
        widgets = [widget.id for widget, _ in look.placed if widget.id]
        roll = rng.random()
        try:
            if look.focus and roll < 0.7:
                phone.type(rng.choice([*words.FIRST, "7:30", "12"]))
            elif roll < 0.1:
                phone.swipe(rng.choice(["up", "down", "left"]))
            elif roll < 0.2:
                phone.launch(rng.choice([app for app in APPS if app != HOME]))
            elif roll < 0.25:
                phone.back()
            elif roll < 0.3:
                phone.hold(rng.choice(widgets))
            else:
                phone.tap(rng.choice(widgets))
        except Refused:
            continue
    return screens


@pytest.mark.parametrize("seed", range(6))
def test_screens_are_short_and_of_known_words(seed: int) -> None:
    known = vocabulary()
    for screen in walk(seed, 400):
        # A line's beginning is one token to the small policy.
        pieces = PIECE.findall(screen.casefold().replace("\n- ", "\n"))
        assert len(pieces) <= MOST, screen
        unknown = {piece for piece in pieces if piece.isalpha() and len(piece) > 1} - known
        assert not unknown, screen


@pytest.mark.parametrize("name", ["amount", "time"])
def test_what_a_field_does_not_take_is_said_in_good_words(name: str) -> None:
    phone = switch_on(Phone.fresh(World(Random(0)).data))
    made = field(phone, {"form": {}}, name, "1", check=lambda typed: None)
    made.write("nonsense")
    assert phone.state["toast"] == f"This is no {name}"
    assert set(PIECE.findall(phone.state["toast"].casefold())) <= vocabulary()
