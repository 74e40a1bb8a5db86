"""What the processes of a run tell each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
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


TELL = """
import sys, time
import torch.distributed as dist
from selfverify.core import ranks

rank = int(sys.argv[2])
ranks.start(cpu=True, timeout_s=4.0)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
assert ranks.gather({"of": rank}) == [{"of": 0}, {"of": 1}]
if rank:
    time.sleep(15)
else:
    ranks.gather(rank)
"""


def test_a_process_waits_for_another_as_long_as_it_may(tmp_path: Path) -> None:
    """The processes' own group has the limit, not the launcher's, whose default is half an hour."""
    command = [sys.executable, "-c", TELL, str(tmp_path / "store")]
    waiting, slow = (
        subprocess.Popen([*command, str(rank)], stderr=subprocess.PIPE, text=True) for rank in (0, 1)
    )
    try:
        said = waiting.communicate(timeout=120)[1]
        assert slow.poll() is None, slow.communicate()[1]
    finally:
        slow.kill()
        slow.communicate()
    assert "SelfVerifyError: process 0 of 2 has waited in vain" in said
    assert "learner.process_timeout_s=4" in said
