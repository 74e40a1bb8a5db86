"""A training run's metrics file and progress bar, and Ctrl-C delayed to a step's end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers.utils.logging import EmptyTqdm, set_tqdm_hook

from selfverify.core.errors import CheckpointError
from selfverify.core.jsonl_store import JsonlStore, read_rows


class MetricsLog(JsonlStore):
    """A journal of metrics that a resumed run can cut back to its checkpoint, one JSON object per line.

    Floats are rounded to 6 significant digits, so that the file is short. NaN and infinity, which JSON lacks,
    become ``null``. The same numbers make the same bytes. Wall-clock times belong in another file, because
    equal runs shall have equal metrics.
    """

    def append(self, *rows: dict[str, Any]) -> None:
        """Write one line per row. When this returns, the lines survive the death of the process."""
        super().append(*map(_plain, rows))

    def last_step(self) -> int:
        """Return the ``step`` of the last line that has one, 0 if there is none.

        Lines that are no metrics are passed over with a warning: what stands behind a checkpoint's length is
        cut off anyway.
        """
        steps = [row.get("step") for row in read_rows(self.path, skip_corrupt=True)]
        return next((step for step in reversed(steps) if isinstance(step, int)), 0)

    def truncate(self, length: int) -> None:
        """Cut the file back to ``length`` bytes, which a checkpoint noted.

        Raises:
            CheckpointError: The file is shorter, so lines are gone that the checkpoint counts on.
        """
        present = self.path.stat().st_size
        if present < length:
            raise CheckpointError(
                f"{self.path} has {present} bytes, but the checkpoint was written when it had {length}: the "
                "file was cut or replaced. Put it back, or start the run anew without resuming"
            )
        super().truncate(length)


def _plain(value: Any) -> Any:
    """Return ``value`` as a JSON value whose floats have 6 significant digits."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


SHOWN = ("accuracy", "reward/answer", "reward/verification", "verification/auc", "loss")
"""The metrics that are shown, which tell whether a run is well. metrics.jsonl has all metrics."""

QUIET_S = 10.0
"""The least seconds between two lines where there is no live terminal."""


@contextmanager
def no_bars_of_transformers() -> Iterator[None]:
    """Switch off transformers' bars of weights that it reads or writes, which would break into ours.

    The bars of downloads stay. At the end all is as before, for programs that call a command's function.
    """
    before = set_tqdm_hook(lambda _, args, kwargs: EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        set_tqdm_hook(before)


class TrainingProgress:
    """Shows a run: as a live bar on a terminal, elsewhere as a line now and then.

    It is a context manager whose methods are callbacks of `selfverify.experiments.run.train`.
    """

    def __init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.alone = no_bars_of_transformers()
        self.tasks: dict[str, TaskID] = {}
        self.last_line = -QUIET_S

    def __enter__(self) -> TrainingProgress:
        self.alone.__enter__()
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()
        self.alone.__exit__(None, None, None)

    def on_step(self, step: int, steps: int, metrics: dict[str, float], timing: dict[str, float]) -> None:
        """Show the figures of a training step that is done, of ``steps`` in all."""
        figures = [f"{name.split('/')[-1]} {metrics[name]:.3f}" for name in SHOWN if name in metrics]
        if "tokens_per_s" in timing:
            figures.append(f"{timing['tokens_per_s']:.0f} tokens/s")
        self._show("training", step, steps, "  ".join(figures))

    def on_phase(self, phase: str, done: int, total: int) -> None:
        """Show how much of an evaluation is done."""
        self._show(f"measuring {phase}", done, total, "")

    def _show(self, name: str, done: int, total: int, figures: str) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=total, figures=figures)
        self.bar.update(self.tasks[name], completed=done, total=total, figures=figures)
        now = time.monotonic()
        if not self.console.is_terminal and (done == total or now - self.last_line >= QUIET_S):
            self.last_line = now
            self.console.print(f"{name} {done}/{total}  {figures}".rstrip(), markup=False, highlight=False)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether Ctrl-C or SIGTERM has come; a second one interrupts at once.

    The first is delayed to the end of a training step, so that a checkpoint can be written.

    Batch systems send SIGTERM before they stop a job, and torchrun turns a Ctrl-C into SIGTERM.
    """
    pressed = False

    def note(signum: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    try:
        previous = {kind: signal.signal(kind, note) for kind in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        # This is not the main thread, so the caller has to handle signals.
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        for kind, handler in previous.items():
            signal.signal(kind, handler)
