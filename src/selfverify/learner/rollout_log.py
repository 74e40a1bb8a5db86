"""The rollout log: what was sampled in each step, complete on the disk before the step's update.

    rollouts/
      step-000012.process-0-of-2.jsonl      a header, then one line per problem of this process
      step-000012.process-0-of-2/           the images that environments showed, by content

An environment may be random or slow, so that it never says the same again. A run that is killed therefore
replays what was logged behind its checkpoint, and ends with the bits of a run that was left alone.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from selfverify.core import ranks
from selfverify.core.errors import CheckpointError, ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.files import differences, require_held, sync_file, sync_folder
from selfverify.core.images import to_rgb
from selfverify.core.jsonl_store import read_journal, write_journal
from selfverify.data.images import read_image
from selfverify.learner.kept import judged_by
from selfverify.methods.base import Training
from selfverify.rollouts.recording import RecordedGroup, image_name

logger = logging.getLogger(__name__)

ROLLOUTS_FOLDER = "rollouts"
"""Where a run keeps its rollout log."""
NAME = re.compile(r"step-(\d{6,})\.process-\d+-of-\d+\.jsonl")

_NO_MATTER = {
    "checkpoint_every", "keep_last", "best_metric", "evaluate_every", "log_every", "log_channels_every",
    "trackers", "time_limit_s", "rollout_log",
}  # fmt: skip
"""Settings of the learner that change neither samples nor weights."""
_POLICY = {
    "path",
    "dtype",
    "master_weights",
    "lora",
    "train_vision",
    "shared_prefix",
    "min_pixels",
    "max_pixels",
}
"""Settings of the policy that change samples or weights."""


def settings_of(training: Training) -> dict[str, Any]:
    """Return the settings that decide a run's samples and weights, as JSON."""
    learner, method, task = training.learner, training.method, training.task
    fixed = {"steps"} if learner.schedule == "constant" else set()
    settings = {
        "seed": training.seed,
        "policy": training.policy.config.model_dump(mode="json", include=_POLICY),
        "task": {"name": task.name, **judged_by(task)},
        "method": {"name": method.name, **method.config.model_dump(mode="json")},
        "sampling": training.sampling.model_dump(mode="json"),
        "episode": (method.limits or task.limits).model_dump(mode="json"),
        "learner": learner.model_dump(mode="json", exclude=_NO_MATTER | fixed),
    }
    # As a reader sees them: lists, not tuples.
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read


def wants_log(training: Training) -> bool:
    """Return whether a training's rollouts are logged.

    With ``learner.rollout_log: auto`` that is where they cannot be repeated: the task says so, or deadlines
    decide what is said.
    """
    wanted = training.learner.rollout_log
    limits = training.method.limits or training.task.limits
    timed = limits.step_threads > 0 or limits.rollout_timeout_s is not None
    return wanted in ("recent", "all") or (wanted == "auto" and (timed or not training.task.repeatable))


