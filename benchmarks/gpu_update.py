"""Update, reference forward and sampling at the sizes of Qwen2.5-VL-3B and -7B: shared prompts against plain.

One problem with a large image and G responses, bfloat16, random weights made on the device (nothing is
downloaded). Three sides: ours with the prompt shared; ours with prompt + response written out G times,
image features cached; transformers' own forward of the same, its frozen tower run on every copy. A side
that does not fit into memory is tried with fewer rows at once, then with gradient checkpointing, and what
did not fit is printed. The optimiser's step is not part of an update here.

Before anything is timed, the sides' log-probs and gradients are compared on two prompts of different
lengths in one pass and on one prompt alone, in bfloat16: log-probs may differ by 0.25 at most (what `Policy`
allows before it stops sharing) and by 0.03 in the mean, gradients by 10 % of their norm.

    python benchmarks/gpu_update.py [--models 3b 7b] [--prompts 1300 4000]
    python benchmarks/gpu_update.py --tiny            # all but the kernels, on a CPU
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from common import finish, show
from gpu_models import SHAPES, make_policy, make_problem
from torch import Tensor
from transformers import GenerationConfig

from selfverify.core.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.flash import flash_for
from selfverify.policy.policy import Policy

SIDES = ("shared", "plain", "transformers")
MOST, MEAN, GRADIENT = 0.25, 0.03, 0.1
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a side is run: ``rows`` responses at once, activations kept or recomputed."""

    rows: int
    checkpointing: bool = False

    def __str__(self) -> str:
        return f"{self.rows} rows" + (", checkpointing" if self.checkpointing else "")


def attempts(side: str, group: int, learns: bool) -> Iterator[Attempt]:
    """What to try until it fits. Sharing needs the whole group at once."""
    for checkpointing in (False, True) if learns else (False,):
        rows = group
        yield Attempt(rows, checkpointing)
        while side != "shared" and rows > 1:
            rows //= 2
            yield Attempt(rows, checkpointing)


def first_that_fits(
    tried: Iterator[Attempt], run: Callable[[Attempt], Found], clean: Callable[[], None]
) -> tuple[Attempt | None, Found | None, list[str]]:
    """The first attempt that does not run out of memory, its result, and those that did."""
    failed: list[str] = []
    for attempt in tried:
        try:
            return attempt, run(attempt), failed
        except torch.OutOfMemoryError:
            failed.append(str(attempt))
        # Outside the handler, whose exception keeps the frames and their tensors alive.
        clean()
    return None, None, failed


