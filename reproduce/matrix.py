"""Every generator with every verifier (ADPO's Tables 5 and 11 to 13): `python -m reproduce.matrix`.

Every model samples, every model judges all samples, a table for each number of samples shows it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer

from reproduce.by_size import SIZES, sizes_of
from reproduce.judged_samples import WRITTEN, stored_scores
from reproduce.matrix_figures import Found, Pair, as_json, as_markdown, judgings, matrix
from reproduce.reward_models import RewardModel, ValueHead, has_value_head, reward_identity
from reproduce.scripts import Overrides, named_folders, script
from selfverify.cli.options import settings_as_options
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError
from selfverify.core.files import make_folder, write_json, write_text
from selfverify.core.policy_config import is_served
from selfverify.core.problem import Problem
from selfverify.evaluation.answerers import ServerAnswerer, make_answerer
from selfverify.evaluation.breakdown import columns_of
from selfverify.evaluation.evaluate import HeldOut, evaluate
from selfverify.evaluation.samples import TEXT_RULES, StoredSample, read_samples, with_rule_scores
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.registry import make_task
from selfverify.experiments.run import measuring_engine
from selfverify.policy.policy import Policy
from selfverify.selection.strategies import find_strategy
from selfverify.tasks.base import Task
from selfverify.verifiers.base import Verifier
from selfverify.verifiers.policy_verifiers import PolicyJudge

FEW = 8
"""Problems whose ratings a server makes before they are stored."""


@dataclass(frozen=True, slots=True)
class Models:
    """Who answers and who judges, by name; no name twice.

    Args:
        both: The models' paths; ``URL#MODEL`` is one behind a server.
        judging: More verifiers, models as in ``both``. They judge and answer nothing.
        rewarding: More verifiers, folders of sequence classifiers with one label, or of models with a value
            head, which also read images.
    """

    both: Mapping[str, str]
    judging: Mapping[str, str] = field(default_factory=dict)
    rewarding: Mapping[str, str] = field(default_factory=dict)

    @property
    def judges(self) -> dict[str, str]:
        """All of them."""
        return {**self.both, **self.judging, **self.rewarding}

    def of(self, seed: int) -> Models:
        """Put a training seed where paths say ``{seed}``."""
        given = (self.both, self.judging, self.rewarding)
        return Models(
            *({name: path.replace("{seed}", str(seed)) for name, path in of.items()} for of in given)
        )


def run_matrix(
    models: Models,
    recipe: Recipe,
    output: Path,
    *,
    seeds: Sequence[int] = (),
    sizes: Sequence[int] = SIZES,
    strategies: Sequence[str] = ("best",),
    against: Pair | None = None,
    say: Callable[[str], None] = print,
) -> dict[int, Found]:
    """Measure every model as generator and as verifier, on the recipe's task and evaluation settings.

    Writes ``NAME.jsonl`` (samples), ``NAME-by-NAME.jsonl`` (scores that a model gives another's samples),
    ``matrix.json`` and ``matrix.md`` to ``output``. A second call goes on: files that the same weights have
    made are not made again. One model is in memory at a time.

    Args:
        models: Who answers and who judges.
        recipe: Gives the task, the policy settings, the evaluation settings and the response length.
        output: The folder to write to.
        seeds: Training seeds that take the place of ``{seed}`` in paths, each in a folder of its own.
        sizes: The numbers of candidates per problem to compare.
        strategies: The strategies that use the scores.
        against: The generator and the verifier that all others are compared with.
        say: Gets a line about each piece of work before it begins.

    Returns:
        The figures by seed; without seeds, those of 0.

    Raises:
        ConfigError: ``evaluation.score`` is not ``soft``, no size is within ``evaluation.samples``, the
            models write places in different units, a server's address is none, the folder cannot be made, or
            a reward model is none or cannot read the problems.
        ServerError: A server failed; what was finished is stored.
    """
    found = {}
    for seed in seeds or [0]:
        folder = output / f"seed-{seed}" if seeds else output
        found[seed] = _one_seed(models.of(seed), recipe, folder, sizes, strategies, say)
    about = {"strategies": [*strategies], "task": recipe.task.name, "seeds": [*found]}
    write_json(output / "matrix.json", about | as_json(found))
    write_text(output / "matrix.md", as_markdown(found, against))
    return found


def _one_seed(
    models: Models,
    recipe: Recipe,
    output: Path,
    sizes: Sequence[int],
    strategies: Sequence[str],
    say: Callable[[str], None],
) -> Found:
    """Let the models of one training seed answer and judge."""
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
    held = _Held(models, recipe)
    known = {name: _identity(held.answerer(name)) for name in models.judging}
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
                "form": "continue",  # as journals say that are there already
                "task": recipe.task.model_dump(mode="json"),
                "evaluation": config.model_dump(mode="json", exclude={"batch_problems", "score"}),
            }
            batch = min(config.batch_problems, FEW) if is_served(path) else config.batch_problems
            file, make = output / f"{name}-by-{judge}.jsonl", partial(held.judge, judge)
            scores = stored_scores(file, settings, make, task, problems, samples[name], batch)
            for kind, own in scores.items():
                for sample, score in zip(samples[name], own, strict=True):
                    sample.scores[f"{judge}{kind}"] = score
    by_id = {problem.id: problem for problem in problems}
    samples = {name: with_rule_scores(rows, task, by_id) for name, rows in samples.items()}
    there = {kind for rows in samples.values() for sample in rows for kind in sample.scores}
    every = [f"{judge}{kind}" for judge in models.judges for kind in ("", WRITTEN)] + [*TEXT_RULES]
    every = [name for name in every if name in there or name in models.judges]
    # Without categories, by which task a problem is of.
    kinds = columns_of([p.meta.get("categories") or {"task": [p.id.split("/")[0]]} for p in problems])
    cells = matrix(samples, every, task, by_id, sizes=sizes, strategies=strategies, categories=kinds)
    return Found(cells, judgings(samples, every))


_Model = TypeVar("_Model")


class _Held:
    """The one model that is in memory."""

    def __init__(self, models: Models, recipe: Recipe) -> None:
        self.models, self.policy = models, recipe.policy
        self._name, self._held = "", list[Any]()
        for name, path in models.judges.items():  # their addresses are read before anything is loaded
            if is_served(path):
                self.judge(name)

    def answerer(self, name: str) -> Policy | ServerAnswerer:
        """Return a model, which takes the place of the one before."""
        return self._take(name, make_answerer, self.policy.for_model(self.models.judges[name]))

    def judge(self, name: str) -> Verifier:
        """Return a model as a judge; one behind a server is asked in a turn of its own."""
        path = self.models.judges[name]
        if name in self.models.rewarding:
            # One with a value head reads what its model reads, images too; a sequence classifier reads text.
            if has_value_head(path):
                return self._take(name, ValueHead.load, path, name, self.policy)
            return self._take(name, RewardModel.load, path, name, self.policy.device)
        if is_served(path):
            from selfverify.verifiers.server_judge import ServerJudge

            return ServerJudge.measuring(path, name, self.policy.server)
        answerer = self.answerer(name)
        assert isinstance(answerer, Policy)
        return PolicyJudge(answerer, name)

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


def _identity(answerer: Policy | ServerAnswerer) -> str:
    return answerer.fingerprint() if isinstance(answerer, Policy) else answerer.weights()


class MatrixSettings(Config):
    """The settings of a table of models."""

    recipe: str = "adpo-digits"
    """The recipe with the task, the evaluation's settings and the answers' length."""

    sizes: str = "1,4,8,12"
    """From how many candidates an answer is chosen: several numbers, with commas between them."""

    strategy: str = "best"
    """The strategies that choose an answer by the scores: one or several, with commas between them."""

    seeds: list[int] = []
    """A training seed that takes the place of {seed} in the models' paths; repeatable."""

    against: str = ""
    """GENERATOR:VERIFIER, a row that all others are compared with."""

    judge: list[str] = []
    """More verifiers: NAME=MODEL, which judge and answer nothing; repeatable."""

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

    A model may be one behind a server, `NAME=URL#MODEL`.

    Examples:

    - `python -m reproduce.matrix base=builtin:digits adpo=runs/adpo-digits/model --set evaluation.samples=12`
    - `python -m reproduce.matrix grpo=runs/grpo-{seed}/model adpo=runs/adpo-{seed}/model --seeds 0 --seeds 1`
    """
    strategies = settings.strategy.split(",")
    for strategy in strategies:
        find_strategy(strategy)
    given = [*map(named_folders, (models, settings.judge, settings.reward_model))]
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
        seeds=settings.seeds,
        strategies=strategies,
        against=(settings.against.partition(":")[0], settings.against.partition(":")[2]),
        say=lambda text: typer.echo(text, err=True),
    )
    typer.echo((settings.output / "matrix.md").read_text(encoding="utf-8"))


app = script(command)

if __name__ == "__main__":
    app()
