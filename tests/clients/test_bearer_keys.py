"""Bearer keys are compared whole, and read from a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfverify.connectors.server import Keys, read_keys
from selfverify.core.errors import ConfigError


def test_keys() -> None:
    keys = Keys(["one", "two"])
    assert keys.find("Bearer two") == keys.find("bearer  two ") is not None
    assert keys.find("Bearer two") != keys.find("Bearer one")
    for wrong in (None, "", "two", "Bearer", "Bearer ", "Bearer three", "Basic two", "Bearer tw\udcff"):
        assert keys.find(wrong) is None
    assert not Keys([])


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\none\n\n two \n")
    assert read_keys(path) == ["one", "two"]
    path.write_text("# none\n")
    for wrong in (path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            read_keys(wrong)
