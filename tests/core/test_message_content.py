"""A message's content, whether it is a text or a list of parts."""

from __future__ import annotations

from selfverify.core.episode import Observation
from selfverify.core.problem import content_parts, content_text

PARTS = [{"type": "text", "text": "a "}, {"type": "image"}, {"type": "text", "text": "b"}]


def test_texts_and_parts_say_the_same() -> None:
    assert content_text(content_parts("a b")) == content_text("a b") == content_text(PARTS) == "a b"
    assert Observation(PARTS).text == Observation("a b").text == "a b" and Observation().text == ""
