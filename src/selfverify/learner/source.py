"""Makes a step's groups: each process makes problems and rolls them out, then all exchange their groups."""

from __future__ import annotations

import logging
from dataclasses import replace

from selfverify.core import ranks
from selfverify.core.errors import DataError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group
from selfverify.learner.kept import Kept
from selfverify.methods.base import Training
from selfverify.policy.encoding import Prompt
from selfverify.policy.sampling import derived_seed
from selfverify.rollouts.converse import Rollout

logger = logging.getLogger(__name__)


class GroupSource:
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
        self._kept = Kept(keep, self.task) if keep is not None else None
        self.skipped: dict[str, str] = {}
        """The reasons for which problems were skipped, by the problem's name."""
        self._step = 0
        self._places: list[int] = []
        self._prompts: dict[int, Prompt] = {}

    def roll_out(self, step: int) -> tuple[Rollout, list[int]]:
        """Return the groups of all processes in the order of their problems, and the process that made each.

        The groups of other processes have no images. `complete` gets the images where they are needed.

        Raises:
            DataError: A rollout failed, and not because a problem cannot be made or encoded.
        """
        self._step = step
        own = self._problems(step)
        failed, rollout = None, Rollout([], [])
        try:
            rollout = self._roll_out(own, step)
        except DataError as error:
            if ranks.count() == 1:
                raise
            failed = error
        for group in rollout.groups:
            group.step = step
        if ranks.count() == 1:
            self._places, self._prompts = [], dict(enumerate(rollout.prompts))
            return rollout, [0] * len(rollout.groups)
        # A step may hold a problem twice, so places tell groups apart, and names do not.
        places = {id(problem): place for place, problem in own.items()}
        made = [places[id(group.problem)] for group in rollout.groups]
        told = [
            (place, replace(prompt, images=[], pictures=[]), _without_images(group))
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
        return Rollout(prompts, [group for _, _, group, _ in found]), [process for *_, process in found]

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
                self._skip(f"{self.task.name}#{index}", error)
        return found

    def _roll_out(self, problems: dict[int, Problem], step: int) -> Rollout:
        """Roll ``problems`` out. One that cannot be encoded is skipped, counted and named."""
        if self.policy.engine is not None:
            # The engine samples for all processes at once, so one process cannot begin again below.
            problems = {place: problem for place, problem in problems.items() if self._encodable(problem)}
        elif not problems:
            return Rollout([], [])
        # Seeds depend on places, so that a skipped problem does not change the samples of the others.
        seeds = [derived_seed(self.seed, step, place) for place in problems]
        try:
            return self.method.rollout(self.policy, self.task, [*problems.values()], seeds, self.sampling)
        except DataError:
            # Encoding comes before sampling, so nothing is lost by beginning again without bad problems.
            usable = {place: problem for place, problem in problems.items() if self._encodable(problem)}
            if len(usable) == len(problems) or self.policy.engine is not None:
                raise
            return self._roll_out(usable, step)

    def _encodable(self, problem: Problem) -> bool:
        try:
            self.policy.encoder.prompt(problem)
        except DataError as error:
            self._skip(problem.id, error)
            return False
        return True

    def _skip(self, name: str, error: DataError) -> None:
        if name not in self.skipped:
            note(logger, "problem_skipped", f"a problem is skipped: {error}", problem=name, reason=str(error))
        self.skipped.pop(name, None)  # so that the newest reason comes last
        self.skipped[name] = str(error)


def _without_images(group: Group) -> Group:
    return replace(group, problem=replace(group.problem, images=[]))
