"""Every generator with every verifier (ADPO's Tables 5 and 11 to 13): `python -m reproduce.matrix`.

Every model samples, every model judges all samples, a table for each number of samples shows it. `matrix` and
`judgings` count the figures from stored samples.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
import torch
import typer

from reproduce.by_size import SIZES, columns_for, figures_by_size, sizes_of
from reproduce.scripts import Overrides, named_folders, script
from reproduce.statistics import MeasuredRun, measure_run, pooled
from reproduce.tables import Column, figure_table
from selfverify.cli.options import settings_as_options
from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import make_folder, write_json, write_text
from selfverify.core.jsonl_store import STRICT, open_journal, read_journal
from selfverify.core.policy_config import is_served
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.evaluation.answerers import ServerAnswerer, make_answerer
from selfverify.evaluation.breakdown import MOST_VALUES, Columns, columns_of
from selfverify.evaluation.evaluate import HeldOut, evaluate
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.evaluation.statistics import auc_statistic, average_precision_statistic, mean_statistic
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.registry import make_task
from selfverify.experiments.run import measuring_engine
from selfverify.policy.policy import Policy
from selfverify.selection.strategies import find_strategy
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Verifier
from selfverify.verifiers.policy_verifiers import Form, PolicyJudge
from selfverify.verifiers.reward_models import RewardModel, ValueHead, has_value_head, reward_identity

Pair = tuple[str, str]
"""The model that wrote the answers, and the scores that the choice is made by: ``majority``, ``none`` for a
single sample, or a verifier's."""
JUDGING = (
    Column("auc", "AUC"),
    Column("ap", "AP"),
    Column("scored", "answers with a score", better=False),
)


def matrix(
    samples: Mapping[str, Sequence[StoredSample]],
    verifiers: Sequence[str],
    task: Task,
    problems: Mapping[str, Problem] | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    categories: Columns | None = None,
) -> dict[int, dict[Pair, MeasuredRun]]:
    """Return all pairs' figures by N. Sizes beyond a generator's number of samples are left out.

    Args:
        samples: The samples by generator, all of the same problems, with a score from every verifier.
        verifiers: Names of scores in `StoredSample.scores`. A generator without any score of a verifier has
            no row.
        task: Its figures are given, or accuracy where it has none.
        problems: The problems by id, which tasks whose answers are boxes need.
        sizes: Numbers of candidates per problem.
        strategy: The strategy that uses the scores; the paper takes the best.
        categories: Which problems, in the order of the first generator's samples, belong to each value of
            each column; there are figures of each of them, and of all problems.

    Raises:
        DataError: Generators answered different problems.
    """
    order: list[str] | None = None
    found: dict[int, dict[Pair, MeasuredRun]] = {n: {} for n in sorted(sizes)}
    for generator, rows in samples.items():
        order = order or list(dict.fromkeys(sample.problem for sample in rows))
        if other := {sample.problem for sample in rows} ^ set(order):
            raise DataError(
                f"generator {generator} answered other problems than the first: {sorted(other)[:3]}"
            )
        for verifier, chooser in [("majority", "majority"), *((name, strategy) for name in verifiers)]:
            by_row = figures_by_size(
                rows, task, problems or {}, [chooser],
                sizes=sizes if verifier == "majority" else [n for n in sizes if n > 1],
                headline=verifier, columns=categories, order=order,
            )  # fmt: skip
            for (n, _), run in by_row.items():
                found[n][generator, "none" if n == 1 else verifier] = run
    return {n: rows for n, rows in found.items() if rows}


def judgings(
    samples: Mapping[str, Sequence[StoredSample]], verifiers: Sequence[str]
) -> dict[Pair, MeasuredRun]:
    """Return how well each verifier judges the answers of each generator, whatever is chosen by it.

    ``auc`` and ``ap`` are over all samples; ``scored`` is the share of the samples that have a score.
    """
    found = {}
    for generator, rows in samples.items():
        table = SampleTable.from_samples(rows, target_boxes=None, headline="soft")
        for verifier in verifiers:
            score = table.scores.get(verifier, np.full(table.correct.shape, np.nan))
            statistics = {
                "auc": auc_statistic(score, table.correct),
                "ap": average_precision_statistic(score, table.correct),
                "scored": mean_statistic((~np.isnan(score)).mean(-1)),
            }
            found[generator, verifier] = measure_run(statistics)
    return found


