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

``--family`` takes another family's tiny model, ``--images`` 2 problems whose image alone takes 1,024 tokens.
``--cpu-time`` counts what the processes got instead of what the clock says: with one thread, and other work
on the machine, that is the fairer figure.

    python benchmarks/train_step.py [--groups 4 8 16] [--prompts 110 400] [--images] [--family qwen3_vl]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from common import (
    IMAGE_PROBLEMS,
    PROBLEMS,
    RESPONSE_TOKENS,
    arguments,
    finish,
    make_image_problems,
    make_problems,
    model_folder,
    parse,
    show,
)
from families import KINDS, write_family
from processor import make_processor
from trl_step import (
    BETA,
    CHECKED_STEPS,
    ChecksumADPO,
    ChecksumGRPO,
    Setting,
    against_trl,
    make_learner,
    timed_step,
)

from selfverify.methods.adpo import ADPOConfig
from selfverify.methods.base import PolicyGradientConfig
from selfverify.policy.policy import Policy

FAMILIES = ("qwen2_5_vl", *sorted(KINDS))
LARGE_IMAGES = ("qwen2_5_vl", "qwen2_vl", "qwen3_vl")
"""Families whose tiny processors have no fixed image size."""


def adpo_against_grpo(setting: Setting) -> dict[str, float]:
    """Medians of both methods' seconds per step and of their ratio, each pair on the same samples.

    Who goes first alternates: the second finds warm caches, or the first's garbage.
    """
    methods = {"grpo": ChecksumGRPO(PolicyGradientConfig(kl=BETA)), "adpo": ChecksumADPO(ADPOConfig(kl=BETA))}
    steps: dict[str, list[float]] = {name: [] for name in methods}
    with tempfile.TemporaryDirectory() as out:
        learners = {
            # So small a rate changes no weight in float32: both sample the same tokens for ever.
            name: make_learner(setting, method, 1e-30, f"{out}/{name}")
            for name, method in methods.items()
        }
        for run in range(setting.repeats + 1):
            counts = set()
            for name in sorted(learners, reverse=run % 2 == 0):
                seconds, tokens = timed_step(learners[name], setting.clock)
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


@contextmanager
def family_folder(kind: str, seed: int) -> Any:
    """A folder with a tiny random model of one family."""
    if kind == "qwen2_5_vl":
        with model_folder(seed) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(write_family(kind, Path(folder)))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every setting and print the results."""
    parser = arguments(__doc__)
    parser.add_argument("--images", action="store_true", help="2 problems, images of 1,024 tokens")
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl", help="whose tiny model")
    parser.add_argument("--no-adpo", action="store_true", help="leave out ADPO against GRPO")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU seconds, not the clock's")
    options = parse(parser, argv)
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.images and options.family not in LARGE_IMAGES:
        parser.error(f"--images: only with {', '.join(LARGE_IMAGES)}; the others' tiles are few and small")
    per_step = IMAGE_PROBLEMS if options.images else PROBLEMS
    count = per_step * (CHECKED_STEPS + options.repeats)
    rows: list[list[Any]] = []
    speedups, ratios, differences, gaps = {}, {}, [], []
    with family_folder(options.family, options.seed) as folder:
        policy = Policy.load(folder, device="cpu")
        processor = partial(make_processor, kind=options.family, config=policy.model.config)
        for prompt in [None] if options.images else options.prompts:
            problems = (
                make_image_problems(policy, count) if prompt is None else make_problems(policy, count, prompt)
            )
            length = sum(len(policy.encoder.prompt(p).ids) for p in problems) / len(problems)
            for group in options.groups:
                name = f"P={length:.0f},R={RESPONSE_TOKENS},G={group}"
                setting = Setting(
                    folder, problems, per_step, group, options.repeats, options.seed, processor, clock
                )
                times, trainer = against_trl(setting)
                theirs, ours = (statistics.median(t[CHECKED_STEPS:]) for t in (times.trl, times.ours))
                speedups[name] = theirs / ours
                differences += [abs(a - b) for a, b, _ in trainer.compared]
                gaps += [gap for *_, gap in trainer.compared]
                rows.append([name, "TRL", theirs, theirs / ours, trainer.tokens])
                rows.append([name, "GRPO", ours, 1.0, times.tokens[-1]])
                if options.no_adpo:
                    continue
                found = adpo_against_grpo(setting)
                ratios[name] = found["ratio"]
                rows.append([name, "ADPO", found["adpo_s"], found["ratio"], "as GRPO"])
    columns = ["setting", "trainer", "seconds", "x our GRPO", "tokens, last step"]
    show(f"One training step of {per_step} problems x G, {options.family}", columns, rows)
    finish(
        {
            "family": options.family,
            "step_speedup_vs_trl": speedups,
            "adpo_over_grpo": ratios,
            "largest_loss_difference": max(differences),
            "largest_gradient_difference": max(gaps),
        },
        options,
    )


if __name__ == "__main__":
    main()
