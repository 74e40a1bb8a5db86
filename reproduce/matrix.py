"""Every generator with every verifier (ADPO's Tables 5 and 11 to 13): `python -m reproduce.matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reproduce.by_size import sizes_of
from reproduce.matrix_file import load_matrix_file, run_matrix_file
from reproduce.matrix_runs import run_matrix
from reproduce.scripts import script
from selfverify.cli.evaluate import fitted_fusion
from selfverify.cli.options import settings_as_options
from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import load_recipe
from selfverify.selection.calibration import Fusion, fusion_of
from selfverify.selection.strategies import find_strategy


class MatrixSettings(CommandConfig):
    """What a table of models is made by."""

    recipe: str = "adpo-digits"
    """The recipe with the task, the evaluation's settings and the answers' length."""

    sizes: str = "1,4,8,12"
    """From how many candidates an answer is chosen: several numbers, with commas between them."""

    strategy: str = "best"
    """The strategy that chooses an answer by the scores."""

    ask: bool = False
    """Ask judges for their score in a turn of its own, not at the answer's end."""

    fuse: str | None = None
    """Choose also by every verifier's score + a·log-prob of the generator, in rows of their own: a number a,
    or a file of `selfverify eval --calibrate`."""

    server: list[str] = []
    """More verifiers: NAME=URL#MODEL, a model behind an OpenAI-compatible server; repeatable."""

    reward_model: list[str] = []
    """More verifiers: NAME=FOLDER, a reward model: a sequence classifier with one label, which reads text, or
    a vision-language model with value_head.safetensors; repeatable."""

    output: Path = Path("runs/matrix")
    """The folder for samples, scores and the table."""


@settings_as_options
def matrix(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=MODEL...",
            help="The models and their names; or one YAML file of several benchmarks, each with its models.",
        ),
    ],
    settings: MatrixSettings,
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the recipe to change; repeatable."),
    ] = None,
) -> None:
    """Let every model answer and every model judge, and compare all pairs in one table.

    A model may be one behind a server, `NAME=URL#MODEL`; --server adds such a one as a verifier alone.

    A file (`benchmarks:`, each with `recipe`, `overrides` and `models`) makes several matrices and one table
    of them, as ADPO's Table 5.

    Examples:

    - `python -m reproduce.matrix base=builtin:digits adpo=runs/adpo-digits/model --set evaluation.samples=12`

    - `python -m reproduce.matrix table-5.yaml --output runs/table-5`
    """
    if len(models) == 1 and models[0].endswith((".yaml", ".yml")):
        _matrix_file(Path(models[0]), settings, override)
        return
    find_strategy(settings.strategy)
    named = dict(part.partition("=")[::2] for part in models)
    if len(named) != len(models) or not all(
        path and name.replace("-", "").replace("_", "").isalnum() for name, path in named.items()
    ):
        raise ConfigError(f"models are given as NAME=MODEL, each name once, not {' '.join(models)}")
    servers = _named_verifiers("--server", "NAME=URL#MODEL", settings.server)
    rewarding = _named_verifiers("--reward-model", "NAME=FOLDER", settings.reward_model)
    for option, others in (("--server", servers), ("--reward-model", rewarding)):
        if taken := others.keys() & (named.keys() | (servers.keys() if others is rewarding else set())):
            raise ConfigError(f"{option} {min(taken)}: a model has this name")
    if {"majority", "none"} & (named.keys() | servers.keys() | rewarding.keys()):
        raise ConfigError("a model cannot be called majority or none: those are rows of the table")
    counts = sizes_of(settings.sizes)
    loaded = load_recipe(settings.recipe, override or [])
    run_matrix(
        named,
        loaded,
        settings.output,
        sizes=counts,
        strategy=settings.strategy,
        form="ask" if settings.ask else "continue",
        fusion=_fusion_named(settings.fuse),
        servers=servers,
        reward_models=rewarding,
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo((settings.output / "matrix.md").read_text(encoding="utf-8"))


def _matrix_file(path: Path, settings: MatrixSettings, override: list[str] | None) -> None:
    """Make the matrices of a file, which says all that is not about one machine."""
    told = {**settings.model_dump(), "set": override or []}
    plain = {**MatrixSettings().model_dump(), "set": []}
    for name in told.keys() - {"fuse", "output"}:
        if told[name] != plain[name]:
            raise ConfigError(f"--{name.replace('_', '-')}: {path} says that, not an option")
    text = run_matrix_file(
        load_matrix_file(path),
        settings.output,
        fusion=_fusion_named(settings.fuse),
        say=lambda line: typer.echo(line, err=True),
    )
    typer.echo(text)


def _fusion_named(fuse: str | None) -> Fusion | None:
    """The fusion that ``--fuse`` names: a number, or a calibration's file."""
    if fuse is None:
        return None
    return fitted_fusion(Path(fuse)) if Path(fuse).is_file() else fusion_of(f"fused:{fuse}", None)


def _named_verifiers(option: str, form: str, given: list[str]) -> dict[str, str]:
    """Return what an option gives by name."""
    found = dict(part.partition("=")[::2] for part in given)
    if len(found) != len(given) or not all(
        place and name.replace("-", "").replace("_", "").isalnum() for name, place in found.items()
    ):
        raise ConfigError(f"{option} is {form}, each name once, not {' '.join(given)}")
    return found


app = script(matrix)

if __name__ == "__main__":
    app()
