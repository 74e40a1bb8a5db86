"""Shows a training run: as a live bar on a terminal, elsewhere as a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers.utils.logging import EmptyTqdm, set_tqdm_hook

SHOWN = ("accuracy", "reward/answer", "reward/verification", "verification/auc", "loss")
"""The metrics that are shown, which tell whether a run is well. metrics.jsonl has all metrics."""

QUIET_S = 10.0
"""The least seconds between two lines where there is no live terminal."""


@contextmanager
def no_bars_of_transformers() -> Iterator[None]:
    """Switch off transformers' bars of weights that it reads or writes, which would break into ours.

    Those of downloads stay. At the end all is as before, for programs that call a command's function.
    """
    before = set_tqdm_hook(lambda _, args, kwargs: EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        set_tqdm_hook(before)


class TrainingProgress:
    """A context manager whose methods are callbacks of ``selfverify.experiments.run.train``."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()
        self.alone.__exit__(kind, error, trace)

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