def as_markdown(
    cells: Mapping[int, Mapping[Pair, MeasuredRun]], judged: Mapping[Pair, MeasuredRun] | None = None
) -> str:
    """Return the paper's layout: a table per number of samples, a row per pair, a column per figure.

    Categories of more than `MOST_VALUES` values are left out. The last table says how well verifiers judge.
    """
    places = dict.fromkeys(place for rows in cells.values() for run in rows.values() for place in run)
    values = Counter(name.partition(": ")[0] for name in {place.category for place in places})
    columns = columns_for(p for p in places if values[p.category.partition(": ")[0]] <= MOST_VALUES)
    shown = [(f"## N = {n}", rows, columns) for n, rows in cells.items()]
    if judged:
        shown.append(("## Right and wrong answers told apart", judged, [*JUDGING]))
    parts = []
    for title, rows, of in shown:
        figures = {pair: pooled({0: run}) for pair, run in rows.items()}
        parts += [title, figure_table(["generator", "verifier"], figures, of)]
    return "\n\n".join(parts) + "\n"


def as_json(
    cells: Mapping[int, Mapping[Pair, MeasuredRun]], judged: Mapping[Pair, MeasuredRun]
) -> dict[str, list[dict[str, Any]]]:
    """Return the same as plain JSON: a line for each figure, and for each pair how well it judges."""
    lines = [
        {"n": n, "generator": pair[0], "verifier": pair[1], **place._asdict(), **figure}
        for n, rows in cells.items()
        for pair, run in rows.items()
        for place, figure in pooled({0: run}).items()
    ]
    told = [{"generator": pair[0], "verifier": pair[1], **pooled({0: run})} for pair, run in judged.items()]
    return {"cells": lines, "judging": told}


FEW = 8
"""Problems whose ratings a server makes before they are stored."""


@dataclass(frozen=True, slots=True)
class JudgedProblem:
    """A line of a journal of scores: those of a problem's samples, None for answers without one."""

    __pydantic_config__: ClassVar = STRICT

    index: int
    scores: list[float | None]


def stored_scores(
    file: Path,
    settings: Mapping[str, Any],
    make: Callable[[], Verifier],
    task: Task,
    problems: Sequence[Problem],
    samples: Sequence[StoredSample],
    batch: int,
) -> list[float | None]:
    """Return a judge's scores in the order of the samples, those that a journal holds and new ones.

    Args:
        file: The journal. One of other settings is made anew.
        settings: What decides the scores.
        make: Makes the judge; called only if scores are missing.
        task: Reads the answers.
        problems: The problems.
        samples: The same number of answers to each.
        batch: Problems that are judged before they are stored.

    Raises:
        DataError: The journal is corrupt.
        ServerError: A judge's server failed; what was finished is stored.
    """
    if file.exists() and read_journal(file, JudgedProblem)[0] != settings:
        file.unlink()
    journal, known = open_journal(file, JudgedProblem, settings)
    left = [index for index in range(len(problems)) if index not in known]
    judge = make() if left else None
    for first in range(0, len(left), batch):
        assert judge is not None
        part = left[first : first + batch]
        scores = judge.score(_groups(task, [problems[index] for index in part], samples))
        made = [JudgedProblem(index, [*own]) for index, own in zip(part, scores, strict=True)]
        journal.append(*map(asdict, made))
        known |= {row.index: row for row in made}
    by_problem = {problem.id: iter(known[index].scores) for index, problem in enumerate(problems)}
    return [next(by_problem[sample.problem]) for sample in samples]


def judge_samples(
    judge: Verifier, task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample], batch: int = 64
) -> list[float | None]:
    """Return a judge's scores in the order of the samples; None for answers that could not be read."""
    by_problem: dict[str, Iterator[float | None]] = {}
    for first in range(0, len(problems), batch):
        part = problems[first : first + batch]
        scores = judge.score(_groups(task, part, samples))
        by_problem |= {problem.id: iter(own) for problem, own in zip(part, scores, strict=True)}
    return [next(by_problem[sample.problem]) for sample in samples]


def _groups(task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample]) -> list[Group]:
    """The problems with what answered them, in the order of the samples."""
    found = {problem.id: Group(problem, []) for problem in problems}
    for sample in samples:
        if sample.problem in found:
            found[sample.problem].trajectories.append(_trajectory(sample, task))
    return [*found.values()]


def _trajectory(sample: StoredSample, task: Task) -> Trajectory:
    """Make the trajectory that a judge may see: a sample's text up to its score."""
    start = parse_tagged(sample.text, task.tags).score_start
    segment = Segment(ANSWER, [], text=sample.text if start is None else sample.text[:start])
    readable = None if sample.answer is None else Verdict(0.0, sample.correct, sample.answer, sample.key)
    return Trajectory([segment], parsed=readable)


