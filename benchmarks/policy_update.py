"""Forward and backward of the policy loss: prompts shared by their G responses against written out.

Three ways to the same gradient, on the same 8 problems x G responses of 24 tokens:

- shared: ours. Each prompt is forwarded once; the frozen vision tower's features come from the cache.
- plain: transformers' model on prompt + response written out G times. The frozen vision tower runs
  on every copy of the image, as in a trainer that does not share; the head runs on the response only
  (TRL's logits_to_keep).
- plain, cached: the same without sharing, but with our feature cache.

The program fails if their losses or gradients differ. Peak memory is measured in a fresh process for
each way: the resident set's high-water mark during one forward and backward minus the resident set
before it (Linux only: /proc/self/clear_refs resets the mark).

    python benchmarks/policy_update.py [--groups 4 8 16] [--prompts 110 400]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import (
    PROBLEMS,
    RESPONSE_TOKENS,
    arguments,
    finish,
    interleaved,
    make_problems,
    model_folder,
    parse,
    show,
)
from processor import replicated
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel

from selfverify.objectives import surrogate, token_weights
from selfverify.policy.policy import Policy

SIDES = ("shared", "plain", "plain, cached")


def loss_of(logprobs: torch.Tensor, advantage: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """GRPO's loss of ``[N, R]`` log-probs, with KL, the same for every side."""
    channel = torch.zeros_like(logprobs, dtype=torch.long)
    weights = token_weights(channel, torch.ones(logprobs.shape))
    terms = surrogate(logprobs, logprobs.detach(), advantage, ref_logprobs=reference, kl_coef=0.01)
    return (weights * terms.loss).sum()


class Comparison:
    """One model, one batch, three ways to its gradient."""

    def __init__(self, folder: str, prompt_tokens: int, group_size: int, seed: int) -> None:
        self.policy = Policy.load(folder, device="cpu")
        self.raw = TinyModel.from_pretrained(folder)
        self.raw.model.visual.requires_grad_(False)
        problems = make_problems(self.policy, PROBLEMS, prompt_tokens)
        self.prompts = self.policy.encode(problems)
        generator = torch.Generator().manual_seed(seed)
        vocabulary = len(self.policy.tokenizer) - 6
        shape = (PROBLEMS, group_size, RESPONSE_TOKENS)
        self.tokens = torch.randint(6, vocabulary, shape, generator=generator)
        self.lists = self.tokens.tolist()
        flat = (PROBLEMS * group_size, RESPONSE_TOKENS)
        self.advantage = torch.randn(flat[0], 1, generator=generator)
        self.reference = -5.9 + 0.1 * torch.randn(flat, generator=generator)
        self.replicated = self._replicate(problems, group_size)
        self.prompt_tokens = sum(len(p.ids) for p in self.prompts) / PROBLEMS
        for model in (self.policy.model, self.raw):
            model.train()

    def _replicate(self, problems: list[Any], group_size: int) -> dict[str, torch.Tensor]:
        inputs = replicated(self.policy, problems, group_size)
        responses = self.tokens.flatten(0, 1)
        inputs["input_ids"] = torch.cat([inputs["input_ids"], responses], dim=1)
        for name, value in (("attention_mask", 1), ("mm_token_type_ids", 0)):
            inputs[name] = torch.cat([inputs[name], torch.full_like(responses, value)], dim=1)
        return inputs

    def logprobs(self, side: str) -> torch.Tensor:
        """``[N, R]`` by one of the ways."""
        if side != "plain":
            self.policy.shares_prefix = side == "shared"
            return self.policy.logprobs(self.prompts, self.lists).flatten(0, 1)
        out = self.raw(**self.replicated, logits_to_keep=RESPONSE_TOKENS + 1, use_cache=False)
        logits = out.logits[:, :-1]
        targets = self.tokens.flatten(0, 1)
        return logits.gather(-1, targets[..., None]).squeeze(-1) - logits.logsumexp(-1)

    def run(self, side: str) -> float:
        """One forward and backward."""
        model = self.raw if side == "plain" else self.policy.model
        model.zero_grad()
        loss = loss_of(self.logprobs(side), self.advantage, self.reference)
        loss.backward()
        return float(loss.detach())

    def check(self) -> None:
        """Fail unless all ways give the same loss, to 1e-5, and gradient, to 0.01 % of its norm."""
        found = {}
        for side in SIDES:
            loss = self.run(side)
            model = self.raw if side == "plain" else self.policy.model
            grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            found[side] = loss, grads
        loss, grads = found["plain"]
        size = torch.stack([g.norm() for g in grads.values()]).norm()
        for side in SIDES:
            ours, mine = found[side]
            if mine.keys() != grads.keys():
                raise SystemExit(f"{side}: other parameters are trained: {mine.keys() ^ grads.keys()}")
            gap = torch.stack([(mine[n] - g).norm() for n, g in grads.items()]).norm() / size
            if abs(ours - loss) > 1e-5 or gap > 1e-4:
                raise SystemExit(f"{side}: loss {ours}, plain {loss}; gradients differ by {float(gap):.2g}")


def resident(field: str) -> int:
    """Bytes of one field of /proc/self/status."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def peak_bytes(run: Callable[[], Any]) -> int:
    """How far the resident set rises during ``run``."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    run()
    return resident("VmHWM") - before


def peak_in_fresh_process(command: Sequence[str]) -> int | None:
    """The peak that a program measures of itself with ``--memory-of``; None where /proc does not offer it."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    # Freed blocks go back to the system at once, so that the resident set follows what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    out = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)
    if out.returncode:
        raise SystemExit(out.stderr)
    return int(json.loads(out.stdout.splitlines()[-1])["peak_bytes"])


def main() -> None:
    """Measure every setting and print the results."""
    parser = arguments(__doc__)
    parser.add_argument("--memory-of", choices=SIDES, help="only this side's peak memory, in this process")
    parser.add_argument("--folder", help="the model, for --memory-of")
    options = parse(parser)
    if options.memory_of:
        made = Comparison(options.folder, options.prompts[0], options.groups[0], options.seed)
        print(json.dumps({"peak_bytes": peak_bytes(lambda: made.run(options.memory_of))}))
        return
    rows, speedups, memory = [], {}, {}
    with model_folder(options.seed) as folder:
        for prompt in options.prompts:
            for group in options.groups:
                made = Comparison(folder, prompt, group, options.seed)
                made.check()
                times = interleaved({s: partial(made.run, s) for s in SIDES}, options.repeats)
                same = ["--folder", folder, "--prompts", str(prompt), "--groups", str(group)]
                same += ["--seed", str(options.seed), "--threads", str(options.threads)]
                peaks = {s: peak_in_fresh_process([__file__, "--memory-of", s, *same]) for s in SIDES}
                name = f"P={made.prompt_tokens:.0f},R={RESPONSE_TOKENS},G={group}"
                speedups[name] = {s: times[s] / times["shared"] for s in SIDES[1:]}
                memory[name] = {s: peaks["shared"] / peaks[s] if peaks[s] else None for s in SIDES[1:]}
                for s in SIDES:
                    peak = peaks[s] / 2**20 if peaks[s] else "-"
                    rows.append([name, s, times[s], times[s] / times["shared"], peak])
    columns = ["setting", "way", "seconds", "x shared", "peak MiB"]
    show(f"Forward and backward of {PROBLEMS} problems x G", columns, rows)
    finish({"update_speedup": speedups, "memory_ratio": memory}, options)


if __name__ == "__main__":
    main()
