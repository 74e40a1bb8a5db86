"""What small policies need: few words a screen, all of them known; and pictures of screens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest

from selfverify_phone.apps import APPS, switch_on
from selfverify_phone.contents import words
from selfverify_phone.contents.hostile import TEXTS
from selfverify_phone.contents.world import World
from selfverify_phone.expert import carry_out
from selfverify_phone.fresh_model import text_tokenizer
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.playing import perform
from selfverify_phone.rendering.icons import ICONS
from selfverify_phone.rendering.picture import picture
from selfverify_phone.rendering.writing import terse, xml
from selfverify_phone.small_policy import WORDS, corpus, phrases
from selfverify_phone.system.device import HOME, Phone, Refused
from selfverify_phone.system.forms import field
from selfverify_phone.system.glass import HEIGHT, WIDTH
from selfverify_phone.templates import TEMPLATES

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


# --- pictures, and texts that are nothing but texts ---------------------------------------------------------


SOME = [next(name for name, template in TEMPLATES.items() if template.app == app) for app in list(APPS)[1:]]


def phones(name: str, hostile: bool = False) -> Iterator[Phone]:
    """The phone at every step of an expert."""
    task = make_task(name, 2, hostile=hostile)
    phone = task.phone()
    yield phone
    for call in carry_out(task.phone(), [*task.solve, *task.prove]):
        perform(phone, call)
        yield phone


@pytest.mark.parametrize("name", SOME)
def test_pictures_can_be_drawn(name: str) -> None:
    for phone in phones(name, hostile=True):
        drawn = picture(phone.look(), phone.beneath(), phone.state["clock"])
        assert drawn.size == (WIDTH, HEIGHT) and drawn.mode == "RGB"
        assert len(drawn.getcolors(100_000) or ()) > 10


def test_every_icon_is_known() -> None:
    used = {w.id for name in TEMPLATES for p in phones(name) for w, _ in p.look().placed if w.role == "icon"}
    assert used <= ICONS.keys()


def test_a_switch_looks_as_it_is() -> None:
    phone = switch_on(Phone.fresh(World(Random(0)).data))
    phone.launch("settings")
    phone.tap("network")
    found = phone.look().find("wifi")
    before = picture(phone.look()).crop(found[1])
    phone.tap("wifi")
    assert picture(phone.look()).crop(found[1]).tobytes() != before.tobytes()
    phone.tap("wifi")
    assert picture(phone.look()).crop(found[1]).tobytes() == before.tobytes()


@pytest.mark.parametrize("text", TEXTS)
def test_texts_that_deceive_stay_texts(text: str) -> None:
    world = World(Random(0))
    world.get("contact", "1").update(name=text, note=text)
    phone = switch_on(Phone.fresh(world.data))
    phone.launch("contacts")
    phone.open("contact", key="1")
    phone.wait()
    plain = terse(phone.look())
    assert plain.count("\n") == 5 and "\x1b" not in plain
    written = xml(phone.look())
    assert written.count("\n") == 1 + len(phone.look().placed)
    assert "<tool_call>" not in written and "</observation>" not in written


# --- the small policy's tokenizer ---------------------------------------------------------------------------


def test_calls_and_screens_cost_few_tokens() -> None:
    tokenizer = text_tokenizer(corpus(), phrases(), WORDS)

    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([token]) for token in tokenizer(text)["input_ids"]]

    assert pieces('{"name": "tap", "arguments": {"id": "r3"}}') == [
        '{"name": "tap", "arguments": {"id": "',
        "r3",
        '"}}',
    ]
    assert pieces('{"name": "back", "arguments": {}}') == ['{"name": "back", "arguments": {}}']
    swipe = '{"name": "swipe", "arguments": {"direction": "up", "dist": "long"}}'
    assert len(pieces(swipe)) == 5
    submit = '{"name": "submit", "arguments": {"message": "Done.", "evidences": [3, 12]}}'
    assert len(pieces(submit)) == 8
    screens = [terse(make_task(name, 1000).phone().look()) for name in TEMPLATES]
    assert max(len(pieces(screen)) for screen in screens) <= 60
