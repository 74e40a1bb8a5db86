"""Running the generator by verifier matrix: sample with every model, have every model judge, tabulate."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from selfverify.errors import ConfigError
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.held_out import HeldOut
from selfverify.evaluation.matrix import SIZES, Cell, as_markdown, matrix
from selfverify.evaluation.store import Sample, read_samples
from selfverify.policy.policy import Policy
from selfverify.recipe import Recipe
from selfverify.rollouts.single_turn import ANSWER
from selfverify.rollouts.tags import parse_tagged
from selfverify.rollouts.types import Group, Problem, Segment, Trajectory
from selfverify.selection.verifiers import Form, Judge
from selfverify.tasks import Task, make_task
from selfverify.tasks.base import Judged

Say = Callable[[str], None]


def run_matrix(
    models: Mapping[str, str],
    recipe: Recipe,
    output: Path,
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    form: Form = "continue",
    say: Say = print,
) -> list[Cell]:
    """Every model as generator and as verifier, on the recipe's task and evaluation settings.

    Writes ``NAME.jsonl`` (samples), ``NAME-by-NAME.json`` (a model's scores of another's samples),
    ``matrix.json`` and ``matrix.md`` to ``output``. Called again, it goes on: what is there and was made by
    the same weights is not made again.

    Args:
        models: Paths by name.
        recipe: Its task, policy settings, evaluation settings and response length.
        output: Folder.
        sizes: Candidates per problem.
        strategy: What uses the scores.
        form: How the judges see the answers.
        say: Told what is being done.

    Raises:
        ConfigError: There is no model, or the models write places in different units.
    """
    if len(models) == 0:
        raise ConfigError("the matrix needs at least one model, as NAME=PATH")
    task = make_task(recipe.task.name, **recipe.task.options)
    config = recipe.evaluation
    policies = {name: Policy.load(recipe.policy.for_model(path)) for name, path in models.items()}
    if hasattr(task, "use_space") and len({p.coordinate_space((1000, 700)) for p in policies.values()}) > 1:
        raise ConfigError(
            f"task {task.name}: these models write places in different units, and so do not share problems"
        )
    weights = {name: policy.fingerprint() for name, policy in policies.items()}
    output.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[Sample]] = {}
    for name, policy in policies.items():
        say(f"{name} answers")
        store = output / f"{name}.jsonl"
        evaluate(policy, task, config, store, max_new_tokens=recipe.sampling.max_new_tokens)
        samples[name] = read_samples(store)[1]
    # The task knows now how the policies write places.
    held_out = HeldOut(task, config)
    problems = [*held_out.make(range(held_out.total)).values()]
    answered = {sample.problem for sample in samples[next(iter(policies))]}
    problems = [problem for problem in problems if problem.id in answered]
    for judge, policy in policies.items():
        for name in policies:
            say(f"{judge} judges the answers of {name}")
            file = output / f"{name}-by-{judge}.json"
            settings = {
                "judge": weights[judge],
                "samples": weights[name],
                "form": form,
                "task": recipe.task.model_dump(mode="json"),
                "evaluation": config.model_dump(mode="json", exclude={"batch_problems"}),
            }
            scores = _stored(file, settings)
            if scores is None:
                scores = judge_samples(
                    Judge(policy, judge, form), task, problems, samples[name], config.batch_problems
                )
                file.write_text(json.dumps({"settings": settings, "scores": scores}), encoding="utf-8")
            for sample, score in zip(samples[name], scores, strict=True):
                sample.scores[judge] = score
    boxes = {p.id: p.target for p in problems} if task.kind == "continuous" else None
    kinds = {p.id: str(p.meta.get("category") or p.id.split("/")[0]) for p in problems}
    cells = matrix(
        samples,
        list(models),
        sizes=sizes,
        strategy=strategy,
        category=(lambda problem: kinds[problem]) if len(set(kinds.values())) > 1 else None,
        target_boxes=boxes,
    )
    record = {"strategy": strategy, "form": form, "task": task.name, "cells": [asdict(c) for c in cells]}
    (output / "matrix.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    (output / "matrix.md").write_text(as_markdown(cells), encoding="utf-8")
    return cells


def _stored(file: Path, settings: Mapping[str, object]) -> list[float | None] | None:
    """Scores of an earlier call under the same settings."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return list(record["scores"]) if record["settings"] == settings else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def judge_samples(
    judge: Judge, task: Task, problems: Sequence[Problem], samples: Sequence[Sample], batch: int = 64
) -> list[float | None]:
    """A judge's scores of stored samples, in their order; None for answers that could not be read."""
    rows: dict[str, list[int]] = {problem.id: [] for problem in problems}
    for place, sample in enumerate(samples):
        rows[sample.problem].append(place)
    found: list[float | None] = [None] * len(samples)
    for first in range(0, len(problems), batch):
        part = problems[first : first + batch]
        groups = [Group(p, [_trajectory(samples[i], task) for i in rows[p.id]]) for p in part]
        for problem, scores in zip(part, judge.score(groups), strict=True):
            for place, score in zip(rows[problem.id], scores, strict=True):
                found[place] = score
    return found


def _trajectory(sample: Sample, task: Task) -> Trajectory:
    """A stored sample as a judge may see it: its text up to the score."""
    start = parse_tagged(sample.text, task.tags).score_start
    segment = Segment(ANSWER, [], text=sample.text if start is None else sample.text[:start])
    readable = None if sample.answer is None else Judged(0.0, sample.correct, sample.answer, sample.key)
    return Trajectory([segment], parsed=readable)
