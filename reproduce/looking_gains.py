"""The worth of looking again, and of a verifier that ends it: several seeds on the same test problems.

    python -m reproduce.vts_v gains runs/looking-gains looking.json \
        verifier=runs/stop-0 no-tools=runs/blind-0 larger=runs/larger-0 \
        verifier=runs/stop-1 no-tools=runs/blind-1 larger=runs/larger-1

Every name comes once for each seed, in the seeds' order. ``verifier`` is the run of `looking-digits`, or of
another recipe with a section `stopping`; the model that looks is the one from which it was trained. All
other names are arms, runs of models that answer without tools. What is missing is measured: the reasoner held
to the cap, with results shown, blanked and swapped; the arms; and the model from which all began, with tools.
Samples stay in the first folder, so that a second call goes on where the first one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from reproduce.statistics import MeasuredRun, difference, pooled, ratio_run
from reproduce.tables import Column, difference_table, figure_table
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import read_journal
from selfverify.evaluation.samples import StoredSample, read_samples
from selfverify.evaluation.visual_metrics import (
    WITHIN,
    CappedArrays,
    CappedProblem,
    StopOutcome,
    as_arrays,
    outcomes,
)
from selfverify.experiments.command_config import ListenerConfig
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, load_recipe, recipe_task
from selfverify.experiments.run import measure
from selfverify.experiments.train_stopping import CAP_FILE, LOOKING, CappedLooks
from selfverify.experiments.train_stopping import VERIFIER as VERIFIER_RUN
from selfverify.policy.policy import Policy
from selfverify.selection.rules import Floats
from selfverify.trainer.checkpoint import MODEL_FOLDER
from selfverify.visual.episode import STEPS
from selfverify.visual.stopping import Kind, StopCalibration, fit_epsilon

VERIFIER, NO_TOOLS = "verifier", "no-tools"
BEGINNING = "builtin:digits"
"""The model that all began from; with tools it is the row `UNTAUGHT`."""
UNTAUGHT = "before fine-tuning"
EVALUATION = ["evaluation.split=test", "evaluation.samples=1", "evaluation.temperature=0"]
PROBLEMS, FEWER = 2048, 512
"""Test problems of a row; and of those in which nothing is to be seen (`TAKEN`), and of `UNTAUGHT`."""
TAKEN = ("blanked", "swapped")
"""Pictures in place of those that tools make, to tell whether they are looked at (`VisualConfig.results`)."""
RIGHT = Column("accuracy", "right")
COLUMNS = (
    RIGHT,
    Column("steps", "steps", percent=False, better=False),
    Column("visual_tokens", "visual tokens", percent=False, better=False),
    *(Column(name, name.replace("_", " "), better=False) for name in ("crop_hit", "too_early", "too_late")),
)


class StudySeed:
    """The runs and files of one seed; see `seeds_of` for errors.

    Args:
        run: The folder of the run that has trained the verifier; its recipe names the reasoner.
        arms: The runs of models without tools, by name.

    Attributes:
        verifier: The verifier's folder.
        stored: Its calibration.
    """

    def __init__(self, run: Path, arms: Mapping[str, Path]) -> None:
        if load_recipe(run).stopping is None:
            raise ConfigError(f"{VERIFIER}={run}: its recipe has no section `stopping`")
        self.run, self.arms, self.verifier = run, arms, run / VERIFIER_RUN / MODEL_FOLDER
        self.stored = StopCalibration.load(self.verifier)


def seeds_of(named: Sequence[tuple[str, str]]) -> list[StudySeed]:
    """Sort what was named into seeds, and look whether it is there.

    Raises:
        ConfigError: Something is missing, comes more or less often than the verifier, or is calibrated for
            another rule.
        DataError: A verifier has no calibration.
    """
    folders: dict[str, list[Path]] = {}
    for name, folder in named:
        folders.setdefault(name, []).append(Path(folder).expanduser())
    counts = {name: len(folders.get(name, ())) for name in (VERIFIER, NO_TOOLS, *folders)}
    if len({*counts.values()}) > 1 or 0 in counts.values():
        given = ", ".join(f"{name} {count} times" for name, count in counts.items())
        raise ConfigError(f"each name is needed once for each seed, not {given}")
    runs = folders.pop(VERIFIER)
    for name, arms in folders.items():
        for run in arms:
            if not (run / RECIPE_FILE).is_file() or not (run / MODEL_FOLDER).is_dir():
                raise ConfigError(f"{name}={run}: no run with {RECIPE_FILE} and a trained {MODEL_FOLDER}")
    seeds = [StudySeed(run, {name: arms[k] for name, arms in folders.items()}) for k, run in enumerate(runs)]
    if len(rules := {seed.stored.rule for seed in seeds}) > 1:
        raise ConfigError(f"the verifiers are calibrated for different rules: {', '.join(sorted(rules))}")
    return seeds


@dataclass(frozen=True, slots=True)
class RowOfSeed:
    """One model in one row: by the keys of `COLUMNS`, as far as they are known, the mean of each problem."""

    problems: list[str]
    figures: dict[str, Floats]

    def on(self, problems: Sequence[str]) -> MeasuredRun:
        """The means over some of the problems."""
        place = {problem: number for number, problem in enumerate(self.problems)}
        chosen = [place[problem] for problem in problems]
        ones = np.ones(len(chosen))
        return ratio_run({name: (values[chosen], ones) for name, values in self.figures.items()})


def of_looks(looked: CappedArrays, epsilons: Mapping[Kind, float]) -> dict[str, RowOfSeed]:
    """All rules on conversations that were held to the cap, by name (`visual_metrics.outcomes`)."""
    return by_problem(looked, outcomes(looked, epsilons))


def by_problem(looked: CappedArrays, found: Mapping[str, StopOutcome]) -> dict[str, RowOfSeed]:
    """The problems' means of rules' outcomes, by name."""
    made = {}
    counts = np.bincount(looked.problem, minlength=looked.problems)
    for name, outcome in found.items():
        sums = {key: np.bincount(looked.problem, one, looked.problems) for key, one in outcome.items()}
        made[name] = RowOfSeed([*looked.names], {key: one / counts for key, one in sums.items()})
    return made


def of_samples(samples: Sequence[StoredSample], visual: float) -> RowOfSeed:
    """One model's answers; lost ones are left out. ``visual`` are the visual tokens of a question."""
    found: dict[str, list[StoredSample]] = {}
    for sample in samples:
        if not sample.lost:
            found.setdefault(sample.problem, []).append(sample)
    right = np.array([np.mean([one.correct for one in few]) for few in found.values()])
    steps = np.array([np.mean([one.rewards.get(STEPS, 0.0) for one in few]) for few in found.values()])
    figures = {"accuracy": right, "steps": steps}
    if not steps.any():
        figures["visual_tokens"] = np.full(len(right), float(visual))
    return RowOfSeed([*found], figures)


