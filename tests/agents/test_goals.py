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
from tables import yaml_cases

Facts = list[tuple[str, str, Any]]


def exhibit(round: int, *facts: tuple[str, str, Any]) -> Exhibit:
    return Exhibit(None, StepResult(round, info={"facts": [list(fact) for fact in facts]}))


PHONE = Goal(needs=(Has(kind="contact", match={"name": "Bob Lee"}, values={"phone": "1", "star": True}),))
NAME = ("contact/7", "name", "Bob Lee")


def test_values_in_the_state_and_in_exhibits() -> None:
    """Each is a sub-goal; of several records the best counts; exhibits of one record add up."""
    phone, star = ("contact/7", "phone", "1"), ("contact/7", "star", True)
    truth = PHONE.on_state([NAME, phone, ("contact/7", "star", False)])
    assert not truth.complete and truth.subgoals == (True, False)
    values = {"name": "bob  lee", "phone": "1", "star": True}
    other: Facts = [("contact/8", name, value) for name, value in values.items()]
    assert PHONE.on_state([NAME, ("contact/7", "phone", "2"), *other]).complete
    assert PHONE.on_state([]).subgoals == (False, False)
    one, two = exhibit(1, NAME, phone), exhibit(2, NAME, star)
    assert PHONE.shown([one]).verdict is None and PHONE.shown([one, two]).verdict is True
    assert PHONE.shown([one, exhibit(2, other[0], other[2])]).verdict is None
    differs = PHONE.shown([exhibit(3, NAME, ("contact/7", "phone", "9"))])
    assert differs.verdict is False and [f.verdict for f in differs.findings] == [False, None]
    assert differs.findings[0].rounds == (3,)
    assert not same("Bob", "Bob Lee") and not same(True, 1) and not same(0, False) and same(3, 3)


@yaml_cases
def test_what_exhibits_say_of_a_goal(
    goal: dict[str, Any], shown: list[Facts], message: str, verdict: bool | None
) -> None:
    exhibits = [exhibit(number, *facts) for number, facts in enumerate(shown, start=1)]
    assert Goal.read(goal).shown(exhibits, message).verdict is verdict


@yaml_cases
def test_what_a_state_says_of_a_goal(goal: dict[str, Any], facts: Facts, message: str, done: bool) -> None:
    assert Goal.read(goal).on_state(facts, message).complete is done


def test_what_is_about_the_task() -> None:
    wifi = Goal(needs=(Has(kind="setting", key="wifi", values={"value": False}),))
    assert wifi.relevant(exhibit(1, ("setting/wifi", "value", True)))
    assert not wifi.relevant(exhibit(1, ("setting/dark", "value", True)))
    assert PHONE.relevant(exhibit(1, ("contact?name~x", "count", 0)))
    assert not PHONE.relevant(exhibit(1))


def test_minimal_evidence_is_the_latest_of_the_smallest_sets() -> None:
    both = (NAME, ("contact/7", "phone", "1"), ("contact/7", "star", True))
    history = [exhibit(n, *facts) for n, facts in enumerate([(), both[:2], (NAME, both[2]), both, both])]
    assert minimal_evidence(history[:3], PHONE) == (1, 2)
    assert minimal_evidence(history, PHONE) == (4,)
    assert minimal_evidence(history[:2], PHONE) is None
    undone = exhibit(5, NAME, both[1], ("contact/7", "star", False))
    assert minimal_evidence([*history, undone], PHONE) is None


def test_goals_are_plain_json() -> None:
    goal = Goal(needs=(*PHONE.needs, Absent(kind="alarm", match={"on": True}), Listed(kind="alarm")))
    assert Goal.read(goal.model_dump(mode="json")) == goal
    with pytest.raises(DataError, match=r"row 7: needs\.0"):
        Goal.read({"needs": [{"type": "had"}]}, "row 7")


@yaml_cases
def test_a_goal_that_is_reached_by_nothing_or_never_is_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"row 3: .*{message}"):
        Goal.read(data, "row 3")


def test_lists() -> None:
    """What names one, what is in it, and when all of it was shown."""
    assert listing("contact/7") is None and listing("alarm") == Listing("alarm")
    assert listing("contact?name~bob/x=1") == Listing("contact", "name", "~", "bob/x=1")
    assert Listing.of("contact", "star", "=", "True") == "contact?star=True"
    bobs = Listing("contact", "name", "~", "bob")
    assert [bobs.has(record) for record in ({"name": "Bob Lee"}, {"name": "Ann"}, {})] == [True, False, None]
    assert Listing("contact", "star", "=", "True").has({"star": True}) is True
    empty = Seen([exhibit(1, ("contact?name~bob", "count", 0))])
    whole = [empty.whole("contact", {"name": name}) for name in ("Bob Lee", "Ann")]
    assert whole == [(set(), 1), None]
    assert records_of([("alarm/1", "on", True), ("alarm", "count", 1)]) == {"alarm": {"1": {"on": True}}}
    top, end = [("alarm", "count", 3), *times("1", "2")], times("2", "3")
    assert Seen([exhibit(1, *top)]).whole("alarm", {}) is None
    assert Seen([exhibit(2, top[0], *end), exhibit(1, *top)]).whole("alarm", {}) == ({"1", "2", "3"}, 2)
    assert Seen([exhibit(1, *top), exhibit(2, ("alarm", "count", 2), end[0])]).whole("alarm", {}) is None


def times(*alarms: str) -> Facts:
    return [(f"alarm/{number}", "time", number) for number in alarms]


def test_a_record_is_gone_when_its_list_is_later_whole_without_it() -> None:
    there = exhibit(1, ("contact/7", "name", "Bob Lee"))
    gone = exhibit(4, ("contact?name~bob", "count", 0))
    assert set(Seen([there]).of_kind("contact")) == {"7"}
    assert not Seen([there, gone]).of_kind("contact")
    back = exhibit(6, ("contact/7", "name", "Bob Lee"))
    assert set(Seen([there, gone, back]).of_kind("contact")) == {"7"}


def test_facts_are_taken() -> None:
    check_facts([("alarm/1", "time", "07:30"), ["alarm/1", "on", True], ["alarm?on=True", "count", 0]])


@yaml_cases
def test_facts_that_are_none_are_refused(facts: Any) -> None:
    with pytest.raises(DataError, match="fact"):
        check_facts(facts)


ACME, PHONE_NUMBER = {"value": "Acme", "others": ("Nova",)}, {"value": "06 71 34 20", "form": "digits"}
THREE, EVENING = {"value": "3", "form": "number"}, {"value": "19:30", "form": "time"}
YES = {"value": "yes", "form": "yes-no"}


@yaml_cases
def test_messages_that_give_an_answer_and_others(
    answer: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    wanted = Answer(**answer)
    assert [message for message in right + wrong if wanted.matches(message)] == right
    assert not any(wanted.matches(message + " " * 400) for message in right)


@given(
    st.text(max_size=500),
    st.sampled_from([Answer(**one) for one in (ACME, THREE, EVENING, PHONE_NUMBER, YES)]),
)
def test_no_message_raises(message: str, answer: Answer) -> None:
    assert answer.matches(message) in (True, False)


@yaml_cases
def test_a_value_that_no_message_can_give_is_refused(form: Any, values: list[str]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"of the form {form} has to be"):
            Answer(form=form, value=value)
