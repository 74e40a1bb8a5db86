"""A recipe: all that defines an experiment, in one YAML file that is checked before anything starts.

    recipe = load_recipe("adpo-digits", ["learner.optim.learning_rate=5e-5", "method.kl=0"])

A key that does not exist, a value that does not fit, and settings that fit each by themselves and cannot work
together or change nothing are errors at once, with the file, the line and the nearest key that does exist.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_serializer, model_validator

from selfverify.core.config import (
    Config,
    EngineConfig,
    EpisodeConfig,
    EvaluationConfig,
    PathText,
    SamplingConfig,
    Seed,
    StoppingConfig,
    how_to_get,
    with_distributions,
)
from selfverify.core.errors import ConfigError, FileError
from selfverify.core.files import naming, write_text
from selfverify.core.policy_config import PolicyConfig, is_saved_model, is_served
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.recipe_yaml import Document, Section, dump_yaml, load_yaml, read_document

if TYPE_CHECKING:
    from selfverify.methods.base import Method
    from selfverify.tasks.base import Task


def episode_faults(episode: EpisodeConfig, method: Method, task: type[Task]) -> list[str]:
    """Return a line for every limit of conversations that would change nothing, with the reason."""
    given = list(episode.model_dump(exclude_none=True))
    names = ", ".join(f"episode.{name}" for name in given)
    if given and method.limits is not None:
        return [f"{names}: conversations of method {method.name} are as long as it says itself"]
    if given and task.limits.turns == 1:
        return [f"{names}: a conversation of task {task.name} is over after the first answer"]
    timed = [f"episode.{name}" for name in ("step_timeout_s", "hung_threads") if name in given]
    if timed and not episode.changed(task.limits).step_threads:
        return [f"{', '.join(timed)}: without threads no reply has a deadline; set episode.step_threads"]
    return []


def score_faults(method: Method, reading: str, asked: bool) -> list[str]:
    """Return a line where scores are taught, or read in a way of their own, that the task does not ask for.

    Args:
        method: May teach scores.
        reading: How evaluations read scores (`EvaluationConfig.score`).
        asked: Whether the task asks for scores (``task.score``).
    """
    if asked:
        return []
    faults = []
    if method.teaches_scores:
        faults.append(f"task.score=false: method {method.name} teaches scores; grpo and adapo go without")
    if reading != "soft":
        faults.append(f"evaluation.score={reading}: task.score=false leaves no scores to read; set soft")
    return faults


def missing_packages(recipe: Recipe) -> list[str]:
    """Return a line for each package that a run would want in its middle and that is not installed."""
    from selfverify.experiments.registry import TASKS

    packages = TASKS[recipe.task.name].packages
    wanted = [(f"task {recipe.task.name}", extra, package) for extra, package in packages.items()]
    if recipe.policy.lora is not None:
        wanted.append(("policy.lora", "lora", "peft"))
    if recipe.learner.optim.name == "adamw_8bit":
        wanted.append(("learner.optim.name=adamw_8bit", "8bit", "bitsandbytes"))
    return [
        f"{who} needs {package}, which is not installed: pip install 'selfverify[{extra}]'"
        for who, extra, package in wanted
        if find_spec(package) is None
    ]


def _vllm_faults(policy: PolicyConfig) -> list[str]:
    """Return a line for every setting that vLLM, which reads the model's folder itself, would not heed."""
    from selfverify.policy.loading import packed_file

    faults = []
    if packed_file(policy.path):
        faults.append(
            f"sampling.engine=vllm starts from a folder, and policy.path={policy.path} from a GGUF file; "
            f"`selfverify merge {policy.path} FOLDER` unpacks it, and then policy.path=FOLDER"
        )
    for name, value in (("min_pixels", policy.min_pixels), ("max_pixels", policy.max_pixels)):
        if value is not None:
            faults.append(
                f"policy.{name} does not reach vLLM (sampling.engine=vllm); write it into the "
                "preprocessor_config.json of the model's folder (or its processor_config.json, where that "
                "holds the image processor's settings)"
            )
    return faults


