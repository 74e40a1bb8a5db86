"""The training loop: roll out, credit, learn, log, save. It knows no method.

The checks say what has to be the same in all processes of a run, and in a run and the checkpoint it goes on
from.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfverify.core import ranks
from selfverify.core.errors import ConfigError, DataError, HungError, SelfVerifyError
from selfverify.core.events import EVENTS_FILE, EventLog, note
from selfverify.core.files import differences, make_folder
from selfverify.core.trajectory import Finish, valid_trajectories
from selfverify.methods.base import Training
from selfverify.policy.decoding import derived_seed, kept_generators
from selfverify.policy.vllm import VLLMEngine
from selfverify.rollouts.episode_runner import HUNG
from selfverify.tasks.base import Verdict
from selfverify.trainer.batch import TokenStreams, select
from selfverify.trainer.checkpoint import (
    CHECKPOINTS_FOLDER,
    MODEL_FOLDER,
    CheckpointManager,
    latest_checkpoint,
    read_checkpoint,
    restore_rng,
)
from selfverify.trainer.logging import MetricsLog, interruptible
from selfverify.trainer.loss import LossComputer, MicroBatch, UpdateMetrics
from selfverify.trainer.optim import (
    ChannelOptimizer,
    channel_names,
    learning_rate_factor,
    lost_steps,
    make_optimizer,
)
from selfverify.trainer.parallel import Parallel, WholeOptimizer, check_trackers, make_accelerator
from selfverify.trainer.rollout_source import RolloutLog, RolloutSource, settings_of, wants_log
from selfverify.trainer.state import load_matching, refuse_not_finite

logger = logging.getLogger(__name__)

Metrics = dict[str, float]

SKIPPED = 3
"""Training stops after so many updates in a row whose gradients were not finite."""
SKIPPED_WHILE_SCALING = 24
"""The limit of skipped updates where float16's loss is scaled: the scale begins at 2^16 and halves until
gradients are finite."""


def _share_out(batch: Sequence[TokenStreams], makers: Sequence[int]) -> None:
    """Decide which process learns from which group, so that all have about the same to do."""
    # Tokens to forward: the prompt once, and every response.
    costs = [len(group.prompt.ids) + sum(map(len, group.tokens)) for group in batch]
    owners = ranks.balance(costs, [makers[group.number] for group in batch], ranks.count())
    for group, owner in zip(batch, owners, strict=True):
        group.owner = owner


def check_processes(training: Training, source: RolloutSource, step: int) -> None:
    """Check that all processes train the same weights on the same problems with the same settings.

    Raises:
        SelfVerifyError: They do not.
    """
    if ranks.count() == 1:
        return
    try:
        problem = source.problem(0)
        pixels = hashlib.sha256(b"".join(image.tobytes() for image in problem.images)).hexdigest()[:16]
        first: Any = (problem.id, problem.messages, problem.target, pixels)
    except DataError as error:  # all processes will skip this problem
        first = str(error)
    ranks.agree(
        "the processes do not train the same",
        {
            "learner": training.learner.model_dump(),
            "sampling": training.sampling.model_dump(),
            "method": (training.method.name, str(training.method.config)),
            "seed": training.seed,
            "weights": training.policy.whole(training.policy.fingerprint),
            "first problem": first,
            "step": step,
        },
    )


def check_moments(checkpoint: Path, channels: str, masters: bool) -> None:
    """Check that a run steps its weights as the one did that wrote the checkpoint.

    Args:
        checkpoint: Where the run goes on from.
        channels: The run's ``learner.optim.channels``.
        masters: Whether its optimizer keeps float32 masters of the weights.

    Raises:
        ConfigError: It does not, so that moments or masters would be lost.
    """
    progress = read_checkpoint(checkpoint, only="rng")[0]["progress"]
    before = progress.get("channels", "joint")  # older checkpoints have neither entry
    if before != channels:
        raise ConfigError(
            f"{checkpoint}: was written with learner.optim.channels={before}, whose moments do not go with "
            f"learner.optim.channels={channels}; keep it, or start the run anew"
        )
    if progress.get("masters", False) and not masters:
        raise ConfigError(
            f"{checkpoint}: holds float32 masters, which this run would lose; keep policy.dtype, "
            "policy.master_weights and the launcher's wrapper, or start the run anew"
        )


EMPTY_STEPS = 3
"""A run stops after this many steps in a row without a usable problem: so many cannot all be bad."""


class Trainer:
    """Trains a policy on a task with a method, and can be killed at any moment.

    Args:
        training: The training. Its folder gets ``metrics.jsonl``, ``timing.jsonl``, ``events.jsonl`` and
            ``checkpoints/``.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.policy, self.method = training, training.policy, training.method
        self.config, folder = training.learner, training.folder
        training.task.set_coordinate_space(self.policy.coordinate_space)
        training.task.set_policy(self.policy)
        self.source = RolloutSource(training)
        self.step = 0
        self.empty_steps = 0
        self.cut_off = False
        """Whether most samples of the last step with any were cut off."""
        self.updates_skipped: dict[str, int] = {}
        """How many updates in a row were skipped up to now, by channel; "" where all step jointly."""
        self.best: float | None = None
        self._settled = False
        trackers = self.config.log.trackers
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
        masters = self.policy.config.master_weights
        self.optimizer = make_optimizer(self.config.optim, self.policy.model.named_parameters(), masters)
        # Looked at before the weights are wrapped, told when events are written.
        self._lost = lost_steps(self.optimizer, self.config.optim.learning_rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, learning_rate_factor(self.config))
        with self.accelerator.main_process_first():
            # The first process tidies up what a killed one left.
            make_folder(folder)
            training.task.set_cache_folder(folder)
            self.checkpoints = CheckpointManager(
                folder / CHECKPOINTS_FOLDER, self.config.checkpoint.keep_last
            )
            self.metrics_log = MetricsLog(folder / "metrics.jsonl")
            self.timing_log = MetricsLog(folder / "timing.jsonl")
            self.events = EventLog(folder / EVENTS_FILE, ranks.index())
        if training.sampling.vllm is not None:
            self.policy.engine = VLLMEngine(self.policy, self.accelerator, training.sampling.vllm)

    @cached_property
    def parallel(self) -> Parallel:
        """Policy, reference and optimizer, wrapped. A checkpoint's weights have to be loaded before."""
        return Parallel(
            self.accelerator, self.policy, self.reference, self.optimizer, self.config.optim.max_grad_norm
        )

    @cached_property
    def loss(self) -> LossComputer:
        """Makes the gradients."""
        sampling = self.training.sampling
        return LossComputer(self.parallel, self.config, self.method.objective, sampling.temperature)

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
            self._begin()
            started = time.monotonic()
            with interruptible() as interrupted:
                while self.step < self.config.steps:
                    metrics, timing = self.train_step()
                    self.step += 1
                    self._report(metrics, timing)
                    limit, every = self.config.time_limit_s, self.config.checkpoint.every
                    late = limit is not None and time.monotonic() - started > limit
                    # If one process gets a signal or runs out of time, all of them stop.
                    flags = ranks.gather((interrupted(), late))
                    stop, late = (any(each) for each in zip(*flags, strict=True))
                    done = self.step == self.config.steps
                    if done or stop or late or (every and self.step % every == 0):
                        self.save()
                    if stop:
                        raise KeyboardInterrupt
                    if late:
                        break
            if self.config.log.trackers:
                self.accelerator.end_training()
            self._tell("finished" if self.step >= self.config.steps else "time_limit")

    def _begin(self) -> None:
        """Go back to the newest checkpoint, if there is one, and check that all processes do the same."""
        resumed = self.training.resume and self._resume()
        check_processes(self.training, self.source, self.step)
        if self.source.log is not None:
            self.source.log.begin(self.training.resume, range(self.step, self.config.steps))
        if not resumed:
            images = {"image_backend": self.policy.image_backend} if self.policy.image_backend else {}
            self._tell("started", steps=self.config.steps, resume=self.training.resume, **images)
        if self._lost and ranks.index() == 0:
            logger.warning(self._lost)

    def _tell(self, event: str, **fields: Any) -> None:
        """Write an event that all processes share, once."""
        if ranks.index() == 0:
            self.events.append(event, **fields)

    def _report(self, metrics: Metrics, timing: Metrics) -> None:
        """Evaluate if it is time to, and write down what a step has come to."""
        log, training = self.config.log, self.training
        self.events.step = self.step
        evaluated: Metrics = {}
        hung: HungError | None = None
        if training.evaluate and log.evaluate_every and self.step % log.evaluate_every == 0:
            try:
                evaluated = training.evaluate(self.policy)
            except HungError as error:
                hung = error
            metrics |= {f"eval/{name}": value for name, value in evaluated.items()}
        if hung or evaluated or self.step == self.config.steps or self.step % log.every == 0:
            if ranks.index() == 0:
                self.metrics_log.append({"step": self.step, **metrics})
                self.timing_log.append({"step": self.step, **timing})
            if log.trackers:
                self.accelerator.log({**metrics, **timing}, step=self.step)
        # After the log, because the checkpoint stores the log's length: a resumed run must keep this line.
        if hung:
            self.save()
            raise hung
        if evaluated and self.config.checkpoint.best_metric:
            self._keep_best(evaluated, self.config.checkpoint.best_metric)
        if training.on_step and ranks.index() == 0:
            training.on_step(self.step, self.config.steps, metrics, timing)

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

    def _note_cut_off(self, cut: Sequence[bool]) -> None:
        """Say where steps begin to be cut off for the most part: nothing else in the log looks like it."""
        before = self.cut_off
        if cut:
            self.cut_off = 2 * sum(cut) > len(cut)
        if self.cut_off and not before and ranks.index() == 0:
            limit = self.training.sampling.max_new_tokens
            message = (
                f"{sum(cut)} of {len(cut)} samples of step {self.step + 1} were cut off, in a turn of "
                f"sampling.max_new_tokens={limit} tokens or at the length of a whole conversation"
            )
            note(logger, "mostly_cut_off", message, samples=len(cut), cut_off=sum(cut))

    def train_step(self) -> tuple[Metrics, Metrics]:
        """Roll out, credit and learn; return the step's metrics and timings."""
        loss = self.loss  # made first: policies sample and learn behind the same wrappers
        clock = [time.perf_counter()]
        if self.policy.engine is not None:
            self.policy.engine.send_weights()  # not inside `whole`: TRL gathers shards itself
        try:
            rollout, makers = self.policy.whole(lambda: self.source.roll_out(self.step))
        except HungError:
            # All processes get here together (`RolloutSource.roll_out`).
            if self.step:
                self.save()
            raise
        self._note_empty(not rollout.groups)
        self._note_cut_off([t.truncated for group in rollout.groups for t in group.trajectories])
        clock.append(time.perf_counter())

        valid = [valid_trajectories(group, self.config.loss.drop_truncated) for group in rollout.groups]
        credits = [self.method.credit(g, v) for g, v in zip(rollout.groups, valid, strict=True)]
        foreign = self.training.sampling.engine != "own"
        groups, dropped = select(rollout, credits, self.config.loss.drop_zero_advantage, foreign)
        totals = UpdateMetrics()
        updates = self._updates(loss, groups, makers) if groups else []
        self.policy.model.train()
        for number in range(len(updates) * self.config.batch.inner_epochs):
            self._update(loss, *updates[number % len(updates)], totals)
        self.policy.model.eval()
        totals = totals.together() if groups else totals
        clock.append(time.perf_counter())

        trajectories = [t for group in rollout.groups for t in group.trajectories]
        lost = sum(t.finish == Finish.ERROR and t.parsed is None for t in trajectories)
        unjudged = sum(isinstance(t.parsed, Verdict) and bool(t.parsed.unjudged) for t in trajectories)
        metrics: Metrics = {
            **(self.method.metrics(rollout.groups) if rollout.groups else {}),
            **totals.metrics(),
            "learning_rate": float(self.scheduler.get_last_lr()[0]),
            "groups/kept": float(len(groups)),
            "groups/zero_advantage": float(dropped["zero_advantage"]),
            "groups/all_invalid": float(dropped["all_invalid"]),
            "trajectories/invalid": float(sum(int((~v).sum()) for v in valid)),
            "trajectories/unjudged": float(unjudged),
            "trajectories/lost": float(lost),
            "problems/skipped": float(len(self.source.skipped)),
        }
        timing = {
            "time/rollout_s": clock[1] - clock[0],
            "time/update_s": clock[2] - clock[1],
            "tokens_per_s": sum(len(t.tokens) for t in trajectories) / (clock[2] - clock[0]),
            # How often something hung depends on the machine, and metrics must not: a resumed run's metrics
            # are those of an unbroken run.
            **self.source.task.counters(),
            **{f"time/{name}_s": seconds for name, seconds in rollout.seconds.items()},
            **({"threads/hung": float(HUNG.count())} if rollout.seconds else {}),
        }
        return metrics, timing

    def _updates(
        self, loss: LossComputer, groups: Sequence[TokenStreams], makers: Sequence[int]
    ) -> list[tuple[list[TokenStreams], list[MicroBatch]]]:
        """Return the batches of a step's updates with this process's forward passes, ready to be learnt.

        Args:
            loss: Makes the gradients.
            groups: The groups of all processes, the same in every process.
            makers: The process that sampled each group of the rollout.
        """
        # An adapter may drop values: each process draws its own, and the same ones whenever it begins.
        place = self.config.groups_per_step + ranks.index()
        torch.manual_seed(derived_seed(self.training.seed, self.step, place))
        parts = np.array_split(np.arange(len(groups)), self.config.batch.updates_per_rollout)
        batches = [[groups[i] for i in part] for part in parts if len(part)]
        for batch in batches:
            _share_out(batch, makers)
        passes = loss.passes(groups)
        updates = [(batch, loss.passes(batch)) for batch in batches]
        # A pass that does not count may be of a group that another process learns from.
        learnt = [
            batch[i]
            for batch, own in [(groups, passes), *updates]
            for i in dict.fromkeys(part.group for each in own for part in each.slices)
        ]
        shown = self.source.shown([group.number for group in learnt])
        for group in learnt:
            group.pictures = shown.get(group.number, group.pictures)
            group.prompt = self.source.complete(group.number, group.prompt)
            group.prepare_images(self.policy.encoder)
        if ranks.count() > 1 and not self._settled:
            # A policy checks once what it checks, before wrappers make all processes work in step.
            first = groups[passes[0].slices[0].group]
            with torch.no_grad():
                self.policy.whole(lambda: self.policy.logprobs([first.prompt], [first.continuations[:2]]))
            self._settled = True
        loss.fix_logprobs(groups, passes)
        return updates

    def _update(
        self,
        loss: LossComputer,
        batch: Sequence[TokenStreams],
        own: Sequence[MicroBatch],
        totals: UpdateMetrics,
    ) -> None:
        """Make one update, as ``optim.channels`` says, and add this process's share to the totals."""
        optim, every = self.config.optim, self.config.log.channels_every
        if optim.channels == "joint" and every and (self.step + 1) % every == 0:
            with kept_generators(self.policy.device):  # what is learnt and drawn stays the same
                loss.gradient(batch, own, UpdateMetrics(), apart=channel_names(batch))
            totals.add_norms(self.parallel.apart_norms())
        names = [] if optim.channels == "joint" else channel_names(batch)
        if not names:
            loss.gradient(batch, own, totals)
            totals.grad_norms.append(self._step(totals))
        else:
            if optim.channels == "alternate":
                # The count of updates is part of a checkpoint, so turns go on through steps and resumptions.
                names = [names[self.scheduler.last_epoch % len(names)]]
                loss.gradient(batch, own, totals, channel=names[0])
            else:
                loss.gradient(batch, own, totals, apart=names)
            rates = optim.channel_rates
            norms = {n: self._step(totals, n, rates.get(n, 1.0), sharers=len(names)) for n in names}
            totals.add_norms(norms)
            totals.grad_norms.append(math.hypot(*norms.values()))
        if self.policy.engine is not None:
            self.policy.engine.stale = True
        self.scheduler.step()

    def _step(self, totals: UpdateMetrics, channel: str = "", rate: float = 1.0, sharers: int = 1) -> float:
        """Make a channel's update, or skip it where its gradient is not finite; returns the norm.

        A skipped update counts as one: the schedule of the learning rate and the turns of channels go on.

        Raises:
            SelfVerifyError: So many were skipped in a row that nothing is learnt any more.
        """
        norm = self.parallel.step(channel, rate, sharers)
        if math.isfinite(norm):
            self.updates_skipped.pop(channel, None)
            return norm
        totals.skipped += 1
        row = self.updates_skipped[channel] = self.updates_skipped.get(channel, 0) + 1
        whose = f"the gradient of channel {channel}" if channel else "the gradient"
        if ranks.index() == 0:
            message = f"{whose} is not finite (its norm is {norm}); no update is made, and training goes on"
            note(logger, "update_skipped", message, channel=channel or "all", norm=str(norm))
        if row >= (SKIPPED if self.accelerator.scaler is None else SKIPPED_WHILE_SCALING):
            raise SelfVerifyError(
                f"{whose} was not finite in {row} updates in a row, so that nothing is learnt: training "
                "stops. The checkpoints are as they were. Resume from the newest one with a lower "
                f"learner.optim.learning_rate (now {self.config.optim.learning_rate:g}) or in float32 "
                "(policy.dtype, mixed_precision). If that ends here again, the trouble began before it: "
                "move it away, so that an older one is taken"
            )
        return norm

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
            "channels": self.config.optim.channels,
            "masters": self._masters,
            "skipped": self.source.skipped,
            "updates_skipped": self.updates_skipped,
            "settings": settings_of(self.training),
            "image_backend": self.policy.image_backend,
            "metrics_bytes": self.metrics_log.sync(),
            "timing_bytes": self.timing_log.sync(),
        }

    def save(self, best: float | None = None) -> Path:
        """Write a checkpoint of this moment and return its folder; ``best`` is its metric, if measured.

        Every process has to call this; the first one writes.
        """
        weights, optimizer = self.parallel.weights(), WholeOptimizer(self.optimizer)

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
                f"learner.checkpoint.best_metric: there is no {name!r}; measured are: "
                f"{', '.join(sorted(evaluated))}"
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
        load_matching(self.policy.model, latest / MODEL_FOLDER)
        check_moments(latest, self.config.optim.channels, self._masters)
        progress = self.checkpoints.load(latest, WholeOptimizer(self.optimizer), self.scheduler)
        # A run that was made longer has another learning rate here than the one that was saved.
        rate = self.config.optim.learning_rate * learning_rate_factor(self.config)(self.scheduler.last_epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.step, self.best, self.source.skipped = progress["step"], progress["best"], progress["skipped"]
        self.updates_skipped = progress.get("updates_skipped", {})  # older checkpoints have no such entries
        self.events.step = self.step
        if ranks.index() == 0:
            old, new = progress.get("image_backend"), self.policy.image_backend
            if old not in (None, new):
                message = (
                    f"images were prepared by {old} until now, and are by {new} from here on, which changes "
                    "log-probabilities (by up to 1.1 nats, as measured). Installing or removing torchvision "
                    "does this; put it back to go on as before"
                )
                note(logger, "image_backend_changed", message, before=old, now=new)
            before = progress.get("settings")  # those that decide samples or weights
            if before is not None and (changed := differences(before, settings_of(self.training))):
                message = f"settings are others from here on: {'; '.join(changed)}"
                note(logger, "settings_changed", message, changed=changed)
            again = max(self.metrics_log.last_step() - self.step, 0)
            self._tell("resumed", checkpoint=latest.name, steps_again=again)
        ranks.on_first(lambda: self._cut_logs(progress["metrics_bytes"], progress["timing_bytes"]))
        # This comes last, because loading draws random numbers. An adapter's dropout depends on them.
        restore_rng(latest)
        return True

    def _cut_logs(self, metrics: int, timing: int) -> None:
        self.metrics_log.truncate(metrics)
        self.timing_log.truncate(timing)
