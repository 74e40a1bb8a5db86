"""VTS-V's Tables 1 to 3 of one's own models, with the paper's figures beside them on request."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from reproduce.looking_ceiling import SIDES, told_by_first_image
from reproduce.looking_gains import PROBLEMS, compared, table_of
from reproduce.looking_rivals import with_rivals
from reproduce.mathvista import published_accuracy
from reproduce.scripts import Overrides, Paper, named_folders, script, show
from reproduce.tables import Column, Labels, beside, figure_table, of_one_sample, plain, published
from selfverify.cli.options import say, settings_as_options
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import read_regular, write_json
from selfverify.evaluation.evaluate import HeldOut
from selfverify.evaluation.extraction import make_extractor
from selfverify.evaluation.samples import make_problems
from selfverify.experiments.recipe import Recipe, build_recipe, recipe_task
from selfverify.experiments.recipe_yaml import Document
from selfverify.experiments.run import evaluate_recipe
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import STEPS
from selfverify.visual.task import INSTRUCTION
from selfverify.visual.tools.gallery import CROP_HIT

ZERO, WITHOUT, MARKED = "zero-shot", "without looking", "set of mark"
WITH, UNVERIFIED = "looking", "looking without verifier"
"""Ways of answering: at once; with thoughts first; with numbers on the images; with tools, until a verifier
ends it where there is one; and without that one."""
COLUMNS = ("sub_task", "category")
"""Columns by which results are divided, the first that a file has: BLINK's, then the others'."""
LEFT_OUT = ("IQ_Test", "IQ-Test")
"""BLINK's task that VTS-V leaves out of its 13 and of their mean."""


Row = dict[str, Any]
"""How one way of answering has done.

- ``name``: one of the ways;
- ``why``: why there are no figures, such as with a model that cannot be shown images in later turns;
- ``published``: of MathVista, with an extractor, accuracy as it is published (`reproduce.mathvista`);
- ``accuracy``: over all questions, with the tasks that are left out of the mean;
- ``mean``: over the tasks (macro-average), without `LEFT_OUT`;
- ``tasks``: accuracy by task;
- ``problems``: how many questions there were;
- ``steps``: mean steps of a conversation; None where nobody looks;
- ``crop_hit``: the share of the boxes that were shown whole; None where the file has no boxes;
- ``lost``: conversations that broke off, which count as wrong.
"""
BENCH = "bench.json"
TITLES = {"mean": "mean of tasks", "accuracy": "all", "published": "as published", "crop_hit": "crop hit"}
"""Shares of a row, and what they are called."""


class BenchSettings(Config):
    """By whom a benchmark is answered, and how."""

    model: str = "builtin:digits"
    """The model: a folder, `builtin:NAME` or a hub id; with --server its name there."""

    server: str | None = None
    """An OpenAI-compatible server behind which the model is."""

    output: Path = Path("runs/bench")
    """The folder for samples and figures."""

    format: str | None = None
    """The file's format, if it is not recognised (`vstar`, ...)."""

    split: str | None = None
    """The split to read, where there are several (BLINK: val)."""

    extractor: str | None = None
    """The model that finds answers which the rules cannot read, or `self`, as in `selfverify eval`. MathVista
    is then also scored as published."""

    marks: bool = False
    """Answer also with numbers on the parts of images (Set-of-Mark), without looking."""

    look: VisualConfig


