"""Sampling G responses: prompt and image once per problem, against transformers' generate() on copies.

Both sides sample 24 tokens per response with T = 1, top-p 0.99 and no top-k; neither may stop earlier
(no end token), and neither may write an image token. generate() gets each prompt G times with its
pixel values, as a trainer gives it; in `generate, G returned` it gets each prompt once with
num_return_sequences=G and makes the copies itself.

    python benchmarks/sampling.py [--groups 4 8 16] [--prompts 110 400]
"""

from __future__ import annotations

from typing import Any

import torch
from common import (
    PROBLEMS,
    RESPONSE_TOKENS,
    arguments,
    finish,
    forget_images,
    interleaved,
    make_problems,
    model_folder,
    parse,
    show,
)
from processor import replicated
from transformers import GenerationConfig
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel

from selfverify.core.config import SamplingConfig
from selfverify.policy.policy import Policy


class Endless(Policy):
    """A policy that never stops, so that every response has the same length."""

    @property
    def stop_tokens(self) -> set[int]:
        """None."""
        return set()


class Comparison:
    """The same prompts for both sides."""

    def __init__(self, folder: str, prompt_tokens: int, group_size: int) -> None:
        self.policy = Endless.load(folder, device="cpu")
        self.raw = TinyModel.from_pretrained(folder).eval()
        self.problems = make_problems(self.policy, PROBLEMS, prompt_tokens)
        self.group_size = group_size
        self.sampling = SamplingConfig(group_size=group_size, top_p=0.99, max_new_tokens=RESPONSE_TOKENS)
        self.config = GenerationConfig(
            do_sample=True,
            top_p=0.99,
            top_k=0,
            max_new_tokens=RESPONSE_TOKENS,
            eos_token_id=None,
            pad_token_id=self.policy.tokenizer.pad_token_id,
            suppress_tokens=self.policy.suppressed_tokens,
        )
        self.raw.generation_config.eos_token_id = None
        self.prompt_tokens = sum(len(p.ids) for p in self.policy.encode(self.problems)) / PROBLEMS
        self.seed = 0

    def ours(self) -> list[list[int]]:
        """Encode and sample; nothing is kept of the images, as for problems not seen before."""
        forget_images(self.policy)
        self.seed += 1
        prompts = self.policy.encode(self.problems)
        seeds = [self.seed * 1000 + n for n in range(PROBLEMS)]
        return [s.tokens for g in self.policy.sample(prompts, self.sampling, seeds=seeds) for s in g]

    def copies(self) -> list[list[int]]:
        """generate() on every prompt G times."""
        return self._generate(replicated(self.policy, self.problems, self.group_size), self.config)

    def returned(self) -> list[list[int]]:
        """generate() on every prompt once, G sequences returned."""
        inputs = replicated(self.policy, self.problems, 1)
        return self._generate(inputs, self.config, num_return_sequences=self.group_size)

    @torch.no_grad()
    def _generate(self, inputs: dict[str, Any], config: GenerationConfig, **more: Any) -> list[list[int]]:
        out = self.raw.generate(**inputs, generation_config=config, **more)
        return out[:, inputs["input_ids"].shape[1] :].tolist()


def main() -> None:
    """Measure every setting and print the results."""
    options = parse(arguments(__doc__))
    rows: list[list[Any]] = []
    speedups: dict[str, dict[str, float]] = {}
    with model_folder(options.seed) as folder:
        for prompt in options.prompts:
            for group in options.groups:
                made = Comparison(folder, prompt, group)
                sides = {
                    "ours": made.ours,
                    "generate, copies": made.copies,
                    "generate, G returned": made.returned,
                }
                for name, side in sides.items():
                    found = side()
                    lengths = {len(tokens) for tokens in found}
                    if lengths != {RESPONSE_TOKENS} or len(found) != PROBLEMS * group:
                        raise SystemExit(f"{name} wrote {len(found)} responses of {lengths} tokens")
                times = interleaved(sides, options.repeats)
                setting = f"P={made.prompt_tokens:.0f},R={RESPONSE_TOKENS},G={group}"
                speedups[setting] = {s: times[s] / times["ours"] for s in list(sides)[1:]}
                written = PROBLEMS * group * RESPONSE_TOKENS
                rows += [[setting, s, times[s], times[s] / times["ours"], written / times[s]] for s in sides]
    columns = ["setting", "way", "seconds", "x ours", "tokens/s"]
    show(f"Sampling for {PROBLEMS} problems x G", columns, rows)
    ways = {
        "sampling_speedup": "generate, copies",
        "sampling_speedup_vs_num_return_sequences": "generate, G returned",
    }
    finish({name: {s: v[way] for s, v in speedups.items()} for name, way in ways.items()}, options)


if __name__ == "__main__":
    main()
