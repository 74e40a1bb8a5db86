"""The generator by verifier matrix: every model samples, every model judges all samples, a table shows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from selfverify.core.atomic_files import make_output_folder, write_json, write_text
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.held_out import HeldOut, target_boxes
from selfverify.evaluation.store import StoredSample, read_samples
from selfverify.evaluation.verifier_pairs import SIZES, Cell, as_markdown, matrix
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.selection.fusion import Fusion
from selfverify.tasks.base import Judged, Task
from selfverify.verifiers.by_policy import Form, Judge

Say = Callable[[str], None]


def run_matrix(
    models: Mapping[str, str],
    recipe: Recipe,
    output: Path,
    *,
    sizes: Sequence[int] = SIZES,
    strategy: str = "best",
    form: Form = "continue",
    fusion: Fusion | None = None,
    say: Say = print,
) -> list[Cell]:
    """Measure every model as generator and as verifier, on the recipe's task and evaluation settings.

    Writes ``NAME.jsonl`` (samples), ``NAME-by-NAME.json`` (scores that a model gives another's samples),
    ``matrix.json`` and ``matrix.md`` to ``output``. A second call goes on: files that the same weights have
    made are not made again.

    Args:
        models: The models' paths by name.
        recipe: Gives the task, the policy settings, the evaluation settings and the response length.
        output: The folder to write to.
        sizes: The numbers of candidates per problem to compare.
        strategy: The strategy that uses the scores.
        form: How the judges see the answers.
        fusion: Choose by every judge's score with the generator's log-probabilities too, in rows named
            ``NAME+logprob``.
        say: Gets a line about each piece of work before it begins.

    Returns:
        The cells of the table.

    Raises:
        ConfigError: There is no model, the models write places in different units, or the folder cannot be
            made.
    """
    task = make_task(recipe.task.name, **recipe.task.options)
    config = recipe.evaluation
    make_output_folder(output)
    policies = _load(models, recipe, task)
    weights = {name: policy.fingerprint() for name, policy in policies.items()}
    samples: dict[str, list[StoredSample]] = {}
    for name, policy in policies.items():
        say(f"{name} answers")
        store = output / f"{name}.jsonl"
        evaluate(policy, task, config, store, max_new_tokens=recipe.sampling.max_new_tokens)
        samples[name] = read_samples(store)[1]
    # Made only now, because `evaluate` has told the task how the policies write places.
    held_out = HeldOut(task, config)
    answered = {sample.problem for sample in samples[next(iter(policies))]}
    problems = [p for p in held_out.make(range(held_out.total)).values() if p.id in answered]
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
                write_json(file, {"settings": settings, "scores": scores})
            for sample, score in zip(samples[name], scores, strict=True):
                sample.scores[judge] = score
                if fusion is not None:
                    sample.scores[f"{judge}+logprob"] = fusion.of(score, sample.logprob)
    kinds = {p.id: str(p.meta.get("category") or p.id.split("/")[0]) for p in problems}
    cells = matrix(
        samples,
        [*models, *(f"{name}+logprob" for name in models if fusion is not None)],
        sizes=sizes,
        strategy=strategy,
        category=(lambda problem: kinds[problem]) if len(set(kinds.values())) > 1 else None,
        target_boxes=target_boxes(task, problems),
    )
    record: dict[str, Any] = {
        "strategy": strategy,
        "form": form,
        "task": task.name,
        "cells": [asdict(c) for c in cells],
    }
    if fusion is not None:
        record["fusion"] = asdict(fusion)
    write_json(output / "matrix.json", record)
    write_text(output / "matrix.md", as_markdown(cells))
    return cells


def _load(models: Mapping[str, str], recipe: Recipe, task: Task) -> dict[str, Policy]:
    if len(models) == 0:
        raise ConfigError("the matrix needs at least one model, as NAME=PATH")
    policies = {name: Policy.load(recipe.policy.for_model(path)) for name, path in models.items()}
    if task.writes_places and len({p.coordinate_space((1000, 700)) for p in policies.values()}) > 1:
        raise ConfigError(
            f"task {task.name}: these models write places in different units, and so do not share problems"
        )
    return policies


def _stored(file: Path, settings: Mapping[str, object]) -> list[float | None] | None:
    """Return the scores that an earlier call has stored under the same settings; None if there are none."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        return list(record["scores"]) if record["settings"] == settings else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def judge_samples(
    judge: Judge, task: Task, problems: Sequence[Problem], samples: Sequence[StoredSample], batch: int = 64
) -> list[float | None]:
    """Return a judge's scores in the order of the samples; None for answers that could not be read."""
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


def _trajectory(sample: StoredSample, task: Task) -> Trajectory:
    """Make the trajectory that a judge may see: a sample's text up to its score."""
    start = parse_tagged(sample.text, task.tags).score_start
    segment = Segment(ANSWER, [], text=sample.text if start is None else sample.text[:start])
    readable = None if sample.answer is None else Judged(0.0, sample.correct, sample.answer, sample.key)
    return Trajectory([segment], parsed=readable)
