"""Starts verl's ``main_ppo`` for a recipe with a section ``engine``.

Every setting of a recipe reaches verl, or our own code in its processes, or is refused by its name.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from selfverify.core.config import EngineConfig
from selfverify.core.errors import ConfigError
from selfverify.core.files import make_folder, naming, write_text
from selfverify.evaluation.evaluate import HeldOut
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, missing_packages, recipe_task, to_yaml
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Method, Training
from selfverify.policy.adapters import base_of
from selfverify.policy.loading import packed_file, resolve
from selfverify.tasks.base import Task

PLUGIN, SHARED = (f"selfverify.integrations.verl.{name}" for name in ("trainer", "shared_engine"))
VENDOR = "selfverify"
"""The value of ``VERL_ENGINE_VENDOR`` with which verl takes our engine, which shares prompts."""

_KEYS: dict[str, Any] = YAML(typ="safe").load(Path(__file__).with_name("keys.yaml"))
REFUSED: dict[str, str] = _KEYS["refused"]
"""Settings that verl cannot heed, and what to do instead."""
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def start(recipe: Recipe, resume: bool = False) -> None:
    """Write verl's configuration into the run's folder, and become its process.

    Raises:
        ConfigError: verl is not installed here, the folder holds a run and ``resume`` is not set, or the
            recipe asks for what verl cannot do.
    """
    found = next((installed.version for installed in distributions(name="verl")), "none")
    if found.split(".")[:2] != ["0", "9"]:
        raise ConfigError(
            f"engine.name=verl: verl >= 0.9.1, < 0.10, is needed, and {found} is installed here; `make verl` "
            "shows an environment with it"
        )
    if missing := missing_packages(recipe):
        raise ConfigError("\n".join(missing))
    recipe_task(recipe).check_files("train")
    if make_method(recipe.method.name, **recipe.method.options).measured:
        recipe_task(recipe, measured=True).check_files(recipe.evaluation.split)
    config, options = verl_config(recipe)
    folder = recipe.folder.resolve()
    if not resume and (folder / "checkpoints").exists():
        raise ConfigError(f"{folder} holds a run: --resume goes on with it; output=OTHER writes elsewhere")
    config["trainer"]["resume_mode"] = "auto" if resume else "disable"
    make_folder(folder)
    write_text(folder / RECIPE_FILE, to_yaml(recipe))
    told = folder / "verl.yaml"
    with naming(told), told.open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(json.loads(json.dumps(config)), file)
    modules = [name for name in (os.environ.get("VERL_USE_EXTERNAL_MODULES"), PLUGIN) if name]
    if recipe.engine is not None and recipe.engine.shared_prefix:
        modules.append(SHARED)
        os.environ["VERL_ENGINE_VENDOR"] = VENDOR
    os.environ["VERL_USE_EXTERNAL_MODULES"] = ",".join(modules)
    before = len([*folder.glob("metrics-verl*.jsonl")])  # verl would begin the file anew
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / f"metrics-verl{f'-{before + 1}' * bool(before)}.jsonl")
    command = [sys.executable, "-m", "verl.trainer.main_ppo", f"--config-path={folder}", "--config-name=verl"]
    command += options
    sys.stdout.flush()
    os.execvp(command[0], command)


def verl_config(recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    """Return what verl's configuration says of a recipe, and ``engine.options`` as overrides.

    hydra refuses an override that verl does not know, before Ray starts; a ``+`` before its name adds it.

    Raises:
        ConfigError: verl cannot do what the recipe asks for, or an option says what a setting of the recipe
            says otherwise; one line per fault.
    """
    engine, task = recipe.engine or EngineConfig(), recipe_task(recipe)
    method = make_method(recipe.method.name, **recipe.method.options)
    faults = [f"{name}: {REFUSED[name]}" for name in _refused(recipe)]
    if packed_file(recipe.policy.path) or base_of(resolve(recipe.policy.path)):
        faults.append(f"policy.path={recipe.policy.path}: `selfverify merge` makes a folder of it")
    if recipe.policy.dtype == "auto":
        faults.append("policy.dtype=auto: write float32 or bfloat16")
    if method.objective == "likelihood":
        faults.append(f"method.name={method.name}: verl's trainers learn by rewards; take our own")
    if engine.mode != "sync" and recipe.learner.loss.importance_cap is None:
        faults.append(f"engine.mode={engine.mode}: older weights sample; set learner.loss.importance_cap")
    limits, size = method.limits or task.limits, recipe.learner.groups_per_step
    group = 2 if method.objective == "pairwise" else recipe.sampling.group_size
    once = recipe.sampling.max_new_tokens if limits.turns == 1 else 0
    length = engine.response_tokens or limits.tokens or once
    if not length:
        faults.append("engine.response_tokens: say how long a conversation gets, what it is shown included")
    ranks, updates = engine.nodes * engine.gpus_per_node, recipe.learner.batch.updates_per_rollout
    if method.objective == "pairwise" and updates * recipe.learner.batch.inner_epochs > 1:
        faults.append(
            f"learner.batch: on verl, {method.name} makes one update of a step's pairs; set "
            "updates_per_rollout and inner_epochs to 1"
        )
    if size % updates or (size // updates * group) % ranks:
        faults.append(
            f"learner.groups_per_step={size}: verl wants whole optimiser batches on each of {ranks} GPUs; "
            f"make it a multiple of learner.batch.updates_per_rollout={updates}, and with "
            f"{group} conversations of each (sampling.group_size) a multiple of the GPUs"
        )
    if faults:
        raise ConfigError("\n".join(faults))
    given = dict(_leaves(engine.options))
    share = int(given.get(f"{_ACTOR}.ulysses_sequence_parallel_size", 1))
    settled = _settled(recipe, engine, task, method, group, length, share)
    servers = _KEYS["servers"]
    if engine.mode == "async" and not {*servers} <= {name.lstrip("+") for name in given}:
        faults.append(
            "engine.mode=async: servers have GPUs of their own; under engine.options write "
            f"{' and '.join(servers)}"
        )
    if engine.mode == "async" and updates > 1:
        faults.append("engine.mode=async: each update has its own rollouts; set updates_per_rollout=1")
    for name, value in given.items():
        own = [key for key in settled if _within(key, name) or _within(name, key)]
        if any(_within(name, key) for key in _KEYS["replaced"]):
            faults.append(f"engine.options: {name}: what the recipe says stands in its place")
        elif method.config.reads_scores and _KEYS["whole"].get(name.rpartition(".")[2], value) != value:
            faults.append(
                f"engine.options: {name}: {method.name} learns from whole rows of logits; leave it out"
            )
        elif name.lstrip("+") not in _KEYS["free"] and any(settled[key] != value for key in own):
            faults.append(f"engine.options: {name}: the recipe says {settled[own[0]]!r}; change it there")
    if faults:
        raise ConfigError("\n".join(faults))
    config: dict[str, Any] = {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
    }
    for name, value in settled.items():
        *sections, last = name.split(".")
        inner = config
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return config, [f"{name}={json.dumps(value)}" for name, value in given.items()]


def _refused(config: BaseModel, above: str = "") -> Iterator[str]:
    """Yield the names of settings in `REFUSED` that are not as they are by default."""
    for name, field in type(config).model_fields.items():
        value, dotted = getattr(config, name), f"{above}{name}"
        if dotted in REFUSED and value != field.get_default(call_default_factory=True):
            yield dotted
        elif isinstance(value, BaseModel):
            yield from _refused(value, f"{dotted}.")


def _settled(
    recipe: Recipe, engine: EngineConfig, task: Task, method: Method, group: int, length: int, share: int
) -> dict[str, Any]:
    """Return the keys that a recipe decides, by their names with dots.

    A problem has ``group`` rows. ``length`` is the longest conversation behind its prompt, ``share`` how many
    GPUs share its tokens.
    """
    policy, exam = recipe.policy, recipe.evaluation
    nothing: Any = None  # a method's stages need no policy
    given = nothing, task, method, recipe.learner, recipe.sampling, recipe.folder
    learner = next(method.stages(Training(*given))).learner
    told = dict(
        _leaves(recipe.model_copy(update={"learner": learner, "engine": engine}).model_dump(mode="json"))
    )
    batch, longest = learner.batch, engine.prompt_tokens + length
    rows, low = batch.micro_batch_groups * group, policy.dtype == "bfloat16"
    tokens = min(batch.micro_batch_tokens or rows * longest, rows * longest)
    computed, kept = "bf16" if low else "fp32", "bf16" if low and not policy.master_weights else "fp32"
    model, reference = "actor_rollout_ref.model", "actor_rollout_ref.ref"
    found = {name: told[setting] for name, setting in _KEYS["same"].items()} | {
        # As text in which OmegaConf finds nothing to fill in.
        "algorithm.selfverify": recipe.model_dump_json(exclude={"engine"}).replace("$", "\\u0024"),
        "data.train_files": [f"train/{learner.steps * learner.groups_per_step}"],
        "data.val_files": [f"{exam.split}/1"],  # verl wants one also where nothing is measured
        "data.max_response_length": length,
        "data.mm_processor_kwargs": policy.model_dump(
            include={"min_pixels", "max_pixels"}, exclude_none=True
        ),
        "actor_rollout_ref.nccl_timeout": math.ceil(learner.process_timeout_s),
        f"{model}.path": resolve(policy.path),
        f"{_ACTOR}.ppo_mini_batch_size": learner.groups_per_step // batch.updates_per_rollout,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": max(tokens, -(-longest // share)),
        f"{_ACTOR}.use_kl_loss": method.config.needs_reference,
        f"{_ACTOR}.fsdp_config.model_dtype": kept,
        f"{_ACTOR}.fsdp_config.mixed_precision.param_dtype": computed,
        f"{_ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{reference}.fsdp_config.model_dtype": computed,
        f"{reference}.fsdp_config.mixed_precision.param_dtype": computed,
        f"{_ROLLOUT}.n": group,
        f"{_ROLLOUT}.calculate_log_probs": method.objective == "surrogate",
        "trainer.v1.trainer_mode": "selfverify" if engine.mode == "sync" else f"selfverify_{engine.mode}",
        "trainer.save_freq": learner.checkpoint.every or learner.steps,
        "trainer.default_local_dir": str((recipe.folder / "checkpoints").resolve()),
        "trainer.logger": ["console", "file", *learner.log.trackers],
        "trainer.test_freq": -1,
    }
    if method.measured:
        held_out = HeldOut(recipe_task(recipe, measured=True), exam).total
        found["data.val_files"] = [f"{exam.split}/{held_out}"]
        found["trainer.test_freq"] = learner.log.evaluate_every or learner.steps
    else:
        found["trainer.val_before_train"] = False
    if engine.shared_prefix:
        found[f"{model}.use_remove_padding"] = False
    if engine.mode == "async":
        found["trainer.v1.separate_async.parameter_sync_step"] = 1
    if policy.lora is not None:
        others = None if policy.train_vision else r".*(visual|vision|multi_modal|connector).*"
        found |= {
            f"{model}.lora_rank": policy.lora.rank,
            f"{model}.lora_alpha": policy.lora.alpha,
            f"{model}.exclude_modules": others,
            f"{model}.target_modules": policy.lora.targets or "all-linear",
            # An adapter is saved in the model's place, and servers begin with the weights below it.
            f"{_ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra"],
            f"{_ROLLOUT}.load_format": "safetensors",
        }
    if task.limits.concurrent is not None:
        found[f"{_ROLLOUT}.agent.num_workers"] = 1  # each process counts what it holds itself
    return _KEYS["fixed"] | found


def _within(name: str, section: str) -> bool:
    return f"{name}.".lstrip("+").startswith(f"{section}.".lstrip("+"))


def _leaves(options: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
