"""One update from a group of ragged responses: its rows in slices, against all padded to the longest.

A group of G = 8 responses of 400 to 3,000 tokens, evenly spread, behind prompts of 106 and 1,080 tokens, with
the tiny Qwen2.5-VL. One update is a forward and a backward pass by the learner's own code. `padded` is
`learner.batch.micro_batch_tokens: null`, `sliced` is the default of that setting (or `--budget`).

Time is the process's CPU time, in pairs whose order turns; ratios are medians over pairs. Peak memory is
measured in a fresh process for each side, as in `policy_update.py`. The program fails if the gradients
differ. The last line is a JSON object: `ragged_speedup` (padded / sliced) and `ragged_memory` (sliced /
padded) of the short prompt, and `ragged_speedup_long`, `ragged_memory_long` of the long one.

    python benchmarks/ragged_update.py [--repeats 1] [--threads 1] [--budget 4096]
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from common import arguments, finish, make_problems, model_folder, parse, show
from many_turns import measure
from policy_update import peak_bytes, peak_in_fresh_process

from selfverify.core.trainer_config import TrainerConfig
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import TokenStreams
from selfverify.trainer.loss import LossComputer, UpdateMetrics

ROWS, SHORTEST, LONGEST = 8, 400, 3000
PROMPTS = {"": 106, "_long": 1080}
"""Tokens of the prompts, by the ending of their results' names."""
SIDES = ("padded", "sliced")


class Ragged:
    """The group and the two ways to learn from it.

    Args:
        folder: The model.
        prompt: Tokens of the prompt.
        budget: `learner.batch.micro_batch_tokens` of the sliced side; None takes the default.
    """

    def __init__(self, folder: str, prompt: int, budget: int | None) -> None:
        self.policy = policy = Policy.load(folder, device="cpu")
        policy.model.train()
        [encoded] = policy.encode(make_problems(policy, 1, prompt))
        self.prompt_tokens = len(encoded.ids)
        lengths = torch.linspace(SHORTEST, LONGEST, ROWS).long()
        noise = torch.Generator().manual_seed(0)
        vocabulary = len(policy.tokenizer) - 6
        tokens = [torch.randint(6, vocabulary, (int(r),), generator=noise).tolist() for r in lengths]
        channel = torch.where(torch.arange(int(lengths.max())) < lengths[:, None], 0, -1)
        advantage = torch.randn(ROWS, 1, generator=noise).expand(channel.shape)
        ones = torch.ones(channel.shape)
        self.group = TokenStreams(encoded, tokens, channel, advantage, 0 * ones, ones)
        budgets = {"padded": None, "sliced": budget or TrainerConfig(steps=1).batch.micro_batch_tokens}
        alone: Any = SimpleNamespace(
            policy=policy,
            reference=None,
            accelerator=SimpleNamespace(autocast=nullcontext),
            one_pass=lambda last: nullcontext(),
            backward=lambda loss: loss.backward(),
        )
        self.updaters = {
            side: LossComputer(
                alone, TrainerConfig(steps=1, batch={"micro_batch_tokens": tokens}), "surrogate"
            )
            for side, tokens in budgets.items()
        }
        with torch.no_grad():  # a model's first use checks itself
            policy.logprobs([encoded], [[row[:8] for row in tokens[:2]]])

    def run(self, side: str) -> None:
        """Leave the gradient of one update on the policy."""
        self.policy.model.zero_grad()
        updater = self.updaters[side]
        updater.gradient([self.group], updater.passes([self.group]), UpdateMetrics())

    def check(self) -> None:
        """Fail unless both sides give the same gradient, to 0.01 % of its norm."""
        found = []
        for side in SIDES:
            self.run(side)
            grads = [p.grad.flatten() for p in self.policy.model.parameters() if p.grad is not None]
            found.append(torch.cat(grads))
        gap = float((found[0] - found[1]).norm() / found[0].norm())
        if gap > 1e-4:
            raise SystemExit(f"the gradients differ by {gap:.2g} of their norm")


def measured(folder: str, options: Namespace) -> tuple[dict[str, float], list[list[Any]]]:
    """Both prompts' results by name, and a row of a table for each side of them.

    ``options`` are those of `main`: ``repeats``, ``threads`` and ``budget``.
    """
    results: dict[str, float] = {}
    rows: list[list[Any]] = []
    for ending, prompt in PROMPTS.items():
        made = Ragged(folder, prompt, options.budget)
        made.check()
        pairs = measure({s: partial(made.run, s) for s in SIDES}, options.repeats)
        same = ["--folder", folder, "--prompts", str(prompt), "--threads", str(options.threads)]
        same += [] if options.budget is None else ["--budget", str(options.budget)]
        peaks = {s: peak_in_fresh_process([__file__, "--memory-of", s, *same]) or 0 for s in SIDES}
        results[f"ragged_speedup{ending}"] = statistics.median(p["padded"] / p["sliced"] for p in pairs)
        results[f"ragged_memory{ending}"] = peaks["sliced"] / (peaks["padded"] or 1)
        for side in SIDES:
            passes = len(made.updaters[side].passes([made.group]))
            seconds = statistics.median(pair[side] for pair in pairs)
            rows.append([made.prompt_tokens, side, passes, seconds, peaks[side] / 2**20])
    return results, rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure both prompts and print the results."""
    parser = arguments(__doc__)
    parser.add_argument("--budget", type=int, help="tokens of a pass; left out: the setting's default")
    parser.add_argument("--memory-of", choices=SIDES, help="only this side's peak memory, in this process")
    parser.add_argument("--folder", help="the model, for --memory-of")
    parser.set_defaults(repeats=1)
    options = parse(parser, argv)
    if options.memory_of:
        made = Ragged(options.folder, options.prompts[0], options.budget)
        print(json.dumps({"peak_bytes": peak_bytes(lambda: made.run(options.memory_of))}))
        return
    with model_folder(options.seed) as folder:
        results, rows = measured(folder, options)
    title = f"One update from {ROWS} responses of {SHORTEST} to {LONGEST} tokens; CPU seconds"
    show(title, ["prompt", "", "passes", "seconds", "peak MiB"], rows)
    finish(results, options)


if __name__ == "__main__":
    main()
