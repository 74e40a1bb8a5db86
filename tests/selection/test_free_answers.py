"""Which free answers are the same."""

import pytest

from selfverify.selection.rules import read_answer


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("text", "A red  Car.", "a red car"),
        ("text", "1,234.50", "1234.5"),
        ("text", "3.0", "+3"),
        ("text", "50.0%", "50%"),
        ("set", "3, 4 7", "[7 4 3]"),
        ("set", "3.0 blue", "Blue 3"),
    ],
)
def test_same(kind, one, other):
    assert read_answer(one, kind)[1] == read_answer(other, kind)[1] is not None


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [("text", "3 4 7", "7 4 3"), ("text", "50%", "50"), ("set", "3 3 4", "3 4"), ("text", "12", "1 2")],
)
def test_different(kind, one, other):
    assert read_answer(one, kind)[1] != read_answer(other, kind)[1]


def test_boxes():
    assert read_answer("[1, 2, 3.5, 4]", "box") == ([1, 2, 3.5, 4], None)
    for wrong in ("1 2 3", "3 2 1 4", "1 2 1e9 4", "a b c d", "1 2 nan 4", ""):
        assert read_answer(wrong, "box") == (None, None)


def test_nothing_and_far_too_much_are_unreadable():
    for kind in ("text", "set"):
        assert read_answer("  ", kind) == read_answer("x" * 2001, kind) == (None, None)
    assert read_answer("[ ]", "set") == (None, None)
    assert read_answer("9" * 1500, "text")[1] == "9" * 1500  # never a float
