"""The training loop: roll out, credit, learn. It reads top to bottom and knows no method."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from selfverify.errors import ConfigError, DataError
from selfverify.learner.checkpoint import CheckpointManager, restore_rng
from selfverify.learner.config import LearnerConfig
from selfverify.learner.interrupt import interruptible
from selfverify.learner.logging import MetricsLog
from selfverify.learner.schedule import learning_rate_factor
from selfverify.learner.streams import GroupStreams, select, valid_trajectories
from selfverify.learner.update import Updater, UpdateTotals, fixed_logprobs
from selfverify.learner.weights import load_matching
from selfverify.methods import Method
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.types import Problem
from selfverify.tasks import Task

logger = logging.getLogger(__name__)

Metrics = dict[str, float]
StepCallback = Callable[[int, Metrics, Metrics], None]
"""Called after each step with its number (from 1), its metrics and its timings."""


def sampling_seed(seed: int, step: int, index: int) -> int:
    """The seed of one problem's samples: the same wherever and whenever they are drawn."""
    return int(np.random.SeedSequence([seed, step, index]).generate_state(1, np.uint64)[0] >> np.uint64(1))


class Learner:
    """Trains a policy on a task with a method, and can be killed at any moment.

    Args:
        policy: Trained in place.
        task: Gives problems, judges answers.
        method: Rolls out and gives credit.
        config: Steps, rates, denominators, checkpoints.
        sampling: How trajectories are sampled.
        folder: Gets ``metrics.jsonl``, ``timing.jsonl`` and ``checkpoints/``.
        seed: Decides problems and samples.
        evaluate: Called every ``evaluate_every`` steps; its figures are logged as ``eval/...``.
        on_step: Called after each step.
    """

    def __init__(
        self,
        policy: Policy,
        task: Task,
        method: Method,
        config: LearnerConfig,
        sampling: SamplingConfig,
        folder: Path,
        seed: int = 0,
        evaluate: Callable[[Policy], Metrics] | None = None,
        on_step: StepCallback | None = None,
    ) -> None:
        self.policy, self.task, self.method = policy, task, method
        self.config, self.sampling, self.seed = config, sampling, seed
        self.folder = folder
        self.evaluate, self.on_step = evaluate, on_step
        self.step = 0
        self.skipped: dict[str, str] = {}
        self.best: float | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self.accelerator = Accelerator(
            cpu=policy.device.type == "cpu", log_with=config.trackers or None, project_dir=str(folder)
        )
        if config.trackers:
            self.accelerator.init_trackers("selfverify")
        uses_kl = getattr(getattr(method, "config", None), "needs_reference", False)
        # Taken before a checkpoint is loaded: the reference is the policy that training started from.
        self.reference = policy.frozen_copy() if uses_kl else None
        trainable = [(name, p) for name, p in policy.model.named_parameters() if p.requires_grad]
        self.raw_optimizer = torch.optim.AdamW(
            trainable, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.raw_optimizer, learning_rate_factor(config))
        self.optimizer = self.accelerator.prepare_optimizer(self.raw_optimizer)
        self.updater = Updater(policy, self.accelerator, config, method.objective)
        self.checkpoints = CheckpointManager(folder / "checkpoints", config.keep_last)
        self.metrics_log = MetricsLog(folder / "metrics.jsonl")
        self.timing_log = MetricsLog(folder / "timing.jsonl")

    # --- running ------------------------------------------------------------------------------------

    def run(self, resume: bool = False) -> None:
        """Train to the last step.

        Raises:
            KeyboardInterrupt: After Ctrl-C, when the checkpoint is written.
            CheckpointError: A checkpoint cannot be written or does not fit.
        """
        if resume:
            self._resume()
        started = time.monotonic()
        with interruptible() as interrupted:
            while self.step < self.config.steps:
                self._advance()
                every, done = self.config.checkpoint_every, self.step == self.config.steps
                limit = self.config.time_limit_s
                late = limit is not None and time.monotonic() - started > limit
                stop = interrupted()
                if done or stop or late or (every and self.step % every == 0):
                    self.save()
                if stop:
                    raise KeyboardInterrupt
                if late:
                    break
        if self.config.trackers:
            self.accelerator.end_training()

    def _advance(self) -> None:
        metrics, timing = self.train_step()
        self.step += 1
        evaluated: Metrics = {}
        if self.evaluate and self.config.evaluate_every and self.step % self.config.evaluate_every == 0:
            evaluated = self.evaluate(self.policy)
            metrics |= {f"eval/{name}": value for name, value in evaluated.items()}
        if evaluated or self.step == self.config.steps or self.step % self.config.log_every == 0:
            self.metrics_log.append({"step": self.step, **metrics})
            self.timing_log.append({"step": self.step, **timing})
            if self.config.trackers:
                self.accelerator.log({**metrics, **timing}, step=self.step)
        # After the log, whose length the checkpoint keeps: a resumed run must not lose this line.
        if evaluated and self.config.best_metric:
            self._keep_best(evaluated, self.config.best_metric)
        if self.on_step:
            self.on_step(self.step, metrics, timing)

    # --- one step -----------------------------------------------------------------------------------

    def problems(self) -> dict[int, Problem]:
        """This step's problems by their place in it. One that cannot be made is skipped, counted and named.

        Raises:
            DataError: None of them can be made.
        """
        count = self.config.groups_per_step
        found, failed = {}, None
        for place in range(count):
            index = self.step * count + place
            try:
                found[place] = self.task.problem("train", self.seed, index)
            except DataError as error:
                self._skip(f"{self.task.name}#{index}", error)
                failed = error
        if failed and not found:
            raise failed
        return found

    def _roll_out(self, problems: dict[int, Problem]) -> Rollout:
        """Trajectories of ``problems``. One that cannot be encoded is skipped, counted and named.

        Raises:
            DataError: None of them can be encoded: then it is not the problems that are wrong.
        """
        # By place, so that a skipped problem does not change what the others sample.
        seeds = [sampling_seed(self.seed, self.step, place) for place in problems]
        try:
            return self.method.rollout(self.policy, self.task, [*problems.values()], seeds, self.sampling)
        except DataError:
            # Encoding comes first, so nothing is lost; looking for the culprit costs only those who have one.
            usable = {place: problem for place, problem in problems.items() if self._encodable(problem)}
            if len(usable) in (0, len(problems)):
                raise
            return self._roll_out(usable)

    def _encodable(self, problem: Problem) -> bool:
        try:
            self.policy.encoder.prompt(problem)
        except DataError as error:
            self._skip(problem.id, error)
            return False
        return True

    def _skip(self, name: str, error: DataError) -> None:
        if name not in self.skipped:
            logger.warning("a problem is skipped: %s", error)
        self.skipped[name] = str(error)

    def train_step(self) -> tuple[Metrics, Metrics]:
        """Roll out, credit, learn; returns metrics and timings."""
        clock = [time.perf_counter()]
        rollout = self._roll_out(self.problems())
        clock.append(time.perf_counter())

        valid = [valid_trajectories(group, self.config.drop_truncated) for group in rollout.groups]
        credits = [self.method.credit(g, v) for g, v in zip(rollout.groups, valid, strict=True)]
        groups, dropped = select(rollout, credits, self.config.drop_zero_advantage)
        totals = UpdateTotals()
        if groups:
            self._learn(groups, totals)
        clock.append(time.perf_counter())

        tokens = sum(len(t.tokens) for group in rollout.groups for t in group.trajectories)
        metrics: Metrics = {
            **self.method.metrics(rollout.groups),
            **totals.metrics(),
            "learning_rate": float(self.scheduler.get_last_lr()[0]),
            "groups/kept": float(len(groups)),
            "groups/zero_advantage": float(dropped.zero_advantage),
            "groups/all_invalid": float(dropped.all_invalid),
            "trajectories/invalid": float(sum(int((~v).sum()) for v in valid)),
            "problems/skipped": float(len(self.skipped)),
        }
        timing = {
            "time/rollout_s": clock[1] - clock[0],
            "time/update_s": clock[2] - clock[1],
            "tokens_per_s": tokens / (clock[2] - clock[0]),
        }
        return metrics, timing

    def _learn(self, groups: Sequence[GroupStreams], totals: UpdateTotals) -> None:
        temperature = self.sampling.temperature
        size = self.config.micro_batch_groups
        needs_reference = self.reference is not None and any(bool(g.kl_coef.any()) for g in groups)
        reference = None
        if needs_reference and self.reference is not None:
            reference = fixed_logprobs(self.reference, groups, size, temperature)
        several = self.config.updates_per_rollout * self.config.inner_epochs > 1
        old = self._old_logprobs(groups) if several and self.method.objective == "surrogate" else None
        self.policy.model.train()
        for _ in range(self.config.inner_epochs):
            for part in np.array_split(np.arange(len(groups)), self.config.updates_per_rollout):
                if len(part):
                    self._update([int(i) for i in part], groups, reference, old, totals)
        self.policy.model.eval()

    def _old_logprobs(self, groups: Sequence[GroupStreams]) -> list[torch.Tensor]:
        """Sampling gave them; a method that did not sample from this policy has them computed."""
        if all(group.old_logprobs is not None for group in groups):
            return [group.old_logprobs for group in groups if group.old_logprobs is not None]
        return fixed_logprobs(self.policy, groups, self.config.micro_batch_groups, self.sampling.temperature)

    def _update(
        self,
        part: Sequence[int],
        groups: Sequence[GroupStreams],
        reference: Sequence[torch.Tensor] | None,
        old: Sequence[torch.Tensor] | None,
        totals: UpdateTotals,
    ) -> None:
        self.updater.gradient(
            [groups[i] for i in part],
            None if reference is None else [reference[i] for i in part],
            None if old is None else [old[i] for i in part],
            self.sampling.temperature,
            totals,
        )
        norm = self.accelerator.clip_grad_norm_(
            [p for p in self.policy.model.parameters() if p.requires_grad], self.config.max_grad_norm
        )
        totals.grad_norms.append(float(norm))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    # --- checkpoints --------------------------------------------------------------------------------

    def _progress(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seed": self.seed,
            "best": self.best,
            "skipped": self.skipped,
            "metrics_bytes": self.metrics_log.length(),
            "timing_bytes": self.timing_log.length(),
        }

    def save(self, best: float | None = None) -> Path:
        """Write a complete checkpoint of this moment; ``best`` is its metric if no other has a better one."""
        return self.checkpoints.save(
            self.step, self.policy.save, self.raw_optimizer, self.scheduler, self._progress(), best=best
        )

    def _keep_best(self, evaluated: Metrics, name: str) -> None:
        if name not in evaluated:
            raise ConfigError(
                f"learner.best_metric: there is no {name!r}; measured are: {', '.join(sorted(evaluated))}"
            )
        if self.best is None or evaluated[name] > self.best:
            self.best = evaluated[name]
            self.save(best=self.best)

    def _resume(self) -> None:
        latest = self.checkpoints.latest()
        if latest is None:
            self.metrics_log.truncate(0)
            self.timing_log.truncate(0)
            return
        load_matching(self.policy.model, latest / "model")
        progress = self.checkpoints.load(latest, self.raw_optimizer, self.scheduler)
        # A run that was made longer has another learning rate here than the one that was saved.
        rate = self.config.learning_rate * learning_rate_factor(self.config)(self.scheduler.last_epoch)
        for group in self.raw_optimizer.param_groups:
            group["lr"] = rate
        self.step, self.best, self.skipped = progress["step"], progress["best"], progress["skipped"]
        self.metrics_log.truncate(progress["metrics_bytes"])
        self.timing_log.truncate(progress["timing_bytes"])
        # Last: loading draws random numbers. Dropout in an adapter is what needs it.
        restore_rng(latest)
