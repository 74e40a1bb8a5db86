"""The metrics file: deterministic lines, and a resumed run's file equal to an unbroken one's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from selfverify.core.errors import CheckpointError
from selfverify.trainer.logging import MetricsLog


def test_values_are_rounded_and_plain(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    log.append(
        {
            "step": 1234567890,
            "a": 0.123456789,
            "nan": float("nan"),
            "inf": -float("inf"),
            "tensor": torch.tensor(2 / 3),
            "numpy": np.float32(1e-9),
            "list": (1.00000001, None, True),
            "inner": {"text": "ä\n"},
        }
    )
    text = log.path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert json.loads(text) == {
        "step": 1234567890,
        "a": 0.123457,
        "nan": None,
        "inf": None,
        "tensor": 0.666667,
        "numpy": 1e-9,
        "list": [1.0, None, True],
        "inner": {"text": "ä\n"},
    }


@pytest.mark.parametrize(
    "garbage", [b"garbage\n", b"\xff\n", b"{}\n", b'{"step": "x"}\n', b"[]\n", b'{"step":']
)
def test_garbage_behind_the_last_checkpoint_is_cut_off(tmp_path: Path, garbage: bytes) -> None:
    log = MetricsLog(tmp_path / "a.jsonl")
    log.append({"step": 1})
    length = log.sync()
    log.append({"step": 2})
    with log.path.open("ab") as file:
        file.write(garbage)
    again = MetricsLog(log.path)
    assert again.last_step() == 2
    again.truncate(length)
    assert log.path.read_text() == '{"step": 1}\n'


def test_a_file_that_lost_lines_is_refused(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 1})
    with pytest.raises(CheckpointError, match="has 12 bytes, but the checkpoint was written when it had 99"):
        log.truncate(99)
    log.truncate(0)
    assert log.sync() == 0
