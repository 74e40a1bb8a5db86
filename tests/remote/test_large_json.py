"""Large JSON is read and written in steps, with the same result as at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from selfverify.remote import large_json
from selfverify.remote.large_json import put_back, read_large, text_bytes, write_large

PARTS = st.sampled_from(["data:", '"', "\\", "A", "é", "\n", "\x7f", "😀", ": ", "1"])
TEXTS = st.lists(PARTS, max_size=9).map("".join)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six characters are long, and a step takes five."""
    monkeypatch.setattr(large_json, "LONG", 6)
    monkeypatch.setattr(large_json, "STEP", 5)


def read(raw: bytes, most: int) -> Any:
    """The value, if no more than ``most`` bytes of its text are left."""
    found = read_large(raw, most)
    if found is None:
        return None
    left, taken = found
    assert len(left) <= most
    return put_back(from_json(left), taken)


@given(VALUES, st.booleans(), st.integers(0, 200))
def test_what_is_read_is_what_the_text_says(value: Any, plain: bool, most: int) -> None:
    raw = json.dumps({"a": value}, ensure_ascii=plain).encode()
    assert read(raw, most) in (None, {"a": value})
    assert read(raw, len(raw)) == {"a": value}


@given(st.lists(st.sampled_from(['"data:', '"', "\\", "A" * 7, ",", "{", "}", ":", "é"]), max_size=12))
def test_what_is_no_json_stays_none(parts: list[str]) -> None:
    raw = "".join(parts).encode()
    try:
        value = from_json(raw)
    except ValueError:
        for most in (0, 20, 30, 60):
            found = read_large(raw, most)
            if found is not None:
                with pytest.raises(ValueError):
                    from_json(found[0])
    else:
        assert read(raw, 60) in (None, value)


def test_urls_do_not_count_as_text() -> None:
    url = "data:image/png;base64," + "A" * 500
    raw = json.dumps({"url": url, "again": [url], url: 1}).encode()
    assert read(raw, 120) == {"url": url, "again": [url], url: 1}
    assert read(raw, 60) is None  # names take room, too
    for text in ("x" * 500, "data:" + "é" * 500, "data:" + "\\/" * 250, 'a"data:' + "x" * 500):
        assert read(json.dumps({"url": text}).encode(), 200) is None


@given(VALUES)
def test_what_is_written_is_what_is_written_at_once(value: Any) -> None:
    assert b"".join(write_large(value)) == to_json(value)


def test_long_texts_are_written_in_steps() -> None:
    value = {"a": "x" * 12, "b": ["\n" * 12, "short"]}
    pieces = write_large(value)
    assert max(map(len, pieces)) <= 12 and b"".join(pieces) == to_json(value)


def test_bytes_of_texts() -> None:
    assert text_bytes({"a": ["bc", {"d": "efg"}], "h": 1, "i": None, "j": ("k",)}) == 6
    assert text_bytes("é") == 2 and text_bytes("\ud800") == 1
