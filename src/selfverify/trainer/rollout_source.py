"""Makes a step's groups: makes problems, or takes them from a filter, and rolls out or replays.

Each process makes problems and rolls them out, then all exchange their groups. `FilteredProblems` are those
that `selfverify data filter` has kept.

The rollout log holds what was sampled in each step, complete on the disk before the step's update:

    rollouts/
      step-000012.process-0-of-2.jsonl      a header, then one line per problem of this process
      step-000012.process-0-of-2/           the images that environments showed, by content

An environment may be random or slow, so that it never says the same again. A run that is killed therefore
replays what was logged behind its checkpoint, and ends with the bits of a run that was left alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from selfverify.core import ranks
from selfverify.core.errors import CheckpointError, ConfigError, DataError, SelfVerifyError
from selfverify.core.events import note
from selfverify.core.files import differences, naming, require_held, sync_file, sync_folder
from selfverify.core.images import to_rgb
from selfverify.core.jsonl_store import read_journal, write_journal
from selfverify.core.problem import Problem
from selfverify.data.images import read_image
from selfverify.data.preferences import FilterVerdict, read_verdicts
from selfverify.methods.base import Training
from selfverify.policy.decoding import derived_seed
from selfverify.policy.encoding import Prompt
from selfverify.rollouts.recording import RecordedGroup, image_name, play, record, without_images
from selfverify.rollouts.rollout import Rollout
from selfverify.tasks.base import Task
from selfverify.tasks.row_task import training_place
from selfverify.trainer.state import rng_state, set_rng_state


def judged_by(task: Task) -> dict[str, Any]:
    """Return the options that decide a task's training problems and which answers are right."""
    return task.config.model_dump(mode="json", exclude={"validation", "test", "workers"})


class FilteredProblems:
    """The problems that a file of verdicts keeps, in passes. Each pass has another order.

    Args:
        path: The file of verdicts.
        task: The task that the verdicts are about. It has to know how its policy writes places
            (`Task.set_coordinate_space`).

    Raises:
        ConfigError: The verdicts are unfinished, are about another task or other data, or keep no problem.
        DataError: The file is corrupt.
    """

    def __init__(self, path: str, task: Task) -> None:
        self.path, self.task = path, task
        settings, verdicts = read_verdicts(path)
        if settings["task"] != task.name:
            raise ConfigError(f"{path} is about task {settings['task']}, this is {task.name}")
        count = task.count("train")
        if count != settings["count"]:
            raise ConfigError(
                f"{path} belongs to other data: of {settings['count']} training problems, where task "
                f"{task.name} has {count} now; filter these with `selfverify data filter`"
            )
        # A data file may have moved, so its options may differ. Its problems are compared one by one instead.
        if count is None and judged_by(task) != settings["options"]:
            raise ConfigError(f"{path} is about task {task.name} with other options: {settings['options']}")
        self._seed: int = settings["seed"]
        self._kept = [verdict for verdict in verdicts if not verdict.dropped]
        if not self._kept:
            raise ConfigError(f"{path} keeps none of {len(verdicts)} problems")
        # Compares the first problem at once. If its data is broken by now, training will skip it.
        with contextlib.suppress(DataError):
            self._made(self._kept[0])

    def __len__(self) -> int:
        return len(self._kept)

    def problem(self, seed: int, index: int) -> Problem:
        """Make problem ``index`` of a run with this seed.

        Raises:
            ConfigError: The data has changed since it was filtered.
            DataError: The problem cannot be made.
        """
        place, turn = training_place(seed, index, len(self._kept))
        problem = self._made(self._kept[place])
        return replace(problem, id=f"{problem.id}/pass-{turn + 1}") if turn else problem

    def _made(self, verdict: FilterVerdict) -> Problem:
        problem = self.task.problem("train", self._seed, verdict.index)
        if (problem.id, problem.digest()) != (verdict.problem, verdict.digest):
            what = "asks something else now" if problem.id == verdict.problem else f"is {problem.id} now"
            raise ConfigError(
                f"{self.path} belongs to other data: what was problem {verdict.problem} {what}; filter the "
                "data again with `selfverify data filter`"
            )
        return problem


