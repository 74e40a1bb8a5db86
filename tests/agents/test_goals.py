"""Goals on the state and in evidence, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.agents.evidence import Exhibit
from selfverify.agents.goals import Absent, Answer, Goal, Has, Listed, minimal_evidence
from selfverify.core.episode import StepResult
from selfverify.core.errors import DataError

Facts = list[tuple[str, str, Any]]


def exhibit(round: int, *facts: tuple[str, str, Any]) -> Exhibit:
    return Exhibit(None, StepResult(round, info={"facts": [list(fact) for fact in facts]}))


PHONE = Goal(needs=(Has(kind="contact", match={"name": "Bob Lee"}, values={"phone": "1", "star": True}),))
NAME = ("contact/7", "name", "Bob Lee")


def test_each_value_is_a_subgoal() -> None:
    truth = PHONE.on_state([NAME, ("contact/7", "phone", "1"), ("contact/7", "star", False)])
    assert not truth.complete and truth.subgoals == (True, False)


def test_of_several_records_the_best_counts() -> None:
    other: Facts = [
        ("contact/8", "name", "Bob Lee"),
        ("contact/8", "phone", "1"),
        ("contact/8", "star", True),
    ]
    assert PHONE.on_state([NAME, ("contact/7", "phone", "2"), *other]).complete
    assert PHONE.on_state([]).subgoals == (False, False)


def test_values_may_come_from_two_exhibits_of_one_record() -> None:
    one, two = exhibit(1, NAME, ("contact/7", "phone", "1")), exhibit(2, NAME, ("contact/7", "star", True))
    assert PHONE.shown([one]).verdict is None
    assert PHONE.shown([one, two]).verdict is True
    mixed = exhibit(2, ("contact/8", "name", "Bob Lee"), ("contact/8", "star", True))
    assert PHONE.shown([one, mixed]).verdict is None


def test_a_shown_difference_is_a_failure() -> None:
    shown = PHONE.shown([exhibit(3, NAME, ("contact/7", "phone", "9"))])
    assert shown.verdict is False and [f.verdict for f in shown.findings] == [False, None]
    assert shown.findings[0].rounds == (3,)


def test_a_new_record_is_not_one_that_was_there() -> None:
    goal = Goal(needs=(Has(kind="alarm", match={"time": "07:30"}, new=True, before=("1",)),))
    assert not goal.on_state([("alarm/1", "time", "07:30")]).complete
    assert goal.on_state([("alarm/2", "time", "07:30")]).complete
    assert goal.shown([exhibit(1, ("alarm", "count", 1), ("alarm/1", "time", "07:30"))]).verdict is False
    assert goal.shown([exhibit(1, ("alarm/2", "time", "07:30"))]).verdict is True


def test_what_a_whole_list_lacks_is_not_there() -> None:
    goal = Goal(needs=(Absent(kind="alarm", match={"time": "07:30"}),))
    assert goal.shown([exhibit(1, ("alarm", "count", 2), ("alarm/1", "time", "06:00"))]).verdict is None
    whole = exhibit(1, ("alarm", "count", 1), ("alarm/1", "time", "06:00"))
    assert goal.shown([whole]).verdict is True
    assert goal.shown([whole, exhibit(2, ("alarm/2", "time", "07:30"))]).verdict is False
    assert goal.on_state([("alarm/1", "time", "06:00")]).complete


def test_a_record_whose_value_is_not_shown_proves_no_absence() -> None:
    goal = Goal(needs=(Absent(kind="alarm", match={"on": True}),))
    assert goal.shown([exhibit(1, ("alarm", "count", 1), ("alarm/1", "time", "06:00"))]).verdict is None
    assert goal.shown([exhibit(1, ("alarm", "count", 1), ("alarm/1", "on", False))]).verdict is True


def test_a_count_rests_on_every_record() -> None:
    goal = Goal(
        kind="query",
        needs=(Listed(kind="alarm", match={"on": True}),),
        answer=Answer(form="number", value="1"),
    )
    whole = exhibit(1, ("alarm", "count", 2), ("alarm/1", "on", True), ("alarm/2", "on", False))
    part = exhibit(1, ("alarm", "count", 2), ("alarm/1", "on", True), ("alarm/2", "time", "06:00"))
    assert goal.shown([whole], "1").verdict is True
    assert goal.shown([whole], "2").verdict is False
    assert goal.shown([part], "1").verdict is None
    assert goal.on_state([], "1").complete and not goal.on_state([], "2").complete


def test_what_is_about_the_task() -> None:
    wifi = Goal(needs=(Has(kind="setting", key="wifi", values={"value": False}),))
    assert wifi.relevant(exhibit(1, ("setting/wifi", "value", True)))
    assert not wifi.relevant(exhibit(1, ("setting/dark", "value", True)))
    assert PHONE.relevant(exhibit(1, ("contact?name~x", "count", 0)))
    assert not PHONE.relevant(exhibit(1))


def test_minimal_evidence_is_the_latest_of_the_smallest_sets() -> None:
    both = (NAME, ("contact/7", "phone", "1"), ("contact/7", "star", True))
    history = [
        exhibit(0),
        exhibit(1, *both[:2]),
        exhibit(2, NAME, both[2]),
        exhibit(3, *both),
        exhibit(4, *both),
    ]
    assert minimal_evidence(history[:3], PHONE) == (1, 2)
    assert minimal_evidence(history, PHONE) == (4,)
    assert minimal_evidence(history[:2], PHONE) is None


def test_what_was_undone_is_no_evidence() -> None:
    wifi = Goal(needs=(Has(kind="setting", key="wifi", values={"value": False}),))
    history = [exhibit(1, ("setting/wifi", "value", False)), exhibit(2, ("setting/wifi", "value", True))]
    assert minimal_evidence(history, wifi) is None


def test_goals_are_plain_json() -> None:
    goal = Goal(needs=(*PHONE.needs, Absent(kind="alarm", match={"on": True}), Listed(kind="alarm")))
    assert Goal.read(goal.model_dump(mode="json")) == goal
    with pytest.raises(DataError, match=r"row 7: needs\.0"):
        Goal.read({"needs": [{"type": "had"}]}, "row 7")


@pytest.mark.parametrize(("kind", "named"), [("alarm", "an alarm"), ("contact", "a contact")])
def test_sub_goals_are_said_in_good_words(kind: str, named: str) -> None:
    [finding] = Goal(needs=(Has(kind=kind, match={"label": "Gym"}, new=True),)).shown([]).findings
    assert finding.about == f"there is {named} with label Gym"


ALARM = {"type": "has", "kind": "alarm", "values": {"on": True}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"needs": []}, "done from the start"),
        ({"needs": [{"type": "listed", "kind": "alarm"}]}, "done from the start"),
        ({"kind": "query", "needs": [ALARM]}, "a query needs an `answer`"),
        ({"needs": [ALARM], "answer": {"value": "Yoga"}}, "an `answer` belongs to a query"),
        (
            {"kind": "query", "needs": [], "answer": {"form": "yes-no", "value": "Yes"}},
            "answer: .* yes or no",
        ),
    ],
)
def test_a_goal_that_is_reached_by_nothing_or_never_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"row 3: .*{message}"):
        Goal.read(data, "row 3")