@dataclass(frozen=True, slots=True)
class Models:
    """Who answers and who judges, by name; no name twice.

    Args:
        both: The models' paths; ``URL#MODEL`` is one behind a server.
        servers: More verifiers, models behind OpenAI-compatible servers as ``URL#MODEL``. They judge and
            answer nothing.
        rewarding: More verifiers, folders of sequence classifiers with one label, or of models with a value
            head, which also read images.
    """

    both: Mapping[str, str]
    servers: Mapping[str, str] = field(default_factory=dict)
    rewarding: Mapping[str, str] = field(default_factory=dict)

    @property
    def judges(self) -> dict[str, str]:
        """All of them."""
        return {**self.both, **self.servers, **self.rewarding}


def run_matrix(
    models: Models,
    recipe: Recipe,
    output: Path,
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    form: Form = "continue",
    say: Callable[[str], None] = print,
) -> dict[int, dict[Pair, MeasuredRun]]:
    """Measure every model as generator and as verifier, on the recipe's task and evaluation settings.

    Writes ``NAME.jsonl`` (samples), ``NAME-by-NAME.jsonl`` (scores that a model gives another's samples),
    ``matrix.json`` and ``matrix.md`` to ``output``. A second call goes on: files that the same weights have
    made are not made again. One model is in memory at a time.

    Args:
        models: Who answers and who judges.
        recipe: Gives the task, the policy settings, the evaluation settings and the response length.
        output: The folder to write to.
        sizes: The numbers of candidates per problem to compare.
        strategy: The strategy that uses the scores.
        form: How the judges see the answers.
        say: Gets a line about each piece of work before it begins.

    Returns:
        The figures.

    Raises:
        ConfigError: ``evaluation.score`` is not ``soft``, no size is within ``evaluation.samples``, the
            models write places in different units, a server's address is none, the folder cannot be made, or
            a reward model is none or cannot read the problems.
        ServerError: A server failed; what was finished is stored.
    """
    task = make_task(recipe.task.name, **recipe.task.options)
    config = recipe.evaluation
    if config.score != "soft":
        raise ConfigError(
            f"evaluation.score={config.score}: judges rate what others wrote, so all are read softly; "
            "`selfverify eval` and `tables --score` read a model's own in other ways"
        )
    if min(sizes) > config.samples:
        raise ConfigError(f"sizes from {min(sizes)}: only evaluation.samples={config.samples} are drawn")
    make_folder(output)
    held = _Held(models, recipe, form)
    known = {name: f"{name} ({address})" for name, address in models.servers.items()}
    known |= {name: reward_identity(path) for name, path in models.rewarding.items()}
    samples: dict[str, list[StoredSample]] = {}
    spaces: set[tuple[int, int]] = set()
    problems: list[Problem] = []
    for name in models.both:
        spaces.add(held.space(task, name))
        if task.writes_places and len(spaces) > 1:
            raise ConfigError(
                f"task {task.name}: {name} writes places in other units than the models before it, and so "
                "does not share problems with them"
            )
        say(f"{name} answers")
        known[name], samples[name], made = _answer(held.answerer(name), recipe, output / f"{name}.jsonl")
        problems = problems or made
    for judge, path in models.judges.items():
        for name in models.both:
            say(f"{judge} judges the answers of {name}")
            settings = {
                "judge": known[judge],
                "samples": known[name],
                "form": form,
                "task": recipe.task.model_dump(mode="json"),
                "evaluation": config.model_dump(mode="json", exclude={"batch_problems", "score"}),
            }
            batch = min(config.batch_problems, FEW) if is_served(path) else config.batch_problems
            file, make = output / f"{name}-by-{judge}.jsonl", partial(held.judge, judge)
            scores = stored_scores(file, settings, make, task, problems, samples[name], batch)
            for sample, score in zip(samples[name], scores, strict=True):
                sample.scores[judge] = score
    every, by_id = list(models.judges), {problem.id: problem for problem in problems}
    # Without categories, by which task a problem is of.
    kinds = columns_of([p.meta.get("categories") or {"task": [p.id.split("/")[0]]} for p in problems])
    cells = matrix(samples, every, task, by_id, sizes=sizes, strategy=strategy, categories=kinds)
    judged = judgings(samples, every)
    about = {"strategy": strategy, "form": form, "task": task.name} | as_json(cells, judged)
    write_json(output / "matrix.json", about)
    write_text(output / "matrix.md", as_markdown(cells, judged))
    return cells


_Model = TypeVar("_Model")


