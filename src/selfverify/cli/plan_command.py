"""The command ``selfverify plan``."""

from __future__ import annotations

from rich.console import Console

from selfverify.cli.options import Json, Overrides, RecipeName, settings_as_options
from selfverify.cli.printing import print_json
from selfverify.planner.plan_settings import PlanSettings


@settings_as_options
def plan(
    recipe: RecipeName, settings: PlanSettings, overrides: Overrides = None, as_json: Json = False
) -> None:
    """Say what a recipe needs before it is run: memory per GPU, tokens, operations.

    The command reads the model's configuration, tokenizer and image processor, never its weights. It needs
    no GPU.

    Examples:

    - `selfverify plan adpo-digits --gpu cpu`

    - `selfverify plan my.yaml --gpu h200 --gpus 8 --shard fsdp`

    - `selfverify plan my.yaml --prompt-tokens 1200 --image-tokens 1000 --response-tokens 512 --json`
    """
    from selfverify.experiments.recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    from selfverify.planner.plan import make_plan

    made = make_plan(loaded, settings)
    if as_json:
        print_json(made.as_json())
    else:
        Console().print(made.as_table())
