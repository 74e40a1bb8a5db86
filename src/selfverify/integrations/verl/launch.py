"""Starts verl's ``main_ppo`` for a recipe with a section ``engine``."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ruamel.yaml import YAML

from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.registry import make_method
from selfverify.policy.loading import resolve

PLUGIN = "selfverify.integrations.verl.trainer"
VERSIONS = "verl >= 0.9.1, < 0.10"


def start(recipe: Recipe) -> None:
    """Write verl's configuration into the run's folder, and become its process.

    Raises:
        ConfigError: verl is not installed here, or the recipe asks for what it cannot do.
    """
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise ConfigError(
            f"engine.name=verl: {VERSIONS} is not installed here; `make verl` shows an environment with it"
        ) from None
    if found.split(".")[:2] != ["0", "9"]:
        raise ConfigError(f"engine.name=verl: verl {found} is installed, and {VERSIONS} is needed")
    folder = recipe.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "verl.yaml").open("w", encoding="utf-8") as file:
        YAML(typ="safe").dump(json.loads(json.dumps(verl_config(recipe))), file)
    modules = [name for name in (os.environ.get("VERL_USE_EXTERNAL_MODULES"), PLUGIN) if name]
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": ",".join(modules)}
    command = [sys.executable, "-m", "verl.trainer.main_ppo", f"--config-path={folder}", "--config-name=verl"]
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)


def verl_config(recipe: Recipe) -> dict[str, Any]:
    """Return verl's configuration of a recipe; ``engine.options`` count last.

    Raises:
        ConfigError: verl cannot do what the recipe asks for.
    """
    engine, learner, sampling = recipe.engine, recipe.learner, recipe.sampling
    if engine is None:
        raise ConfigError("the recipe has no section engine")
    method = make_method(recipe.method.name, **recipe.method.options)
    turns = (method.limits or recipe_task(recipe).limits).turns
    if method.objective != "surrogate":
        raise ConfigError(f"method.name={method.name}: verl's trainers learn by rewards; take our own")
    if method.config.reads_scores:
        raise ConfigError(
            f"method.name={method.name}: its credit reads the probabilities of all scores, which servers of "
            "verl do not show; choose another one (verification_credit: concordance), or our own trainer"
        )
    ranks, size = engine.nodes * engine.gpus_per_node, learner.groups_per_step
    updates = learner.batch.updates_per_rollout
    if size % updates or (size // updates * sampling.group_size) % ranks:
        raise ConfigError(
            f"learner.groups_per_step={size}: verl wants whole optimiser batches on each of {ranks} GPUs; "
            f"make it a multiple of learner.batch.updates_per_rollout={updates}, and with "
            f"sampling.group_size={sampling.group_size} a multiple of the GPUs"
        )
    optim, loss, log = learner.optim, learner.loss, learner.log
    steps = learner.steps
    model: dict[str, Any] = {
        "path": resolve(recipe.policy.path),
        "trust_remote_code": recipe.policy.trust_remote_code,
        "enable_gradient_checkpointing": recipe.policy.gradient_checkpointing,
    }
    if recipe.policy.lora is not None:
        model |= {"lora_rank": recipe.policy.lora.rank, "lora_alpha": recipe.policy.lora.alpha}
    config: dict[str, Any] = {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": ["ppo_trainer", "_self_"],
        "algorithm": {
            "adv_estimator": "grpo",
            "selfverify": recipe.model_dump(mode="json", exclude={"engine"}),
        },
        "data": {
            "train_files": [f"train/{steps * size}"],
            "val_files": [f"{recipe.evaluation.split}/{recipe.evaluation.problems or size}"],
            "custom_cls": {"path": "pkg://selfverify.integrations.verl.loop", "name": "ProblemDataset"},
            "train_batch_size": size,
            "max_prompt_length": engine.prompt_tokens,
            "max_response_length": engine.response_tokens or turns * sampling.max_new_tokens,
            "shuffle": False,
        },
        "actor_rollout_ref": {
            "model": model,
            "actor": {
                "strategy": "fsdp2",
                "ppo_mini_batch_size": size // updates,
                "ppo_epochs": learner.batch.inner_epochs,
                "use_kl_loss": method.config.needs_reference,
                "clip_ratio": loss.clip_low,
                "clip_ratio_low": loss.clip_low,
                "clip_ratio_high": loss.clip_high,
                "grad_clip": optim.max_grad_norm,
                "optim": {
                    "lr": optim.learning_rate,
                    "betas": list(optim.betas),
                    "weight_decay": optim.weight_decay,
                },
            },
            "ref": {"strategy": "fsdp2"},
            "rollout": {
                "name": "vllm",
                "n": sampling.group_size,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "calculate_log_probs": True,
                "agent": {"default_agent_loop": "selfverify"},
            },
        },
        "trainer": {
            "v1": {"trainer_mode": "selfverify" if engine.mode == "sync" else f"selfverify_{engine.mode}"},
            "nnodes": engine.nodes,
            "n_gpus_per_node": engine.gpus_per_node,
            "total_training_steps": steps,
            "total_epochs": 1,
            "save_freq": learner.checkpoint.every or -1,
            "test_freq": log.evaluate_every or -1,
            "val_before_train": False,
            "default_local_dir": str((recipe.folder / "checkpoints").resolve()),
            "project_name": "selfverify",
            "experiment_name": recipe.name,
            "logger": ["console", *log.trackers],
        },
    }
    for name, value in engine.options.items():
        _set(config, name, value)
    return config


def _set(config: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        config = config.setdefault(section, {})
        if not isinstance(config, dict):
            raise ConfigError(f"engine.options: {name}: {section} is no section of verl's configuration")
    config[last] = value
