"""What looking again is worth, and a verifier that ends it: several seeds on the same test problems.

    python -m reproduce.looking_gains runs/looking-gains docs/results/looking.json \
        verifier=runs/stop-0 no-tools=runs/blind-0 larger=runs/larger-0 \
        verifier=runs/stop-1 no-tools=runs/blind-1 larger=runs/larger-1

Every name comes once for each seed, in the seeds' order. ``verifier`` is the run of `looking-digits`, or of
another recipe with a section `stopping`; the model that looks is the one from which it was trained.
``looks`` may name the folder in which `selfverify visual compare` has kept that model's conversations about
test problems. All other names are arms, runs of models that answer without tools. What is missing is
measured: the reasoner held to the cap, with results shown, blanked and swapped; the arms; and the model from
which all began, with tools. Samples stay in the first folder, so that a second call goes on where the first
one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from reproduce.looking_rows import (
    NO_TOOLS,
    RowOfSeed,
    gains,
    of_looks,
    of_samples,
    table_of,
)
from reproduce.scripts import named_folders, script
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import write_json
from selfverify.core.jsonl_store import read_journal
from selfverify.evaluation.samples import StoredProblem, read_samples
from selfverify.evaluation.visual_metrics import VERIFIER_WEIGHTS, CappedProblem, as_arrays
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, load_recipe
from selfverify.experiments.run import measure, recipe_task
from selfverify.experiments.train_stopping import CAP_FILE, LOOKING, CappedLooks, weights_digest
from selfverify.experiments.train_stopping import VERIFIER as VERIFIER_RUN
from selfverify.policy.policy import Policy
from selfverify.trainer.checkpoint import MODEL_FOLDER
from selfverify.visual.stopping import Kind, StopCalibration, fit_epsilon

VERIFIER, LOOKS = "verifier", "looks"
BEGINNING = "builtin:digits"
"""The model that all began from; with tools it is the row `UNTAUGHT`."""
UNTAUGHT = "before fine-tuning"
EVALUATION = ["evaluation.split=test", "evaluation.samples=1", "evaluation.temperature=0"]
PROBLEMS, FEWER = 2048, 512
"""Test problems of a row; and of those in which nothing is to be seen (`TAKEN`), and of `UNTAUGHT`."""
TAKEN = ("blanked", "swapped")
"""What is shown in place of what tools make, to tell whether it is looked at (`VisualConfig.results`)."""


@dataclass(frozen=True, slots=True)
class StudySeed:
    """What belongs to one seed.

    Args:
        run: The folder of the run that has trained the verifier; its recipe names the reasoner.
        verifier: The model's folder.
        stored: Its calibration.
        looks: The folder of the conversations held to the cap.
        arms: The runs of models without tools, by name.
    """

    run: Path
    verifier: Path
    stored: StopCalibration
    looks: Path
    arms: dict[str, Path]


def seeds_of(study: Path, named: Sequence[tuple[str, str]]) -> list[StudySeed]:
    """Sort what was named into seeds, and look whether it is there.

    Args:
        study: Where conversations are kept for which no ``looks`` are named.
        named: Names and folders, as on the command line.

    Raises:
        ConfigError: Something is missing, comes more or less often than the verifier, is calibrated for
            another rule, or holds other conversations; the message has a line for each fault.
    """
    folders: dict[str, list[Path]] = {}
    for name, folder in named:
        folders.setdefault(name, []).append(Path(folder).expanduser())
    count = len(folders.get(VERIFIER, ()))
    faults = [
        f"{name} comes {len(folders.get(name, ()))} times, and {VERIFIER} {count} times; each seed needs one"
        for name in dict.fromkeys([VERIFIER, NO_TOOLS, *folders])
        if not count or len(folders.get(name, ())) != count
    ]
    if faults:
        raise ConfigError("\n".join(faults))
    arms = [name for name in folders if name not in (VERIFIER, LOOKS)]
    for name in arms:
        for run in folders[name]:
            if not (run / RECIPE_FILE).is_file() or not (run / MODEL_FOLDER).is_dir():
                faults.append(f"{name}={run}: no run with {RECIPE_FILE} and a trained {MODEL_FOLDER}")
    seeds = []
    for k, run in enumerate(folders[VERIFIER]):
        model = run / VERIFIER_RUN / MODEL_FOLDER
        looks = folders[LOOKS][k] if LOOKS in folders else study / str(k) / "shown"
        try:
            if load_recipe(run).stopping is None:
                raise ConfigError("its recipe has no section `stopping`")
            stored = StopCalibration.load(model)
        except (ConfigError, DataError) as error:
            faults.append(f"{VERIFIER}={run}: {error}")
            continue
        if LOOKS in folders:
            faults += _looks_faults(looks, model)
        seeds.append(StudySeed(run, model, stored, looks, {name: folders[name][k] for name in arms}))
    if len(rules := {seed.stored.rule for seed in seeds}) > 1:
        faults.append(f"the verifiers are calibrated for different rules: {', '.join(sorted(rules))}")
    if faults:
        raise ConfigError("\n".join(faults))
    return seeds


def _looks_faults(folder: Path, verifier: Path) -> list[str]:
    """What is wrong with conversations that were held before."""
    path = folder / CAP_FILE.format(split="test")
    if not path.is_file():
        return [f"{LOOKS}={folder}: no {path.name}; `selfverify visual compare --output` writes it"]
    try:
        settings, rows = read_journal(path, CappedProblem)
    except DataError as error:
        return [str(error)]
    faults, looking = [], settings.get("looking", {})
    if len(rows) != (wanted := settings.get("problems")):
        faults.append(f"{path}: {len(rows)} of {wanted} problems; it was stopped: go on with it")
    if (shown := looking.get("results", "shown")) != "shown":
        faults.append(f"{path}: what tools make was {shown} there")
    if (heard := Path(looking.get("verifier") or "none")).resolve() != verifier.resolve():
        faults.append(f"{path}: the verifier there was {heard}, not {verifier}")
    return faults


def compared(
    study: Path,
    named: Sequence[tuple[str, str]],
    say: Callable[[str], None] = print,
    problems: int = PROBLEMS,
    fewer: int = FEWER,
) -> dict[str, Any]:
    """Measure what is missing of all rows, and return what `main` writes.

    Args:
        study: The folder in which samples are kept.
        named: See `seeds_of`.
        say: Gets the table, line by line, and what is being measured.
        problems: Test problems of most rows.
        fewer: Those of the rows in which little is to be learnt.

    Raises:
        ConfigError: See `seeds_of`; or samples in the folder are of other models or settings.
        DataError: Nothing can be compared.
    """
    seeds = seeds_of(study, named)
    _check_samples(study, seeds)
    rows: dict[str, list[RowOfSeed]] = {}
    epsilons: list[dict[Kind, float]] = []
    for k, seed in enumerate(seeds):
        say(f"seed {k}: {_reasoner(seed).policy.path}, held to the cap")
        journal = seed.looks / CAP_FILE.format(split="test")
        if seed.looks == study / str(k) / "shown":
            _capped(seed, seed.looks, "shown", problems).hold("test")
        epsilons.append(_epsilons(seed))
        found = of_looks(read_journal(journal, CappedProblem)[1], epsilons[-1])
        for taken in TAKEN:
            say(f"seed {k}: what tools make {taken}")
            folder = study / str(k) / taken
            _capped(seed, folder, taken, fewer).hold("test")
            others = of_looks(read_journal(folder / journal.name, CappedProblem)[1], epsilons[-1])
            found[taken], found[f"{taken}, self-stop"] = others[seed.stored.rule], others["self-stop"]
        for name, run in seed.arms.items():
            say(f"seed {k}: {name}")
            found[name] = _answered(_arm(run, problems), study / str(k) / f"{name}.jsonl")
        for name, measured in found.items():
            rows.setdefault(name, []).append(measured)
    say(f"{UNTAUGHT}: {BEGINNING}")
    untaught = _reasoner(seeds[0], fewer, f"policy.path={BEGINNING}")
    # A rule or a number of steps that some seed lacks is no row.
    rows = {name: few for name, few in rows.items() if len(few) == len(seeds)}
    rows[UNTAUGHT] = [_answered(untaught, study / "untaught.jsonl")]
    made = gains(rows, seeds[0].stored.rule)
    for line in table_of(made).splitlines():
        say(line)
    return made | {"epsilons": epsilons}


def _check_samples(study: Path, seeds: Sequence[StudySeed]) -> None:
    """Look whether samples that are kept are those of the models as they are now, before any is drawn."""
    faults = []
    for k, seed in enumerate(seeds):
        reasoner = _reasoner(seed).policy.path
        kept: dict[Path, tuple[str, type[Any]]] = {
            folder / CAP_FILE.format(split="test"): (reasoner, CappedProblem)
            for folder in (seed.looks, *(study / str(k) / taken for taken in TAKEN))
        }
        kept |= {
            study / str(k) / f"{name}.jsonl": (str(run / MODEL_FOLDER), StoredProblem)
            for name, run in seed.arms.items()
        }
        weights: dict[str, str] = {}
        for path, (model, row) in kept.items():
            if not path.is_file():
                continue
            if model not in weights:
                weights[model] = Policy.load(model).fingerprint()
            header, heard = read_journal(path, row)[0], weights_digest(str(seed.verifier))
            if header.get(VERIFIER_WEIGHTS) not in (None, heard):
                faults.append(f"{path} was heard by another verifier than {seed.verifier}; move it away")
            if header.get("weights") != weights[model]:
                faults.append(f"{path} is of another model than {model}; name its run, or move it away")
    if faults:
        raise ConfigError("\n".join(faults))


def _settings(problems: int, *more: str) -> list[str]:
    return [*EVALUATION, f"evaluation.problems={problems}", *more]


def _arm(run: Path, problems: int) -> Recipe:
    """An arm's recipe with its trained model, measured on so many test problems."""
    return load_recipe(run, [f"policy.path={run / MODEL_FOLDER}", *_settings(problems)])


