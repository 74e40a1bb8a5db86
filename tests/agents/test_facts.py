"""What exhibits show together."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.agents.evidence import Exhibit
from selfverify.agents.facts import Listing, Seen, check_facts, listing, records_of, same
from selfverify.core.episode import StepResult
from selfverify.core.errors import DataError


def exhibit(round: int, *facts: tuple[str, str, Any]) -> Exhibit:
    return Exhibit(None, StepResult(round, info={"facts": [list(fact) for fact in facts]}))


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
