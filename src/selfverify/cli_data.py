"""The commands about data files: `selfverify data ...`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Look at data before a run does, and filter it.")


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="A data file, or a folder of them.")],
    format: Annotated[str | None, typer.Option(help="Its format, if it is not recognised.")] = None,
    split: Annotated[str | None, typer.Option(help="The split to read, where there are several.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder that images' paths start from.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read this many rows only.")] = None,
    model: Annotated[
        str, typer.Option(help="The model whose tokens are counted; its weights are not loaded.")
    ] = "builtin:digits",
    max_pixels: Annotated[
        int | None, typer.Option(min=1, help="As `policy.max_pixels`: largest image area after resizing.")
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="Problems to show as the model sees them.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Read a data file once, images included, and say what is in it and what is broken.

    Ends with status 1 if anything is broken.

    Examples:

    - `selfverify data check geometry.jsonl`

    - `selfverify data check MathVista_MINI.tsv --model Qwen/Qwen2.5-VL-7B-Instruct --json`

    - `selfverify data check refcoco_train.json --images coco --limit 1000`
    """
    from selfverify.data import open_rows
    from selfverify.data_check import check_rows, summary
    from selfverify.policy.config import PolicyConfig

    rows = open_rows(path, format=format, split=split, images=images, limit=limit, note_bad=False)
    settings = PolicyConfig(path=model, device="cpu", max_pixels=max_pixels)
    checked = check_rows(rows, settings, samples=samples)
    if as_json:
        typer.echo(json.dumps(checked.to_json(), indent=2, ensure_ascii=False))
    else:
        for line in summary(checked):
            typer.echo(line)
    if checked.broken:
        raise typer.Exit(1)


@app.command(name="filter")
def filter_(
    recipe: Annotated[str, typer.Argument(help="A recipe: its task, policy, method and sampling are used.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Settings to change, such as `task.train=my.jsonl`."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Where the verdicts go.")] = Path("kept.jsonl"),
    problems: Annotated[
        int | None, typer.Option(min=1, help="Judge this many; by default all of the data file.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Samples per problem; by default the recipe's group size.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all verdicts as JSON.")] = False,
) -> None:
    """Sample every training problem, and drop those that are always right or always wrong.

    Such a problem teaches the policy nothing. With a two-turn method those go whose answers are all right
    before and after the second turn, or all wrong. Called again, it goes on where it was stopped. Train on
    what is kept with `learner.keep=FILE`.

    Examples:

    - `selfverify data filter quickstart --problems 256 --output kept.jsonl`

    - `selfverify data filter adpo-math task.train=my/train.jsonl --samples 8`

    - `selfverify data filter adapo-digits policy.path=builtin:digits --problems 32 --output two.jsonl`
    """
    from dataclasses import asdict

    from rich.progress import Progress

    from selfverify import ranks
    from selfverify.data_filter import filter_recipe, summary
    from selfverify.recipe import load_recipe

    loaded = load_recipe(recipe, overrides or [])
    with Progress(transient=True, disable=as_json) as shown:
        bar = shown.add_task("problems", total=None)
        verdicts = filter_recipe(
            loaded,
            output,
            problems=problems,
            samples=samples,
            progress=lambda done, total: shown.update(bar, completed=done, total=total),
        )
    first = ranks.index() == 0
    ranks.stop()
    if not first:
        return
    if as_json:
        typer.echo(json.dumps([asdict(verdict) for verdict in verdicts], indent=1))
        return
    for line in [*summary(verdicts), f"verdicts: {output}; train on what is kept with learner.keep={output}"]:
        typer.echo(line)
