"""Trajectories: how they ended, what is stored of that, and what their messages say."""

from __future__ import annotations

import json

from selfverify.core.episode import Observation
from selfverify.core.problem import content_parts, content_text
from selfverify.core.trajectory import Finish, Segment, Trajectory


def test_how_things_ended_is_stored_as_a_word() -> None:
    """Stored samples say ``stop``, and what is read back from them compares equal."""
    assert json.dumps([Finish.STOP, Finish.LENGTH, Finish.ERROR]) == '["stop", "length", "error"]'
    assert Finish("length") is Finish.LENGTH and Finish.LENGTH == "length"


def test_a_trajectory_ends_as_its_last_segment() -> None:
    """A turn in the middle that was cut off makes it truncated; without a segment there is no verdict."""
    cut = Segment("turn_1", [1], finish=Finish.LENGTH)
    whole = Segment("turn_2", [2], finish=Finish.STOP)
    made = Trajectory([cut, whole])
    assert made.finish == Finish.STOP and made.truncated
    assert Trajectory([]).finish == Finish.ERROR


PARTS = [{"type": "text", "text": "a "}, {"type": "image"}, {"type": "text", "text": "b"}]


def test_texts_and_parts_say_the_same() -> None:
    assert content_text(content_parts("a b")) == content_text("a b") == content_text(PARTS) == "a b"
    assert Observation(PARTS).text == Observation("a b").text == "a b" and Observation().text == ""