def _model_path_fault(path: str) -> str:
    """Return what is wrong with ``policy.path``; empty where nothing is, or where only the Hub can say."""
    folder = Path(path).expanduser()
    try:
        with naming(path):
            if path.startswith("builtin:") or is_served(path):
                return ""
            if folder.is_dir() and not is_saved_model(folder):
                return f"policy.path={path}: this folder holds no config.json, so it is not a saved model"
            found = folder.is_dir() or (folder.is_file() and folder.suffix == ".gguf")
    except FileError as error:
        return f"policy.path={error}"
    # `org/name` may be a model of the Hub; anything that cannot be one has to be a folder.
    local = path.startswith((".", "/", "~")) or "\\" in path or path.count("/") > 1
    return f"policy.path={path}: there is no such model folder" if local and not found else ""


logger = logging.getLogger(__name__)

RECIPE_FILE = "recipe.yaml"
"""The file in a run's folder that holds the resolved recipe."""


class NamedConfig(Config):
    """A task or method by name, with its options.

    In a file the two stand side by side (``{name: adpo, beta: 0.04}``); here they are apart, so that
    ``make_task(recipe.task.name, **recipe.task.options)`` reads well.
    """

    name: str
    """Name of a task (`TASKS`) or a method (`METHODS`)."""

    options: dict[str, Any] = {}
    """The options of that task or method, defaults filled in."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"name": data}
        if isinstance(data, dict) and set(data) != {"name", "options"}:
            options = {key: value for key, value in data.items() if key != "name"}
            return {"options": options} | {key: data[key] for key in data if key == "name"}
        return data

    @model_serializer
    def _flatten(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


class Recipe(Config):
    """One experiment: a model, a task, a method, and how it is trained and measured."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment and of its folder."""

    seed: Seed = 0
    """Seed of everything random: data, sampling, initial weights."""

    output: PathText = Field("runs/{name}", validate_default=True)
    """Folder of the run: metrics, checkpoints, the resolved recipe. `{name}` is filled in."""

    policy: PolicyConfig = PolicyConfig()
    """The model."""

    task: NamedConfig
    """What is learnt: a task's name and its options."""

    method: NamedConfig
    """How it is learnt: a method's name and its options."""

    sampling: SamplingConfig = SamplingConfig()
    """How trajectories are sampled in training."""

    episode: EpisodeConfig = EpisodeConfig()
    """Limits of the task's conversations, in training and in evaluations."""

    learner: TrainerConfig
    """The training loop."""

    evaluation: EvaluationConfig = EvaluationConfig()
    """How the result is measured."""

    evaluation_task: dict[str, Any] = {}
    """Options of the task that differ in evaluations, such as a judge apart from training's; what is not
    named here is as in `task`."""

    engine: EngineConfig | None = None
    """Another trainer that runs the recipe; null is our own."""

    stopping: StoppingConfig | None = None
    """Make a verifier that ends looking: pairs from the policy's own conversations about the task, `dpo` on
    them, and its ε. With null the method learns from the task itself."""

    @field_validator("output")
    @classmethod
    def _fill_in_name(cls, value: str, info: Any) -> str:
        return os.path.expanduser(value.replace("{name}", info.data.get("name", "{name}")))

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.output)

    @property
    def measured_task(self) -> NamedConfig:
        """The task as evaluations have it."""
        options = _laid_over(self.task.options, self.evaluation_task)
        return self.task.model_copy(update={"options": options})


