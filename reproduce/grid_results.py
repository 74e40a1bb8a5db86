"""What a study found: every metric of every variant, pooled over seeds, and compared with the baseline.

**Pooling.** All runs of a task are measured on the same P problems with the same draws w of problems. A
variant's figure for a metric S is the mean over its seeds k of S_k, and its interval that of the mean of
S_k(w) over k, seeds being drawn again, too. AUC and AP, which are no means over problems, are computed per
seed. Differences from the baseline, and from the policy before training, are tested by
`reproduce.statistics`: paired over problems, with the variance over each side's seeds. A draw
takes a problem with its samples of all seeds.

With one seed, intervals say how sure a figure is for *that trained model*; how much training varies is in
``per_seed`` and ``seed_std`` where there are several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reproduce.grid_figures import draw_figures
from reproduce.grid_file import BEFORE, Run, Study
from reproduce.grid_tables import markdown
from reproduce.statistics import compare
from selfverify.core.errors import DataError, __version__
from selfverify.core.files import write_json, write_text
from selfverify.evaluation.evaluate import HeldOut, target_boxes
from selfverify.evaluation.metrics import ERRORS, HEADLINE, Boxes, SampleTable, statistics
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.evaluation.statistics import (
    Statistic,
    draws,
    mean_statistic,
    on_all,
    percentile_interval,
    pooled_draws,
    row_mean,
)
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.reports.run_data import RunData, load_run, read_metrics
from selfverify.selection.rules import Floats, best_weights


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The metrics of one sample set.

    Args:
        values: The metrics by name; NaN where a metric cannot be measured.
        draws: The metrics by name on every draw of the problems ``[n]``; all sample sets have the same draws.
        problems: P.
    """

    values: dict[str, float]
    draws: dict[str, Floats]
    problems: int

    @classmethod
    def of(cls, found: Mapping[str, Statistic], problems: int) -> MeasuredRun:
        """Measure statistics by name on all ``problems``, and on every draw of them."""
        return cls(
            {name: on_all(statistic, problems) for name, statistic in found.items()},
            {name: draws(statistic, problems) for name, statistic in found.items()},
            problems,
        )


def write_results(study: Study, output: Path, runs: Sequence[Run]) -> Path:
    """Aggregate the finished ``runs`` into results.json, table.md and figures; return the path of the first.

    Raises:
        DataError: Runs of one task were measured on different problems, or a file is corrupt.
    """
    tasks: dict[str, Any] = {}
    missing, versions = [], dict[str, list[str]]()
    for task in study.tasks:
        found: dict[str, dict[int, RunData]] = {}
        recipes: dict[str, Recipe] = {}
        for run in (run for run in runs if run.task == task):
            folder = output / run.label
            if (folder / "metrics.json").is_file():
                found.setdefault(run.variant, {})[run.seed] = load_run(folder)
                recipes[run.variant] = run.recipe
                versions.setdefault(_version(folder), []).append(run.label)
            else:
                missing.append(run.label)
        # In the file's order, whatever the order in which runs were finished.
        found = {label: found[label] for label in study.variants if label in found}
        if found:
            first = output / task / BEFORE / "samples.jsonl"
            for file in (
                first,
                *(r.path / "samples-after.jsonl" for of in found.values() for r in of.values()),
            ):
                if not file.is_file():
                    raise DataError(
                        f"{file} is missing; delete metrics.json beside it and run the study to make it"
                    )
            before = read_samples(first)[1]
            versions.setdefault(_version(first.parent), []).append(f"{task}/{BEFORE}")
            samples = {v: {k: run.samples["after"] for k, run in of.items()} for v, of in found.items()}
            tasks[task] = task_results(before, samples, recipes, study.baseline)
            draw_figures(output / "figures", task, tasks[task], found)
    results = {
        "study": study.name,
        "recipe": Path(study.recipe).stem,
        "baseline": study.baseline,
        "interval": "95 % bootstrap over problems and seeds; of differences Student's t by Welch over both; "
        "see reproduce.grid_results",
        "tasks": tasks,
        "missing": missing,
        "notes": _notes(versions),
    }
    write_json(output / "results.json", results)
    write_text(output / "table.md", markdown(results))
    return output / "results.json"


def _version(folder: Path) -> str:
    """The version that a run was made with; one that notes none is taken for this one's."""
    return read_metrics(folder).get("version") or __version__


def _notes(versions: Mapping[str, Sequence[str]]) -> list[str]:
    """What has to be said of runs that another version has trained or sampled."""
    return [
        f"Made with version {version}, while these tables are counted by {__version__}, which may train and "
        f"sample otherwise: {', '.join(labels)}. Delete their folders to run them anew."
        for version, labels in versions.items()
        if version != __version__
    ]