def gains(rows: Mapping[str, Sequence[RowOfSeed]], rule: Kind) -> dict[str, Any]:
    """All rows' figures, and how much more often the verifier is right than each.

    Differences are of the same problems, with the models of the same seed.

    Args:
        rows: By name one model for each of K seeds, or one for all of them.
        rule: The verifier's.

    Returns:
        ``rows``, and ``rule``, ``best_n`` (the number of steps that is right most often) and ``smallest_n``
        (the smallest one that is nearly as good), with ``steps_share``, the verifier's steps over that many.

    Raises:
        DataError: A row has no problem in common with the verifier's.
    """
    table: dict[str, Any] = {}
    for name, measured in rows.items():
        if not (shared := _shared([*rows[rule], *measured])):
            raise DataError(f"the row {name} has no problem in common with the verifier's")
        mine = {k: one.on(shared) for k, one in enumerate(rows[rule])}
        theirs = {k: one.on(shared) for k, one in enumerate([*measured] * (len(mine) // len(measured)))}
        own = _shared(measured)
        table[name] = {
            "problems": len(own),
            "figures": pooled({k: one.on(own) for k, one in enumerate(measured)}),
            "verifier_ahead": {} if name == rule else difference(mine, theirs),
        }
    right = {name: row["figures"]["accuracy"]["mean"] for name, row in table.items()}
    fixed = [name for name in rows if name.startswith("always ") and name != "always 0"]
    best = max(fixed, key=lambda name: (right[name], -fixed.index(name)))
    smallest = next(name for name in fixed if right[name] >= right[best] - WITHIN)
    steps = [table[name]["figures"]["steps"]["mean"] for name in (rule, smallest)]
    about = {"rule": rule, "best_n": int(best.split()[1]), "smallest_n": int(smallest.split()[1])}
    return {**about, "steps_share": steps[0] / steps[1] if steps[1] else None, "rows": table}


def _shared(measured: Sequence[RowOfSeed]) -> list[str]:
    """The problems that all have, in order."""
    every = set.intersection(*(set(one.problems) for one in measured))
    return [problem for problem in measured[0].problems if problem in every]


def table_of(made: Mapping[str, Any]) -> str:
    """The rows in Markdown, and how far the verifier is ahead of them."""
    figures = {(name,): row["figures"] for name, row in made["rows"].items()}
    ahead = {(name,): row["verifier_ahead"] for name, row in made["rows"].items() if row["verifier_ahead"]}
    table, _ = difference_table([f"{made['rule']} is ahead of"], ahead, [RIGHT])
    return f"{figure_table(['looking ends'], figures, COLUMNS)}\n\n{table}"


def compared(
    study: Path,
    named: Sequence[tuple[str, str]],
    say: Callable[[str], None] = print,
    problems: int = PROBLEMS,
    fewer: int = FEWER,
) -> dict[str, Any]:
    """Measure what is missing of all rows, and return what is written.

    Args:
        study: The folder in which samples are kept.
        named: See `seeds_of`.
        say: Gets the table, and what is being measured.
        problems: Test problems of most rows.
        fewer: Those of the rows in which little is to be learnt.

    Raises:
        ConfigError: See `seeds_of`; or samples in the folder are of other models or settings.
        DataError: Nothing can be compared.
    """
    seeds = seeds_of(named)
    rows: dict[str, list[RowOfSeed]] = {}
    epsilons: list[dict[Kind, float]] = []
    for k, seed in enumerate(seeds):
        say(f"seed {k}: {_reasoner(seed).policy.path}, held to the cap")
        epsilons.append(epsilons_of(seed))
        found = of_looks(capped(seed, study / str(k) / "shown", problems), epsilons[-1])
        for taken in TAKEN:
            say(f"seed {k}: what tools make {taken}")
            others = of_looks(capped(seed, study / str(k) / taken, fewer), epsilons[-1])
            found[taken], found[f"{taken}, self-stop"] = others[seed.stored.rule], others["self-stop"]
        for name, run in seed.arms.items():
            say(f"seed {k}: {name}")
            model = [f"policy.path={run / MODEL_FOLDER}", f"evaluation.problems={problems}"]
            found[name] = _answered(load_recipe(run, [*EVALUATION, *model]), study / str(k) / f"{name}.jsonl")
        for name, measured in found.items():
            rows.setdefault(name, []).append(measured)
    say(f"{UNTAUGHT}: {BEGINNING}")
    # A rule or a number of steps that some seed lacks is no row.
    rows = {name: few for name, few in rows.items() if len(few) == len(seeds)}
    untaught = _reasoner(seeds[0], fewer, f"policy.path={BEGINNING}")
    rows[UNTAUGHT] = [_answered(untaught, study / "untaught.jsonl")]
    made = gains(rows, seeds[0].stored.rule)
    say(table_of(made))
    return made | {"epsilons": epsilons}


def _reasoner(seed: StudySeed, problems: int = PROBLEMS, *more: str) -> Recipe:
    """The recipe of the model that looks, measured on so many test problems."""
    recipe = load_recipe(seed.run, [*EVALUATION, f"evaluation.problems={problems}", *more])
    return recipe.model_copy(update={"policy": recipe.policy.for_model(recipe.policy.path)})


def capped(seed: StudySeed, folder: Path, problems: int, temperature: float = 0.0) -> CappedArrays:
    """The reasoner held to the cap, with results as the folder is called."""
    changes = f"task.results={folder.name}", f"evaluation.temperature={temperature}"
    recipe = _reasoner(seed, problems, *changes)
    return CappedLooks(recipe, ListenerConfig(verifier=str(seed.verifier), output=folder)).hold("test")


def epsilons_of(seed: StudySeed) -> dict[Kind, float]:
    """ε of both rules: the stored one, and the other's for the same target on the same conversations.

    Of the other rule nothing is said where these are gone, or where it does not reach the target.
    """
    stored = seed.stored
    found: dict[Kind, float] = {stored.rule: stored.epsilon}
    path = seed.run / LOOKING / CAP_FILE.format(split="validation")
    if not path.is_file():
        return found
    looked = as_arrays(read_journal(path, CappedProblem)[1])
    stepped = looked.lengths > 0
    values, right, lengths = looked.delta_r[stepped], looked.correct[stepped, 1:], looked.lengths[stepped]
    for rule in get_args(Kind):
        if rule != stored.rule:
            try:
                fitted = fit_epsilon(values, right, rule, stored.target, stored.wanted, lengths=lengths)
            except (ConfigError, DataError):
                continue
            found[rule] = fitted.epsilon
    return found


def _answered(recipe: Recipe, store: Path) -> RowOfSeed:
    """Answers of a model by a recipe's settings; those that are stored are read."""
    policy, task = Policy.load(recipe.policy), recipe_task(recipe, measured=True)
    measure(policy, task, recipe, store, recipe.policy.path)
    image = policy.loaded.family.placeholder(policy.model)
    first = policy.encoder.prompt(task.problem(recipe.evaluation.split, 0, 0))
    return of_samples(read_samples(store)[1], 0.0 if image is None else float((first.ids == image).sum()))
