"""A phone behind a server that speaks adb's protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agents.android.fake_adb import Server, adb_server
from agents.android.phones import Phone

SERIAL = "emulator-5554"


@pytest.fixture
def phone() -> Phone:
    return Phone()


@pytest.fixture
def server(phone: Phone) -> Iterator[Server]:
    with adb_server({SERIAL: phone}) as running:
        yield running
