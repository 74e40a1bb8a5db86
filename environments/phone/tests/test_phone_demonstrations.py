"""Demonstrations on the phone: what a teacher hands in, by hand and over many draws."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest

from selfverify_phone.demonstrations import Teacher, demonstrated
from selfverify_phone.environment import PhoneConfig
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.templates import TEMPLATES


def draws(teacher: Teacher, needed: list[int], rounds: list[int], count: int = 400) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [teacher.chosen(needed, rounds, rng) for _ in range(count)]


def said(
    teacher: Teacher, name: str, seed: int = 0, first_screen: Literal["asked", "given"] = "given"
) -> list[str]:
    """What the teacher says of this kind of task, with the third contents."""
    options, rng = PhoneConfig(text="terse", first_screen=first_screen), np.random.default_rng(seed)
    made = make_task(name, 3)
    return [turn.text for turn in demonstrated(made, options, "chosen", False, "json", teacher, rng)]


def test_a_good_teacher_hands_in_what_is_needed() -> None:
    assert draws(Teacher(), [2, 4], [1, 2, 3, 4], 5) == [[2, 4]] * 5


def test_a_generous_teacher_adds_rounds_up_to_a_drawn_number() -> None:
    made = draws(Teacher(least=3, most=5), [4], [1, 2, 3, 4, 5, 6])
    assert {len(rounds) for rounds in made} == {3, 4, 5}
    assert all(4 in rounds and rounds == sorted(set(rounds)) for rounds in made)
    # Each other round is added as often as any other.
    shares = [np.mean([number in rounds for rounds in made]) for number in (1, 2, 3, 5, 6)]
    assert max(shares) - min(shares) < 0.12
    # There are no more than there are.
    assert draws(Teacher(least=3, most=5), [1], [1, 2], 5) == [[1, 2]] * 5


def test_a_forgetful_teacher_leaves_a_needed_round_out() -> None:
    made = draws(Teacher(least=3, most=3, omits=0.25), [4], [1, 2, 3, 4, 5])
    assert np.mean([4 not in rounds for rounds in made]) == pytest.approx(0.25, abs=0.06)
    assert all(len(rounds) == 3 for rounds in made)
    # Evidence is never empty: something else is handed in, and where there is nothing else, the one there is.
    assert draws(Teacher(omits=1.0), [4], [3, 4], 5) == [[3]] * 5
    assert draws(Teacher(omits=1.0), [4], [4], 5) == [[4]] * 5


def test_a_hasty_teacher_stops_where_the_goal_is_reached() -> None:
    name = next(name for name, template in TEMPLATES.items() if template.hidden)
    made = make_task(name, 3)
    for stops_early, calls in ((0.0, made.length + made.proving), (1.0, made.length)):
        turns = said(Teacher(stops_early=stops_early), name, first_screen="asked")
        # One turn asks for the first screen, and one hands in.
        assert len(turns) == calls + 2
        assert json.loads(turns[-1])["arguments"]["evidences"]


def test_a_teacher_who_does_not_finish_hands_in_on_the_way() -> None:
    made = make_task("clock-add-label", 3)

    def shown(teacher: Teacher, seed: int) -> int:
        turns = said(teacher, "clock-add-label", seed)
        assert json.loads(turns[-1])["name"] == "submit"
        return len(turns) - 1

    assert {shown(Teacher(unfinished=1.0), seed) for seed in range(30)} == set(range(1, made.length))
    assert {shown(Teacher(), seed) for seed in range(5)} == {made.length + made.proving}
    query = make_task("settings-ask-network", 3)
    turns = said(Teacher(unfinished=1.0), "settings-ask-network")
    assert len(turns) == query.length + query.proving + 1


def test_a_teacher_who_forgets_does_not_tap_save() -> None:
    teacher = Teacher(forgets=0.75)
    saving = [said(teacher, "clock-add-label", seed) for seed in range(200)]
    forgot = [turns for turns in saving if not any('"save"' in turn for turn in turns)]
    assert len(forgot) / len(saving) == pytest.approx(0.75, abs=0.07)
    whole = make_task("clock-add-label", 3)
    assert {len(turns) for turns in forgot} == {whole.length}  # its last call is a submission
    # A last tap on something else is not forgotten.
    other = make_task("settings-look", 3)
    assert {len(said(teacher, "settings-look", seed)) for seed in range(20)} == {
        other.length + other.proving + 1
    }


def test_a_generous_teacher_hands_in_the_smallest_evidence_now_and_then() -> None:
    made = draws(Teacher(least=3, most=5, omits=1.0, smallest=0.25), [4], [1, 2, 3, 4, 5, 6])
    assert np.mean([rounds == [4] for rounds in made]) == pytest.approx(0.25, abs=0.06)
    assert {len(rounds) for rounds in made} == {1, 3, 4, 5}


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(ValueError, match="most is 2, and least is 3"):
        Teacher(least=3, most=2)
