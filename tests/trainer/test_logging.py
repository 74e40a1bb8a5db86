"""The metrics file: deterministic lines that survive a kill; and lines of progress that stand alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.utils import logging as transformers_logging

from selfverify.cli.options import bar
from selfverify.core.errors import CheckpointError
from selfverify.trainer.logging import MetricsLog, TrainingProgress


def test_values_are_rounded_and_plain(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "run" / "metrics.jsonl")
    values: dict[str, tuple[Any, Any]] = {
        "step": (1234567890, 1234567890),
        "a": (0.123456789, 0.123457),
        "nan": (float("nan"), None),
        "inf": (-float("inf"), None),
        "tensor": (torch.tensor(2 / 3), 0.666667),
        "numpy": (np.float32(1e-9), 1e-9),
        "list": ((1.00000001, None, True), [1.0, None, True]),
        "inner": ({"text": "ä\n"}, {"text": "ä\n"}),
    }
    log.append({name: given for name, (given, _) in values.items()})
    text = log.path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    assert json.loads(text) == {name: written for name, (_, written) in values.items()}


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


BARS = ("Loading weights", "Writing model shards")


@pytest.mark.parametrize("ours", [TrainingProgress, lambda: bar("problems")])
def test_transformers_shows_no_bars_between_ours(
    ours: Callable[[], AbstractContextManager[Any]],
    load_policy: Any,
    tmp_path: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.enable_progress_bar()
    try:
        with ours():
            load_policy().save(tmp_path / "a")
        alone = capfd.readouterr().err
        with pytest.raises(KeyError), ours():
            raise KeyError
        load_policy().save(tmp_path / "b")
        after = capfd.readouterr().err
    finally:
        if not enabled:
            transformers_logging.disable_progress_bar()
    assert [name in alone for name in BARS] == [False, False]
    assert [name in after for name in BARS] == [True, True]