class Bench:
    """One model on one device, and its three sides."""

    def __init__(self, policy: Policy, repeats: int) -> None:
        self.policy, self.repeats = policy, repeats
        self.model, self.device = policy.model, policy.device
        self.decoder = policy.loaded.family.backbone(policy.model)

    def clean(self) -> None:
        """Give back what the last run held."""
        self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @contextmanager
    def as_transformers(self) -> Iterator[None]:
        """The model with transformers' own attention."""
        ours = self.decoder.config._attn_implementation
        self.decoder.config._attn_implementation = "sdpa"
        try:
            yield
        finally:
            self.decoder.config._attn_implementation = ours

    def inputs(self, prompt: Prompt, tokens: Tensor) -> dict[str, Tensor]:
        """transformers' arguments: the prompt with its image before each of ``tokens`` [N, R]."""
        n = len(tokens)
        ids = torch.cat([prompt.ids.to(self.device).expand(n, -1), tokens], dim=1)
        [image] = prompt.images
        made = {
            name: image.tensors[name].to(self.device).repeat(n, 1)
            for name in ("pixel_values", "image_grid_thw")
        }
        made["pixel_values"] = made["pixel_values"].to(self.model.dtype)
        kinds = (ids == self.model.config.image_token_id).int()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds, **made}

    def logprobs(self, side: str, prompts: list[Prompt], tokens: Tensor) -> Tensor:
        """``[B, N, R]`` of ``tokens`` by one of the sides."""
        if side != "transformers":
            self.policy.shares_prefix = side == "shared"
            return self.policy.logprobs(prompts, tokens.tolist())
        found = []
        with self.as_transformers():
            for prompt, rows in zip(prompts, tokens, strict=True):
                keep = rows.shape[1] + 1
                out = self.model(**self.inputs(prompt, rows), logits_to_keep=keep, use_cache=False)
                logits = out.logits[:, :-1].float()
                found.append(logits.gather(-1, rows[..., None]).squeeze(-1) - logits.logsumexp(-1))
        return torch.stack(found)

    def update(
        self, side: str, prompts: list[Prompt], tokens: Tensor, advantage: Tensor, attempt: Attempt
    ) -> None:
        """Forward and backward of the surrogate's gradient on policy: advantage times log-prob."""
        switch = "enable" if attempt.checkpointing else "disable"
        options = {"gradient_checkpointing_kwargs": {"use_reentrant": False}} if attempt.checkpointing else {}
        getattr(self.model, f"gradient_checkpointing_{switch}")(**options)
        self.model.train()
        for rows, weight in zip(tokens.split(attempt.rows, 1), advantage.split(attempt.rows, 1), strict=True):
            loss = -(self.logprobs(side, prompts, rows) * weight).sum() / tokens.numel()
            loss.backward()
        self.model.eval()

    @torch.no_grad()
    def reference(self, side: str, prompts: list[Prompt], tokens: Tensor, attempt: Attempt) -> None:
        """Log-probs without gradients."""
        for rows in tokens.split(attempt.rows, 1):
            self.logprobs(side, prompts, rows)

    @torch.no_grad()
    def sample(self, side: str, prompt: Prompt, group: int, length: int, attempt: Attempt) -> None:
        """``group`` responses of ``length`` tokens."""
        if side == "shared":
            sampling = SamplingConfig(group_size=group, top_p=0.99, max_new_tokens=length)
            [samples] = self.policy.sample([prompt], sampling, seeds=[0])
            assert all(len(sample.tokens) == length for sample in samples)
            return
        config = GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_p=0.99,
            top_k=0,
            max_new_tokens=length,
            eos_token_id=None,
            pad_token_id=self.policy.tokenizer.pad_token_id,
            suppress_tokens=self.policy.suppressed_tokens,
        )
        inputs = self.inputs(prompt, torch.zeros(1, 0, dtype=torch.long, device=self.device))
        with self.as_transformers():
            for _ in range(group // attempt.rows):
                out = self.model.generate(
                    **inputs, generation_config=config, num_return_sequences=attempt.rows
                )
                assert out.shape[1] == inputs["input_ids"].shape[1] + length

    # --- measuring ----------------------------------------------------------------------------------

    def synchronise(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def measure(self, run: Callable[[], None]) -> dict[str, float | None]:
        """Median seconds after a warm-up, and the most memory that was allocated at once (CUDA only)."""
        cuda = self.device.type == "cuda"
        self.clean()
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        run()
        times = []
        for _ in range(self.repeats):
            self.model.zero_grad(set_to_none=True)
            self.synchronise()
            start = time.perf_counter()
            run()
            self.synchronise()
            times.append(time.perf_counter() - start)
        peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
        return {"seconds": statistics.median(times), "peak_gib": peak}

    def compare(self, prompts: list[Prompt], tokens: Tensor, advantage: Tensor) -> dict[str, Any]:
        """Largest and mean difference of log-probs, and of gradients relative to their norm.

        Raises:
            SystemExit: More than `MOST`, `MEAN` or `GRADIENT`.
        """
        values, grads = {}, {}
        for side in SIDES:
            with torch.no_grad():
                values[side] = self.logprobs(side, prompts, tokens).float()
            self.model.zero_grad(set_to_none=True)
            self.update(side, prompts, tokens, advantage, Attempt(tokens.shape[1]))
            # In main memory: at 7B a second set of gradients may not fit beside the model.
            grads[side] = {n: p.grad.cpu() for n, p in self.model.named_parameters() if p.grad is not None}
        self.clean()
        found = {}
        size = norm(grads["plain"].values())
        for side in ("shared", "transformers"):
            if grads[side].keys() != grads["plain"].keys():
                raise SystemExit(
                    f"{side} trains other parameters: {grads[side].keys() ^ grads['plain'].keys()}"
                )
            gap = (values[side] - values["plain"]).abs()
            slope = norm(grads[side][n].float() - g.float() for n, g in grads["plain"].items()) / size
            found[side] = {"most": float(gap.max()), "mean": float(gap.mean()), "gradient": slope}
            if gap.max() > MOST or gap.mean() > MEAN or not slope <= GRADIENT:
                raise SystemExit(f"{side} and plain differ too much: {found[side]}")
        return found


def norm(tensors: Any) -> float:
    """The length of all of them as one vector."""
    return float(sum(float(t.float().norm()) ** 2 for t in tensors) ** 0.5)


def random_tokens(policy: Policy, shape: tuple[int, int, int], seed: int) -> tuple[Tensor, Tensor]:
    """Tokens ``[B, G, R]`` without special ones among them, and advantages ``[B, G, 1]``."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = policy.model.config.get_text_config().vocab_size
    first = 6  # behind the special tokens of the built-in tokenizer
    tokens = torch.randint(first, vocabulary, shape, generator=generator)
    return tokens.to(policy.device), torch.randn(*shape[:2], 1, generator=generator).to(policy.device)


def run_setting(bench: Bench, name: str, wanted: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all phases and sides with one prompt length, and print the table."""
    policy = bench.policy
    group, length = options.group, options.response
    [prompt] = policy.encode([make_problem(policy, wanted)])
    size = len(prompt.ids)
    tokens, advantage = random_tokens(policy, (1, group, length), options.seed)
    figures: dict[str, Any] = {"prompt": size}

    def go(phase: str, side: str, attempt: Attempt) -> None:
        if phase == "update":
            bench.update(side, [prompt], tokens, advantage, attempt)
        elif phase == "reference":
            bench.reference(side, [prompt], tokens, attempt)
        else:
            bench.sample(side, prompt, group, length, attempt)

    rows: list[list[Any]] = []
    for phase in ("update", "reference", "sampling"):
        shared: float | None = None
        for side in SIDES if phase != "sampling" else ("shared", "transformers"):
            attempt, found, failed = first_that_fits(
                attempts(side, group, phase == "update"),
                lambda a, phase=phase, side=side: bench.measure(lambda: go(phase, side, a)),
                bench.clean,
            )
            oom = f"; no memory for {'; '.join(failed)}" if failed else ""
            if attempt is None or found is None:
                rows.append([phase, side, "-", "-", "-", "-", oom.lstrip("; ")])
                figures[f"{phase}/{side}"] = {"oom": failed}
                continue
            seconds, memory = found["seconds"], found["peak_gib"]
            shared = seconds if side == "shared" else shared
            times = seconds / shared if shared else "-"
            speed, how = group * length / seconds, f"{attempt}{oom}"
            rows.append([phase, side, seconds, times, speed, memory or "-", how])
            figures[f"{phase}/{side}"] = {**found, "how": str(attempt), "oom": failed}
    show(
        f"{name}, P={size}, R={length}, G={group}, bfloat16",
        ["phase", "side", "seconds", "x shared", "response tokens/s", "peak GiB", "how"],
        rows,
    )
    return figures


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Measure every setting, print and return the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(SHAPES), default=["3b", "7b"])
    parser.add_argument("--prompts", type=int, nargs="+", default=[1300, 4000], help="prompt tokens")
    parser.add_argument("--response", type=int, default=300, help="tokens of a response")
    parser.add_argument("--group", type=int, default=8, help="G")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs after one warm-up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short texts on the CPU")
    options = parser.parse_args(argv)
    if options.tiny:
        options.models, options.prompts, options.device = ["tiny"], [60], "cpu"
        options.response, options.group, options.repeats = 8, 4, 1
    elif not torch.cuda.is_available():
        parser.error("there is no CUDA device; --tiny runs on a CPU")
    options.threads = torch.get_num_threads()
    results: dict[str, Any] = {}
    for name in options.models:
        policy = make_policy(SHAPES[name], options.device, torch.bfloat16, options.seed)
        bench = Bench(policy, options.repeats)
        width = SHAPES[name].head_width
        kernels = flash_for(torch.empty(0, width, device=options.device, dtype=torch.bfloat16))
        short = min(options.prompts)
        prompts = policy.encode([make_problem(policy, n) for n in (short, short * 2 // 3)])
        tokens, advantage = random_tokens(policy, (2, 2, min(32, options.response)), options.seed)
        results[name] = {
            "parameters": sum(p.numel() for p in policy.model.parameters()),
            "attention": type(kernels).__name__ if kernels else "written out",
            "against_plain": {
                f"B={b}": bench.compare(prompts[:b], tokens[:b], advantage[:b]) for b in (2, 1)
            },
        }
        for wanted in options.prompts:
            figures = run_setting(bench, name, wanted, options)
            results[name][f"P={figures['prompt']}"] = figures
        del bench, policy, kernels
        if options.device != "cpu":
            torch.cuda.empty_cache()
    where = torch.cuda.get_device_name() if options.device != "cpu" else "cpu"
    finish({"device": where, **results}, options)
    return results


if __name__ == "__main__":
    main()
