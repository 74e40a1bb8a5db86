"""Sampling every training problem with a policy, to leave out problems that would teach it nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish
from selfverify.data.preferences import BROKEN, NOT_COUNTED, FilterVerdict, why_dropped
from selfverify.evaluation.answerers import Answerer, AskedProblems, as_answerer, make_answerer
from selfverify.evaluation.samples import Progress, ResumableBatches, make_problems
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import measuring_engine, start_processes
from selfverify.methods.base import Method
from selfverify.policy.decoding import derived_seed
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.tasks.base import NotCounted, Task
from selfverify.trainer.rollout_source import judged_by


@dataclass(frozen=True, slots=True)
class Filter:
    """Samples training problems, and says which of them would teach a policy nothing (AdaPO, appendix A.2).

    Args:
        policy: The policy that samples, or a model behind a server.
        task: Makes problems and judges answers.
        method: Rolls out, in one turn or two.
        sampling: How samples are drawn, and how many of each problem.
        seed: Decides the order of the problems and the samples.
        batch: Problems sampled at once. Only memory depends on it.
    """

    policy: Policy | Answerer
    task: Task
    method: Method
    sampling: SamplingConfig
    seed: int = 0
    batch: int = 64

    @classmethod
    def of(cls, recipe: Recipe, samples: int | None = None) -> Filter:
        """Return a filter with a recipe's policy, task, method and sampling.

        Args:
            recipe: The recipe.
            samples: The number of samples of each problem; by default the recipe's group size.
        """
        start_processes(recipe)
        task = recipe_task(recipe)
        method = make_method(recipe.method.name, **recipe.method.options)
        task.count("train")  # a data file that is missing shows before the model is loaded
        group_size = recipe.sampling.group_size if samples is None else samples
        sampling = recipe.sampling.model_copy(update={"group_size": group_size})
        batch = recipe.evaluation.batch_problems
        return cls(make_answerer(recipe.policy), task, method, sampling, recipe.seed, batch)

    def run(
        self, output: Path, problems: int | None = None, progress: Progress | None = None
    ) -> list[FilterVerdict]:
        """Sample training problems and write a verdict on each.

        A call that was killed can be made again: it goes on, and the result is the same.

        Args:
            output: The file of verdicts, for `TrainerConfig.keep`.
            problems: How many problems to sample, at most those that the task has. None is all of them.
            progress: Called after each batch.

        Returns:
            The verdicts in the order of their index.

        Raises:
            ConfigError: The method shows demonstrations instead of sampling, the task makes problems without
                end and ``problems`` is None, or the file is about something else.
            ServerError: A served model's server failed; what was finished is stored.
        """
        policy, task, method, sampling = self.policy, self.task, self.method, self.sampling
        if method.objective != "surrogate":
            raise ConfigError(
                f"method {method.name} does not learn from samples, so it cannot say which problems would "
                "teach: name one that does, such as method.name=adpo or, for two turns, method.name=adapo"
            )
        count = task.count("train")
        if count is None and problems is None:
            raise ConfigError(f"task {task.name} makes problems without end: say how many to sample")
        answerer = as_answerer(policy)
        answerer.prepare(task, EvaluationConfig())
        total = min(n for n in (count, problems) if n is not None)
        settings = {
            "problems": total,
            "task": task.name,
            "count": count,
            "options": judged_by(task),
            "seed": self.seed,
            "samples": sampling.group_size,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_new_tokens,
            "weights": answerer.weights(),
            "method": {"name": method.name, **method.config.model_dump(mode="json")},
        }
        if sampling.engine == "vllm" and isinstance(policy, Policy):
            settings["engine"] = "vllm"

        def sweep_all() -> list[FilterVerdict]:
            sweep = ResumableBatches(output, FilterVerdict, settings, total, self.batch, progress)
            for share in sweep.shares():
                self._judge(answerer, share, sweep)
            return [sweep.rows[index] for index in sorted(sweep.rows)]

        with measuring_engine(policy, sampling, sampling.temperature):
            return answerer.whole(sweep_all)

    def _judge(
        self, answerer: Answerer, indices: Sequence[int], sweep: ResumableBatches[FilterVerdict]
    ) -> None:
        made, unusable = make_problems(self.task, "train", self.seed, indices, answerer.encoder)
        verdicts = []
        for index, error in unusable.items():
            why = NOT_COUNTED if isinstance(error, NotCounted) else BROKEN
            verdicts.append(FilterVerdict(index, f"{self.task.name}#{index}", "", {}, why, str(error)))
        sweep.store(verdicts)
        seeds = {index: derived_seed(self.seed, index) for index in made}
        begin, limits = partial(self.method.open, self.task), self.method.limits
        asked = AskedProblems(self.task, made, seeds, self.sampling, begin, limits, scores=False)
        answerer.answer(asked, sweep, _verdicts)


def _verdicts(indices: Sequence[int], rollout: Rollout) -> list[FilterVerdict]:
    """Return verdicts, with the trajectories by kind: ``1`` or ``0``, with two turns ``0->1`` etc."""
    found = []
    for index, group in zip(indices, rollout.groups, strict=True):
        judged = [one.rewards for one in group.trajectories if one.finish != Finish.ERROR]
        turns = [[one[name] for name in ("correct_1", "correct") if name in one] for one in judged]
        kinds, problem = ["->".join(f"{right:.0f}" for right in each) for each in turns], group.problem
        counts = dict(sorted(Counter(kinds).items()))
        found.append(FilterVerdict(index, problem.id, problem.digest(), counts, why_dropped(kinds)))
    return found


def summary(verdicts: Sequence[FilterVerdict]) -> list[str]:
    """Summarise verdicts in a few lines for people. At most five broken problems are named."""
    dropped = Counter(verdict.dropped for verdict in verdicts if verdict.dropped)
    kept = len(verdicts) - dropped.total()
    kinds = sum((Counter(verdict.samples) for verdict in verdicts), Counter[str]())
    said = ", ".join(f"{count:,} {why}" for why, count in sorted(dropped.items()))
    lines = [f"kept {kept:,} of {len(verdicts):,} problems" + (f"; dropped: {said}" if said else "")]
    if kinds:
        right = Counter(verdict.right for verdict in verdicts if verdict.samples)
        shares = ", ".join(f"{kind} {count / kinds.total():.1%}" for kind, count in sorted(kinds.items()))
        lines.append(f"samples: {kinds.total():,}, of which {shares}")
        counts = ", ".join(f"{n}: {count:,}" for n, count in sorted(right.items()))
        lines.append(f"problems by right samples: {counts}")
    broken = [f"  broken: {verdict.reason}" for verdict in verdicts if verdict.dropped == BROKEN]
    return lines + broken[:5] + ([f"  and {len(broken) - 5} more"] if len(broken) > 5 else [])
