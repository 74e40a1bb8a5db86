"""A two-turn step (AdaPO) against a one-turn step (GRPO) whose turn may take as many tokens.

Same tiny Qwen2.5-VL with a frozen vision tower, same `digits-pick` problems, 8 x G responses, T = 1, top-p
0.99, a frozen reference, one update, the whole batch in one micro-batch. A step is everything from the
problems to the optimiser's step: preprocessing, sampling, reference log-probs, loss, backward, update.

Every turn is made to end with its 24th token, on both sides: random weights would end none, and a first turn
that is cut off has no second. Second turns are asked ``--words``; these and the template's own tokens
(printed as ``between``) are part of the two-turn step. Answers are right by a checksum of their tokens. Both
sides draw the same problems and seeds, and with a learning rate of nearly 0 the same first turns. Steps come
in pairs, each side first in every other pair; the ratio is the median over pairs. ``bound`` is the ratio of
the tokens that pass through the model in an update, (P + G (2 R + between)) / (P + G R).

``--images`` takes 2 problems whose image alone takes 1,024 tokens. ``--cpu-time`` counts what the process got
instead of what the clock says.

    python benchmarks/two_turns.py [--quick] [--images] [--repeats 7] [--threads 1] [--cpu-time]
        [--record FILE]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import (
    IMAGE_PROBLEMS,
    PROBLEMS,
    RESPONSE_TOKENS,
    PreparedTask,
    arguments,
    finish,
    make_image_problems,
    make_problems,
    model_folder,
    parse,
    show,
)
from our_step import checksum
from torch import Tensor

import selfverify.policy.policy as policy_module
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.methods.adapo import AdaPO, AdaPOConfig
from selfverify.methods.base import Training
from selfverify.methods.grpo import GRPO, GRPOConfig
from selfverify.policy.decoding import TokenSampler
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.trainer import Trainer


class Timed(TokenSampler):
    """Ends every turn with its last token, and none before."""

    said = 0
    """How many tokens have been chosen so far; a step chooses for all responses together."""

    def choose(self, hidden: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """See `TokenSampler.choose`."""
        tokens, logprobs = TokenSampler.choose(self, hidden, uniform)
        self.said += 1
        end, other = self.stop[0], self.stop[0] - 1
        early = tokens.where(~torch.isin(tokens, self.stop), other)
        is_last = self.said % self.sampling.max_new_tokens == 0
        return (torch.full_like(tokens, int(end)) if is_last else early), logprobs


def graded(rollout: Rollout) -> Rollout:
    """Checksums instead of the task's verdicts."""
    for group in rollout.groups:
        for trajectory in group.trajectories:
            first, last = trajectory.segments[0], trajectory.segments[-1]
            reward = checksum(trajectory.tokens)
            trajectory.rewards |= {
                "answer": reward,
                "correct": float(checksum(last.tokens) > 0.5),
                "correct_1": float(checksum(first.tokens) > 0.5),
            }
    return rollout


class OneTurn(GRPO):
    """GRPO on checksums."""

    def rollout(self, *args: Any) -> Rollout:
        """See `Method.rollout`."""
        return graded(super().rollout(*args))


class TwoTurns(AdaPO):
    """AdaPO on checksums."""

    def rollout(self, *args: Any) -> Rollout:
        """See `Method.rollout`."""
        return graded(super().rollout(*args))


def step(learner: Trainer, clock: Callable[[], float]) -> tuple[dict[str, float], float]:
    """Seconds of a step and of its parts, and tokens that the policy wrote for each response."""
    start = clock()
    metrics, timing = learner.train_step()
    seconds = clock() - start
    learner.step += 1
    parts = {"step": seconds, "rollout": timing["time/rollout_s"], "update": timing["time/update_s"]}
    return parts, metrics["tokens/response"]


def compare(
    folder: str, problems: Sequence[Problem], group: int, options: Any
) -> tuple[dict[str, list[float]], float]:
    """Median seconds of a step, its rollout and its update for each side, and the median ratio over pairs."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    methods = {
        "one turn": OneTurn(GRPOConfig(kl=0.001)),
        "two turns": TwoTurns(AdaPOConfig(second_turn=options.words)),
    }
    config = TrainerConfig(
        steps=1000, groups_per_step=len(problems), micro_batch_groups=len(problems), learning_rate=1e-12,
        drop_zero_advantage=False,
    )  # fmt: skip
    sampling = SamplingConfig(group_size=group, top_p=0.99, max_new_tokens=RESPONSE_TOKENS)
    with tempfile.TemporaryDirectory() as out:
        learners = {
            name: Trainer(
                Training(
                    Policy.load(folder, device="cpu"), PreparedTask(problems), method, config, sampling,
                    Path(out) / name, options.seed,
                )
            )
            for name, method in methods.items()
        }  # fmt: skip
        pairs = []
        for turn in range(options.repeats + 1):  # the first warms up
            order = list(learners) if turn % 2 else [*learners][::-1]
            done = {name: step(learners[name], clock) for name in order}
            for name, (_, written) in done.items():
                if written != RESPONSE_TOKENS * (1 + (name == "two turns")):
                    raise SystemExit(f"{name}: {written} tokens a response")
            pairs += [{name: parts for name, (parts, _) in done.items()}] if turn else []
    seconds = {
        name: [statistics.median(pair[name][part] for pair in pairs) for part in pairs[0][name]]
        for name in methods
    }
    return seconds, statistics.median(p["two turns"]["step"] / p["one turn"]["step"] for p in pairs)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print two rows per setting."""
    parser = arguments(__doc__)
    parser.add_argument("--words", default="Check the answer.", help="what the second turn is asked")
    parser.add_argument("--images", action="store_true", help="2 problems with an image of 1,024 tokens")
    parser.add_argument("--cpu-time", action="store_true", help="time of the process instead of the clock's")
    options = parse(parser, argv)
    policy_module.TokenSampler = Timed  # type: ignore[misc]
    rows: list[list[Any]] = []
    ratios = {}
    with model_folder(options.seed) as folder:
        policy = Policy.load(folder, device="cpu")
        for prompt in [None] if options.images else options.prompts:
            problems = (
                make_image_problems(policy, IMAGE_PROBLEMS)
                if prompt is None
                else make_problems(policy, PROBLEMS, prompt)
            )
            length = statistics.mean(len(policy.encoder.prompt(problem).ids) for problem in problems)
            request = ReplyEncoder(policy.encoder).encode(problems[0], Observation(options.words), 1)
            between = len(request.tokens) - 1  # the first one ends the turn, which the policy writes itself
            for group in options.groups:
                seconds, ratio = compare(folder, problems, group, options)
                once = length + group * RESPONSE_TOKENS
                bound = (length + group * (2 * RESPONSE_TOKENS + between)) / once
                label = f"P = {length:.0f}, G = {group}"
                ratios[label] = ratio
                rows.append([label, "one turn", *seconds["one turn"], "", ""])
                rows.append([label, "two turns", *seconds["two turns"], ratio, bound])
    show(
        f"One training step, R = {RESPONSE_TOKENS} tokens a turn, between = {between}",
        ["setting", "", "step s", "rollout s", "update s", "x one turn", "bound"],
        rows,
    )
    finish({"two_turns_over_one": ratios}, options)


if __name__ == "__main__":
    main()
