"""The files of one checkpoint: write them, read them, and find out whether they are complete."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from selfverify.core.errors import CheckpointError
from selfverify.core.files import file_digests, sync_file, sync_folder, write_json
from selfverify.learner.state import (
    Savable,
    pack,
    parameter_names,
    parameter_shapes,
    refuse_not_finite,
    rng_state,
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


def write_checkpoint(
    folder: Path,
    step: int,
    write_model: Callable[[Path], None],
    optimizer: Savable,
    scheduler: Scheduler,
    progress: dict[str, Any],
    best: float | None,
) -> None:
    """Write a checkpoint into ``folder``, force it to the disk, and only then declare it complete.

    The other arguments are those of `CheckpointManager.save`.

    Raises:
        CheckpointError: A value cannot be part of a checkpoint, or the optimizer's state is not finite.
    """
    generators = rng_state()  # taken before anything below can draw a random number
    folder.mkdir()  # not its parents: they are gone where somebody has deleted the run
    (folder / MODEL_FOLDER).mkdir()
    write_model(folder / MODEL_FOLDER)
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
    save_file(tensors, folder / _TENSORS)
    (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")
    files = []
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            sync_folder(path)
        else:
            sync_file(path)
            files.append(path)
    known = best if best is not None and not math.isnan(best) else None
    digests = file_digests(files)
    manifest = {
        "format": _FORMAT,
        "step": step,
        "best": known,
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
