"""Agents that make mistakes: their sessions are real, their truth is the phone's, and they err."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from selfverify.agents.episode import Finished
from selfverify.agents.judges.case import Vote
from selfverify.agents.judges.jury import RulesJudge
from selfverify.core.episode import Call
from selfverify_phone.environment import PhoneConfig
from selfverify_phone.mistakes import MOST_REFUSED, attempted, other_text
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.playing import perform
from selfverify_phone.system.device import Phone, Refused
from selfverify_phone.templates import TEMPLATES

TERSE = PhoneConfig(text="terse", first_screen="given")


def refusal(phone: Phone, call: Call) -> str:
    """Carry a call out; why it is refused, if it is."""
    try:
        perform(phone, call)
    except Refused as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def some() -> list[tuple[str, Finished]]:
    """One of each kind of task."""
    return [
        (name, attempted(make_task(name, 0), TERSE, np.random.default_rng([kind, 1])))
        for kind, name in enumerate(TEMPLATES)
    ]


def test_about_half_of_them_are_right_and_few_are_proven_wrongly(some: list[tuple[str, Finished]]) -> None:
    assert 0.35 < np.mean([finished.truth.complete for _, finished in some]) < 0.7
    said: Counter[tuple[bool, bool]] = Counter()
    for _, finished in some:
        [ballot] = RulesJudge().ask(finished.case("all"), [0])()
        assert isinstance(ballot.vote, Vote)
        said[finished.truth.complete, ballot.vote.success] += 1
    # Who reads everything by rules knows what is done, but for what was done and never shown.
    assert said[False, True] <= 2 and said[True, False] < 0.15 * len(some)


def test_what_they_did_can_be_done_again(some: list[tuple[str, Finished]]) -> None:
    for name, finished in some[::3]:
        template, seed = finished.name.split("/")
        assert template == name
        phone = make_task(template, int(seed)).phone()
        assert [exhibit.seen.round for exhibit in finished.history] == [*range(len(finished.history))]
        errors = [refusal(phone, exhibit.call) for exhibit in finished.history if exhibit.call is not None]
        assert errors == [exhibit.seen.error for exhibit in finished.history[1:]]
        assert sum(map(bool, errors)) <= MOST_REFUSED
        again = finished.goal.on_state(phone.facts(), finished.message)
        assert again == finished.truth


def test_evidence_is_proper(some: list[tuple[str, Finished]]) -> None:
    for _, finished in some:
        rounds = [exhibit.seen.round for exhibit in finished.chosen]
        assert rounds and rounds == sorted(set(rounds))
        assert all(exhibit in finished.history for exhibit in finished.chosen)
    sizes = Counter(len(finished.chosen) for _, finished in some)
    assert sizes[1] > 0.2 * len(some) and max(sizes) <= 5


def test_the_same_draws_make_the_same_session() -> None:
    once, again = (
        attempted(make_task("clock-add-label", 3), TERSE, np.random.default_rng(4)) for _ in range(2)
    )
    assert once == again
    others = [
        attempted(make_task("clock-add-label", 3), TERSE, np.random.default_rng(seed)) for seed in range(12)
    ]
    assert len({tuple(str(e.call) for e in other.history) for other in others}) > 4


def test_agents_that_ask_for_the_first_screen_and_touch_places() -> None:
    options = PhoneConfig(address="bounds")
    for name in ("music-like", "settings-ask-same-volume", "money-spend"):
        for seed in range(6):
            finished = attempted(make_task(name, seed), options, np.random.default_rng(seed))
            assert finished.history[1].call is not None
            assert finished.history[1].call.name == "get_current_xml"
            assert 0 not in [exhibit.seen.round for exhibit in finished.chosen]


@pytest.mark.parametrize(
    "text", ["06:10", "23:55", "45", "06 71 10 69", "Anna Wood", "yes please", "Tom", "new shoes", "7 km"]
)
def test_another_text_is_of_the_same_kind(text: str) -> None:
    rng = np.random.default_rng(0)
    drawn = {other_text(text, rng) for _ in range(40)}
    assert text not in drawn and len(drawn) > 5
    if ":" in text:
        assert all(len(t) == 5 and int(t[:2]) < 24 and int(t[3:]) < 60 for t in drawn)
    elif text[0].isdigit():
        assert all(len(t) == len(text) and t[0].isdigit() for t in drawn)