def run_bench(data: Path, settings: BenchSettings, overrides: Sequence[str]) -> list[Row]:
    """Answer a benchmark's questions without and with looking.

    Called again, it goes on where it was stopped. Below ``OUTPUT`` each way of answering has a folder of its
    evaluation, and ``OUTPUT/bench.json`` has the rows, for `look_tables`.

    Args:
        data: The benchmark's file or folder.
        settings: By whom it is answered, and how.
        overrides: Settings of the evaluations' recipe, as ``section.key=value``.

    Raises:
        ConfigError: The file or the model is not there, or the output holds something else.
        DataError: No question can be used, or one has no image.
    """
    test = {"path": str(data), "format": settings.format, "split": settings.split}
    look = settings.look.model_dump(mode="json")
    unverified = look | {"stop": "never"} | dict.fromkeys(("verifier", "verifier_base", "rule", "epsilon"))
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (ZERO, "zero-shot", {"name": "math", "test": test, "score": False, "form": "answer"}),
        (WITHOUT, "without", {"name": "math", "test": test, "score": False, "instruction": INSTRUCTION}),
        *([(MARKED, "marked", {"name": "marked", "test": test})] if settings.marks else []),
        (UNVERIFIED, "unverified", {"name": "look", "test": test, "look": unverified}),
        (WITH, "looking", {"name": "look", "test": test, "look": look}),
    ]
    if settings.look.stop != "verifier":
        del asked[-2]
    recipes = [(name, folder, _recipe(settings, task, overrides)) for name, folder, task in asked]
    _refuse_without_images(recipes[-1][2], data)
    output, rows = settings.output, list[Row]()
    for name, folder, recipe in recipes:
        try:
            row = row_of(name, evaluate_recipe(recipe, output=output / folder))
        except (ConfigError, DataError) as error:
            if name not in (WITH, UNVERIFIED):
                raise
            row = {"name": name, "tasks": {}, "lost": 0, "why": str(error)}
        rows.append(row)
    benched = {"data": str(data), "model": settings.model, "rows": rows}
    if settings.extractor is not None and benchmark_of(benched) == "mathvista":
        extractor = make_extractor(settings.extractor, recipes[0][2].policy)
        for row, (_, folder, recipe) in zip(rows, recipes, strict=True):
            if "why" not in row:
                row["published"] = published_accuracy(output / folder, recipe_task(recipe), extractor)
    write_json(output / BENCH, benched)
    return rows


def _refuse_without_images(recipe: Recipe, data: Path) -> None:
    """A question that has lost its image would be answered from its words, and count as looked at."""
    task = recipe_task(recipe)
    total = HeldOut(task, recipe.evaluation).total
    # One at a time, for their images. Of one that cannot be made the evaluation says what is wrong with it.
    made = (p for n in range(total) for p in make_problems(task, "test", recipe.seed, [n])[0].values())
    if blind := [problem.id for problem in made if not problem.images]:
        raise DataError(
            f"{data}: {len(blind)} of its questions have no image, such as "
            f"{', '.join(blind[:3])}; give them their images, or take them out of the file"
        )


def _recipe(settings: BenchSettings, task: dict[str, Any], overrides: Sequence[str]) -> Recipe:
    model = settings.model if settings.server is None else f"{settings.server}#{settings.model}"
    plain = {
        "name": "bench",
        "policy": {"path": model},
        "task": task,
        "method": {"name": "grpo"},
        "sampling": {"max_new_tokens": 512},
        "learner": {"steps": 1},
        "evaluation": {"samples": 1, "temperature": 0.0, "extractor": settings.extractor},
    }
    document = Document("bench", plain)
    for override in overrides:
        document.override(override)
    return build_recipe(document)


def row_of(name: str, summary: Mapping[str, Any]) -> Row:
    """A row of an evaluation's summary.

    Raises:
        DataError: It has no problems, or no conversation about them came to an end.
    """
    if not summary.get("problems"):
        raise DataError("no question of the benchmark could be used")
    talks = summary.get("conversations") or {}
    lost = round(float(talks.get("lost") or 0.0) * int(summary["samples"]))
    if lost == summary["samples"]:
        raise DataError(
            "no question of the benchmark was answered: all conversations broke off, and the log says why; "
            "delete the folder to begin anew"
        )
    categories = summary.get("categories") or {}
    found: Mapping[str, Any] = next((categories[column] for column in COLUMNS if column in categories), {})
    tasks = {value: of_one_sample(figures, "accuracy")["mean"] for value, figures in sorted(found.items())}
    counted = [accuracy for task, accuracy in tasks.items() if task not in LEFT_OUT and accuracy is not None]
    accuracy = float(summary["pass@1"])
    figures = summary.get("metrics") or {}
    return {
        "name": name,
        "accuracy": accuracy,
        "mean": math.fsum(counted) / len(counted) if counted else accuracy,
        "tasks": {task: value for task, value in tasks.items() if value is not None},
        "problems": int(summary["problems"]),
        "steps": of_one_sample(figures, STEPS)["mean"],
        "crop_hit": of_one_sample(figures, CROP_HIT)["mean"],
        "lost": lost,
    }


