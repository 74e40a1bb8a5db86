"""A machine is busy when more threads want to run than its cores can."""

from __future__ import annotations

import os

import pytest

from selfverify.core.events import busy


@pytest.mark.parametrize(("load", "told"), [(0.0, False), (4.9, False), (5.1, True)])
def test_busy_is_a_quarter_above_the_cores(load: float, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 99.0, 99.0))
    assert bool(busy()) is told
    if told:
        assert "5.1 threads" in busy() and "4 cores" in busy()
