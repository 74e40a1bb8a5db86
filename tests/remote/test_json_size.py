"""Values of JSON texts are counted without parsing them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfverify.remote import json_size
from selfverify.remote.json_size import has_more_values

TEXTS = st.text(st.sampled_from('a"\\\\[],{} é'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
)


def counted(value: Any) -> int:
    """Opening brackets, and commas between neighbours."""
    if not isinstance(value, list | dict):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(counted, inner))


@given(VALUES, st.sampled_from([1, 2, 3, 7, 2**20]), st.booleans())
def test_the_count_is_that_of_the_parsed_value(value: Any, chunk: int, plain: bool) -> None:
    """However the text is cut into chunks."""
    raw, most = json.dumps(value, ensure_ascii=plain).encode(), counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "_CHUNK", chunk)
        assert not has_more_values(raw, most)
        assert most == 0 or has_more_values(raw, most - 1)


def test_large_texts_are_counted_in_chunks() -> None:
    raw = b"[" + b"[]," * 500_000 + b"[]]"
    assert has_more_values(raw, 1_000_001) and not has_more_values(raw, 1_000_002)
    assert not has_more_values(b'["' + b"[,{" * 500_000 + b'"]', 1)