NAMED = {WITH: " + VTS-V", UNVERIFIED: " + VTS-V w/o verifier", MARKED: " + SoM", WITHOUT: " + CoT"}
"""The paper's names of ways of answering, behind the model's name."""


BLINK, GENERAL = (published("vts_v")["tables"][number]["columns"] for number in ("1", "2"))
"""The tasks and the benchmarks of Tables 1 and 2, and the paper's names of them."""
THIRD = "Visual_Correspondence"
PARTS = {WITH: "full", UNVERIFIED: "w/o verifier", ZERO: "w/o VTS-V"}
"""Table 3's task, and its columns by the ways that they are of."""


def look_tables(named: Sequence[tuple[str, Path]], paper: bool = False) -> str:
    """The tables in Markdown, in percent.

    Args:
        named: Models by name, each with a folder of `bench`; a model that has answered several benchmarks
            comes several times.
        paper: Whether the paper's rows stand there, too.

    Raises:
        ConfigError: A folder has no such file, or holds a benchmark of neither table.
        DataError: The file is damaged.
    """
    ours: dict[Labels, dict[str, dict[str, float | None]]] = {}
    whys: list[str] = []
    for name, folder in named:
        benched = read_bench(folder)
        benchmark = benchmark_of(benched)
        if benchmark is None:
            known = ", ".join(["BLINK", *GENERAL.values()])
            raise ConfigError(f"{folder}: {benched['data']} is none of the paper's benchmarks: {known}")
        ways = [row["name"] for row in benched["rows"]]
        for row in benched["rows"]:
            model = name + NAMED.get(row["name"], "")
            found = ours.setdefault((model,), {})
            if "why" in row:
                whys.append(f"{model}: {row['why']}")
            if benchmark == "blink":
                found |= _means(row["tasks"] | {"mean": row.get("mean")})
                if row["name"] in PARTS:
                    # Where no verifier ends it, what looks is no full VTS-V.
                    way = row["name"] if UNVERIFIED in ways or row["name"] == ZERO else UNVERIFIED
                    ours.setdefault((name,), {})[PARTS[way]] = {"mean": row["tasks"].get(THIRD)}
            elif (accuracy := row.get("published", row.get("accuracy"))) is not None:
                found[benchmark] = {"mean": accuracy}
    return "\n\n".join([*beside("vts_v", ours, paper), *whys]) + "\n"


def _means(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"mean": value} for name, value in values.items()}


def read_bench(folder: Path) -> dict[str, Any]:
    """Return the result of `bench` in a folder: ``data``, ``model`` and ``rows``.

    Raises:
        ConfigError: There is no such file.
        DataError: It is damaged.
    """
    path = folder / BENCH
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no {BENCH}; `python -m reproduce.vts_v bench --output {folder}` writes it"
        )
    try:
        found: dict[str, Any] = json.loads(read_regular(path))
        benchmark_of(found)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not what `bench` writes: {error!r}") from None
    return found


def benchmark_of(benched: Mapping[str, Any]) -> str | None:
    """Which of the paper's benchmarks was answered, by its tasks or its path; None for another one."""
    if any(task in BLINK for row in benched["rows"] for task in row["tasks"]):
        return "blink"
    return next((name for name in GENERAL if name in plain(Path(benched["data"]).name)), None)


