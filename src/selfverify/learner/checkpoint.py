"""A run's checkpoints: each is complete, or it is not there at all.

    checkpoints/
      checkpoint-000100/            a complete checkpoint
        model/                      what `save_pretrained` wrote; transformers loads it
        optimizer.safetensors       the tensors of the optimizer and of the random generators
        state.json                  everything else
        complete.json               sizes and digests of all files, and the metric; written last
      checkpoint-000150.partial/    a checkpoint that is being written

A checkpoint is written under a name that nothing reads, every byte is forced to the disk, and one rename
makes it appear. Whatever kills the process, the newest complete checkpoint stays readable.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from selfverify.core.errors import CheckpointError
from selfverify.core.files import make_folder, require_held, sync_folder
from selfverify.learner.checkpoint_files import (
    MODEL_FOLDER,
    NAME,
    Scheduler,
    altered,
    complete_checkpoints,
    damage,
    read_checkpoint,
    read_metric,
    write_checkpoint,
)
from selfverify.learner.disk import folder_size, space_report
from selfverify.learner.state import (
    Savable,
    optimizer_misfits,
    set_rng_state,
    training_bytes,
    unpack,
)

logger = logging.getLogger(__name__)

__all__ = [
    "CHECKPOINTS_FOLDER",
    "MODEL_FOLDER",
    "CheckpointManager",
    "best_checkpoint",
    "latest_checkpoint",
    "restore_rng",
]

CHECKPOINTS_FOLDER = "checkpoints"
"""Where a run keeps its checkpoints."""
_PARTIAL, _REPLACED, _DELETED = ".partial", ".replaced", ".deleted"


def latest_checkpoint(folder: Path, verify: bool = False) -> Path | None:
    """Return the newest complete checkpoint in ``folder``; None if there is none.

    Damaged checkpoints are passed over with a warning. Nothing is written, so this is safe beside a running
    training.

    Args:
        folder: The folder of the checkpoints.
        verify: Whether every byte of it is read, to see that it is what was written.
    """
    return _first(reversed(complete_checkpoints(folder, warn=True)), verify)


def best_checkpoint(folder: Path, verify: bool = False) -> Path | None:
    """Return the complete checkpoint in ``folder`` with the best metric; None if none was measured.

    Of several that are equally good, it is the oldest. Nothing is written, and the arguments are those of
    `latest_checkpoint`.
    """
    measured = [
        (value, path)
        for path in complete_checkpoints(folder, warn=True)
        if (value := read_metric(path)) is not None
    ]
    return _first((path for _, path in sorted(measured, key=itemgetter(0), reverse=True)), verify)


def _first(checkpoints: Iterable[Path], verify: bool) -> Path | None:
    """The first of some checkpoints, or the first that is not altered."""
    for path in checkpoints:
        problem = altered(path) if verify else ""
        if not problem:
            return path
        logger.warning("the checkpoint %s is passed over: it %s", path, problem)
    return None


def restore_rng(path: Path) -> None:
    """Put the random generators of Python, NumPy and torch back to their states in the checkpoint ``path``.

    Call this after everything else is loaded, because loading a model draws random numbers.
    """
    state, tensors = read_checkpoint(path, only="rng")
    set_rng_state(unpack(state["rng"], tensors))


class CheckpointManager:
    """Writes a run's checkpoints. At most one process at a time may have a manager of a folder.

    What a killed process left half done is tidied up when the manager is made.

    Args:
        folder: The folder of the checkpoints.
        keep_last: The number of checkpoints to keep besides the best one, at least 1.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.keep_last = keep_last
        make_folder(folder)
        self._tidy_up()

    def save(
        self,
        step: int,
        write_model: Callable[[Path], None],
        optimizer: Savable,
        scheduler: Scheduler,
        progress: dict[str, Any],
        best: float | None = None,
    ) -> Path:
        """Write the checkpoint of ``step``. It replaces one that exists for this step.

        Args:
            step: The number of training steps done.
            write_model: Called with a folder, into which it saves model and processor.
            optimizer: Any torch optimizer whose state is tensors and plain values.
            scheduler: A learning-rate scheduler.
            progress: Plain values that `load` gives back: the data's position, lengths of files, ...
            best: The metric by which the best checkpoint is kept, higher is better. With None, a checkpoint
                that is replaced keeps its metric, and a new one has none.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointError: The disk is full or not writable, or weights or the optimizer's state are not
                finite. Nothing of the attempt is left, and what was there before is still valid.
            FileError: The run's folder was deleted, moved or taken over (`folder_lock.require_held`).
        """
        require_held(self.folder)
        final = self.folder / f"checkpoint-{step:06d}"
        partial = final.with_name(final.name + _PARTIAL)
        if best is None and not damage(final):
            # The step is saved a second time, now without its metric, which it keeps.
            best = read_metric(final)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            write_checkpoint(partial, step, write_model, optimizer, scheduler, progress, best)
            require_held(self.folder)
            self._publish(partial, final)
        except BaseException as error:
            require_held(self.folder)  # what lies there under this name may be another run's
            written = folder_size(partial)
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, (OSError, SafetensorError)):
                raise CheckpointError(
                    self._explain(step, error, max(written, training_bytes(optimizer)))
                ) from error
            if isinstance(error, CheckpointError):
                raise CheckpointError(
                    f"the checkpoint of step {step} is not written: {error}; {self._valid()}"
                ) from error
            raise
        self._prune(step)
        return final

    def load(self, path: Path, optimizer: Savable, scheduler: Scheduler) -> dict[str, Any]:
        """Load optimizer and scheduler, bit by bit. The model has been loaded before, by `load_matching`.

        Returns:
            The ``progress`` that was saved.

        Raises:
            CheckpointError: The checkpoint is damaged or does not fit. In this case nothing is changed.
        """
        state, tensors = read_checkpoint(path)
        faults = optimizer_misfits(optimizer, state["shapes"], state["names"])
        if faults:
            more = f" (and {len(faults) - 5} more)" if len(faults) > 5 else ""
            raise CheckpointError(
                f"{path}: this optimizer state does not fit the model: {'; '.join(faults[:5])}{more}"
            )
        optimizer.load_state_dict(unpack(state["optimizer"], tensors))
        scheduler.load_state_dict(unpack(state["scheduler"], tensors))
        progress = unpack(state["progress"], tensors)
        assert isinstance(progress, dict)
        return progress

    def oldest(self, step: int) -> int:
        """The step of the oldest of the last ``keep_last`` checkpoints up to ``step``; 0 if there is none."""
        return next((_step_of(path) for path in self._up_to(step)[-self.keep_last :]), 0)

    def _up_to(self, step: int) -> list[Path]:
        """Return the complete checkpoints, oldest first, without those of later steps: the run has passed
        them over, because their bytes had changed."""
        return [path for path in complete_checkpoints(self.folder) if _step_of(path) <= step]

    def _publish(self, partial: Path, final: Path) -> None:
        replaced = final.with_name(final.name + _REPLACED)
        if final.exists():
            # A folder cannot be renamed onto a full one. Dying between these two renames leaves two
            # complete checkpoints under side names; `_tidy_up` then puts the newer one in place.
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(final, replaced)
        try:
            os.replace(partial, final)
        except OSError:
            if replaced.exists():
                os.replace(replaced, final)
            raise
        sync_folder(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)

    def _prune(self, step: int) -> None:
        best = best_checkpoint(self.folder)
        for path in self._up_to(step)[: -self.keep_last]:
            if path != best:
                doomed = path.with_name(path.name + _DELETED)
                try:
                    # Renamed first, so that a half deleted checkpoint is never taken for a damaged one.
                    os.replace(path, doomed)
                    shutil.rmtree(doomed)
                except OSError as error:
                    logger.warning("cannot delete the old checkpoint %s: %s", path, error)

    def _tidy_up(self) -> None:
        for suffix in (_PARTIAL, _REPLACED, _DELETED):
            for side in self.folder.glob(f"checkpoint-*{suffix}"):
                final = side.with_name(side.name.removesuffix(suffix))
                if suffix != _DELETED and not final.exists() and not damage(side):
                    os.replace(side, final)
                else:
                    shutil.rmtree(side, ignore_errors=True)

    def _explain(self, step: int, error: Exception, needed: int) -> str:
        if not self.folder.is_dir():
            return f"cannot write the checkpoint of step {step}: the folder {self.folder} is gone; start anew"
        latest = latest_checkpoint(self.folder)
        needed = max(folder_size(latest) if latest else 0, needed)
        return (
            f"cannot write the checkpoint of step {step} to {self.folder}: {error}. It needs "
            f"at least {space_report(needed, self.folder)}. Free space there (old runs' checkpoints are what "
            f"is large), lower learner.keep_last (now {self.keep_last}) or set output to another disk; "
            f"{self._valid()}"
        )

    def _valid(self) -> str:
        latest = latest_checkpoint(self.folder)
        return f"{latest.name} remains valid and can be resumed from" if latest else "there is no earlier one"


def _step_of(path: Path) -> int:
    match = NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])
