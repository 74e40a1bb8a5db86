"""Every generator with every verifier (ADPO's Tables 5 and 11 to 13): `python -m reproduce.matrix`.

Every model samples, every model judges all samples, a table for each number of samples shows it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from reproduce.by_size import SIZES, sizes_of
from reproduce.pairs import FEW, Pair, as_json, as_markdown, judgings, matrix, stored_scores
from reproduce.scripts import named_folders, script
from reproduce.statistics import MeasuredRun
from selfverify.cli.options import settings_as_options
from selfverify.core.config import CommandConfig
from selfverify.core.errors import ConfigError
from selfverify.core.files import make_output_folder, write_json, write_text
from selfverify.core.policy_config import is_served
from selfverify.core.problem import Problem
from selfverify.evaluation.answerers import ServerAnswerer, make_answerer
from selfverify.evaluation.breakdown import columns_of
from selfverify.evaluation.evaluate import HeldOut, evaluate
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.registry import make_task
from selfverify.experiments.run import measuring_engine
from selfverify.policy.policy import Policy
from selfverify.selection.strategies import find_strategy
from selfverify.tasks.base import Task
from selfverify.verifiers.base import Verifier
from selfverify.verifiers.policy_verifiers import Form, PolicyJudge
from selfverify.verifiers.reward_models import RewardModel, ValueHead, has_value_head, reward_identity

_OneModel = Policy | ServerAnswerer | RewardModel | ValueHead


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
    make_output_folder(output)
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
    kinds = columns_of([_groupings(problem) for problem in problems])
    cells = matrix(samples, every, task, by_id, sizes=sizes, strategy=strategy, categories=kinds)
    judged = judgings(samples, every)
    about = {"strategy": strategy, "form": form, "task": task.name} | as_json(cells, judged)
    write_json(output / "matrix.json", about)
    write_text(output / "matrix.md", as_markdown(cells, judged))
    return cells


class _Held:
    """The one model that is in memory."""

    def __init__(self, models: Models, recipe: Recipe, form: Form) -> None:
        self.models, self.policy, self.form = models, recipe.policy, form
        self._name, self._held = "", list[_OneModel]()
        for name in models.servers:  # their addresses are read before anything is loaded
            self.judge(name)

    def answerer(self, name: str) -> Policy | ServerAnswerer:
        """Return a model, which takes the place of the one before."""
        found = self._take(name, lambda: make_answerer(self.policy.for_model(self.models.both[name])))
        assert not isinstance(found, RewardModel | ValueHead)
        return found

    def judge(self, name: str) -> Verifier:
        """Return a model as a judge; one behind a server is asked in a turn of its own."""
        path = self.models.judges[name]
        if name in self.models.rewarding:
            rewarding = self._take(name, lambda: self._reward_model(path, name))
            assert isinstance(rewarding, RewardModel | ValueHead)
            return rewarding
        if name in self.models.servers or is_served(path):
            from selfverify.verifiers.server_judge import ServerJudge

            return ServerJudge.measuring(path, name, self.policy.server)
        answerer = self.answerer(name)
        assert isinstance(answerer, Policy)
        return PolicyJudge(answerer, name, self.form)

    def _reward_model(self, path: str, name: str) -> RewardModel | ValueHead:
        """One with a value head reads what its model reads, images too; a sequence classifier reads text."""
        if has_value_head(path):
            return ValueHead.load(path, name, self.policy)
        return RewardModel.load(path, name, self.policy.device)

    def _take(self, name: str, load: Callable[[], _OneModel]) -> _OneModel:
        if name != self._name:
            self._held.clear()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._held.append(load())
            self._name = name
        return self._held[0]

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


def _groupings(problem: Problem) -> Mapping[str, Sequence[str]]:
    """The values by column that a problem's figures are broken down by; else which task it is of."""
    found: Mapping[str, Sequence[str]] = problem.meta.get("categories") or {}
    return found or {"task": [problem.id.split("/")[0]]}


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
    override: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the recipe to change; repeatable."),
    ] = None,
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