logger = logging.getLogger(__name__)

ROLLOUTS_FOLDER = "rollouts"
"""Where a run keeps its rollout log."""
NAME = re.compile(r"step-(\d{6,})\.process-\d+-of-\d+\.jsonl")

_NO_MATTER = {"time_limit_s", "process_timeout_s", "checkpoint", "log"}
"""Keys of the trainer's config that change neither samples nor weights."""
_POLICY = {
    "path", "dtype", "master_weights", "lora", "train_vision", "shared_prefix", "min_pixels", "max_pixels",
}  # fmt: skip
"""Settings of the policy that change samples or weights."""


def settings_of(training: Training) -> dict[str, Any]:
    """Return the settings that decide a run's samples and weights, as JSON."""
    learner, method, task = training.learner, training.method, training.task
    paced = learner.optim.schedule != "constant" or 0 < learner.optim.warmup < 1
    settings = {
        "seed": training.seed,
        "policy": training.policy.config.model_dump(mode="json", include=_POLICY),
        "task": {"name": task.name, **judged_by(task)},
        "method": {"name": method.name, **method.config.model_dump(mode="json")},
        "sampling": training.sampling.model_dump(mode="json"),
        "episode": (method.limits or task.limits).model_dump(mode="json"),
        "learner": learner.model_dump(mode="json", exclude=_NO_MATTER | (set() if paced else {"steps"})),
    }
    # As a reader sees them: lists, not tuples.
    read: dict[str, Any] = json.loads(json.dumps(settings))
    return read


def wants_log(training: Training) -> bool:
    """Return whether a training's rollouts are logged.

    With ``learner.checkpoint.rollout_log: auto`` that is where they cannot be repeated: the task says so, or
    deadlines decide what is said.
    """
    wanted = training.learner.checkpoint.rollout_log
    limits = training.method.limits or training.task.limits
    timed = limits.step_threads > 0 or limits.rollout_timeout_s is not None
    return wanted in ("recent", "all") or (wanted == "auto" and (timed or not training.task.repeatable))