def task_results(
    before: Sequence[StoredSample],
    samples: Mapping[str, Mapping[int, Sequence[StoredSample]]],
    recipes: Mapping[str, Recipe],
    baseline: str | None,
) -> dict[str, Any]:
    """Return the figures of one task.

    Args:
        before: Samples of the policy that all variants start from.
        samples: Samples after training, by variant and seed.
        recipes: The recipes by variant; the seed does not matter.
        baseline: The variant that the others are compared with.
    """
    recipe = next(iter(recipes.values()))
    task = make_task(recipe.task.name, **recipe.task.options)
    held_out = HeldOut(task, recipe.evaluation)
    # One at a time: the images of all problems may not fit into memory.
    boxes = target_boxes(task, (p for i in range(held_out.total) for p in held_out.make([i]).values()))
    order = list(dict.fromkeys(sample.problem for sample in before))
    reading = recipe.evaluation.score
    first = measure_samples(before, order, boxes, reading, task.errors)
    measured: dict[str, dict[int, MeasuredRun]] = {variant: {} for variant in samples}
    for variant, by_seed in samples.items():
        for seed, found in by_seed.items():
            try:
                measured[variant][seed] = measure_samples(found, order, boxes, reading, task.errors)
            except DataError as error:
                raise DataError(f"{recipe.task.name}, {variant}, seed {seed}: {error}") from None
    reference = measured.get(baseline or "")
    variants = {}
    for variant, own in measured.items():
        variants[variant] = {
            "method": recipes[variant].method.model_dump(mode="json"),
            "seeds": list(own),
            "metrics": pooled(own),
            "gain": difference(own, dict.fromkeys(own, first)),
        }
        if reference is not None and variant != baseline:
            variants[variant]["difference"] = difference(own, reference)
    return {
        "task": recipe.task.name,
        "kind": task.kind,
        "problems": len(order),
        "samples_per_problem": len(before) // len(order),
        BEFORE: {"metrics": pooled({0: first}, seeded=False)},
        "variants": variants,
    }


def measure_samples(
    samples: Sequence[StoredSample],
    order: Sequence[str],
    boxes: Boxes | None = None,
    headline: str = HEADLINE,
    errors: Sequence[str] = (),
) -> MeasuredRun:
    """Measure all metrics of a sample set, on the problems in ``order``.

    These are the metrics of `selfverify.evaluation.metrics.statistics` and ``score_is_1``, the share of the
    sampled scores that are 1 (ADPO's Fig. 2). A task whose true answers are ``boxes`` also has ``mean_iou``,
    the mean reward of the answers, and ``best_iou@N``, that of the answers which their own score selects.
    ``errors`` are the classes of error that the task names.
    """
    present = {sample.problem for sample in samples}
    if present != set(order):
        differing = sorted(present ^ set(order))
        raise DataError(
            f"runs of one task need the same problems; {len(differing)} differ, such as {differing[0]}"
        )
    table = SampleTable.from_samples(samples, order, boxes, headline, errors)
    total = table.correct.shape[1]
    found: dict[str, Statistic] = {
        name: statistic
        for name, statistic in statistics(table).items()
        if "." not in name or name.startswith(("turns.", f"{ERRORS}."))
    }
    sampled = table.scores["sampled"]
    found["score_is_1"] = mean_statistic(row_mean(np.where(np.isnan(sampled), np.nan, sampled >= 1)))
    if boxes is not None:
        quality = table.reward("answer")
        found["mean_iou"] = mean_statistic(quality.mean(-1))
        score = table.scores[headline]
        if not np.isnan(score).all():
            found[f"best_iou@{total}"] = mean_statistic((best_weights(score) * quality).sum(-1))
    return MeasuredRun.of(found, len(order))


def pooled(by_seed: Mapping[int, MeasuredRun], seeded: bool = True) -> dict[str, dict[str, Any]]:
    """Return each metric's mean over seeds, its interval and the seeds' own values; None where undefined.

    ``seed_std`` is the standard deviation over seeds (dividing by n − 1).
    """
    result: dict[str, dict[str, Any]] = {}
    for name, (known, interval) in _pool(by_seed).items():
        values = list(known.values())
        result[name] = {"mean": float(np.mean(values)) if values else None, "interval": interval}
        if seeded:
            result[name]["seed_std"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
            result[name]["per_seed"] = {str(seed): known.get(seed) for seed in by_seed}
    return result


def difference(
    by_seed: Mapping[int, MeasuredRun], baseline: Mapping[int, MeasuredRun]
) -> dict[str, dict[str, Any]]:
    """Return how much higher each metric is than the baseline's, on the problems and the seeds of both.

    ``p`` is that of no difference, without correction for other comparisons; it and the interval are None
    where nothing varies (`reproduce.statistics.compare`).
    """
    found: dict[str, dict[str, Any]] = {}
    both = [seed for seed in by_seed if seed in baseline]
    for name in dict.fromkeys(name for seed in both for name in by_seed[seed].values):
        sides = [{seed: of[seed].values.get(name, math.nan) for seed in both} for of in (by_seed, baseline)]
        known = [seed for seed in both if not any(math.isnan(side[seed]) for side in sides)]
        if not known:
            continue
        own, other = ([side[seed] for seed in known] for side in sides)
        drawn = [[of[seed].draws[name] for seed in known] for of in (by_seed, baseline)]
        compared = compare(own, drawn[0], other, drawn[1], by_seed[known[0]].problems)
        found[name] = {
            "difference": compared.difference,
            "interval": compared.interval,
            "p": compared.p,
            "per_seed": {str(seed): a - b for seed, a, b in zip(known, own, other, strict=True)},
        }
    return found


def _pool(by_seed: Mapping[int, MeasuredRun]) -> dict[str, tuple[dict[int, float], list[float] | None]]:
    """Return for each metric its values by seed, where it is defined, and the interval of their mean."""
    found = {}
    for name in dict.fromkeys(name for measured in by_seed.values() for name in measured.values):
        values = {seed: measured.values.get(name, math.nan) for seed, measured in by_seed.items()}
        known = {seed: value for seed, value in values.items() if not math.isnan(value)}
        drawn = [by_seed[seed].draws[name] for seed in known]
        found[name] = known, percentile_interval(pooled_draws(drawn)) if drawn else None
    return found
