"""Makes a step's groups: each process makes problems and rolls them out, then all exchange their groups."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from PIL.Image import Image

from selfverify.core import ranks
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.learner.kept import FilteredProblems
from selfverify.learner.rollout_log import RolloutLog
from selfverify.learner.state import rng_state, set_rng_state
from selfverify.methods.base import Training
from selfverify.policy.decoding import derived_seed
from selfverify.policy.encoding import Prompt
from selfverify.rollouts.recording import RecordedGroup, play, record, without_images
from selfverify.rollouts.rollout import Rollout

logger = logging.getLogger(__name__)


class RolloutSource:
    """Makes the rollouts of one step after another.

    Args:
        training: What is trained on what. Its ``learner.keep`` may name a file of verdicts that say which
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
        # What an environment drew from them would not be drawn again when its replies are replayed.
        set_rng_state(generators)
        images: dict[str, Image] = {}
        rows = [record(place, group, images) for place, group in zip(made, rollout.groups, strict=True)]
        skipped = [RecordedGroup(p, name, skipped=reason) for name, (p, reason) in self._skips.items()]
        rows = [row for row in self.log.write(step, [*skipped, *rows], images) if not row.skipped]
        # What is learnt from is what was written, so that it is the same when it is read.
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
