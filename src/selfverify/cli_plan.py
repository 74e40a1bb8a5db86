"""The command ``selfverify plan``."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from rich.console import Console


def plan(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe's name, a YAML file, or a run's folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as `policy.dtype=bfloat16`."),
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="`h200`, `h100`, `a100`, ..., or `cpu` for this machine.")
    ] = "h200",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs; they share a step's problems.")] = 1,
    shard: Annotated[
        Literal["none", "fsdp"], typer.Option(help="Whether each GPU holds everything or its part.")
    ] = "none",
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of prompts, images included, instead of the task's.")
    ] = None,
    image_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one image per prompt, instead of the task's.")
    ] = None,
    response_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length of responses, instead of sampling.max_new_tokens.")
    ] = None,
    utilisation: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the GPU's peak that computing reaches.")
    ] = 0.4,
    bandwidth_utilisation: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the memory's bandwidth that decoding reaches.")
    ] = 0.6,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a recipe needs before it is run: memory per GPU, tokens, time per step.

    Reads the model's configuration, tokenizer and image processor, never its weights, and needs no GPU.

    Examples:

    - `selfverify plan quickstart --gpu cpu`

    - `selfverify plan my.yaml --gpu h200 --gpus 8 --shard fsdp`

    - `selfverify plan my.yaml --prompt-tokens 1200 --image-tokens 1000 --response-tokens 512 --json`
    """
    from selfverify.recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    from selfverify.planner import Lengths, make_plan

    lengths = Lengths(prompt_tokens, image_tokens, response_tokens)
    made = make_plan(loaded, gpu, gpus, shard, lengths, utilisation, bandwidth_utilisation)
    if as_json:
        typer.echo(json.dumps(made.as_json(), indent=2))
    else:
        Console().print(made.as_table())
