"""STaR's loop: collect the conversations that a policy corrects, and learn from them; again and again.

Every iteration has a folder: ``conversations.jsonl``, a line per problem that was sampled, and what a
training run writes. A run that was killed goes on where it was, in the middle of either part. The run's own
``events.jsonl`` tells what happened while conversations were sampled.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from selfverify import ranks
from selfverify.errors import ConfigError, DataError
from selfverify.events import EVENTS_FILE, EventLog, note
from selfverify.learner.config import LearnerConfig
from selfverify.learner.logging import MetricsLog
from selfverify.methods.star import CONVERSATION, STaR
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import derived_seed
from selfverify.rollouts.tags import Tagged
from selfverify.rollouts.types import Problem, Segment, Trajectory
from selfverify.tasks import Task
from selfverify.tasks.base import Demonstration, Judged, tell_space
from selfverify.tasks.canvas import Split

logger = logging.getLogger(__name__)

CONVERSATIONS_FILE = "conversations.jsonl"

Kept = tuple[int, Trajectory]
"""A training problem's index, and a conversation about it."""


class Conversations:
    """A task whose training problems bring along conversations to learn from, in another order each epoch."""

    def __init__(self, task: Task, kept: Sequence[Kept], seed: int) -> None:
        self.task, self.kept, self.seed = task, kept, seed
        self.name, self.kind, self.tags = task.name, task.kind, task.tags

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`; training problem ``index`` comes with a conversation."""
        if split != "train":
            return self.task.problem(split, seed, index)
        epoch, place = divmod(index, len(self.kept))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.kept))
        number, conversation = self.kept[order[place]]
        problem = self.task.problem(split, seed, number)
        problem.meta = problem.meta | {CONVERSATION: conversation}
        return problem

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """The task's own verdict."""
        return self.task.judge(problem, tagged)

    def demonstrate(self, problem: Problem, rng: np.random.Generator, wrong: bool) -> Demonstration:
        """The task's own demonstration."""
        return self.task.demonstrate(problem, rng, wrong)


def iterations(
    policy: Policy,
    task: Task,
    method: STaR,
    learner: LearnerConfig,
    sampling: SamplingConfig,
    output: Path,
    seed: int,
    resume: bool,
) -> Iterator[tuple[Path, Conversations, LearnerConfig]]:
    """What to learn from in each iteration, its folder, and for how long.

    Whoever iterates trains ``policy`` on it before the next is asked for. There is no next one behind an
    iteration that was not trained to its end (``learner.time_limit_s``).

    Raises:
        ConfigError: The folder holds conversations of other weights or settings, or ``learner.keep`` is set.
        DataError: A file is corrupt, or nothing was corrected that could be learnt from.
    """
    if learner.keep is not None:
        raise ConfigError(
            f"learner.keep={learner.keep}: star samples the problems that it learns from itself"
        )
    tell_space(task, policy.coordinate_space)
    if not resume:
        ranks.on_first(lambda: clear_iterations(output))
    ranks.on_first(partial(output.mkdir, parents=True, exist_ok=True))
    for number in range(1, method.config.iterations + 1):
        folder = output / f"iteration-{number}"
        own = derived_seed(seed, number)
        batch = learner.micro_batch_groups
        with EventLog(output / EVENTS_FILE, ranks.index()):
            kept = policy.whole(partial(_collect, policy, task, method, sampling, batch, folder, seed, own))
        if not kept:
            raise DataError(
                f"{folder / CONVERSATIONS_FILE}: in {method.config.problems} problems x "
                f"{sampling.group_size} conversations no answer was corrected, so that there is nothing to "
                "learn from; sample more (method.problems, sampling.group_size, method.rounds), or start "
                "from a model that corrects some"
            )
        steps = min(math.ceil(method.config.epochs * len(kept) / learner.groups_per_step), learner.steps)
        # It may be shorter than the warm-up, and than the time between evaluations.
        shorter = {
            "steps": steps,
            "warmup_steps": min(learner.warmup_steps, steps),
            "evaluate_every": min(learner.evaluate_every, steps),
        }
        yield folder, Conversations(task, kept, own), learner.model_copy(update=shorter)
        if ranks.on_first(partial(join_logs, output, number)) < steps:
            return


def clear_iterations(output: Path) -> None:
    """Remove what an earlier run left."""
    for folder in output.glob("iteration-*"):
        shutil.rmtree(folder)


def join_logs(output: Path, last: int) -> int:
    """Write the iterations' metrics and timings as one file each, their steps counted through.

    Returns the steps that the last iteration has made.
    """
    for name in ("metrics.jsonl", "timing.jsonl"):
        (output / name).unlink(missing_ok=True)
        log, before = MetricsLog(output / name), 0
        for number in range(1, last + 1):
            lines = (output / f"iteration-{number}" / name).read_text(encoding="utf-8").splitlines()
            rows = [json.loads(line) for line in lines]
            for row in rows:
                log.append(row | {"step": before + row["step"], "star/iteration": number})
            before += rows[-1]["step"] if rows else 0
    return MetricsLog(output / f"iteration-{last}" / "metrics.jsonl").last_step()


def _collect(
    policy: Policy,
    task: Task,
    method: STaR,
    sampling: SamplingConfig,
    batch: int,
    folder: Path,
    seed: int,
    own: int,
) -> list[Kept]:
    """Conversations of all problems; those in the folder's file are not written again."""
    config = method.config
    settings = {
        "weights": policy.fingerprint(),
        "task": task.name,
        "seed": seed,
        "sampling": sampling.model_dump(mode="json"),
        "method": config.model_dump(mode="json", include={"second_turn", "rounds", "keep_right"}),
    }
    path = folder / CONVERSATIONS_FILE
    done = ranks.on_first(lambda: _open(path, settings))[: config.problems]
    found = [entry for rows in done for entry in rows]
    size = batch * ranks.count()
    # A batch that was killed while it was written is sampled again as a whole: on what else is in a batch
    # depends how its numbers are rounded.
    begin = len(done) // size * size if len(done) < config.problems else len(done)
    for first in range(begin, config.problems, size):
        start = first + ranks.index() * batch
        indices = range(start, min(start + batch, config.problems))
        made = _sample(policy, task, method, sampling, indices, seed, own)
        everyone = [rows for part in ranks.gather(made) for rows in part]
        numbered = [[(first + n, t) for t in rows] for n, rows in enumerate(everyone)]
        new = numbered[max(len(done) - first, 0) :]
        ranks.on_first(partial(_append, path, new))
        found += [entry for rows in new for entry in rows]
    return found


def _sample(
    policy: Policy,
    task: Task,
    method: STaR,
    sampling: SamplingConfig,
    indices: Sequence[int],
    seed: int,
    own: int,
) -> list[list[Trajectory]]:
    """Conversations of each of ``indices``; a problem that cannot be made or encoded has none."""
    problems: dict[int, Problem] = {}
    for index in indices:
        try:
            problems[index] = task.problem("train", seed, index)
        except DataError as error:
            _skip(f"{task.name}#{index}", error)
    try:
        made = _conversations(policy, task, method, sampling, problems, own)
    except DataError:
        # Encoding comes first, so nothing is lost.
        usable = {index: problem for index, problem in problems.items() if _encodable(policy, problem)}
        if len(usable) == len(problems):
            raise
        made = _conversations(policy, task, method, sampling, usable, own)
    return [made.get(index, []) for index in indices]


def _conversations(
    policy: Policy,
    task: Task,
    method: STaR,
    sampling: SamplingConfig,
    problems: dict[int, Problem],
    own: int,
) -> dict[int, list[Trajectory]]:
    if not problems:
        return {}
    seeds = [derived_seed(own, index) for index in problems]
    made = method.collect(policy, task, [*problems.values()], seeds, sampling)
    return dict(zip(problems, made, strict=True))


def _encodable(policy: Policy, problem: Problem) -> bool:
    try:
        policy.encoder.prompt(problem)
    except DataError as error:
        _skip(problem.id, error)
        return False
    return True


def _skip(name: str, error: DataError) -> None:
    note(logger, "problem_skipped", f"a problem is skipped: {error}", problem=name, reason=str(error))


def _open(path: Path, settings: dict[str, Any]) -> list[list[Kept]]:
    """What the file holds by problem; a file that is not there is begun."""
    MetricsLog(path)  # takes away the line that a killed process left half-written
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return []
    try:
        header, *rows = [json.loads(line) for line in lines]
        if header != settings:
            raise ConfigError(
                f"{path} holds conversations of other weights or settings; delete {path.parent}, or choose "
                "another output"
            )
        return [[(n, _trajectory(segments)) for segments in row] for n, row in enumerate(rows)]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} is corrupt ({error}); delete {path.parent} to collect anew") from None


def _append(path: Path, numbered: Sequence[Sequence[Kept]]) -> None:
    with path.open("a", encoding="utf-8", newline="\n") as file:
        for rows in numbered:
            told = [[_segment(segment) for segment in t.segments] for _, t in rows]
            file.write(json.dumps(told) + "\n")


def _segment(segment: Segment) -> dict[str, Any]:
    names = ("channel", "tokens", "text", "author", "turn", "finish")
    return {name: value for name, value in asdict(segment).items() if name in names}


def _trajectory(segments: Sequence[dict[str, Any]]) -> Trajectory:
    return Trajectory([Segment(**segment) for segment in segments])