def _reasoner(seed: StudySeed, problems: int = PROBLEMS, *more: str) -> Recipe:
    """The recipe of the model that looks, measured on so many test problems."""
    recipe = load_recipe(seed.run, _settings(problems, *more))
    return recipe.model_copy(update={"policy": recipe.policy.for_model(recipe.policy.path)})


def _capped(seed: StudySeed, folder: Path, results: str, problems: int) -> CappedLooks:
    recipe = _reasoner(seed, problems, f"task.results={results}")
    return CappedLooks(recipe, None, str(seed.verifier), output=folder)


def _epsilons(seed: StudySeed) -> dict[Kind, float]:
    """ε of both rules: the stored one, and the other's for the same target on the same conversations.

    Of the other rule nothing is said where these are gone, or where it does not reach the target.
    """
    found: dict[Kind, float] = {seed.stored.rule: seed.stored.epsilon}
    name = CAP_FILE.format(split="validation")
    places = (seed.looks / name, seed.run / LOOKING / name)
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return found
    looked = as_arrays(read_journal(path, CappedProblem)[1])
    stepped, stored = looked.lengths > 0, seed.stored
    for rule in get_args(Kind):
        if rule not in found:
            try:
                fitted = fit_epsilon(
                    looked.delta_r[stepped],
                    looked.correct[stepped, 1:],
                    rule,
                    stored.target,
                    stored.wanted,
                    lengths=looked.lengths[stepped],
                )
            except (ConfigError, DataError):
                continue
            found[rule] = fitted.epsilon
    return found


def _answered(recipe: Recipe, store: Path) -> RowOfSeed:
    """Answers of a model by a recipe's settings; those that are stored are read."""
    policy, task = Policy.load(recipe.policy), recipe_task(recipe, measured=True)
    measure(policy, task, recipe, store, recipe.policy.path)
    image = policy.loaded.family.placeholder(policy.model)
    config: EvaluationConfig = recipe.evaluation
    first = policy.encoder.prompt(task.problem(config.split, 0, 0))
    return of_samples(read_samples(store)[1], 0.0 if image is None else float((first.ids == image).sum()))


def main(
    study: Annotated[Path, typer.Argument(help="The folder for samples that are missing.")],
    result: Annotated[Path, typer.Argument(help="The JSON file for the figures.")],
    named: Annotated[list[str], typer.Argument(metavar="NAME=FOLDER...", help="Runs, by seed.")],
) -> None:
    """Measure what looking again is worth; the module's docstring has an example."""
    write_json(result, compared(study, named_folders(named)))
    print(result)


app = script(main)

if __name__ == "__main__":
    app()
