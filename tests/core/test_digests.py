"""Digests: the same for the same bytes, however they are cut into pieces; another for every other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfverify.core import files
from selfverify.core.files import file_digests


def test_every_byte_and_the_length_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PIECE", 10)
    content = bytes(range(35))
    contents = [content, content[:-1], b"", content + b"\0"]
    contents += [content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :] for i in range(35)]
    paths = [tmp_path / str(i) for i in range(len(contents))]
    for path, written in zip(paths, contents, strict=True):
        path.write_bytes(written)
    found = file_digests(paths)
    assert len(set(found.values())) == len(contents)
    assert file_digests([paths[0]]) == {paths[0]: found[paths[0]]}
    assert len(found[paths[0]]) == 32
