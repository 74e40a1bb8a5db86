"""Sampling every training problem with a policy, to leave out those that would teach it nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfverify import ranks
from selfverify.data.verdicts import BROKEN, NOT_COUNTED, Verdict, VerdictFile, why_dropped
from selfverify.errors import ConfigError, DataError
from selfverify.learner.kept import judged_by
from selfverify.methods import Method, make_method
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import derived_seed
from selfverify.recipe import Recipe
from selfverify.rollouts.types import Group, Problem
from selfverify.run import start_processes
from selfverify.tasks import Task, make_task
from selfverify.tasks.base import NotCounted, problem_count, problem_digest, tell_space

Progress = Callable[[int, int], None]
"""Called with the problems done and the problems there are."""


def filter_recipe(
    recipe: Recipe,
    output: Path,
    *,
    problems: int | None = None,
    samples: int | None = None,
    progress: Progress | None = None,
) -> list[Verdict]:
    """`filter_problems` with the policy, method and sampling of a recipe.

    Raises:
        ConfigError: The recipe's method does not sample.
    """
    start_processes(recipe)
    task = make_task(recipe.task.name, **recipe.task.options)
    method = make_method(recipe.method.name, **recipe.method.options)
    problem_count(task, "train")  # a data file that is missing shows before the model is loaded
    policy = Policy.load(recipe.policy)
    sampling = recipe.sampling.model_copy(update={"engine": "own"})
    if samples is not None:
        sampling = sampling.model_copy(update={"group_size": samples})
    return filter_problems(
        policy,
        task,
        method,
        sampling,
        output,
        problems=problems,
        seed=recipe.seed,
        batch=recipe.evaluation.batch_problems,
        describe={"method": recipe.method.model_dump(mode="json")},
        progress=progress,
    )


def filter_problems(
    policy: Policy,
    task: Task,
    method: Method,
    sampling: SamplingConfig,
    output: Path,
    *,
    problems: int | None = None,
    seed: int = 0,
    batch: int = 64,
    describe: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Verdict]:
    """Sample training problems and write a verdict on each (AdaPO, appendix A.2).

    Called again after it was killed it goes on, with the same result.

    Args:
        policy: Samples.
        task: Makes problems and judges answers.
        method: Rolls out, in one turn or two.
        sampling: How, and how many samples of each problem.
        output: The file of verdicts, for `LearnerConfig.keep`.
        problems: How many, at most those that the task has; None is all of them.
        seed: Decides order and samples.
        batch: Problems sampled at once; only memory depends on it.
        describe: More settings for the file's header.
        progress: Called after each batch.

    Returns:
        The verdicts, by index.

    Raises:
        ConfigError: The method shows demonstrations instead of sampling, the task makes problems without end
            and ``problems`` is None, or the file is about something else.
    """
    if method.objective != "surrogate":
        raise ConfigError(
            f"method {method.name} does not learn from samples, so it cannot say which problems would teach: "
            "name one that does, such as method.name=adpo or, for two turns, method.name=adapo"
        )
    tell_space(task, policy.coordinate_space)
    count = problem_count(task, "train")
    if count is None and problems is None:
        raise ConfigError(f"task {task.name} makes problems without end: say how many with --problems")
    total = min(n for n in (count, problems) if n is not None)
    settings = {
        "task": task.name,
        "count": count,
        "options": judged_by(task),
        "seed": seed,
        "samples": sampling.group_size,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_new_tokens,
        "weights": policy.whole(policy.fingerprint),
        **(describe or {}),
    }

    def run() -> list[Verdict]:
        file = _open(output, total, settings)
        try:
            size = batch * ranks.count()
            for first in range(0, total, size):
                last = min(first + size, total)
                known = ranks.on_first(lambda: set(file.verdicts) if file else set())
                if not known.issuperset(range(first, last)):
                    begin = first + ranks.index() * batch
                    own = range(begin, min(begin + batch, last))
                    made = _judge(policy, task, method, sampling, seed, own)
                    everyone = [verdict for part in ranks.gather(made) for verdict in part]
                    if file:
                        file.append(everyone)
                if progress and ranks.index() == 0:
                    progress(last, total)
            found = ranks.on_first(lambda: list(file.verdicts.values()) if file else [])
            return sorted(found, key=lambda verdict: verdict.index)
        finally:
            if file:
                file.close()

    return policy.whole(run)


def _open(output: Path, total: int, settings: Mapping[str, Any]) -> VerdictFile | None:
    """The file, in the first process."""
    opened: list[VerdictFile] = []

    def open_() -> None:
        opened.append(VerdictFile(output, total, settings))

    ranks.on_first(open_)
    return opened[0] if opened else None


def _judge(
    policy: Policy,
    task: Task,
    method: Method,
    sampling: SamplingConfig,
    seed: int,
    indices: Sequence[int],
) -> list[Verdict]:
    problems: dict[int, Problem] = {}
    verdicts = []
    for index in indices:
        try:
            problem = task.problem("train", seed, index)
            policy.encoder.prompt(problem)
            problems[index] = problem
        except DataError as error:
            why = NOT_COUNTED if isinstance(error, NotCounted) else BROKEN
            verdicts.append(Verdict(index, f"{task.name}#{index}", "", {}, why, str(error)))
    if problems:
        seeds = [derived_seed(seed, index) for index in problems]
        groups = method.rollout(policy, task, [*problems.values()], seeds, sampling).groups
        for (index, problem), group in zip(problems.items(), groups, strict=True):
            kinds = _kinds(group)
            counts = dict(sorted(Counter(kinds).items()))
            digest = problem_digest(problem)
            verdicts.append(Verdict(index, problem.id, digest, counts, why_dropped(kinds)))
    return sorted(verdicts, key=lambda verdict: verdict.index)


def _kinds(group: Group) -> list[str]:
    """The kind of each trajectory that could be judged: ``1`` or ``0``, with two turns ``0->1`` and so on."""
    found = []
    for trajectory in group.trajectories:
        if trajectory.finish != "error":
            rewards = trajectory.rewards
            first = f"{rewards['correct_1']:.0f}->" if "correct_1" in rewards else ""
            found.append(f"{first}{rewards['correct']:.0f}")
    return found


def summary(verdicts: Sequence[Verdict], broken: int = 5) -> list[str]:
    """What was found, for people; ``broken`` problems are named at most."""
    dropped = Counter(verdict.dropped for verdict in verdicts if verdict.dropped)
    kept = len(verdicts) - dropped.total()
    kinds: Counter[str] = Counter()
    for verdict in verdicts:
        kinds.update(verdict.samples)
    said = ", ".join(f"{count:,} {why}" for why, count in sorted(dropped.items()))
    lines = [f"kept {kept:,} of {len(verdicts):,} problems" + (f"; dropped: {said}" if said else "")]
    if kinds:
        right = Counter(verdict.right for verdict in verdicts if verdict.samples)
        shares = ", ".join(f"{kind} {count / kinds.total():.1%}" for kind, count in sorted(kinds.items()))
        lines.append(f"samples: {kinds.total():,}, of which {shares}")
        lines.append(
            "problems by right samples: " + ", ".join(f"{n}: {count:,}" for n, count in sorted(right.items()))
        )
    named = [verdict for verdict in verdicts if verdict.dropped == BROKEN]
    lines += [f"  broken: {verdict.reason}" for verdict in named[:broken]]
    lines += [f"  and {len(named) - broken} more" for _ in named[broken : broken + 1]]
    return lines
