"""ADPO on the digits task in one file: sample, reward, credit, streams, loss, step.

The built-in policy sees handwritten digits, picks those that add up to a number, and says how sure it is.
Answers learn from answer rewards; scores learn to be higher for right answers than for wrong ones to the same
problem. `selfverify train` also has what is left out here: checkpoints, several processes, several updates
per rollout, and skipping problems that cannot be used.

Names of tensors end in their axes: B problems, G samples of each, R tokens of a response, M tokens with
alternatives, K of them each.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from selfverify import Policy, Problem, SamplingConfig, make_task
from selfverify.core.trajectory import valid_trajectories
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.metrics import group_metrics
from selfverify.objectives import choice_probability, choice_surrogate, surrogate
from selfverify.policy.decoding import derived_seed
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import Rollout, rollout
from selfverify.rollouts.score_reading import read_rollout_scores
from selfverify.tasks.base import Task
from selfverify.trainer.batch import TokenStreams, batch_weights, select, stack, stack_choices

FIGURES = {"reward": "reward/answer", "accuracy": "accuracy", "AUC": "verification/soft_auc"}


def roll_out(
    policy: Policy, task: Task, problems: Sequence[Problem], sampling: SamplingConfig, seed: int
) -> Rollout:
    """Hold the task's conversation G times about each problem: here one answer, cut into answer and score."""
    seeds = [derived_seed(seed, place) for place in range(len(problems))]
    rolled = rollout(PolicySampler(policy, sampling), task, problems, seeds, sampling.group_size)
    # How likely every other score would have been: what the expected credit and the soft AUC are made of.
    read_rollout_scores(policy, rolled, sampling.temperature)
    return rolled


def loss_of(
    policy: Policy,
    reference: Policy,
    streams: Sequence[TokenStreams],
    weights: Sequence[Tensor],
    trajectories: int,
) -> Tensor:
    """The share of the batch's loss that these groups have (ADPO Eq. 9)."""
    device = policy.device
    prompts, tokens = [group.prompt for group in streams], [group.tokens for group in streams]
    trained_bgr = stack([group.trained_gr for group in streams], device)
    places_m3, weight_m, choices = stack_choices(streams)
    logprobs_bgr, alternatives_mk = policy.logprobs_and_choices(
        prompts, tokens, places_m3, choices.tokens, needed=trained_bgr
    )
    with torch.no_grad():
        reference_bgr = reference.logprobs(prompts, tokens, needed=trained_bgr)
    terms = surrogate(
        logprobs_bgr,
        logprobs_bgr.detach(),
        stack([group.advantage_gr for group in streams], device),
        ref_logprobs=reference_bgr,
        kl_coef=stack([group.kl_coef_gr for group in streams], device),
    )
    loss = (terms.loss * stack(weights, device)).sum()
    if len(places_m3):
        # A score's tokens learn from all scores that could have stood there.
        old_mk = choice_probability(alternatives_mk.detach(), choices.probability.to(device) > 0)
        loss_m = choice_surrogate(alternatives_mk, old_mk, choices.advantage.to(device)).loss
        loss = loss + (loss_m * weight_m.to(device)).sum() / trajectories
    return loss


def measure(policy: Policy, task: Task, count: int, sampling: SamplingConfig) -> dict[str, float]:
    """Reward, accuracy and within-problem AUC on ``count`` held-out problems."""
    problems = [task.problem("test", seed=0, index=index) for index in range(count)]
    return figures_of(roll_out(policy, task, problems, sampling, seed=1000))


def figures_of(rollout: Rollout) -> dict[str, float]:
    """Reward, accuracy and AUC; NaN where no problem has right and wrong answers to compare."""
    found = group_metrics(rollout.groups)
    return {label: found.get(name, float("nan")) for label, name in FIGURES.items()}


def show(what: str, figures: dict[str, float]) -> None:
    """Print a line of figures."""
    print(f"{what:>10}", *(f"{name} {value:.3f}" for name, value in figures.items()), sep="   ", flush=True)


def main(arguments: Sequence[str] | None = None) -> Policy:
    """Train, and return the policy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="updates (default: %(default)s)")
    parser.add_argument("--problems", type=int, default=24, help="problems in a step (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=8, help="samples of each (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=8, help="problems in a pass (default: %(default)s)")
    parser.add_argument("--held-out", type=int, default=128, help="problems measured (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=2e-4, help="learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides problems and samples")
    args = parser.parse_args(arguments)

    policy, task = Policy.load("builtin:digits"), make_task("digits-pick")
    reference = policy.frozen_copy()
    method = ADPO(ADPOConfig(kl=0.2, score_kl=0.02, verification_credit="expected", score_weight=4))
    sampling = SamplingConfig(group_size=args.samples, top_p=0.99, max_new_tokens=32)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.rate, betas=(0.9, 0.99), weight_decay=0.0)

    show("before", measure(policy, task, args.held_out, sampling))
    for step in range(args.steps):
        began = time.perf_counter()
        first = step * args.problems
        problems = [task.problem("train", args.seed, first + place) for place in range(args.problems)]
        rollout = roll_out(policy, task, problems, sampling, derived_seed(args.seed, step))

        valid = [valid_trajectories(group, drop_truncated=False) for group in rollout.groups]
        credits = [method.credit(*each) for each in zip(rollout.groups, valid, strict=True)]
        streams, _ = select(rollout, credits, drop_zero=True)  # what teaches nothing is left out

        if streams:
            weights = batch_weights(streams, "channel")
            trajectories = sum(group.trajectories for group in streams)
            for start in range(0, len(streams), args.at_once):
                part = slice(start, start + args.at_once)
                loss = loss_of(policy, reference, streams[part], weights[part], trajectories)
                loss.backward()  # passes add up: the weights' denominators are those of the whole batch
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        show(f"step {step + 1}", figures_of(rollout) | {"seconds": time.perf_counter() - began})
    show("after", measure(policy, task, args.held_out, sampling))
    return policy


if __name__ == "__main__":
    main()
