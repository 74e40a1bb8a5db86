"""The papers' formulas are compared in float64; what is about float32 says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rounding import float64


@pytest.fixture(autouse=True)
def numbers_are_float64() -> Iterator[None]:
    """What a test makes without a type is float64."""
    with float64():
        yield