class _Held:
    """The one model that is in memory."""

    def __init__(self, models: Models, recipe: Recipe, form: Form) -> None:
        self.models, self.policy, self.form = models, recipe.policy, form
        self._name, self._held = "", list[Any]()
        for name in models.servers:  # their addresses are read before anything is loaded
            self.judge(name)

    def answerer(self, name: str) -> Policy | ServerAnswerer:
        """Return a model, which takes the place of the one before."""
        return self._take(name, make_answerer, self.policy.for_model(self.models.both[name]))

    def judge(self, name: str) -> Verifier:
        """Return a model as a judge; one behind a server is asked in a turn of its own."""
        path = self.models.judges[name]
        if name in self.models.rewarding:
            # One with a value head reads what its model reads, images too; a sequence classifier reads text.
            if has_value_head(path):
                return self._take(name, ValueHead.load, path, name, self.policy)
            return self._take(name, RewardModel.load, path, name, self.policy.device)
        if name in self.models.servers or is_served(path):
            from selfverify.verifiers.server_judge import ServerJudge

            return ServerJudge.measuring(path, name, self.policy.server)
        answerer = self.answerer(name)
        assert isinstance(answerer, Policy)
        return PolicyJudge(answerer, name, self.form)

    def _take(self, name: str, load: Callable[..., _Model], *arguments: Any) -> _Model:
        if name != self._name:
            self._held.clear()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._held.append(load(*arguments))
            self._name = name
        found: _Model = self._held[0]
        return found

    def space(self, task: Task, name: str) -> tuple[int, int]:
        """Return the space in which a model writes places in some image."""
        answerer = self.answerer(name)
        if isinstance(answerer, ServerAnswerer):
            return answerer.space((1000, 700)) if task.writes_places else (0, 0)
        return answerer.coordinate_space((1000, 700))


def _answer(
    answerer: Policy | ServerAnswerer, recipe: Recipe, store: Path
) -> tuple[str, list[StoredSample], list[Problem]]:
    """Let a model answer. Returns what tells its weights apart, its samples, and the problems in order."""
    # A task of its own, as tasks remember the policy that has told them how it writes places.
    task, config = make_task(recipe.task.name, **recipe.task.options), recipe.evaluation
    sampling = recipe.sampling
    engine = sampling.engine if isinstance(answerer, Policy) else "own"
    with measuring_engine(answerer, sampling, config.temperature):
        evaluate(answerer, task, config, store, max_new_tokens=sampling.max_new_tokens, engine=engine)
    header, samples = read_samples(store)
    held_out = HeldOut(task, config)
    made = {p.id: p for p in held_out.make(range(held_out.total)).values()}
    order = dict.fromkeys(s.problem for s in samples)
    return str(header["weights"]), samples, [made[name] for name in order]


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

    server: list[str] = []
    """More verifiers: NAME=URL#MODEL, a model behind an OpenAI-compatible server; repeatable."""

    reward_model: list[str] = []
    """More verifiers: NAME=FOLDER, a reward model: a sequence classifier with one label, which reads text, or
    a vision-language model with value_head.safetensors; repeatable."""

    output: Path = Path("runs/matrix")
    """The folder for samples, scores and the table."""


@settings_as_options
def command(
    models: Annotated[list[str], typer.Argument(metavar="NAME=MODEL...", help="The models and their names.")],
    settings: MatrixSettings,
    override: Overrides = None,
) -> None:
    """Let every model answer and every model judge, and compare all pairs.

    A model may be one behind a server, `NAME=URL#MODEL`; --server adds such a one as a verifier alone.

    Examples:

    - `python -m reproduce.matrix base=builtin:digits adpo=runs/adpo-digits/model --set evaluation.samples=12`
    """
    find_strategy(settings.strategy)
    given = [*map(named_folders, (models, settings.server, settings.reward_model))]
    names = [name for pairs in given for name, _ in pairs]
    for name in names:
        if not name.replace("-", "").replace("_", "").isalnum() or name in ("majority", "none"):
            raise ConfigError(f"{name!r} cannot name a model, whose files and rows are called so")
        if names.count(name) > 1:
            raise ConfigError(f"two models are called {name}")
    run_matrix(
        Models(*map(dict, given)),
        load_recipe(settings.recipe, override or []),
        settings.output,
        sizes=sizes_of(settings.sizes),
        strategy=settings.strategy,
        form="ask" if settings.ask else "continue",
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo((settings.output / "matrix.md").read_text(encoding="utf-8"))


app = script(command)

if __name__ == "__main__":
    app()
