"""A full GRPO step of ours against TRL's GRPOTrainer, and ADPO against GRPO.

Same tiny Qwen2.5-VL with a frozen vision tower, same `digits-pick` problems, 8 x G responses of at most
24 tokens, T = 1, top-p 0.99, beta 0.01, one update per rollout, AdamW with the same settings, the whole
batch in one micro-batch, no vLLM. Our steps run between TRL's, A B A B. A step is everything from the
problems to the optimiser's step: preprocessing, sampling, reference log-probs, loss, backward, update.
Weights are random, so both get a reward that random text earns too: a checksum of its tokens.

In the first two steps of each G, TRL's own samples and rewards are put through our advantages,
log-probs and loss at TRL's weights of that moment. The program fails if the losses differ by more than
1e-4 or the gradients by more than 0.1 % of their norm. (With ratios of 1 advantages cancel in the loss
itself, which is then the KL term; the gradient shows the rest. The reference of this check is a scaled
copy of the model, so that the KL is not 0.)

ADPO runs on the same model, problems and seeds as our GRPO, with a learning rate of 0 on both sides: so
both sample the same tokens in every step, and the difference is what the method costs.

    python benchmarks/train_step.py [--quick] [--repeats 7]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import (
    PROBLEMS,
    RESPONSE_TOKENS,
    PreparedTask,
    arguments,
    finish,
    make_problems,
    make_processor,
    model_folder,
    parse,
    show,
)
from datasets import Dataset, Features, Image, List, Value
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel
from transformers import TrainerCallback
from trl import GRPOConfig as TRLConfig
from trl import GRPOTrainer

from selfverify.learner.config import LearnerConfig
from selfverify.learner.loop import Learner
from selfverify.learner.streams import select, valid_trajectories
from selfverify.learner.update import Updater, UpdateTotals, fixed_logprobs
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.grpo import GRPO, GRPOConfig
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import Rollout
from selfverify.rollouts.types import Group, Problem, Segment, Trajectory

BETA, LEARNING_RATE = 0.01, 1e-5
CHECKED_STEPS = 2


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


def make_learner(
    method: Any, folder: str, problems: Sequence[Problem], group: int, rate: float, seed: int, out: str
) -> Learner:
    """Ours, with TRL's settings."""
    config = LearnerConfig(
        steps=1000,
        groups_per_step=PROBLEMS,
        micro_batch_groups=PROBLEMS,
        learning_rate=rate,
        betas=(0.9, 0.999),
        max_grad_norm=1.0,
    )
    sampling = SamplingConfig(group_size=group, top_p=0.99, max_new_tokens=RESPONSE_TOKENS)
    policy = Policy.load(folder, device="cpu")
    return Learner(policy, PreparedTask(problems), method, config, sampling, Path(out), seed)


def timed_step(learner: Learner) -> tuple[float, int]:
    """Seconds and generated tokens of one of our steps."""
    start = time.perf_counter()
    metrics, _ = learner.train_step()
    seconds = time.perf_counter() - start
    learner.step += 1
    if metrics["groups/kept"] != PROBLEMS:
        raise SystemExit(f"only {metrics['groups/kept']} of {PROBLEMS} groups taught something")
    rows = PROBLEMS * learner.sampling.group_size
    return seconds, round(metrics["tokens/response"] * rows)


class CheckedTrainer(GRPOTrainer):
    """TRL's trainer, which compares its loss with ours in its first steps."""

    ours: Policy
    start: Policy
    problems: Sequence[Problem]
    group: int

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
        problems = [self.problems[(step * PROBLEMS + n) % len(self.problems)] for n in range(PROBLEMS)]
        groups = []
        for n, problem in enumerate(problems):
            mine = self.completions[n * self.group : (n + 1) * self.group]
            rows = [
                Trajectory(
                    [Segment("answer", tokens)],
                    rewards={"answer": checksum(tokens), "answer_format": 1.0, "score_format": 1.0},
                )
                for tokens in mine
            ]
            groups.append(Group(problem, rows))
        rollout, method = Rollout(self.ours.encode(problems), groups), GRPO(GRPOConfig(kl=BETA))
        credits = [method.credit(g, valid_trajectories(g, False)) for g in groups]
        streams, _ = select(rollout, credits, drop_zero=False)
        totals = UpdateTotals()
        updater = Updater(
            self.ours,
            SimpleNamespace(backward=lambda loss: loss.backward()),
            LearnerConfig(steps=1, micro_batch_groups=PROBLEMS),
            "surrogate",
        )
        updater.gradient(streams, fixed_logprobs(self.start, streams, PROBLEMS, 1.0), None, 1.0, totals)
        return totals.loss


class Clock(TrainerCallback):
    """Times TRL's steps and runs one of ours after each of them."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.trl: list[float] = []
        self.ours: list[float] = []
        self.tokens: list[int] = []
        self.began = 0.0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        """TRL samples, scores and learns between this and `on_step_end`."""
        self.began = time.perf_counter()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Our turn."""
        self.trl.append(time.perf_counter() - self.began)
        seconds, tokens = timed_step(self.learner)
        self.ours.append(seconds)
        self.tokens.append(tokens)


@torch.no_grad()
def scale_language_model(model: Any) -> None:
    """Make a reference differ from the policy; its vision tower stays as it was."""
    for parameter in model.model.language_model.parameters():
        parameter.mul_(2.0)


def make_dataset(problems: Sequence[Problem]) -> Dataset:
    """The problems as TRL reads them."""
    rows = {
        "prompt": [[{"role": "user", "content": p.messages[0]["content"][-1]["text"]}] for p in problems],
        "images": [p.images for p in problems],
    }
    message = {"role": Value("string"), "content": Value("string")}
    return Dataset.from_dict(rows, features=Features({"prompt": List(message), "images": List(Image())}))


