"""Answers, in whatever words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfverify.agents.goals import Answer


def says(message: str, value: str, form: str = "text", **more: tuple[str, ...]) -> bool:
    return Answer(form=form, value=value, **more).matches(message)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", ["Acme", "acme.", "She works at ACME!", "Acme, not Nova"])
def test_a_text_is_found_in_a_sentence(message: str) -> None:
    assert says(message, "Acme", others=("Nova",))


@pytest.mark.parametrize("message", ["", "Nova", "Nova or Acme", "Acmeville", "the company"])
def test_another_text_is_wrong(message: str) -> None:
    assert not says(message, "Acme", others=("Nova",))


def test_the_longer_name_counts_where_both_begin() -> None:
    assert says("Bob Lee", "Bob Lee", others=("Bob",))
    assert not says("Bob Lee", "Bob", others=("Bob Lee",))


@pytest.mark.parametrize("message", ["3", "There are 3.", "three alarms", "3.0"])
def test_numbers_in_digits_and_words(message: str) -> None:
    assert says(message, "3", "number")


@pytest.mark.parametrize("message", ["", "2", "3 or 4", "1 2 3", "13", "3:30 pm and 4", "none"])
def test_other_numbers_are_wrong(message: str) -> None:
    assert not says(message, "3", "number")


def test_numbers_of_the_question_may_be_repeated() -> None:
    assert says("On May 12 there are 3 events", "3", "number", given=("May 12",))
    assert says("1,200 in all", "1200", "number") and says("-45", "-45", "number")


@pytest.mark.parametrize("message", ["19:30", "at 7:30 pm", "19.30", "7:30 p.m.", "It rings at 19:30."])
def test_times(message: str) -> None:
    assert says(message, "19:30", "time")


@pytest.mark.parametrize("message", ["7:30", "19:30 or 20:00", "25:00", "", "1930"])
def test_other_times_are_wrong(message: str) -> None:
    assert not says(message, "19:30", "time")


def test_hours_alone() -> None:
    assert says("7 am", "07:00", "time") and says("12 am", "00:00", "time") and says("12 pm", "12:00", "time")


@pytest.mark.parametrize("message", ["٣", "There are ٣.", "३ events"])
def test_digits_of_other_scripts_are_no_number(message: str) -> None:
    assert not says(message, "3", "number")
    assert not says("at ٠٧:٣٠", "07:30", "time")


@pytest.mark.parametrize("message", ["06 71 34 20", "06-71-34-20", "The number is (06) 71 34 20."])
def test_digits(message: str) -> None:
    assert says(message, "06 71 34 20", "digits")


def test_other_digits_are_wrong() -> None:
    assert not says("06 71 34 21", "06 71 34 20", "digits")
    assert not says("06 71 34 20, 06 71 34 21", "06 71 34 20", "digits")


def test_yes_and_no() -> None:
    assert says("Yes, it is.", "yes", "yes-no") and says("no", "no", "yes-no")
    assert not says("No, yes", "yes", "yes-no") and not says("maybe", "yes", "yes-no")


@given(st.text(max_size=500), st.sampled_from(["text", "number", "time", "digits", "yes-no"]))
def test_no_message_raises(message: str, form: str) -> None:
    value = {"text": "Acme", "number": "3", "time": "07:30", "digits": "06 71", "yes-no": "yes"}[form]
    assert says(message, value, form) in (True, False)


def test_no_message_is_a_long_one() -> None:
    assert not says("Acme " * 200, "Acme")


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
