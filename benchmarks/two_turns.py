"""A two-turn step (AdaPO) against a one-turn step (GRPO) whose turn may take as many tokens.

The built-in digits policy, which ends its answers itself, on 8 `digits-pick` problems; G samples each, at
most 32 tokens a turn (its answers take about 24), T = 1, top-p 0.99, a frozen reference, one update, the
whole batch in one micro-batch. A step is everything from the problems to the optimiser's step: preprocessing,
sampling, reference log-probs, loss, backward, update. Second turns are asked `--words`, whose tokens and the
template's own are part of the two-turn step.

Both sides draw the same problems and seeds, and with a learning rate of nearly 0 the same first turns, in
every step. Answers are right by a checksum of their tokens, so that every group teaches something. Steps come
in pairs, each side first in every other pair; the ratio is the median over pairs.

``--cpu-time`` counts what the process got instead of what the clock says.

    python benchmarks/two_turns.py [--quick] [--repeats 7] [--threads 1] [--cpu-time]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common import PROBLEMS, PreparedTask, arguments, finish, make_problems, parse, show
from our_step import checksum

from selfverify.learner.config import LearnerConfig
from selfverify.learner.loop import Learner
from selfverify.methods.adapo import AdaPO, AdaPOConfig
from selfverify.methods.grpo import GRPO, GRPOConfig
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.single_turn import Rollout

MODEL, TURN_TOKENS = "builtin:digits", 32


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


def step(learner: Learner, clock: Callable[[], float]) -> tuple[dict[str, float], float]:
    """Seconds of a step and of its parts, and tokens that the policy wrote for each response."""
    start = clock()
    metrics, timing = learner.train_step()
    seconds = clock() - start
    learner.step += 1
    parts = {"step": seconds, "rollout": timing["time/rollout_s"], "update": timing["time/update_s"]}
    return parts, metrics["tokens/response"]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print one row per prompt length and G."""
    parser = arguments(__doc__)
    parser.add_argument("--words", default="Check the answer.", help="what the second turn is asked")
    parser.add_argument("--cpu-time", action="store_true", help="time of the process instead of the clock's")
    options = parse(parser, argv)
    clock = time.process_time if options.cpu_time else time.perf_counter
    rows, ratios = [], {}
    for prompt in options.prompts:
        problems = make_problems(Policy.load(MODEL, device="cpu"), PROBLEMS, prompt)
        for group in options.groups:
            methods = {
                "one turn": OneTurn(GRPOConfig(kl=0.001)),
                "two turns": TwoTurns(AdaPOConfig(second_turn=options.words, drop_truncated=False)),
            }
            config = LearnerConfig(
                steps=1000, groups_per_step=PROBLEMS, micro_batch_groups=PROBLEMS, learning_rate=1e-12,
                drop_zero_advantage=False,
            )  # fmt: skip
            sampling = SamplingConfig(group_size=group, top_p=0.99, max_new_tokens=TURN_TOKENS)
            with tempfile.TemporaryDirectory() as out:
                learners = {
                    name: Learner(
                        Policy.load(MODEL, device="cpu"), PreparedTask(problems), method, config, sampling,
                        Path(out) / name, options.seed,
                    )
                    for name, method in methods.items()
                }  # fmt: skip
                pairs = []
                for turn in range(options.repeats + 1):  # the first warms up
                    order = list(learners) if turn % 2 else [*learners][::-1]
                    done = {name: step(learners[name], clock) for name in order}
                    pairs += [done] if turn else []
            label = f"{prompt}/{group}"
            ratios[label] = statistics.median(
                pair["two turns"][0]["step"] / pair["one turn"][0]["step"] for pair in pairs
            )
            for name in learners:
                seconds = [statistics.median(p[name][0][part] for p in pairs) for part in pairs[0][name][0]]
                tokens = statistics.mean(p[name][1] for p in pairs)
                rows.append([label, name, *seconds, tokens, ratios[label] if name == "two turns" else ""])
    show(
        f"One training step of {PROBLEMS} problems x G",
        ["prompt/G", "", "step s", "rollout s", "update s", "tokens a response", "x one turn"],
        rows,
    )
    finish({"two_turns_over_one": ratios}, options)


if __name__ == "__main__":
    main()
