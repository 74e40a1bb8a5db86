"""The training loop: roll out, credit, learn. It knows no method."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfverify.core import ranks
from selfverify.core.errors import ConfigError, DataError, HungError
from selfverify.core.events import EVENTS_FILE, EventLog, busy, note
from selfverify.core.files import make_folder
from selfverify.core.trajectory import Group, valid_trajectories
from selfverify.learner.agreement import (
    check_moments,
    check_processes,
    note_image_backend,
    note_settings,
)
from selfverify.learner.channel_optimizer import ChannelOptimizer
from selfverify.learner.checkpoint import (
    CHECKPOINTS_FOLDER,
    MODEL_FOLDER,
    CheckpointManager,
    latest_checkpoint,
    restore_rng,
)
from selfverify.learner.interrupt import interruptible
from selfverify.learner.lesson import TrainStep
from selfverify.learner.logging import MetricsLog
from selfverify.learner.optimizer import learning_rate_factor, lost_steps, make_optimizer
from selfverify.learner.parallel import (
    Parallel,
    check_trackers,
    has_masters,
    make_accelerator,
    whole_loading,
)
from selfverify.learner.rollout_log import RolloutLog, settings_of, wants_log
from selfverify.learner.source import RolloutSource
from selfverify.learner.state import refuse_not_finite
from selfverify.learner.streams import select
from selfverify.learner.update import LossComputer
from selfverify.learner.weights import load_matching
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine
from selfverify.rollouts.episode_runner import HUNG
from selfverify.rollouts.rollout import Rollout
from selfverify.tasks.base import Verdict

Metrics = dict[str, float]
StepCallback = Callable[[int, int, Metrics, Metrics], None]
"""A function that is called after each step, with its number (from 1), how many steps there are as far as is
known, its metrics and its timings."""


logger = logging.getLogger(__name__)

EMPTY_STEPS = 3
"""A run stops after this many steps in a row without a usable problem: so many cannot all be bad."""


def _unjudged(group: Group) -> int:
    return sum(isinstance(t.parsed, Verdict) and bool(t.parsed.unjudged) for t in group.trajectories)


class Trainer:
    """Trains a policy on a task with a method, and can be killed at any moment.

    Args:
        training: What is trained. Its folder gets ``metrics.jsonl``, ``timing.jsonl``, ``events.jsonl`` and
            ``checkpoints/``.
        evaluate: Called every ``evaluate_every`` steps. Its figures are logged as ``eval/...``.
        on_step: Called after each step.
    """

    def __init__(
        self,
        training: Training,
        evaluate: Callable[[Policy], Metrics] | None = None,
        on_step: StepCallback | None = None,
    ) -> None:
        self.training, self.policy, self.method = training, training.policy, training.method
        self.config, folder = training.learner, training.folder
        self.evaluate, self.on_step = evaluate, on_step
        training.task.set_coordinate_space(self.policy.coordinate_space)
        training.task.set_policy(self.policy)
        self.source = RolloutSource(training)
        self.step = 0
        self.empty_steps = 0
        self._busy = False
        self.best: float | None = None
        trackers = self.config.trackers
        check_trackers(trackers)
        self.accelerator = make_accelerator(self.policy, log_with=trackers or None, project_dir=str(folder))
        if trackers:
            self.accelerator.init_trackers("selfverify")
        if wants_log(training) or training.replay is not None:
            self.source.log = RolloutLog(training, self.policy.whole(self.policy.fingerprint))
        # Before the reference is made, which shares what is found out.
        self.policy.check_gradients()
        # Taken before a checkpoint is loaded: the reference is the policy that training started from.
        self.reference = self.policy.frozen_copy() if self.method.config.needs_reference else None
        wrapped = has_masters(self.accelerator)
        masters = self.policy.config.master_weights and not wrapped
        self.optimizer = make_optimizer(self.config, self.policy.model.named_parameters(), masters)
        # Looked at before the weights are wrapped, told when events are written.
        self._lost = "" if wrapped else lost_steps(self.optimizer, self.config.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate_factor(self.config))
        with self.accelerator.main_process_first():
            # The first process tidies up what a killed one left.
            make_folder(folder)
            training.task.set_cache_folder(folder)
            self.checkpoints = CheckpointManager(folder / CHECKPOINTS_FOLDER, self.config.keep_last)
            self.metrics_log = MetricsLog(folder / "metrics.jsonl")
            self.timing_log = MetricsLog(folder / "timing.jsonl")
            self.events = EventLog(folder / EVENTS_FILE, ranks.index())
        if training.sampling.engine == "vllm":
            self.policy.engine = VLLMEngine(self.policy, self.accelerator, training.sampling)

    @cached_property
    def parallel(self) -> Parallel:
        """Policy, reference and optimizer, wrapped. A checkpoint's weights have to be loaded before."""
        return Parallel(
            self.accelerator, self.policy, self.reference, self.optimizer, self.config.max_grad_norm
        )

    @cached_property
    def lesson(self) -> TrainStep:
        """Learns from a step's groups."""
        temperature = self.training.sampling.temperature
        updater = LossComputer(self.parallel, self.config, self.method.objective, temperature)
        return TrainStep(updater, self.source, self.scheduler)

    # --- running ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Train to the last step.

        Raises:
            KeyboardInterrupt: After Ctrl-C, when the checkpoint is written.
            CheckpointError: A checkpoint cannot be written or does not fit.
            DataError: No problem of several steps in a row can be used. A checkpoint is written before.
            FileError: The run's folder was deleted, moved or taken over by another run.
            HungError: Too many episodes hang. A checkpoint is written before.
            SelfVerifyError: The gradient was not finite in several updates in a row. No checkpoint is
                written, so that none that is older and may be better leaves for it.
        """
        with self.events:
            resumed = self.training.resume and self._resume()
            check_processes(self.training, self.source, self.step)
            if self.source.log is not None:
                self.source.log.begin(self.training.resume, range(self.step, self.config.steps))
            if not resumed:
                images = {"image_backend": self.policy.image_backend} if self.policy.image_backend else {}
                self._tell("started", steps=self.config.steps, resume=self.training.resume, **images)
            if self._lost and ranks.index() == 0:
                logger.warning(self._lost)
            self._run()
            self._tell("finished" if self.step >= self.config.steps else "time_limit")

    def _tell(self, event: str, **fields: Any) -> None:
        """Write an event that all processes share, once."""
        if ranks.index() == 0:
            self.events.append(event, **fields)

    def _run(self) -> None:
        started = time.monotonic()
        with interruptible() as interrupted:
            while self.step < self.config.steps:
                self._advance()
                every, done = self.config.checkpoint_every, self.step == self.config.steps
                limit = self.config.time_limit_s
                late = limit is not None and time.monotonic() - started > limit
                # If one process gets a signal or runs out of time, all of them stop.
                stop, late = (any(flags) for flags in zip(*ranks.gather((interrupted(), late)), strict=True))
                if done or stop or late or (every and self.step % every == 0):
                    self.save()
                if stop:
                    raise KeyboardInterrupt
                if late:
                    break
        if self.config.trackers:
            self.accelerator.end_training()

    def _tell_busy(self) -> None:
        """Say once that other programs keep the machine busy: a run that is slow shall say why."""
        if not self._busy and ranks.index() == 0 and (told := busy()):
            self._busy = True
            note(logger, "machine_busy", told)

    def _advance(self) -> None:
        metrics, timing = self.train_step()
        self.step += 1
        self.events.step = self.step
        self._tell_busy()
        evaluated: Metrics = {}
        hung: HungError | None = None
        if self.evaluate and self.config.evaluate_every and self.step % self.config.evaluate_every == 0:
            try:
                evaluated = self.evaluate(self.policy)
            except HungError as error:
                hung = error
            metrics |= {f"eval/{name}": value for name, value in evaluated.items()}
        if hung or evaluated or self.step == self.config.steps or self.step % self.config.log_every == 0:
            if ranks.index() == 0:
                self.metrics_log.append({"step": self.step, **metrics})
                self.timing_log.append({"step": self.step, **timing})
            if self.config.trackers:
                self.accelerator.log({**metrics, **timing}, step=self.step)
        # After the log, because the checkpoint stores the log's length: a resumed run must keep this line.
        if hung:
            self.save()
            raise hung
        if evaluated and self.config.best_metric:
            self._keep_best(evaluated, self.config.best_metric)
        if self.on_step and ranks.index() == 0:
            self.on_step(self.step, self.config.steps, metrics, timing)

    # --- one step -----------------------------------------------------------------------------------

    def _note_empty(self, empty: bool) -> None:
        self.empty_steps = self.empty_steps + 1 if empty else 0
        if not empty:
            return
        last = [*self.source.skipped.values()][-1]
        if ranks.index() == 0:
            note(logger, "step_empty", f"no problem of step {self.step + 1} can be used; the last: {last}")
        if self.empty_steps >= min(EMPTY_STEPS, self.config.steps):
            if self.step:
                self.save()
            raise DataError(f"no problem of {self.empty_steps} steps in a row can be used; the last: {last}")

    def _roll_out(self) -> tuple[Rollout, list[int]]:
        """Make the step's groups. A checkpoint is written before a run ends by episodes that hang."""
        try:
            return self.policy.whole(lambda: self.source.roll_out(self.step))
        except HungError:
            # All processes get here together (`RolloutSource.roll_out`).
            if self.step:
                self.save()
            raise

    def train_step(self) -> tuple[Metrics, Metrics]:
        """Roll out, credit and learn; return the step's metrics and timings."""
        lesson = self.lesson
        clock = [time.perf_counter()]
        if self.policy.engine is not None:
            self.policy.engine.send_weights()  # not inside `whole`: TRL gathers shards itself
        rollout, makers = self._roll_out()
        self._note_empty(not rollout.groups)
        clock.append(time.perf_counter())

        valid = [valid_trajectories(group, self.config.drop_truncated) for group in rollout.groups]
        credits = [self.method.credit(g, v) for g, v in zip(rollout.groups, valid, strict=True)]
        foreign = self.training.sampling.engine != "own"
        groups, dropped = select(rollout, credits, self.config.drop_zero_advantage, foreign)
        totals = lesson.learn(groups, makers, self.step)
        clock.append(time.perf_counter())

        tokens = sum(len(t.tokens) for group in rollout.groups for t in group.trajectories)
        metrics: Metrics = {
            **(self.method.metrics(rollout.groups) if rollout.groups else {}),
            **totals.metrics(),
            "learning_rate": float(self.scheduler.get_last_lr()[0]),
            "groups/kept": float(len(groups)),
            "groups/zero_advantage": float(dropped["zero_advantage"]),
            "groups/all_invalid": float(dropped["all_invalid"]),
            "trajectories/invalid": float(sum(int((~v).sum()) for v in valid)),
            "trajectories/unjudged": float(sum(_unjudged(group) for group in rollout.groups)),
            "problems/skipped": float(len(self.source.skipped)),
        }
        timing = {
            "time/rollout_s": clock[1] - clock[0],
            "time/update_s": clock[2] - clock[1],
            "tokens_per_s": tokens / (clock[2] - clock[0]),
            # How often something hung depends on the machine, and metrics must not: a resumed run's metrics
            # are those of an unbroken run.
            **self.source.task.counters(),
            **{f"time/{name}_s": seconds for name, seconds in rollout.seconds.items()},
            **({"threads/hung": float(HUNG.count())} if rollout.seconds else {}),
        }
        return metrics, timing

    # --- checkpoints --------------------------------------------------------------------------------

    @property
    def _masters(self) -> bool:
        """Whether the optimizer keeps float32 masters of the weights."""
        return isinstance(self.optimizer, ChannelOptimizer) and self.optimizer.masters

    def _progress(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seed": self.training.seed,
            "best": self.best,
            "channels": self.config.channels,
            "masters": self._masters,
            "skipped": self.source.skipped,
            "updates_skipped": self.lesson.skipped,
            "settings": settings_of(self.training),
            "image_backend": self.policy.image_backend,
            "metrics_bytes": self.metrics_log.sync(),
            "timing_bytes": self.timing_log.sync(),
        }

    def save(self, best: float | None = None) -> Path:
        """Write a checkpoint of this moment and return its folder; ``best`` is its metric, if measured.

        Every process has to call this; the first one writes.
        """
        weights, optimizer = self.parallel.weights(), self.parallel.whole_optimizer()

        def write() -> Path:
            written = self.checkpoints.save(
                self.step,
                lambda folder: self._write_model(folder, weights),
                optimizer,
                self.scheduler,
                self._progress(),
                best=best,
            )
            if self.source.log is not None:
                self.source.log.prune(self.checkpoints.oldest(self.step))
            return written

        return ranks.on_first(write)

    def save_model(self, folder: Path) -> None:
        """Write the model alone. Every process has to call this; the first one writes.

        Raises:
            CheckpointError: A trained weight is not finite.
        """
        weights = self.parallel.weights()
        ranks.on_first(lambda: self._write_model(folder, weights))

    def _write_model(self, folder: Path, weights: dict[str, Tensor] | None) -> None:
        """Write the model, or a sharded model's whole ``weights``, unless what was trained is not finite."""
        named = dict(self.policy.model.named_parameters())
        refuse_not_finite(
            (n, named[n] if weights is None else weights[n]) for n in named if named[n].requires_grad
        )
        self.policy.save(folder, weights)

    def _keep_best(self, evaluated: Metrics, name: str) -> None:
        if name not in evaluated:
            raise ConfigError(
                f"learner.best_metric: there is no {name!r}; measured are: {', '.join(sorted(evaluated))}"
            )
        if not math.isnan(evaluated[name]) and (self.best is None or evaluated[name] > self.best):
            self.best = evaluated[name]
            self.save(best=self.best)

    def _resume(self) -> bool:
        """Go back to the newest checkpoint; False if there is none."""
        latest = ranks.on_first(partial(latest_checkpoint, self.checkpoints.folder, verify=True))
        if latest is None:
            ranks.on_first(lambda: self._cut_logs(0, 0))
            return False
        with whole_loading(self.accelerator):
            load_matching(self.policy.model, latest / MODEL_FOLDER)
        check_moments(latest, self.config.channels, self._masters)
        progress = self.checkpoints.load(latest, self.parallel.whole_optimizer(), self.scheduler)
        # A run that was made longer has another learning rate here than the one that was saved.
        rate = self.config.learning_rate * learning_rate_factor(self.config)(self.scheduler.last_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.step, self.best, self.source.skipped = progress["step"], progress["best"], progress["skipped"]
        self.lesson.skipped = progress.get("updates_skipped", {})  # older checkpoints have no such entries
        self.events.step = self.step
        if ranks.index() == 0:
            note_image_backend(progress.get("image_backend"), self.policy.image_backend)
            note_settings(progress.get("settings"), settings_of(self.training))
            again = max(self.metrics_log.last_step() - self.step, 0)
            self._tell("resumed", checkpoint=latest.name, steps_again=again)
        ranks.on_first(lambda: self._cut_logs(progress["metrics_bytes"], progress["timing_bytes"]))
        # This comes last, because loading draws random numbers. An adapter's dropout depends on them.
        restore_rng(latest)
        return True

    def _cut_logs(self, metrics: int, timing: int) -> None:
        self.metrics_log.truncate(metrics)
        self.timing_log.truncate(timing)
