"""Our own lines of progress stand alone on the terminal, and transformers' bars come back after them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from transformers.utils import logging as transformers_logging

from selfverify.cli.options import bar
from selfverify.trainer.logging import TrainingProgress

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
