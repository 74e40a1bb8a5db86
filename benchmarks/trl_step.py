"""Both sides of `train_step.py`, with a reward that random text earns.

TRL's checks in its first steps that our loss and gradient are its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import RESPONSE_TOKENS, PreparedTask
from datasets import Dataset, Features, Image, List, Value
from transformers import AutoModelForImageTextToText, TrainerCallback
from trl import GRPOConfig as TRLConfig
from trl import GRPOTrainer

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Group, Segment, Trajectory, valid_trajectories
from selfverify.methods.adpo import ADPO
from selfverify.methods.base import PolicyGradientConfig, Training
from selfverify.methods.grpo import GRPO
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import select
from selfverify.trainer.loss import LossComputer, UpdateMetrics, micro_batches
from selfverify.trainer.trainer import Trainer

CHECKED_STEPS = 2
BETA, LEARNING_RATE = 0.01, 1e-5


@dataclass(frozen=True, slots=True)
class Setting:
    """What both sides get: ``per_step`` of the ``problems`` and ``group`` samples of each in every step."""

    folder: str
    problems: Sequence[Problem]
    per_step: int
    group: int
    repeats: int
    seed: int
    processor: Callable[[Any], Any]
    """Makes TRL's processor of a tokenizer."""
    clock: Callable[[], float] = time.perf_counter


def checksum(tokens: Sequence[int]) -> float:
    """A reward in [0, 1] that random text earns: it differs between nearly all samples."""
    return sum((n + 1) * token for n, token in enumerate(tokens)) % 101 / 100