class RolloutLog:
    """Reads and writes the rollout log of one training.

    Args:
        training: The training. Its ``replay`` names the folder of another run whose log is read, and
            nothing is written then.
        weights: `Policy.fingerprint` of the policy that training starts from.
    """

    def __init__(self, training: Training, weights: str) -> None:
        self.replays = training.replay is not None
        self.folder = (training.replay or training.folder) / ROLLOUTS_FOLDER
        self.keeps_all = training.learner.checkpoint.rollout_log == "all"
        self._settings = {**settings_of(training), "weights": weights}
        del self._settings["policy"]["path"]  # `weights` says it better
        self._samples = False
        self.images: dict[str, Image] = {}
        """The images that environments of the last step showed, by name."""

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

        Returns: The rollout as a reader will read it.

        Raises:
            CheckpointError: The disk is full or not writable.
            DataError: A value cannot be stored as JSON.
            FileError: The run's folder was deleted, moved or taken over.
        """
        require_held(self.folder)
        path, self.images = self._path(step), dict(images)
        try:
            with naming(path):
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
                "set output to another disk, or do without them by learner.checkpoint.rollout_log=never"
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
            "its steps with learner.checkpoint.rollout_log=all"
        )

    def _remove_rest(self, step: int) -> None:
        """Remove what lies behind a step that is about to be sampled, and the step itself as other numbers of
        processes have left it: it can no longer be learnt from."""
        stale = f"-of-{ranks.count()}.jsonl"
        self._remove(
            path
            for path, number in self._files()
            if number > step + 1 or (number == step + 1 and not path.name.endswith(stale))
        )

    def _remove(self, paths: Iterable[Path]) -> None:
        require_held(self.folder)
        for path in paths:
            # The file first: its images are found through it alone.
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


class RolloutSource:
    """Makes the rollouts of one step after another.

    Args:
        training: The policy and the task. Its ``learner.keep`` may name a file of verdicts that say which
            problems there are.
    """

    def __init__(self, training: Training) -> None:
        self.policy, self.task, self.method = training.policy, training.task, training.method
        self.sampling, self.seed = training.sampling, training.seed
        self.count = training.learner.groups_per_step
        """The problems in a step, of all processes."""
        keep = training.learner.keep
        self._kept = FilteredProblems(keep, self.task) if keep is not None else None
        self.skipped: dict[str, str] = {}
        """The reasons for which problems were skipped, by the problem's name."""
        self.log: RolloutLog | None = None
        """Where rollouts are written down, or read instead of sampled."""
        self._skips: dict[str, tuple[int, str]] = {}
        self._step = 0
        self._places: list[int] = []
        self._prompts: dict[int, Prompt] = {}
        self._shown: dict[int, list[list[Image]]] = {}

    def roll_out(self, step: int) -> tuple[Rollout, list[int]]:
        """Return the groups of all processes in the order of their problems, and the process that made each.

        The groups of other processes have no images. `complete` gets the images where they are needed.

        Raises:
            SelfVerifyError: A rollout of some process failed, and not because a problem cannot be made or
                encoded.
        """
        self._step = step
        self._skips = {}
        recorded = None if self.log is None else self.log.recorded(step)
        failed, made, rollout = None, list[int](), Rollout([], [])
        try:
            made, rollout = self._sampled(step) if recorded is None else self._replayed(recorded)
        except SelfVerifyError as error:
            if ranks.count() == 1:
                raise
            failed = error
        for group in rollout.groups:
            group.step = step
        if ranks.count() == 1:
            self._places, self._prompts = [], dict(enumerate(rollout.prompts))
            return rollout, [0] * len(rollout.groups)
        told = [
            (place, replace(prompt, images=[], pictures=[]), without_images(group))
            for place, prompt, group in zip(made, rollout.prompts, rollout.groups, strict=True)
        ]
        everyone = ranks.gather((told, self.skipped, failed))
        for _, skipped, theirs in everyone:
            self.skipped |= skipped
            if theirs is not None:
                raise theirs
        found = sorted(
            ((*entry, process) for process, (entries, _, _) in enumerate(everyone) for entry in entries),
            key=lambda entry: entry[0],
        )
        self._places = [place for place, *_ in found]
        complete = dict(zip(made, rollout.prompts, strict=True))
        self._prompts = {n: complete[place] for n, place in enumerate(self._places) if place in complete}
        prompts = [self._prompts.get(number, prompt) for number, (_, prompt, _, _) in enumerate(found)]
        shown = {
            place: [[image for s in t.segments for image in s.images] for t in group.trajectories]
            for place, group in zip(made, rollout.groups, strict=True)
        }
        self._shown = {n: shown[place] for n, place in enumerate(self._places) if any(shown.get(place, ()))}
        groups = [group for _, _, group, _ in found]
        return Rollout(prompts, groups, rollout.seconds), [process for *_, process in found]

    def shown(self, wanted: Sequence[int]) -> dict[int, list[list[Image]]]:
        """Return what environments showed in the groups ``wanted``, also in those that other processes made.

        Every process has to call this. Pixels are exchanged only where a process lacks some.

        Returns:
            By the group's number a list of images for each trajectory; nothing for groups without images.
        """
        if ranks.count() == 1:
            return {}
        asked = ranks.gather(({*wanted} - self._shown.keys(), [*self._shown]))
        missing = {n for lacked, _ in asked for n in lacked} & {n for _, held in asked for n in held}
        found = {n: images for n, images in self._shown.items() if n in wanted}
        if missing:
            for theirs in ranks.gather({n: self._shown[n] for n in missing & self._shown.keys()}):
                found |= {n: images for n, images in theirs.items() if n in wanted}
        return found

    def _sampled(self, step: int) -> tuple[list[int], Rollout]:
        """Sample this process's groups, and log them. Also returns their places in the step."""
        generators = None if self.log is None else rng_state()
        own = self._problems(step)
        rollout = self._roll_out(own, step)
        # A step may hold a problem twice, so places tell groups apart, and names do not.
        places = {id(problem): place for place, problem in own.items()}
        made = [places[id(group.problem)] for group in rollout.groups]
        if self.log is None or generators is None:
            return made, rollout
        # An environment's draws from them would not be drawn again when its replies are replayed.
        set_rng_state(generators)
        images: dict[str, Image] = {}
        rows = [record(place, group, images) for place, group in zip(made, rollout.groups, strict=True)]
        skipped = [RecordedGroup(p, name, skipped=reason) for name, (p, reason) in self._skips.items()]
        rows = [row for row in self.log.write(step, [*skipped, *rows], images) if not row.skipped]
        # The policy learns from the written form, so that a replay learns from the same.
        problems = [group.problem for group in rollout.groups]
        rollout.groups = play(rows, problems, self.policy, self.log.images.__getitem__)
        return made, rollout

    def _replayed(self, recorded: Sequence[RecordedGroup]) -> tuple[list[int], Rollout]:
        """Return this process's groups as they were logged, and their places in the step."""
        assert self.log is not None
        for row in recorded:
            if row.skipped:
                self._skip(row.index, row.problem, DataError(row.skipped))
        rows = [row for row in recorded if not row.skipped]
        problems = [self.problem(self._step * self.count + row.index) for row in rows]
        groups = play(rows, problems, self.policy, self.log.images.__getitem__)
        return [row.index for row in rows], Rollout(self.policy.encode(problems), groups)

    def complete(self, number: int, prompt: Prompt) -> Prompt:
        """Return the ``prompt`` of group ``number`` with its images, also if another process made the group.

        Raises:
            DataError: This process makes another prompt of the same problem.
        """
        known = self._prompts.get(number)
        if known is not None:
            return known
        index = self._step * self.count + self._places[number]
        made = self.policy.encoder.prompt(self.problem(index))
        if made.problem_id != prompt.problem_id or made.ids.tolist() != prompt.ids.tolist():
            raise DataError(
                f"{prompt.problem_id}: process {ranks.index()} makes another prompt of problem {index} than "
                "another process did; all must read the same data"
            )
        self._prompts[number] = made
        return made

    def problem(self, index: int) -> Problem:
        """Return training problem ``index`` of the run.

        Raises:
            DataError: The problem cannot be made.
        """
        if self._kept is not None:
            return self._kept.problem(self.seed, index)
        return self.method.problem(self.task, self.seed, index)

    def _problems(self, step: int) -> dict[int, Problem]:
        """Make this process's problems, by their place in the step. One that cannot be made is skipped."""
        found = {}
        for place in range(ranks.index(), self.count, ranks.count()):
            index = step * self.count + place
            try:
                found[place] = self.problem(index)
            except DataError as error:
                self._skip(place, f"{self.task.name}#{index}", error)
        return found

    def _roll_out(self, problems: dict[int, Problem], step: int) -> Rollout:
        """Roll ``problems`` out. One that cannot be encoded is skipped, counted and named."""
        if self.policy.engine is not None:
            # The engine samples for all processes at once, so one process cannot begin again below.
            problems = self._encodable(problems)
        elif not problems:
            return Rollout([], [])
        # Seeds depend on places, so that a skipped problem does not change the samples of the others.
        seeds = [derived_seed(self.seed, step, place) for place in problems]
        try:
            return self.method.rollout(self.policy, self.task, [*problems.values()], seeds, self.sampling)
        except DataError:
            # Encoding comes before sampling, so nothing is lost by beginning again without bad problems.
            usable = self._encodable(problems)
            if len(usable) == len(problems) or self.policy.engine is not None:
                raise
            return self._roll_out(usable, step)

    def _encodable(self, problems: dict[int, Problem]) -> dict[int, Problem]:
        found = {}
        for place, problem in problems.items():
            try:
                self.policy.encoder.prompt(problem)
            except DataError as error:
                self._skip(place, problem.id, error)
            else:
                found[place] = problem
        return found

    def _skip(self, place: int, name: str, error: DataError) -> None:
        if name not in self.skipped:
            note(logger, "problem_skipped", f"a problem is skipped: {error}", problem=name, reason=str(error))
        self.skipped.pop(name, None)  # so that the newest reason comes last
        self.skipped[name] = str(error)
        self._skips[name] = place, str(error)
