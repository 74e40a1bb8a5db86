"""A run's checkpoints: each is complete, or it is not there at all.

    checkpoints/
      checkpoint-000100/            a complete checkpoint
        model/                      what `save_pretrained` wrote; transformers loads it
        optimizer.safetensors       the tensors of the optimizer and of the random generators
        state.json                  everything else
        complete.json               sizes and digests of all files, and the metric; written last
      checkpoint-000150.partial/    a checkpoint that is being written

A checkpoint is written under a name that nothing reads, every byte is forced to the disk, and one rename
makes it appear. The newest complete checkpoint stays readable after any kill.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from rich.filesize import decimal
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from selfverify.core.errors import CheckpointError
from selfverify.core.files import (
    file_digests,
    make_folder,
    naming,
    require_held,
    sync_file,
    sync_folder,
    write_json,
)
from selfverify.trainer.state import (
    Savable,
    optimizer_misfits,
    pack,
    parameter_names,
    parameter_shapes,
    refuse_not_finite,
    rng_state,
    set_rng_state,
    training_bytes,
    unpack,
)

logger = logging.getLogger(__name__)

NAME = re.compile(r"checkpoint-(\d{6,})")
"""The name of a complete checkpoint's folder."""
MODEL_FOLDER = "model"
"""Where a checkpoint or a run keeps a model that `from_pretrained` reads."""

_TENSORS, _STATE, _MANIFEST = "optimizer.safetensors", "state.json", "complete.json"
_FORMAT = 1

Scheduler = Any
"""Anything with ``state_dict`` and ``load_state_dict``; torch's classes share no public base."""


def declare_complete(folder: Path, step: int, best: float | None) -> None:
    """Force a checkpoint's files to the disk, and only then declare it complete.

    Args:
        folder: Holds all files.
        step: How many steps led to it.
        best: Its metric; None or NaN where it was not measured.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
            files.append(path)
    digests = file_digests(files)
    manifest = {
        "format": _FORMAT,
        "step": step,
        "best": best if best is not None and not math.isnan(best) else None,
        "files": {path.relative_to(folder).as_posix(): path.stat().st_size for path in files},
        "digests": {path.relative_to(folder).as_posix(): digest for path, digest in digests.items()},
    }
    write_json(folder / _MANIFEST, manifest | {"own_digest": _own_digest(manifest)})


def _own_digest(manifest: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(manifest, sort_keys=True).encode(), digest_size=16).hexdigest()


def complete_checkpoints(folder: Path, warn: bool = False) -> list[Path]:
    """Return the complete checkpoints in ``folder``, oldest first; ``warn`` logs the others' faults."""
    found = []
    for path in folder.glob("checkpoint-*"):
        match = NAME.fullmatch(path.name)
        if match is None:
            continue
        problem = damage(path)
        if not problem:
            found.append((int(match[1]), path))
        elif warn:
            logger.warning("the checkpoint %s is passed over: it %s", path, problem)
    return [path for _, path in sorted(found)]


def damage(path: Path) -> str:
    """Say what is wrong with a checkpoint, as the end of a sentence; empty if it is complete.

    Of its files only the sizes are looked at (`altered` reads them).
    """
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        if manifest["format"] != _FORMAT:
            return f"has format {manifest['format']!r}, which this version does not read"
        own = manifest.pop("own_digest", None)  # earlier versions wrote no digests
        if own is not None and own != _own_digest(manifest):
            return f"is damaged: {_MANIFEST} is not what was written"
        for name, size in manifest["files"].items():
            present = (path / name).stat().st_size
            if present != size:
                return f"is damaged: {name} has {present} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"is incomplete: there is no {Path(error.filename).name}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"is damaged: {error!r}"
    return ""


