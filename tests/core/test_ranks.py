"""What the processes of a run tell each other."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.core import ranks
from selfverify.core.errors import DataError


def test_alone_everybody_is_one() -> None:
    assert ranks.everywhere(lambda: 3) == 3
    with pytest.raises(DataError, match="broken"):
        ranks.everywhere(fail)


def fail() -> int:
    raise DataError("row 7 is broken")


@pytest.mark.parametrize("run", [lambda: 3, fail], ids=["went well here", "failed here, too"])
def test_an_error_of_one_process_ends_all(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for ever for a process that has given up."""
    told = []

    def gather(failed: Any) -> list[Any]:
        told.append(failed)
        return [None, DataError("row 9 is broken"), failed]

    monkeypatch.setattr(ranks, "gather", gather)
    with pytest.raises(DataError, match="row 9 is broken"):
        ranks.everywhere(run)
    assert len(told) == 1
