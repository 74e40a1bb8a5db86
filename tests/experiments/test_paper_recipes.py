"""The recipes at the papers' scale have the papers' values."""

from __future__ import annotations

from typing import Any

import pytest

from selfverify.experiments.recipe import Recipe, builtin_recipes, load_recipe
from selfverify.tasks.answering import SECOND_TURN

ADPO: dict[str, Any] = {
    "seed": 42,
    "policy.dtype": "bfloat16",
    "policy.master_weights": True,
    "policy.gradient_checkpointing": True,
    "policy.train_vision": False,
    "method.kl": 0.01,
    "method.format_weight": 0.1,
    "sampling.group_size": 8,
    "sampling.temperature": 1.0,
    "learner.groups_per_step": 16,
    "learner.updates_per_rollout": 1,
    "learner.learning_rate": 1e-6,
    "learner.schedule": "linear",
    "learner.warmup_steps": 0,
    "learner.betas": (0.9, 0.999),
    "learner.weight_decay": 0.0,
    "learner.max_grad_norm": 1.0,
    "learner.clip_low": 0.2,
    "learner.clip_high": 0.2,
    "evaluation.samples": 12,
    "evaluation.temperature": 0.2,
    "evaluation.top_p": 0.99,
}
"""Section 4.1, appendix A and Table 8; what they leave out as docs/adpo.md says."""

ADAPO: dict[str, Any] = {
    "seed": 42,
    "policy.dtype": "bfloat16",
    "policy.master_weights": True,
    "policy.train_vision": False,
    "sampling.max_new_tokens": 5000,
    "task.form": "free",
    "task.score": False,
    "evaluation.second_turn": SECOND_TURN,
    "learner.betas": (0.9, 0.999),
    "learner.weight_decay": 0.0,
}
"""Table 4; what it leaves out as docs/adapo.md says."""

ROLLED_OUT = {"sampling.group_size": 8, "sampling.temperature": 1.0, "sampling.top_p": 0.99}

FINE_TUNED = {"learner.groups_per_step": 32, "learner.learning_rate": 2e-5, "learner.schedule": "linear",
              "learner.warmup_share": 0.1}  # fmt: skip

PAPERS: dict[str, dict[str, Any]] = {
    "adpo-math": {**ADPO, "policy.path": "Qwen/Qwen2-VL-7B-Instruct", "learner.steps": 1200},
    "adpo-grounding": {
        **ADPO, "policy.path": "Qwen/Qwen2.5-VL-7B-Instruct", "learner.steps": 1200, "method.gamma": 0.1,
    },
    "adpo-mobile": {
        **ADPO, "policy.path": "Qwen/Qwen2.5-VL-7B-Instruct", "learner.steps": 8000,
        "task.step_instruction": False,
    },
    "adapo-math": {
        **ADAPO, **ROLLED_OUT, "learner.learning_rate": 5e-7, "learner.schedule": "constant",
        "learner.epochs": 2.0,
        "learner.clip_low": 0.25, "learner.clip_high": 0.25, "method.kl": 0.001, "method.kl_scale": 0.01,
        "method.positive": 1.0, "method.negative": -1.0, "method.threshold": 0.6, "method.k_01": 1.0,
        "method.k_11": -1.0, "method.k_10": 0.5, "method.k_00": -0.5,
    },
    "adapo-math-grpo": {**ADAPO, **ROLLED_OUT, "learner.epochs": 2.0, "learner.learning_rate": 2e-6},
    "adapo-math-score": {
        **ADAPO, "learner.learning_rate": 2e-5, "learner.groups_per_step": 128, "sampling.temperature": 1.0,
        "method.alpha": 10.0, "method.kl": 0.01, "method.first_kl": 0.1,
        "method.silent_kl": True,
    },
    "adapo-math-sft": {**ADAPO, **FINE_TUNED, "task.solved": True, "learner.epochs": 2.0},
    "adapo-math-star": {
        **ADAPO, **FINE_TUNED, "method.iterations": 2, "method.rounds": 2, "method.epochs": 2.0,
    },
}  # fmt: skip
GRPO_OF = {f"grpo-{domain}": PAPERS[f"adpo-{domain}"] for domain in ("math", "grounding", "mobile")}
"""The same settings but for the method's own."""
TABLE = PAPERS | {
    name: {key: value for key, value in values.items() if key != "method.gamma"}
    for name, values in GRPO_OF.items()
}


def setting(recipe: Recipe, key: str) -> Any:
    """The value of a setting that is named as overrides name it."""
    section, _, name = key.partition(".")
    held = recipe.model_dump()[section]
    return held[name] if name else held


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_recipe_has_its_papers_values(name: str) -> None:
    recipe = load_recipe(name)
    assert {key: setting(recipe, key) for key in TABLE[name]} == TABLE[name]


def test_every_recipe_at_the_papers_scale_is_in_the_table() -> None:
    begins = ("adpo-", "grpo-", "adapo-")
    assert {n for n in builtin_recipes() if n.startswith(begins) and "digits" not in n} == set(TABLE)
