"""verl's real ``main_ppo`` on a CPU: hydra, Ray, TransferQueue, agent loops, FSDP2, AdamW, new weights."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATHS = [str(path) for path in (HERE, ROOT / "src", ROOT / "environments" / "phone")]
ENGINE = {
    "data.dataloader_num_workers": 0,
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.override_config": {"attn_implementation": "sdpa"},
    "actor_rollout_ref.rollout.name": "generate",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.rollout.load_format": "auto",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4,
    "reward.num_workers": 1,
    "trainer.device": "cpu",
    "trainer.resume_mode": "disable",
    "ray_kwargs.ray_init": {"num_cpus": 16, "num_gpus": 1, "include_dashboard": False},
}
for part in ("actor", "ref"):
    ENGINE[f"actor_rollout_ref.{part}.fsdp_config"] = {
        "model_dtype": "fp32",
        "use_torch_compile": False,
        "mixed_precision": {"param_dtype": "fp32"},
    }

START = """
import json, sys
from selfverify.experiments.recipe import Recipe
from selfverify.integrations.verl.launch import start
start(Recipe.model_validate(json.loads(sys.argv[1])))
"""


def steps_of(folder, method, path, response_tokens):
    """The figures of each step of a run of two steps with four groups of four."""
    recipe = {
        "name": "run", "output": str(folder / "run"), "policy": {"path": path},
        "task": {"name": "digits-pick"},
        "method": method, "sampling": {"group_size": 4, "max_new_tokens": 48},
        "learner": {
            "steps": 2, "groups_per_step": 4, "optim": {"learning_rate": 1e-4},
            "loss": {"denominator": "channel"},
        },
        "engine": {
            "gpus_per_node": 1, "prompt_tokens": 256, "response_tokens": response_tokens, "options": ENGINE,
        },
    }  # fmt: skip
    environment = os.environ | {
        "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "cpu_platform,cpu_engine",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "WANDB_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0", "PYTHONPATH": os.pathsep.join(PATHS),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-c", START, json.dumps(recipe)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=folder)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown[-4000:]
    found = []
    for line in shown.splitlines():
        if re.search(r"\bstep:\d+ - ", line):
            pairs = re.findall(r"([\w/@.-]+):(?:np\.\w+\()?(-?[0-9.]+(?:e[-+]?\d+)?)", line)
            found.append({name: float(value) for name, value in pairs})
    return found


@pytest.mark.slow
def test_adpo_learns_two_steps(tmp_path):
    """A single answer with an image; the second step feels the reference's pull."""
    adpo = {"name": "adpo", "kl": 0.2, "score_kl": 0.02, "verification_credit": "concordance"}
    first, second = steps_of(tmp_path, adpo, "builtin:digits", 48)
    assert first["actor/selfverify_kl_loss"] == 0.0 < second["actor/selfverify_kl_loss"]
    assert first["actor/grad_norm"] > 0 and second["actor/grad_norm"] > 0
    assert first["selfverify/accuracy"] == first["critic/score/mean"]
    assert first["training/rollout_probs_diff_max"] < 1e-4, "verl's own log-probs are those of the sampler"


@pytest.mark.slow
def test_adapo_asks_again(tmp_path):
    """Two turns: the second request is the environment's, and is not learnt."""
    adapo = {"name": "adapo", "second_turn": "Check the answer.", "kl": 0.03, "kl_scale": 0.05}
    path = ROOT / "reproduce" / "weights" / "digits-two-turns"
    first, second = steps_of(tmp_path, adapo, str(path), 160)
    assert first["selfverify/accuracy"] == first["critic/score/mean"] > 0
    assert first["actor/grad_norm"] > 0 and second["actor/selfverify_kl_loss"] > 0
