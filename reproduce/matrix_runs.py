"""The generator by verifier matrix: every model samples, every model judges all samples, a table shows it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reproduce.by_size import SIZES
from reproduce.pairs import FEW, Cell, as_markdown, judgings, matrix, stored_scores
from selfverify.core.errors import ConfigError
from selfverify.core.files import make_output_folder, write_json, write_text
from selfverify.core.policy_config import PolicyConfig, ServedModelConfig, is_served
from selfverify.core.problem import Problem
from selfverify.evaluation.answerers import ServerAnswerer, make_answerer
from selfverify.evaluation.breakdown import columns_of
from selfverify.evaluation.evaluate import HeldOut, evaluate
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.experiments.run import measuring_engine
from selfverify.policy.policy import Policy
from selfverify.selection.calibration import Fusion
from selfverify.tasks.base import Task
from selfverify.verifiers.base import Verifier
from selfverify.verifiers.policy_verifiers import Form, PolicyJudge
from selfverify.verifiers.reward_models import RewardModel, ValueHead, has_value_head, reward_identity

Say = Callable[[str], None]
_OneModel = Policy | ServerAnswerer | RewardModel | ValueHead


def run_matrix(
    models: Mapping[str, str],
    recipe: Recipe,
    output: Path,
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    form: Form = "continue",
    fusion: Fusion | None = None,
    servers: Mapping[str, str] | None = None,
    reward_models: Mapping[str, str] | None = None,
    say: Say = print,
) -> list[Cell]:
    """Measure every model as generator and as verifier, on the recipe's task and evaluation settings.

    Writes ``NAME.jsonl`` (samples), ``NAME-by-NAME.jsonl`` (scores that a model gives another's samples),
    ``matrix.json`` and ``matrix.md`` to ``output``. A second call goes on: files that the same weights have
    made are not made again. One model is in memory at a time.

    Args:
        models: The models' paths by name; ``URL#MODEL`` is one behind a server.
        recipe: Gives the task, the policy settings, the evaluation settings and the response length.
        output: The folder to write to.
        sizes: The numbers of candidates per problem to compare.
        strategy: The strategy that uses the scores.
        form: How the judges see the answers.
        fusion: Choose by every judge's score with the generator's log-probabilities too, in rows named
            ``NAME+logprob``.
        servers: More verifiers by name, models behind OpenAI-compatible servers as ``URL#MODEL``. They judge
            and answer nothing.
        reward_models: More verifiers by name, folders of sequence classifiers with one label, or of models
            with a value head, which also read images.
        say: Gets a line about each piece of work before it begins.

    Returns:
        The cells of the table.

    Raises:
        ConfigError: There is no model, ``evaluation.score`` is not ``soft``, no size is within
            ``evaluation.samples``, the models write places in different units, a server's address is
            none, the folder cannot be made, or a reward model is none or cannot read the problems.
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
    how = recipe.policy.server
    behind = {name: _server_judge(address, name, how) for name, address in (servers or {}).items()}
    rewarding = {name: reward_identity(path) for name, path in (reward_models or {}).items()}
    held = _Held(models, recipe, reward_models or {})
    weights: dict[str, str] = {}
    samples: dict[str, list[StoredSample]] = {}
    spaces: set[tuple[int, int]] = set()
    problems: list[Problem] = []
    for name in models:
        spaces.add(held.space(task, name))
        if task.writes_places and len(spaces) > 1:
            raise ConfigError(
                f"task {task.name}: {name} writes places in other units than the models before it, and so "
                "does not share problems with them"
            )
        say(f"{name} answers")
        weights[name], samples[name], made = _answer(held.answerer(name), recipe, output / f"{name}.jsonl")
        problems = problems or made
    judges = [*models, *behind, *rewarding]
    known = weights | {name: f"{name} ({address})" for name, address in (servers or {}).items()} | rewarding
    for judge in judges:
        for name in models:
            say(f"{judge} judges the answers of {name}")
            file = output / f"{name}-by-{judge}.jsonl"
            settings = {
                "judge": known[judge],
                "samples": weights[name],
                "form": form,
                "task": recipe.task.model_dump(mode="json"),
                "evaluation": config.model_dump(mode="json", exclude={"batch_problems", "score"}),
            }
            served = judge in behind or is_served(models.get(judge, ""))
            batch = min(config.batch_problems, FEW) if served else config.batch_problems
            make = partial(_make_judge, judge, behind, held, form)
            scores = stored_scores(file, settings, make, task, problems, samples[name], batch)
            for sample, score in zip(samples[name], scores, strict=True):
                sample.scores[judge] = score
                if fusion is not None:
                    sample.scores[f"{judge}+logprob"] = fusion.of(score, sample.logprob)
    every = [*judges, *(f"{name}+logprob" for name in judges if fusion is not None)]
    cells = matrix(
        samples,
        every,
        task,
        {problem.id: problem for problem in problems},
        sizes=sizes,
        strategy=strategy,
        categories=columns_of([_groupings(problem) for problem in problems]),
    )
    if large := [n for n in sizes if n > config.samples]:
        say(f"no rows for N = {', '.join(map(str, large))}: evaluation.samples={config.samples} are drawn")
    judged = judgings(samples, every)
    for one in judged:
        if one.scored == 0:
            say(f"{one.verifier} gave no answer of {one.generator} a score: it has no rows there")
    record: dict[str, Any] = {
        "strategy": strategy,
        "form": form,
        "task": task.name,
        "cells": [asdict(c) for c in cells],
        "judging": [asdict(one) for one in judged],
    }
    if fusion is not None:
        record["fusion"] = asdict(fusion)
    write_json(output / "matrix.json", record)
    write_text(output / "matrix.md", as_markdown(cells, judged))
    return cells


class _Held:
    """The one model that is in memory."""

    def __init__(self, models: Mapping[str, str], recipe: Recipe, rewarding: Mapping[str, str]) -> None:
        if len(models) == 0:
            raise ConfigError("the matrix needs at least one model, as NAME=PATH")
        self.models, self.recipe, self.rewarding = models, recipe, rewarding
        self._name, self._held = "", list[_OneModel]()

    def answerer(self, name: str) -> Policy | ServerAnswerer:
        """Return a model, which takes the place of the one before."""
        found = self._take(name, lambda: make_answerer(self.recipe.policy.for_model(self.models[name])))
        assert not isinstance(found, RewardModel | ValueHead)
        return found

    def judge(self, name: str, form: Form) -> Verifier:
        """Return a model as a judge; one behind a server is asked in a turn of its own."""
        if name in self.rewarding:
            rewarding = self._take(
                name, lambda: _reward_model(self.rewarding[name], name, self.recipe.policy)
            )
            assert isinstance(rewarding, RewardModel | ValueHead)
            return rewarding
        answerer = self.answerer(name)
        if isinstance(answerer, ServerAnswerer):
            return _server_judge(self.models[name], name, self.recipe.policy.server)
        return PolicyJudge(answerer, name, form)

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


def _make_judge(name: str, behind: Mapping[str, Verifier], held: _Held, form: Form) -> Verifier:
    return behind[name] if name in behind else held.judge(name, form)


def _server_judge(address: str, name: str, how: ServedModelConfig) -> Verifier:
    from selfverify.verifiers.server_judge import ServerJudge

    return ServerJudge.measuring(address, name, how)


def _reward_model(path: str, name: str, config: PolicyConfig) -> RewardModel | ValueHead:
    """One with a value head reads what its model reads, images too; a sequence classifier reads text."""
    if has_value_head(path):
        return ValueHead.load(path, name, config)
    return RewardModel.load(path, name, config.device)


def _groupings(problem: Problem) -> Mapping[str, Sequence[str]]:
    """The values by column that a problem's figures are broken down by; else which task it is of."""
    found: Mapping[str, Sequence[str]] = problem.meta.get("categories") or {}
    return found or {"task": [problem.id.split("/")[0]]}