class RolloutLog:
    """Reads and writes the rollout log of one training.

    Args:
        training: What is trained. Its ``replay`` names the folder of another run whose log is read, and
            nothing is written then.
        weights: `Policy.fingerprint` of the policy that training starts from.
    """

    def __init__(self, training: Training, weights: str) -> None:
        self.replays = training.replay is not None
        self.folder = (training.replay or training.folder) / ROLLOUTS_FOLDER
        self.keeps_all = training.learner.rollout_log == "all"
        self._settings = {**settings_of(training), "weights": weights}
        del self._settings["policy"]["path"]  # `weights` says it better
        self._samples = False
        self.images: dict[str, Image] = {}
        """What the environments of the last step showed, by the names of its images."""

    def begin(self, resumed: bool, steps: range) -> None:
        """Check that the steps can be replayed, or remove what an earlier run has left.

        Every process has to call this.

        Args:
            resumed: Whether the run goes on with what its folder holds.
            steps: The steps to come, from 0.

        Raises:
            ConfigError: A step to replay is not in the log.
        """
        if self.replays:
            ranks.on_first(partial(self._refuse_gaps, steps))
        elif not resumed:
            ranks.on_first(lambda: shutil.rmtree(self.folder, ignore_errors=True))

    def recorded(self, step: int) -> list[RecordedGroup] | None:
        """Return this process's part of a step, in the order of its problems; None to sample it.

        Once a step is sampled, all later ones are. Every process has to call this.

        Raises:
            ConfigError: The log to replay belongs to other settings.
            DataError: The log to replay is damaged.
        """
        if self._samples:
            return None
        found: list[RecordedGroup] | None = ranks.everywhere(partial(self._read, step))
        # Which process has lost its part does not matter: what is sampled is sampled together.
        if all(ranks.gather(found is not None)):
            return found
        self._samples = True
        ranks.on_first(lambda: self._remove_rest(step))
        return None

    def write(
        self, step: int, rows: Sequence[RecordedGroup], images: Mapping[str, Image]
    ) -> list[RecordedGroup]:
        """Write this process's part of a step; when this returns, it is on the disk.

        Returns:
            What a reader will read.

        Raises:
            CheckpointError: The disk is full or not writable.
            DataError: A value cannot be stored as JSON.
            FileError: The run's folder was deleted, moved or taken over.
        """
        require_held(self.folder)
        path, self.images = self._path(step), dict(images)
        try:
            # Not its parents: they are gone where somebody has deleted the run.
            self.folder.mkdir(exist_ok=True)
            if images:
                shown = path.with_suffix("")
                shown.mkdir(exist_ok=True)
                for name, image in images.items():
                    file = shown / f"{name}.png"
                    to_rgb(image).save(file, compress_level=1)
                    sync_file(file)
                sync_folder(shown)
            settings = self._settings | {"step": step + 1, "problems": len(rows)}
            write_journal(path, RecordedGroup, settings, rows)
        except OSError as error:
            raise CheckpointError(
                f"cannot write the rollouts of step {step + 1} to {self.folder}: {error}. Free space there, "
                "set output to another disk, or do without them by learner.rollout_log=never"
            ) from error
        return self._rows(path, step)

    def prune(self, oldest: int) -> None:
        """Remove the steps that the oldest checkpoint, which ``oldest`` steps led to, does not need."""
        if not self.keeps_all and not self.replays:
            self._remove(path for path, step in self._files() if step <= oldest)

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step + 1:06d}.process-{ranks.index()}-of-{ranks.count()}.jsonl"

    def _paths(self, step: int) -> list[Path]:
        """The files that together hold this process's part of a step; none if a process's is missing."""
        counts = self._complete(f"step-{step + 1:06d}.*").get(step + 1)
        if counts is None:
            return []
        if ranks.count() in counts:
            return [self._path(step)]
        return sorted(self.folder.glob(f"step-{step + 1:06d}.*-of-{min(counts)}.jsonl"))

    def _complete(self, pattern: str = "*") -> dict[int, set[int]]:
        """For each step, from 1, of which no file is missing: by how many processes it was logged."""
        found = Counter[tuple[int, int]]()
        for path, step in self._files(pattern):
            found[step, int(path.stem.rpartition("-")[2])] += 1
        complete: dict[int, set[int]] = {}
        for (step, count), files in found.items():
            if files == count:
                complete.setdefault(step, set()).add(count)
        return complete

    def _files(self, pattern: str = "*") -> list[tuple[Path, int]]:
        """The log's files with the numbers of their steps, from 1."""
        paths = [(path, NAME.fullmatch(path.name)) for path in self.folder.glob(pattern)]
        return [(path, int(match[1])) for path, match in paths if match]

    def _read(self, step: int) -> list[RecordedGroup] | None:
        paths = self._paths(step)
        try:
            rows, self.images = list[RecordedGroup](), {}
            for path in paths:
                part = self._rows(path, step)
                rows += part
                self.images |= _read_images(path.with_suffix(""), part)
        except (DataError, ConfigError) as error:
            if self.replays:
                raise
            message = f"step {step + 1} is sampled anew: {error}"
            note(logger, "rollout_log_unused", message, reason=str(error))
            return None
        if not paths and self.replays:
            self._refuse_gaps(range(step, step + 1))
        # Other processes may have shared the problems out otherwise.
        return sorted(rows, key=lambda row: row.index) if paths else None

    def _rows(self, path: Path, step: int) -> list[RecordedGroup]:
        """The lines of a file that are about this process's problems."""
        found, rows = read_journal(path, RecordedGroup, warn=False)
        if found.pop("problems", None) != len(rows):
            raise DataError(f"{path}: lines are missing")
        if changed := differences(found, self._settings | {"step": step + 1}):
            raise ConfigError(
                f"{path} belongs to other settings: {'; '.join(changed)}; a log repeats the run that wrote it"
            )
        return [row for index, row in rows.items() if index % ranks.count() == ranks.index()]

    def _refuse_gaps(self, steps: Sequence[int]) -> None:
        present = self._complete()
        missing = [step + 1 for step in steps if step + 1 not in present]
        if not missing:
            return
        held = (
            f"holds steps {min(present)} to {max(present)}" if present else "holds no step of a rollout log"
        )
        raise ConfigError(
            f"{self.folder} {held}, and step {missing[0]} is to be replayed; a run keeps the rollouts of all "
            "its steps with learner.rollout_log=all"
        )

    def _remove_rest(self, step: int) -> None:
        """Remove what lies behind a step that is about to be sampled, and the step itself as other numbers of
        processes have left it: nobody can learn from it any more."""
        stale = f"-of-{ranks.count()}.jsonl"
        self._remove(
            path
            for path, number in self._files()
            if number > step + 1 or (number == step + 1 and not path.name.endswith(stale))
        )

    def _remove(self, paths: Iterable[Path]) -> None:
        require_held(self.folder)
        for path in paths:
            # The file first: without it nobody looks for its images.
            path.unlink(missing_ok=True)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)


def _read_images(folder: Path, rows: Sequence[RecordedGroup]) -> dict[str, Image]:
    names = {name for row in rows for t in row.trajectories for s in t.segments for name in s.images}
    images = {}
    for name in names:
        images[name] = read_image(folder / f"{name}.png")
        if image_name(images[name]) != name:
            raise DataError(f"{folder / name}.png: the image is damaged")
    return images