@settings_as_options
def bench(
    data: Annotated[Path, typer.Argument(help="The benchmark's file or folder, as it was published.")],
    settings: BenchSettings,
    override: Overrides = None,
) -> None:
    """Answer a benchmark's questions without and with looking, and compare task by task, and with the paper.

    BLINK, V*, MMStar, MathVista and HR-Bench are read as they were published, and whatever else the task
    `math` reads. Called again, the command goes on where it was stopped.

    Examples:

    - `python -m reproduce.vts_v bench data/BLINK --split val --model Qwen/Qwen2.5-VL-7B-Instruct`

    - `python -m reproduce.vts_v bench data/vstar_bench --format vstar --model FOLDER --max-steps 4 --marks`

    - `python -m reproduce.vts_v bench data/BLINK --split val --server http://127.0.0.1:8000
      --model Qwen/Qwen2.5-VL-72B-Instruct --set policy.server.timeout_s=600`
    """
    rows = run_bench(data, settings, override or [])
    if lost := sum(row["lost"] for row in rows):
        say(f"{lost} conversations broke off, which count as wrong; the log says why", "yellow")
    for row in rows:
        if "why" in row:
            say(f"{row['name']}: {row['why']}", "yellow")
    tasks = list(dict.fromkeys(task for row in rows for task in row["tasks"]))
    columns = [Column(*named, better=False) for named in [*zip(tasks, tasks, strict=True), *TITLES.items()]]
    columns.append(Column("steps", "steps", percent=False, better=False))
    typer.echo(f"{data.name}: {rows[0]['problems']} questions\n")
    typer.echo(figure_table([""], {(row["name"],): _means(row["tasks"] | row) for row in rows}, columns))
    if benchmark_of(read_bench(settings.output)) is not None:
        typer.echo(f"\n{look_tables([(settings.model, settings.output)], paper=True)}")


def tables(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=FOLDER]...", help="Models by name, each with a folder of `bench`."),
    ] = None,
    paper: Paper = False,
    output: Annotated[Path | None, typer.Option(help="A file for the tables, in Markdown.")] = None,
) -> None:
    """Print VTS-V's Tables 1 and 2 of models that have answered benchmarks without and with looking.

    A model comes once for each benchmark: BLINK, V*, MMStar, MathVista. With --paper its rows stand below,
    and its Table 3.

    Examples:

    - `python -m reproduce.vts_v tables mine=runs/bench-blink mine=runs/bench-vstar --paper`
    """
    if not models and not paper:
        raise ConfigError("name models as NAME=FOLDER, or ask for the paper's figures with --paper")
    show(look_tables([(name, Path(folder)) for name, folder in named_folders(models or [])], paper), output)


def gains(
    study: Annotated[Path, typer.Argument(help="The folder for samples that are missing.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    named: Annotated[list[str], typer.Argument(metavar="NAME=FOLDER...", help="Runs, by seed.")],
) -> None:
    """Measure what looking again is worth; `reproduce/looking_gains.py` has an example."""
    write_json(result, compared(study, named_folders(named), typer.echo))


def rivals(
    run: Annotated[Path, typer.Argument(help="A run of `looking-digits`.")],
    study: Annotated[Path, typer.Argument(help="The folder for conversations that are missing.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    problems: Annotated[int, typer.Option(help="Test problems.")] = PROBLEMS,
    temperature: Annotated[float, typer.Option(help="At which looks are sampled.")] = 0.0,
) -> None:
    """Compare the verifier with simple rules on the same conversations (`reproduce/looking_rivals.py`)."""
    made = with_rivals(run, study, problems, temperature)
    write_json(result, made)
    typer.echo(f"{table_of(made)}\n\ntold apart, AUC: {made['told_apart']}")


def ceiling(
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    problems: Annotated[int, typer.Option(help="Test problems.")] = PROBLEMS,
    fitted: Annotated[int, typer.Option(help="Training problems.")] = 4 * PROBLEMS,
) -> None:
    """Tell how often the first image of `digits-far` shows the answer (`reproduce/looking_ceiling.py`)."""
    made = {str(side): told_by_first_image(side, fitted, problems) for side in SIDES}
    write_json(result, made)
    typer.echo(json.dumps(made, indent=2))


app = script(
    bench,
    tables,
    gains,
    rivals,
    ceiling,
    about="VTS-V's Tables 1 to 3 of our own models, the benchmarks that they are about, and our own study.",
)


if __name__ == "__main__":
    app()