def altered(path: Path) -> str:
    """Say which file of a complete checkpoint has other bytes than were written, as the end of a sentence.

    This reads all of it. Empty if nothing is altered, or if an earlier version wrote it, without digests.
    """
    try:
        digests: dict[str, str] = json.loads((path / _MANIFEST).read_bytes()).get("digests", {})
        for file, digest in file_digests(path / name for name in digests).items():
            name = file.relative_to(path).as_posix()
            if digest != digests[name]:
                return f"is damaged: {name} is as long as it was, but some of its bytes have changed"
    except (OSError, ValueError, AttributeError) as error:
        return f"is damaged: {error!r}"
    return ""


def read_checkpoint(path: Path, only: str = "") -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Read a complete checkpoint.

    Returns:
        The JSON state, and the tensors whose names begin with ``only``.

    Raises:
        CheckpointError: The checkpoint is incomplete or damaged.
    """
    problem = damage(path)
    if problem:
        raise CheckpointError(f"{path}: this checkpoint {problem}")
    try:
        state = json.loads((path / _STATE).read_text(encoding="utf-8"))
        with safe_open(path / _TENSORS, framework="pt") as file:
            # Copied, because the tensors may lie in the mapped file, unlike those of an unbroken run.
            names: list[str] = file.keys()
            return state, {n: file.get_tensor(n).clone() for n in names if n.startswith(only)}
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path}: this checkpoint cannot be read: {error}") from error


def read_metric(path: Path) -> float | None:
    """Return the metric that a complete checkpoint was saved with; None if it was not measured."""
    value: float | None = json.loads((path / _MANIFEST).read_text())["best"]
    return value


def folder_size(path: Path) -> int:
    """Return the bytes of all files under ``path``; 0 if there is no such folder."""
    total = 0
    for file in path.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # the file was removed meanwhile and takes no room any more
    return total


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

    Files that a killed process left half done are removed when the manager is made.

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
            FileError: The run's folder was deleted, moved or taken over (`core.files.require_held`).
        """
        require_held(self.folder)
        final = self.folder / f"checkpoint-{step:06d}"
        partial = final.with_name(final.name + _PARTIAL)
        if best is None and not damage(final):
            # The step is saved a second time, now without its metric, which it keeps.
            best = read_metric(final)
        try:
            shutil.rmtree(partial, ignore_errors=True)
            with naming(partial):
                generators = rng_state()  # taken before anything below can draw a random number
                partial.mkdir()  # not its parents: they are gone where somebody has deleted the run
                (partial / MODEL_FOLDER).mkdir()
                write_model(partial / MODEL_FOLDER)
                tensors: dict[str, torch.Tensor] = {}
                state = {
                    "step": step,
                    "names": parameter_names(optimizer),
                    "shapes": parameter_shapes(optimizer),
                    "optimizer": pack(optimizer.state_dict(), tensors, "optimizer"),
                    "scheduler": pack(scheduler.state_dict(), tensors, "scheduler"),
                    "rng": pack(generators, tensors, "rng"),
                    "progress": pack(progress, tensors, "progress"),
                }
                refuse_not_finite(tensors.items())
                save_file(tensors, partial / _TENSORS)
                (partial / _STATE).write_text(json.dumps(state), encoding="utf-8")
                declare_complete(partial, step, best)
            require_held(self.folder)
            self._publish(partial, final)
        except BaseException as error:
            require_held(self.folder)  # what lies there under this name may be another run's
            written = folder_size(partial)
            shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError):
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
        free = shutil.disk_usage(self.folder).free
        return (
            f"cannot write the checkpoint of step {step} to {self.folder}: {error}. It needs at least "
            f"{decimal(needed)} and {decimal(free)} are free. Free space there (old runs' checkpoints "
            f"are what is large), lower learner.checkpoint.keep_last (now {self.keep_last}) or set output to "
            f"another disk; {self._valid()}"
        )

    def _valid(self) -> str:
        latest = latest_checkpoint(self.folder)
        return f"{latest.name} remains valid and can be resumed from" if latest else "there is no earlier one"


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("checkpoint-"))