def _laid_over(options: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options`` with those of ``changed``, section by section."""
    merged = Section(options)
    if isinstance(changed, Section):
        merged.places |= changed.places
    for key, value in changed.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _laid_over(below, value)
        merged[key] = value
    return merged


def refuse_hidden(recipe: Recipe, overrides: Sequence[str]) -> None:
    """Refuse overrides of the task that an evaluation would not heed, as `evaluation_task` says otherwise.

    Raises:
        ConfigError: There is one.
    """
    for override in overrides:
        section, *parts = (part.strip() for part in override.partition("=")[0].split("."))
        if section != "task" or not parts:
            continue
        inner: Any = recipe.evaluation_task
        while parts and isinstance(inner, Mapping):
            inner = inner.get(parts.pop(0))
        if not parts and inner is not None:
            raise ConfigError(
                f"override {override!r} changes nothing in an evaluation, as the recipe's evaluation_task "
                f"says {inner}; write evaluation_{override}"
            )


def to_yaml(recipe: Recipe) -> str:
    """Return the recipe as YAML, defaults included; `load_recipe` reads an equal recipe from it."""
    return dump_yaml(recipe.model_dump(mode="json"))


def write_recipe(recipe: Recipe, folder: Path) -> None:
    """Write the resolved recipe into a run's folder."""
    write_text(folder / RECIPE_FILE, to_yaml(recipe))


def recipe_folder() -> Path:
    """Return the folder of built-in recipes: inside an installed package, beside `src/` in a checkout."""
    package = Path(__file__).parents[1]
    packaged = package / "recipes"
    return packaged if packaged.is_dir() else package.parents[1] / "recipes"


def builtin_recipes() -> dict[str, Path]:
    """Return the files of the recipes of the package and of installed distributions, by name.

    Raises:
        ConfigError: Two of them have one name.
    """
    return with_distributions(
        "RECIPES",
        "recipe",
        recipe_folder(),
        lambda folder: [(path.stem, path) for path in sorted(folder.glob("*.yaml"))],
    )


def recipe_summary(path: Path) -> str:
    """Return the first comment line of a recipe file, which says what the recipe is for."""
    with path.open(encoding="utf-8") as lines:
        return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, apply overrides, and check the result.

    Args:
        path_or_name: A YAML file, a run's folder or the name of a built-in recipe. Of a folder its
            `recipe.yaml` is taken, and the folder itself is the output, also if the run was moved there.
        overrides: ``section.key=value`` strings, applied in order; a value is read as YAML. An override
            of ``method.name`` or ``task.name`` with another name than the file's replaces the whole section,
            since options of one method mean nothing to another.

    Raises:
        ConfigError: The file cannot be read, a key does not exist, a value does not fit, or the settings
            contradict each other. The message has one line per fault.
    """
    file = _locate(path_or_name)
    document = _read(file)
    if "variants" in document.data:
        raise ConfigError(
            f"{document.source}: this is a grid, many runs in one file; in a checkout, "
            f"`python -m reproduce.grid {path_or_name}` runs it"
        )
    for section in ("method", "task"):
        _forget_other(section, overrides, document)
    if Path(path_or_name).expanduser().is_dir():
        _stay_in(file.parent, document)
    for override in overrides:
        document.override(override)
    return build_recipe(document)


def _read(file: Path, above: tuple[Path, ...] = ()) -> Document:
    """Read a recipe, and lay it over the one that it ``extends``, a file beside it or a built-in recipe."""
    document = read_document(file)
    name = document.data.pop("extends", None)
    if name is None:
        return document
    beside = file.parent / str(name)
    base = beside if beside.is_file() else _locate(str(name))
    if base in (file, *above):
        raise ConfigError(f"{document.place(('extends',))}: extends: {name} is, or extends, this recipe")
    return Document(document.source, _laid_over(_read(base, (file, *above)).data, document.data))


def _stay_in(folder: Path, document: Document) -> None:
    """Let a run's output be the folder that its recipe stands in."""
    written = document.data.get("output")
    if isinstance(written, str) and Path(written).expanduser().resolve() != folder.resolve():
        logger.warning("%s: this run was in %s before; %s is used", document.source, written, folder)
    document.data["output"] = str(folder)


def overridden_name(section: str, overrides: Sequence[str]) -> str | None:
    """Return the name in the last override ``section.name=NAME``; None where there is no such override."""
    parts = [override.partition("=") for override in overrides]
    names = [text for key, _, text in parts if key.strip() == f"{section}.name"]
    return str(load_yaml(names[-1], f"override {section}.name")) if names else None


def _forget_other(section: str, overrides: Sequence[str], document: Document) -> None:
    """Empty the section ``task`` or ``method`` if an override changes its ``name``."""
    renamed, written = overridden_name(section, overrides), document.data.get(section)
    if renamed is not None and renamed != (written.get("name") if isinstance(written, dict) else written):
        document.data[section] = {}
        if section == "task":
            document.data.pop("evaluation_task", None)


def build_recipe(document: Document) -> Recipe:
    """Return the recipe that a document holds, with the options of task and method completed.

    Raises:
        ConfigError: A key or a value is wrong, or settings contradict each other; one line per fault.
    """
    recipe = document.validated(Recipe)
    # Late, because tasks and methods import torch, and `selfverify --help` should not wait for that.
    from selfverify.experiments import registry

    whole = {"task": _complete("task", recipe.task, document)}
    whole["method"] = _complete("method", recipe.method, document)
    recipe = recipe.model_copy(update=whole)
    _complete("task", recipe.measured_task, document, "evaluation_task")
    method = registry.make_method(recipe.method.name, **recipe.method.options)
    faults = [fault] if (fault := _model_path_fault(recipe.policy.path)) else []
    if recipe.sampling.engine == "vllm" and not faults:
        faults += _vllm_faults(recipe.policy)
    faults += method.faults(recipe.learner, recipe.sampling)
    faults += method.evaluation_faults(recipe.evaluation)
    faults += score_faults(method, recipe.evaluation.score, recipe.task.options.get("score") is not False)
    faults += episode_faults(recipe.episode, method, registry.TASKS[recipe.task.name])
    if faults:
        raise ConfigError("\n".join(f"{document.source}: {fault}" for fault in faults))
    return recipe


def _locate(path_or_name: str | Path) -> Path:
    text = str(path_or_name)
    path = Path(text).expanduser()
    with naming(text):
        if path.is_dir() and (path / RECIPE_FILE).is_file():
            return path / RECIPE_FILE
        if path.is_file():
            return path
    builtin = builtin_recipes()
    if text in builtin:
        return builtin[text]
    if path.is_dir():
        raise ConfigError(f"{text}: this folder holds no {RECIPE_FILE}, so it is not the folder of a run")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        raise ConfigError(f"{text}: there is no such recipe file")
    if found := how_to_get(text):
        raise ConfigError(found)
    close = difflib.get_close_matches(text, builtin, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"built-in recipes: {', '.join(builtin) or 'none'}"
    raise ConfigError(f"there is no recipe file and no built-in recipe called {text!r}; {hint}")


def _complete(
    section: Literal["task", "method"], choice: NamedConfig, document: Document, written_in: str | None = None
) -> NamedConfig:
    """Return a task or method with all its options; refuse an unknown name or option.

    ``written_in`` is the section of the document in which faults are located, by default ``section``.
    """
    from selfverify.experiments.registry import look_up

    try:
        model = look_up(section, choice.name).config_class
    except ConfigError as error:
        raise ConfigError(f"{document.place((section, 'name'))}: {error}") from None
    about = f" ({section} {choice.name})"
    options = document.validated(model, choice.options, (written_in or section,), about)
    return NamedConfig(name=choice.name, options=options.model_dump())


def recipe_task(recipe: Recipe, measured: bool = False) -> Task:
    """Return the task that a recipe names, with the limits that it sets to conversations.

    ``measured`` asks for the task as evaluations have it.
    """
    from selfverify.experiments.registry import make_task

    chosen = recipe.measured_task if measured else recipe.task
    task = make_task(chosen.name, **chosen.options)
    task.limits = recipe.episode.changed(task.limits)
    return task
