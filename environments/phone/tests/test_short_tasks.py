"""Tasks within a number of calls."""

from __future__ import annotations

import itertools

from selfverify.core.problem import SPLITS, split_seeds
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.short_tasks import calls_of, short_kinds, short_seed
from selfverify_phone.templates import TEMPLATES

ALL = list(TEMPLATES.values())


def test_calls_are_the_looks_the_ways_and_the_hand_in() -> None:
    made = make_task("settings-sleep", 0)  # launch, two taps, one tap; back to see it
    assert (made.length, made.proving) == (4, 1)
    assert calls_of(made, asked=False) == 6 and calls_of(made, asked=True) == 7


def test_long_kinds_are_left_out_and_short_ones_kept() -> None:
    kinds = {kind.name for kind in short_kinds(ALL, "home", False, asked=False, most=7)}
    assert {"settings-network", "clock-turn-on", "money-ask-balance"} <= kinds
    assert not {"calendar-add-two", "money-ask-older", "maps-home-and-route"} & kinds
    # Asking for the first screen is a call, too: `most` is one less.
    asked = short_kinds(ALL, "home", False, asked=True, most=8)
    assert {kind.name for kind in asked} == kinds
    assert len(short_kinds(ALL, "home", False, asked=False, most=50)) == len(ALL)
    assert not short_kinds(ALL, "home", False, asked=False, most=1)


def test_the_first_seed_that_is_short_enough_is_taken() -> None:
    kinds = short_kinds(ALL, "home", False, asked=False, most=6)
    skipped = 0
    for kind, index in itertools.product(kinds[:40], range(3)):
        seed = short_seed(kind, "test", 0, index, "home", False, asked=False, most=6)
        assert seed % len(SPLITS) == SPLITS.index("test")
        tried = list(itertools.takewhile(seed.__ne__, split_seeds("test", 0, index)))
        assert all(calls_of(make_task(kind.name, s), asked=False) > 6 for s in tried)
        assert calls_of(make_task(kind.name, seed), asked=False) <= 6
        skipped += len(tried)
    assert skipped > 0
