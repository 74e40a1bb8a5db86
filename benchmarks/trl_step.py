"""TRL's side of `train_step.py`, which checks in its first steps that our loss and gradient are its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from common import RESPONSE_TOKENS
from datasets import Dataset, Features, Image, List, Value
from our_step import BETA, LEARNING_RATE, ChecksumGRPO, Setting, checksum, make_learner, timed_step
from transformers import AutoModelForImageTextToText, TrainerCallback
from trl import GRPOConfig as TRLConfig
from trl import GRPOTrainer

from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Group, Segment, Trajectory, valid_trajectories
from selfverify.methods.grpo import GRPO, GRPOConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import select
from selfverify.trainer.loss import LossComputer, UpdateMetrics, micro_batches
from selfverify.trainer.trainer import Trainer

CHECKED_STEPS = 2


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
        rollout, method = Rollout(self.ours.encode(problems), groups), GRPO(GRPOConfig(kl=BETA))
        credits = [method.credit(g, valid_trajectories(g, False)) for g in groups]
        streams, _ = select(rollout, credits, drop_zero=False)
        totals = UpdateMetrics()
        alone: Any = SimpleNamespace(
            policy=self.ours,
            reference=self.start,
            autocast=nullcontext,
            one_pass=lambda last: nullcontext(),
            backward=lambda loss: loss.backward(),
        )
        passes = micro_batches(streams, count)
        updater = LossComputer(alone, TrainerConfig(steps=1, micro_batch_groups=count), "surrogate")
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
        learner = make_learner(setting, ChecksumGRPO(GRPOConfig(kl=BETA)), LEARNING_RATE, f"{out}/ours")
        clock = Clock(learner, setting.clock)
        trained = {name for name, p in learner.policy.model.named_parameters() if p.requires_grad}
        model = AutoModelForImageTextToText.from_pretrained(setting.folder)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trained)
        config = TRLConfig(
            output_dir=f"{out}/trl",
            per_device_train_batch_size=setting.per_step * setting.group,
            gradient_accumulation_steps=1,
            num_generations=setting.group,
            max_completion_length=RESPONSE_TOKENS,
            temperature=1.0,
            top_p=0.99,
            top_k=0,
            beta=BETA,
            num_iterations=1,
            loss_type="grpo",
            # TRL's default multiplies the KL by the ratio, which changes its gradient; the papers don't.
            use_bias_correction_kl=False,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            adam_beta1=0.9,
            adam_beta2=0.999,
            max_grad_norm=1.0,
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