def against_trl(
    folder: str, problems: Sequence[Problem], group: int, repeats: int, seed: int
) -> tuple[Clock, CheckedTrainer]:
    """Interleaved steps of both sides; the first `CHECKED_STEPS` are warm-up."""
    with tempfile.TemporaryDirectory() as out:
        method = ChecksumGRPO(GRPOConfig(kl=BETA))
        learner = make_learner(method, folder, problems, group, LEARNING_RATE, seed, f"{out}/ours")
        clock = Clock(learner)
        model = TinyModel.from_pretrained(folder)
        model.model.visual.requires_grad_(False)
        config = TRLConfig(
            output_dir=f"{out}/trl",
            per_device_train_batch_size=PROBLEMS * group,
            gradient_accumulation_steps=1,
            num_generations=group,
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
            max_steps=CHECKED_STEPS + repeats,
            shuffle_dataset=False,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            seed=seed,
        )

        def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
            return [checksum(tokens) for tokens in completion_ids]

        trainer = CheckedTrainer(
            model=model,
            reward_funcs=reward,
            args=config,
            train_dataset=make_dataset(problems),
            processing_class=make_processor(learner.policy.tokenizer),
            callbacks=[clock],
        )
        trainer.compared = []
        trainer.ours = Policy.load(folder, device="cpu")
        trainer.start, trainer.problems, trainer.group = trainer.ours.frozen_copy(), problems, group
        for reference in (trainer.ref_model, trainer.start.model):
            scale_language_model(reference)
        trainer.train()
    for theirs, ours, gradient_gap in trainer.compared:
        if abs(theirs - ours) > 1e-4 or gradient_gap > 1e-3:
            raise SystemExit(f"TRL's loss {theirs}, ours {ours}; gradients differ by {gradient_gap:.2g}")
        if abs(theirs) < 1e-3:
            raise SystemExit(f"a loss of {theirs} shows nothing about the KL term")
    if len(trainer.compared) != CHECKED_STEPS:
        raise SystemExit(f"{len(trainer.compared)} losses were compared instead of {CHECKED_STEPS}")
    return clock, trainer


def adpo_against_grpo(
    folder: str, problems: Sequence[Problem], group: int, repeats: int, seed: int
) -> dict[str, float]:
    """Medians of both methods' seconds per step and of their ratio, each pair on the same samples.

    Who goes first alternates: the second finds warm caches, or the first's garbage.
    """
    methods = {"grpo": ChecksumGRPO(GRPOConfig(kl=BETA)), "adpo": ChecksumADPO(ADPOConfig(kl=BETA))}
    steps: dict[str, list[float]] = {name: [] for name in methods}
    with tempfile.TemporaryDirectory() as out:
        learners = {
            # So small a rate changes no weight in float32: both sample the same tokens for ever.
            name: make_learner(method, folder, problems, group, 1e-30, seed, f"{out}/{name}")
            for name, method in methods.items()
        }
        for run in range(repeats + 1):
            counts = set()
            for name in sorted(learners, reverse=run % 2 == 0):
                seconds, tokens = timed_step(learners[name])
                counts.add(tokens)
                if run:
                    steps[name].append(seconds)
            # Equal counts, so a ratio per step is a ratio per token too.
            if len(counts) != 1:
                raise SystemExit(f"GRPO and ADPO sampled different numbers of tokens: {counts}")
    pairs = [adpo / grpo for adpo, grpo in zip(steps["adpo"], steps["grpo"], strict=True)]
    return {
        "ratio": statistics.median(pairs),
        "grpo_s": statistics.median(steps["grpo"]),
        "adpo_s": statistics.median(steps["adpo"]),
    }


def main() -> None:
    """Measure every setting and print the results."""
    options = parse(arguments(__doc__))
    rows: list[list[Any]] = []
    speedups, ratios, differences, gaps = {}, {}, [], []
    with model_folder(options.seed) as folder:
        policy = Policy.load(folder, device="cpu")
        for prompt in options.prompts:
            problems = make_problems(policy, PROBLEMS * (CHECKED_STEPS + options.repeats), prompt)
            length = sum(len(policy.encoder.prompt(p).ids) for p in problems) / len(problems)
            for group in options.groups:
                name = f"P={length:.0f},R={RESPONSE_TOKENS},G={group}"
                clock, trainer = against_trl(folder, problems, group, options.repeats, options.seed)
                theirs, ours = (statistics.median(t[CHECKED_STEPS:]) for t in (clock.trl, clock.ours))
                speedups[name] = theirs / ours
                differences += [abs(a - b) for a, b, _ in trainer.compared]
                gaps += [gap for *_, gap in trainer.compared]
                rows.append([name, "TRL", theirs, theirs / ours, trainer.tokens])
                rows.append([name, "GRPO", ours, 1.0, clock.tokens[-1]])
                found = adpo_against_grpo(folder, problems, group, options.repeats, options.seed)
                ratios[name] = found["ratio"]
                rows.append([name, "ADPO", found["adpo_s"], found["ratio"], "as GRPO"])
    show(
        f"One training step of {PROBLEMS} problems x G",
        ["setting", "trainer", "seconds", "x our GRPO", "tokens, last step"],
        rows,
    )
    finish(
        {
            "step_speedup_vs_trl": speedups,
            "adpo_over_grpo": ratios,
            "largest_loss_difference": max(differences),
            "largest_gradient_difference": max(gaps),
        },
        options,
    )


if __name__ == "__main__":
    main()
