"""Qwen2.5-VL's vision tower: windows of one size as one batch, against transformers' call for each window.

A tower of the published layout (32 layers, of which 4 see the whole image, windows of 8 x 8 patches), made
narrower so that a CPU can run it: it has 4 heads of 80, or 1, instead of 16. Images of about 1,024 tokens:
one whose windows have one size, one with four sizes of windows, and four small images together. Both sides
have the same weights, and the program fails if their features differ. Time is the process's CPU time, medians
over rounds of both sides, each first in every other one; "calls" are calls of
`scaled_dot_product_attention`. ``--learn`` adds the backward pass.

The last line is a JSON object: `faster` and `calls` (ours, transformers') by setting.

    python benchmarks/vision_windows.py [--quick] [--learn] [--repeats 7] [--threads 1] [--record FILE]
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from common import arguments, finish, parse, show
from many_turns import measure
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from selfverify.policy.families import ImageInput, Qwen25VL

SIZES = {
    "32 x 32 tokens": [(64, 64)],
    "31 x 33 tokens": [(62, 66)],
    "4 images of 16 x 16": [(32, 32)] * 4,
}
"""Rows and columns of patches of each image; a token is 2 x 2 of them."""


def make_model(heads: int, layers: int) -> Any:
    """A model with random weights whose decoder is next to nothing."""
    vision = {
        "depth": layers,
        "hidden_size": 80 * heads,
        "num_heads": heads,
        "intermediate_size": 200 * heads,
    }
    vision |= {"out_hidden_size": 64, "fullatt_block_indexes": [i for i in range(layers) if i % 8 == 7]}
    text = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 1, "num_key_value_heads": 1, "max_position_embeddings": 64}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]}}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision)
    config._attn_implementation = "sdpa"
    return Qwen2_5_VLForConditionalGeneration(config)


def make_images(sizes: Sequence[tuple[int, int]]) -> list[ImageInput]:
    """Preprocessed images of random pixels: patches of 14 x 14 pixels, two frames."""
    return [
        ImageInput(
            str(number),
            {
                "pixel_values": torch.randn(rows * columns, 3 * 2 * 14 * 14),
                "image_grid_thw": torch.tensor([[1, rows, columns]]),
            },
            "",
            rows * columns // 4,
        )
        for number, (rows, columns) in enumerate(sizes)
    ]


def counted(run: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """What ``run`` returns, and how often it has called attention."""
    calls, attention = 0, F.scaled_dot_product_attention

    def counting(*args: Any, **kwargs: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return attention(*args, **kwargs)

    F.scaled_dot_product_attention = counting
    try:
        return run(), calls
    finally:
        F.scaled_dot_product_attention = attention


def compare(
    model: Any, heads: int, options: Any, rows: list[list[Any]], results: dict[str, dict[str, Any]]
) -> None:
    """Measure one model with all kinds of images; rows and results are added."""
    family, vision = Qwen25VL(), model.model.visual.config
    model.requires_grad_(options.learn)

    def ours(images: list[ImageInput]) -> Tensor:
        family.prepare_tower(model)
        return torch.cat(family.image_features(model, images))

    def theirs(images: list[ImageInput]) -> Tensor:
        vision._attn_implementation = "sdpa"
        pixels, grids = (
            torch.cat([i.tensors[n] for i in images]) for n in ("pixel_values", "image_grid_thw")
        )
        return torch.cat(model.model.get_image_features(pixels, grids, return_dict=True).pooler_output)

    def step(side: Callable[[list[ImageInput]], Tensor], images: list[ImageInput]) -> None:
        made = side(images)
        if options.learn:
            made.square().mean().backward()

    for kind, sizes in SIZES.items():
        name, images = f"{kind}, {80 * heads} wide", make_images(sizes)
        (found, few), (expected, many) = (counted(partial(side, images)) for side in (ours, theirs))
        worst = float(((found - expected).abs().max() / expected.abs().max()).detach())
        if not worst < 1e-4:
            raise SystemExit(f"{name}: features differ by {worst:.2g} of the largest")
        runs = {"ours": partial(step, ours, images), "theirs": partial(step, theirs, images)}
        rounds = measure(runs, options.repeats, lambda: None)
        seconds = [statistics.median(r[side] for r in rounds) for side in runs]
        faster = statistics.median(r["theirs"] / r["ours"] for r in rounds)
        results["faster"][name], results["calls"][name] = faster, [few, many]
        rows.append([name, *seconds, faster, few, many])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a row for each kind of images."""
    parser = arguments(__doc__)
    parser.add_argument("--heads", type=int, nargs="+", default=[4, 1], help="heads of 80 (published: 16)")
    parser.add_argument("--layers", type=int, default=32, help="layers of the tower")
    parser.add_argument("--learn", action="store_true", help="with the backward pass")
    options = parse(parser, argv)
    if options.quick:
        options.layers, options.heads = 8, options.heads[-1:]
    rows: list[list[Any]] = []
    results: dict[str, dict[str, Any]] = {"faster": {}, "calls": {}}
    for heads in options.heads:
        compare(make_model(heads, options.layers), heads, options, rows, results)
    show(
        f"Vision tower of {options.layers} layers, {'with' if options.learn else 'no'} backward; CPU seconds",
        ["", "ours", "transformers", "x faster", "our calls", "their calls"],
        rows,
    )
    finish(results, options)


if __name__ == "__main__":
    main()