def regrade(rollout: Rollout) -> Rollout:
    """Checksums instead of the task's rewards; the last quarter of each response is its score."""
    for group in rollout.groups:
        for trajectory in group.trajectories:
            tokens, logprobs, finish = trajectory.tokens, trajectory.logprobs, trajectory.finish
            cut = max(1, len(tokens) * 3 // 4)
            trajectory.segments = [Segment("answer", tokens[:cut], logprobs[:cut])]
            if cut < len(tokens):
                trajectory.segments.append(Segment("score", tokens[cut:], logprobs[cut:]))
            trajectory.segments[-1].finish = finish
            reward = checksum(tokens)
            trajectory.scores = {"sampled": checksum(tokens[cut:])}
            trajectory.rewards.update(
                answer=reward, correct=float(reward > 0.5), answer_format=1, score_format=1, score_opened=1
            )
    return rollout


class ChecksumGRPO(GRPO):
    """GRPO with rewards that random text earns."""

    def rollout(self, *args: Any) -> Rollout:
        """See `Method.rollout`."""
        return regrade(super().rollout(*args))


class ChecksumADPO(ADPO):
    """ADPO with rewards that random text earns."""

    def rollout(self, *args: Any) -> Rollout:
        """See `Method.rollout`."""
        return regrade(super().rollout(*args))


def make_learner(setting: Setting, method: Any, rate: float, out: str) -> Trainer:
    """Ours, with TRL's settings."""
    config = TrainerConfig(
        steps=1000,
        groups_per_step=setting.per_step,
        optim={"learning_rate": rate, "betas": (0.9, 0.999), "max_grad_norm": 1.0},
        batch={"micro_batch_groups": setting.per_step},
    )
    sampling = SamplingConfig(group_size=setting.group, top_p=0.99, max_new_tokens=RESPONSE_TOKENS)
    policy = Policy.load(setting.folder, device="cpu")
    task = PreparedTask(setting.problems)
    return Trainer(Training(policy, task, method, config, sampling, Path(out), setting.seed))


def timed_step(learner: Trainer, clock: Callable[[], float]) -> tuple[float, int]:
    """Seconds and generated tokens of one of our steps."""
    start = clock()
    metrics, _ = learner.train_step()
    seconds = clock() - start
    learner.step += 1
    count = learner.config.groups_per_step
    if metrics["groups/kept"] != count:
        raise SystemExit(f"only {metrics['groups/kept']} of {count} groups taught something")
    rows = count * learner.training.sampling.group_size
    return seconds, round(metrics["tokens/response"] * rows)


class CheckedTrainer(GRPOTrainer):
    """TRL's trainer, which compares its loss with ours in its first steps."""

    ours: Policy
    start: Policy
    setting: Setting

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        out = super()._generate_and_score_completions(inputs)
        self.tokens = int(out["completion_mask"].sum())
        if self.state.global_step < CHECKED_STEPS:
            # Taken before TRL shuffles the rows: here problem by problem.
            self.completions = [
                [int(t) for t, m in zip(ids, mask, strict=True) if m]
                for ids, mask in zip(out["completion_ids"], out["completion_mask"], strict=True)
            ]
        return out

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        step = self.state.global_step
        if step < CHECKED_STEPS:
            ours = self.our_loss(model, step)
            mine = {name: p.grad for name, p in self.ours.model.named_parameters() if p.grad is not None}
            named = {name: p for name, p in model.named_parameters() if p.requires_grad}
            if mine.keys() != named.keys():
                raise SystemExit(f"not the same parameters are trained: {mine.keys() ^ named.keys()}")
            theirs = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
            gap = torch.stack([(mine[n] - t).norm() for n, t in zip(named, theirs, strict=True)]).norm()
            size = torch.stack([t.norm() for t in theirs]).norm()
            self.compared.append((float(loss.detach()), ours, float(gap / size)))
        return loss

    def our_loss(self, model: Any, step: int) -> float:
        """The loss of TRL's samples and rewards by our code, at TRL's weights of this moment; it leaves
        its gradient on ``self.ours``."""
        self.ours.model.zero_grad()
        self.ours.model.load_state_dict(model.state_dict())
        count, group, every = self.setting.per_step, self.setting.group, self.setting.problems
        problems = [every[(step * count + n) % len(every)] for n in range(count)]
        groups = []
        for n, problem in enumerate(problems):
            mine = self.completions[n * group : (n + 1) * group]
            rows = [
                Trajectory(
                    [Segment("answer", tokens)],
                    rewards={"answer": checksum(tokens)}
                    | dict.fromkeys(("answer_format", "score_format", "score_opened"), 1.0),
                )
                for tokens in mine
            ]
            groups.append(Group(problem, rows))
        rollout, method = Rollout(self.ours.encode(problems), groups), GRPO(PolicyGradientConfig(kl=BETA))
        credits = [method.credit(g, valid_trajectories(g, False)) for g in groups]
        streams, _ = select(rollout, credits, drop_zero=False)
        totals = UpdateMetrics()
        alone: Any = SimpleNamespace(
            policy=self.ours,
            reference=self.start,
            accelerator=SimpleNamespace(autocast=nullcontext),
            one_pass=lambda last: nullcontext(),
            backward=lambda loss: loss.backward(),
        )
        passes = micro_batches(streams, count)
        updater = LossComputer(
            alone, TrainerConfig(steps=1, batch={"micro_batch_groups": count}), "surrogate"
        )
        updater.fix_logprobs(streams, passes)
        updater.gradient(streams, passes, totals)
        return totals.sums["loss"]


class Clock(TrainerCallback):
    """Times TRL's steps and runs one of ours after each of them."""

    def __init__(self, learner: Trainer, clock: Callable[[], float]) -> None:
        self.learner, self.clock = learner, clock
        self.trl: list[float] = []
        self.ours: list[float] = []
        self.tokens: list[int] = []
        self.began = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """TRL samples, scores and learns between this and `on_step_end`."""
        self.began = self.clock()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Our turn."""
        self.trl.append(self.clock() - self.began)
        seconds, tokens = timed_step(self.learner, self.clock)
        self.ours.append(seconds)
        self.tokens.append(tokens)


@torch.no_grad()
def scale(model: Any, trained: set[str]) -> None:
    """Make a reference differ from the policy; the frozen tower stays as it was."""
    for name, parameter in model.named_parameters():
        if name in trained:
            parameter.mul_(2.0)


def make_dataset(problems: Sequence[Problem]) -> Dataset:
    """The problems as TRL reads them."""
    rows = {
        "prompt": [[{"role": "user", "content": p.messages[0]["content"][-1]["text"]}] for p in problems],
        "images": [p.images for p in problems],
    }
    message = {"role": Value("string"), "content": Value("string")}
    return Dataset.from_dict(rows, features=Features({"prompt": List(message), "images": List(Image())}))


def against_trl(setting: Setting) -> tuple[Clock, CheckedTrainer]:
    """Interleaved steps of both sides; the first `CHECKED_STEPS` are warm-up."""
    with tempfile.TemporaryDirectory() as out:
        grpo = ChecksumGRPO(PolicyGradientConfig(kl=BETA))
        learner = make_learner(setting, grpo, LEARNING_RATE, f"{out}/ours")
        clock = Clock(learner, setting.clock)
        trained = {name for name, p in learner.policy.model.named_parameters() if p.requires_grad}
        model = AutoModelForImageTextToText.from_pretrained(setting.folder)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)
        config = TRLConfig(
            output_dir=f"{out}/trl",
            per_device_train_batch_size=setting.per_step * setting.group,
            num_generations=setting.group,
            max_completion_length=RESPONSE_TOKENS,
            top_p=0.99,
            beta=BETA,
            loss_type="grpo",
            # The optimiser's settings and the temperature are ours by default.
            # TRL's default multiplies the KL by the ratio, which changes its gradient; the papers don't.
            use_bias_correction_kl=False,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            max_steps=CHECKED_STEPS + setting.repeats,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=setting.seed,
        )

        def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
            return [checksum(tokens) for tokens in completion_ids]

        trainer = CheckedTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=make_dataset(setting.problems),
            processing_class=setting.processor(learner.policy.tokenizer),
            callbacks=[clock],
        )
        trainer.compared = []
        trainer.ours = Policy.load(setting.folder, device="cpu")
        trainer.start, trainer.setting = trainer.ours.frozen_copy(), setting
        for reference in (trainer.ref_model, trainer.start.model):
            scale(reference, trained)
        trainer.train()
    for theirs, ours, gradient_gap in trainer.compared:
        if abs(theirs - ours) > 1e-4 or gradient_gap > 1e-3:
            raise SystemExit(f"TRL's loss {theirs}, ours {ours}; gradients differ by {gradient_gap:.2g}")
        if abs(theirs) < 1e-3:
            raise SystemExit(f"a loss of {theirs} shows nothing about the KL term")
    if len(trainer.compared) != CHECKED_STEPS:
        raise SystemExit(f"{len(trainer.compared)} losses were compared instead of {CHECKED_STEPS}")
    return clock, trainer
