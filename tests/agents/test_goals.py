"""Goals on the state, in evidence and in answers, by hand; what exhibits show together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfverify.agents.evidence import Exhibit
from selfverify.agents.facts import Listing, Seen, check_facts, listing, records_of, same
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


def test_values_are_compared_as_people_would() -> None:
    assert same("Bob  Lee", "bob lee") and not same("Bob", "Bob Lee")
    assert not same(True, 1) and not same(0, False) and same(3, 3)


def test_subjects_of_lists() -> None:
    assert listing("contact/7") is None
    assert listing("alarm") == Listing("alarm")
    assert listing("contact?name~bob/x=1") == Listing("contact", "name", "~", "bob/x=1")
    assert listing("event?day=May 12") == Listing("event", "day", "=", "May 12")
    assert Listing.of("contact", "star", "=", "True") == "contact?star=True"


def test_lists_know_their_records() -> None:
    bobs = Listing("contact", "name", "~", "bob")
    assert bobs.has({"name": "Bob Lee"}) is True and bobs.has({"name": "Ann"}) is False
    assert bobs.has({}) is None
    assert Listing("contact", "star", "=", "True").has({"star": True}) is True
    assert bobs.covers({"name": "Bob Lee"}) and not bobs.covers({"phone": "1"})


def test_records_leave_counts_out() -> None:
    facts = [("alarm/1", "on", True), ("alarm", "count", 1), ("contact?name~a/b", "count", 0)]
    assert records_of(facts) == {"alarm": {"1": {"on": True}}}


def test_the_later_round_wins_in_any_order() -> None:
    one, two = exhibit(3, ("wifi/main", "on", True)), exhibit(5, ("wifi/main", "on", False))
    assert Seen([two, one]).records["wifi"]["main"]["on"] == (False, 5)


def test_a_list_is_whole_when_all_its_records_were_shown() -> None:
    top = exhibit(1, ("alarm", "count", 3), ("alarm/1", "time", "a"), ("alarm/2", "time", "b"))
    end = exhibit(2, ("alarm", "count", 3), ("alarm/2", "time", "b"), ("alarm/3", "time", "c"))
    assert Seen([top]).whole("alarm", {}) is None
    assert Seen([top, end]).whole("alarm", {}) == ({"1", "2", "3"}, 2)


def test_another_count_begins_anew() -> None:
    top = exhibit(1, ("alarm", "count", 3), ("alarm/1", "time", "a"), ("alarm/2", "time", "b"))
    end = exhibit(2, ("alarm", "count", 2), ("alarm/2", "time", "b"))
    assert Seen([top, end]).whole("alarm", {}) is None


def test_a_search_covers_what_it_would_have_found() -> None:
    empty = exhibit(1, ("contact?name~bob", "count", 0))
    assert Seen([empty]).whole("contact", {"name": "Bob Lee"}) == (set(), 1)
    assert Seen([empty]).whole("contact", {"name": "Ann"}) is None


def test_a_record_is_gone_when_its_list_is_later_whole_without_it() -> None:
    there = exhibit(1, ("contact/7", "name", "Bob Lee"))
    gone = exhibit(4, ("contact?name~bob", "count", 0))
    assert set(Seen([there]).of_kind("contact")) == {"7"}
    assert not Seen([there, gone]).of_kind("contact")
    back = exhibit(6, ("contact/7", "name", "Bob Lee"))
    assert set(Seen([there, gone, back]).of_kind("contact")) == {"7"}


@pytest.mark.parametrize(
    "facts",
    [
        None,
        "facts",
        {"alarm/1": 1},
        [["alarm/1", "time"]],
        [None],
        [["alarm/1", "time", None]],
        [["alarm/1", "time", ["07:30"]]],
        [["alarm/1", 5, "07:30"]],
        [["alarm", "count", "two"]],
        [["alarm", "count", True]],
        [["alarm/1", "level", 0.5]],
    ],
)
def test_facts_that_are_none_are_refused(facts: Any) -> None:
    with pytest.raises(DataError, match="fact"):
        check_facts(facts)


def test_facts_of_all_sorts() -> None:
    check_facts([("alarm/1", "time", "07:30"), ["alarm/1", "on", True], ["alarm?on=True", "count", 0]])
    check_facts(())


ACME, PHONE_NUMBER = {"value": "Acme", "others": ("Nova",)}, {"value": "06 71 34 20", "form": "digits"}
THREE, EVENING = {"value": "3", "form": "number"}, {"value": "19:30", "form": "time"}
YES = {"value": "yes", "form": "yes-no"}


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        (
            ACME,
            ["Acme", "acme.", "She works at ACME!", "Acme, not Nova"],
            ["", "Nova", "Nova or Acme", "Acmeville", "the company", "Acme " * 200],
        ),
        # The longer name counts where both begin.
        ({"value": "Bob Lee", "others": ("Bob",)}, ["Bob Lee"], []),
        ({"value": "Bob", "others": ("Bob Lee",)}, [], ["Bob Lee"]),
        (
            THREE,
            ["3", "There are 3.", "three alarms", "3.0"],
            ["", "2", "3 or 4", "1 2 3", "13", "3:30 pm and 4", "none", "٣", "There are ٣.", "३ events"],
        ),
        # Numbers of the question may be repeated.
        ({**THREE, "given": ("May 12",)}, ["On May 12 there are 3 events"], []),
        ({"value": "1200", "form": "number"}, ["1,200 in all"], []),
        ({"value": "-45", "form": "number"}, ["-45"], []),
        (
            EVENING,
            ["19:30", "at 7:30 pm", "19.30", "7:30 p.m.", "It rings at 19:30."],
            ["7:30", "19:30 or 20:00", "25:00", "", "1930"],
        ),
        ({"value": "07:00", "form": "time"}, ["7 am"], ["at ٠٧:٠٠"]),
        ({"value": "00:00", "form": "time"}, ["12 am"], []),
        ({"value": "12:00", "form": "time"}, ["12 pm"], []),
        (
            PHONE_NUMBER,
            ["06 71 34 20", "06-71-34-20", "The number is (06) 71 34 20."],
            ["06 71 34 21", "06 71 34 20, 06 71 34 21"],
        ),
        (YES, ["Yes, it is."], ["No, yes", "maybe"]),
        ({"value": "no", "form": "yes-no"}, ["no"], []),
    ],
)
def test_messages_that_give_an_answer_and_others(
    answer: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    wanted = Answer(**answer)
    assert [message for message in right + wrong if wanted.matches(message)] == right


@given(
    st.text(max_size=500),
    st.sampled_from([Answer(**one) for one in (ACME, THREE, EVENING, PHONE_NUMBER, YES)]),
)
def test_no_message_raises(message: str, answer: Answer) -> None:
    assert answer.matches(message) in (True, False)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("yes-no", "Yes"),  # else a message of "no" would be right
        ("yes-no", ""),
        ("number", "many"),
        ("number", "1,200"),
        ("time", "soon"),  # else any message with an impossible time would be right
        ("time", "25:00"),
        ("digits", "none"),
        ("text", " -"),
    ],
)
def test_a_value_that_no_message_can_give_is_refused(form: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"of the form {form} has to be"):
        Answer(form=form, value=value)  # type: ignore[arg-type]
