"""verl's real ``main_ppo`` on a CPU, and our own trainer on what it has sampled: equal weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.experiments.looks.looks_files import write_looks

from selfverify.core.trajectory import Group, valid_trajectories
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import build
from selfverify.methods.base import Training
from selfverify.objectives import UNTRAINED, surrogate, token_weights
from selfverify.policy import adapters
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.score_reading import read_rollout_scores
from selfverify.trainer.batch import make_streams, stack
from selfverify.trainer.trainer import Trainer
from tables import read_tables

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENGINE = read_tables(Path(__file__).with_suffix(".yaml"))["engine"]
START = """
import json, sys
from selfverify.experiments.recipe import Recipe
from selfverify.integrations.verl.launch import start
start(Recipe.model_validate(json.loads(sys.argv[1])))
"""
LEARNER = {"steps": 2, "groups_per_step": 4, "loss": {"importance_cap": None}}
OPTIM = {"learning_rate": 1e-4, "schedule": "linear", "weight_decay": 0.01}


def recipe_of(
    folder, ranks=1, prompt=256, response=None, learner=None, mode="sync", shared=False, options=None, **more
):
    engine = {"gpus_per_node": ranks, "prompt_tokens": prompt, "response_tokens": response}
    engine |= {"mode": mode, "shared_prefix": shared, "options": ENGINE | (options or {})}
    learner = LEARNER | {"optim": OPTIM} | (learner or {})
    evaluation = {"problems": 3, "samples": 2} | more.pop("evaluation", {})
    return Recipe.model_validate(
        {"name": "run", "output": str(folder / "run"), "engine": engine, "learner": learner,
         "evaluation": evaluation, **more}
    )  # fmt: skip


def run_verl(folder, recipe):
    """The figures of each step of a run in verl, and the rows of which it has learnt."""
    paths = [HERE, ROOT / "src", ROOT / "environments" / "phone"]  # here it is as if it were installed
    environment = os.environ | {
        "VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "cpu_platform,cpu_engine,recording",
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "WANDB_MODE": "disabled", "RAY_DEDUP_LOGS": "0", "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SELFVERIFY_RECORD": str(folder), "RAY_worker_niceness": "0",  # they would starve beside other tests
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-c", START, recipe.model_dump_json()]
    with (folder / "shown.txt").open("w") as shown:
        ended = subprocess.run(command, env=environment, stdout=shown, stderr=shown, timeout=1800, cwd=folder)
    assert ended.returncode == 0, (folder / "shown.txt").read_text()[-4000:]
    lines = (folder / "run" / "metrics-verl.jsonl").read_text().splitlines()
    figures = {row["step"]: row["data"] for row in map(json.loads, lines)}
    steps = range(1, recipe.learner.steps + 1)
    return figures, [torch.load(folder / f"step-{n}.pt", weights_only=False) for n in steps]


def groups_of(rows, task, seed, step):
    found = []
    for uid in dict.fromkeys(rows["uid"]):
        own = [i for i, other in enumerate(rows["uid"]) if other == uid]
        made = [rows["trajectories"][i] for i in own]
        found.append((own, Group(task.problem("train", seed, rows["index"][own[0]]), made, step)))
    return found


def learn_again(folder, recipe, records):
    """Our own trainer on the rollouts of verl's run, or on its own where nothing is sampled; returns its
    policy and the figures of each step. An adapter begins as verl's has begun."""
    policy, task, method = build(recipe.model_copy(update={"engine": None}))
    if recipe.policy.lora is not None:
        adapters.load_weights(policy.model, folder / "start" / "huggingface")
    told = []
    training = Training(
        policy, task, method, recipe.learner, recipe.sampling, folder / "own", recipe.seed,
        on_step=lambda step, steps, metrics, timing: told.append(metrics),
    )  # fmt: skip
    trainer = Trainer(training)

    def roll_out(step):
        found = groups_of(records[step], task, recipe.seed, step)
        prompts = policy.encode([group.problem for _, group in found])
        for (own, _), prompt in zip(found, prompts, strict=True):
            assert all(records[step]["prompts"][i] == prompt.ids.tolist() for i in own)
        rolled = Rollout(prompts, [group for _, group in found])
        if method.config.reads_scores:
            read_rollout_scores(policy, rolled, recipe.sampling.temperature)
        return rolled, [0] * len(found)

    if records:
        trainer.source.roll_out, trainer.source.complete = roll_out, lambda number, prompt: prompt
    trainer.run()
    return policy, told


def compare(policy, folder, recipe, most=5e-5):
    """All tensors after the last step, and how far they have moved."""
    path = folder / "run" / "checkpoints" / f"global_step_{recipe.learner.steps}" / "actor" / "huggingface"
    theirs = Policy.load(str(path), device="cpu").model.state_dict()
    start = Policy.load(recipe.policy.path, device="cpu").model.state_dict()
    ours = policy.model.state_dict()
    assert ours.keys() == theirs.keys() and len(ours) > 20
    apart = {name: float((ours[name] - theirs[name]).abs().max()) for name in ours}
    moved = {name for name in ours if not torch.equal(ours[name], start[name])}
    assert max(apart.values()) < most and max(
        float((ours[name] - start[name]).abs().max()) for name in moved
    ) > 1e-4  # fmt: skip
    frozen = [name for name in ours if "visual" in name]
    assert all(torch.equal(theirs[name], start[name]) for name in frozen), "the tower stays as it is"
    print(f"{len(ours)} tensors, {len(moved)} moved, apart at most {max(apart.values()):.2g}")


@pytest.mark.slow
def test_adpo_with_images(tmp_path):
    """A single answer, and all scores that could have been written, which the workers read; the second step
    feels the reference's pull, at half of the first one's rate. Prompts are forwarded once for a group."""
    adpo = {"name": "adpo", "kl": 0.2, "score_kl": 0.02, "verification_credit": "expected"}
    recipe = recipe_of(
        tmp_path, ranks=2, policy={"path": "builtin:digits"}, task={"name": "digits-pick"}, method=adpo,
        sampling={"group_size": 4, "max_new_tokens": 48, "top_p": 1.0},
        learner={"loss": {"denominator": "channel", "importance_cap": None}}, shared=True,
    )  # fmt: skip
    figures, records = run_verl(tmp_path, recipe)
    first, second = figures[1], figures[2]
    assert (tmp_path / "packed").read_text() == "2 prompts for 8 rows"
    assert first["actor/selfverify_kl_loss"] == 0.0 < second["actor/selfverify_kl_loss"]
    assert first["selfverify/accuracy"] == first["critic/score/mean"]
    assert first["training/rollout_probs_diff_max"] < 1e-4, "verl's own log-probs are those of the sampler"
    assert first["actor/lr"] == pytest.approx(0.5e-4) and second["actor/lr"] == 0
    assert {"val-core/test/acc/mean@2"} <= figures[0].keys() & second.keys()
    policy, told = learn_again(tmp_path, recipe, records)
    for ours, theirs in zip(told, (first, second), strict=True):
        assert theirs["actor/grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
        assert theirs["selfverify/groups/kept"] == ours["groups/kept"]
    compare(policy, tmp_path, recipe)


@pytest.mark.slow
def test_smartsnap_on_the_phone(tmp_path):
    """Up to ten turns with tools, and the ratio of whole trajectories (Eq. 1)."""
    recipe = recipe_of(
        tmp_path, prompt=1024, response=2048, policy={"path": "builtin:phone"},
        task={"name": "phone", "apps": ["settings", "clock"], "held_out": "templates", "max_calls": 9,
              "text": "terse", "prompt": "task", "react": False, "calls": "spaced",
              "agent": {"first_screen": "given"}},
        method={"name": "smartsnap"}, episode={"turns": 10},
        sampling={"group_size": 4, "max_new_tokens": 40, "top_p": 1.0},
        evaluation={"split": "validation"},
        learner={"loss": {"ratio": "trajectory", "denominator": "trajectory", "importance_cap": None}},
    )  # fmt: skip
    figures, records = run_verl(tmp_path, recipe)
    policy, told = learn_again(tmp_path, recipe, records)
    for ours, theirs in zip(told, (figures[1], figures[2]), strict=True):
        assert theirs["actor/grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
    assert figures[1]["training/num_turns/max"] > 3
    compare(policy, tmp_path, recipe)


@pytest.mark.slow
def test_adapo_on_two_ranks(tmp_path):
    """Two turns, of which the request between is the environment's; two updates of each rollout."""
    adapo = {"name": "adapo", "second_turn": "Check the answer.", "kl": 0.03, "kl_scale": 0.05}
    recipe = recipe_of(
        tmp_path, ranks=2, response=160, method=adapo, task={"name": "digits-pick"},
        policy={"path": str(ROOT / "reproduce" / "weights" / "digits-two-turns")},
        sampling={"group_size": 4, "max_new_tokens": 48, "top_p": 1.0},
        learner={"batch": {"updates_per_rollout": 2}, "optim": OPTIM | {"schedule": "constant"}},
        evaluation={"second_turn": adapo["second_turn"]},
    )  # fmt: skip
    figures, records = run_verl(tmp_path, recipe)
    policy, task, method = build(recipe.model_copy(update={"engine": None}))
    optim, loss = recipe.learner.optim, recipe.learner.loss
    reference, trained = policy.frozen_copy(), [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, optim.learning_rate, optim.betas, weight_decay=optim.weight_decay)

    def logprobs(of, streams):
        whole = stack([torch.ones_like(streams.trained_gr)], of.device)
        return of.logprobs([streams.prompt], [streams.continuations], temperature=1.0, needed=whole)[0]

    coefficients = set()
    for step, rows in enumerate(records):
        shape = len(rows["uid"]), max(map(len, rows["responses"]))
        channel, found = torch.full(shape, UNTRAINED), groups_of(rows, task, recipe.seed, step)
        advantage, kl, own_weight, old, ref = (torch.zeros(shape) for _ in range(5))
        all_streams = []
        for own, group in found:
            credits = method.credit(group, valid_trajectories(group, False))
            [prompt] = policy.encode([group.problem])
            streams = make_streams(prompt, group, credits)
            all_streams.append((own, streams))
            width = streams.width
            with torch.no_grad():
                old[own, :width], ref[own, :width] = logprobs(policy, streams), logprobs(reference, streams)
            if any(credit.acts for credit in credits):
                coefficients |= {round(float(b), 5) for c in credits for b in [c.kl_coef]}
                channel[own, :width], advantage[own, :width] = streams.channel_gr, streams.advantage_gr
                kl[own, :width], own_weight[own, :width] = streams.kl_coef_gr, streams.weight_gr
        norms = []
        for part in rows["parts"]:
            weight = torch.zeros(shape)
            weight[part] = token_weights(channel[part], own_weight[part], loss.denominator)
            optimizer.zero_grad()
            for own, streams in all_streams:
                inside = [n for n, i in enumerate(own) if i in part]
                rows_ = [own[n] for n in inside]
                new = logprobs(policy, streams)[inside]
                at = (rows_, slice(0, new.shape[1]))
                terms = surrogate(new, old[at], advantage[at], ref_logprobs=ref[at], kl_coef=kl[at])
                (weight[at] * terms.loss).sum().backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(trained, optim.max_grad_norm)))
            if norms[-1]:
                optimizer.step()
        lengths = [len(a) + len(b) for a, b in zip(rows["prompts"], rows["responses"], strict=True)]
        most = max(sum(lengths[: len(lengths) // 2]), sum(lengths[len(lengths) // 2 :]))
        assert figures[step + 1]["global_seqlen/balanced_max"] == most, "as the rows lie on the two ranks"
        found = figures[step + 1]["actor/grad_norm"]  # none, where no group of a batch teaches
        assert found == (pytest.approx(sum(norms) / len(norms), rel=1e-4) if all(norms) else None)
    assert len(coefficients) > 1, "the problems' own coefficients of KL"
    compare(policy, tmp_path, recipe)


@pytest.mark.slow
def test_an_adapter(tmp_path):
    """LoRA: the reference is the model below it, and servers get it alone. What is saved can be loaded, is
    what verl's processes hold, and is what our own trainer makes of the same start."""
    recipe = recipe_of(
        tmp_path, ranks=2, policy={"path": "builtin:digits", "lora": {"rank": 4, "alpha": 8}},
        task={"name": "digits-pick"}, method={"name": "grpo", "kl": 0.5},
        sampling={"group_size": 4, "max_new_tokens": 48, "top_p": 1.0},
        learner={"optim": OPTIM | {"learning_rate": 1e-2}},
    )  # fmt: skip
    figures, records = run_verl(tmp_path, recipe)
    first, second = figures[1], figures[2]
    assert first["actor/selfverify_kl_loss"] == 0.0 < second["actor/selfverify_kl_loss"]
    old, sampler, reference = (
        torch.tensor([value for row in records[1][name] for value in row])
        for name in ("old_log_probs", "rollout_log_probs", "ref_log_prob")
    )
    assert (old - sampler).abs().max() < 1e-4 < 0.1 < (old - reference).abs().max()
    policy, told = learn_again(tmp_path, recipe, records)
    for ours, theirs in zip(told, (first, second), strict=True):
        assert theirs["actor/grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
    actor = tmp_path / "run" / "checkpoints" / "global_step_2" / "actor"
    saved = load_file(actor / "huggingface" / adapters.WEIGHTS_FILE)
    shards = [torch.load(actor / f"model_world_size_2_rank_{n}.pt", weights_only=False) for n in range(2)]
    for name, weight in saved.items():
        held = [shard[name.replace(".weight", ".default.weight")].to_local() for shard in shards]
        assert torch.equal(torch.cat(held), weight)
    loaded = Policy.load(str(actor / "huggingface"), device="cpu").model.state_dict()
    start = Policy.load("builtin:digits", device="cpu").model.state_dict()
    apart = []
    for name, weight in policy.model.state_dict().items():
        if "lora_" in name:
            assert torch.equal(loaded[name], saved[f"base_model.model.{name.replace('.default.', '.')}"])
            apart.append((weight - loaded[name]).abs().flatten())
        else:
            assert torch.equal(loaded[name], start[name.replace(".base_layer.", ".")])
    every = torch.cat(apart)
    # AdamW moves a weight by its rate, 1e-2, whichever way a gradient near 0 points.
    assert every.mean() < 1e-6 and every.quantile(0.999) < 1e-4
    print(f"{len(apart)} tensors, apart {every.mean():.2g} on average, at most {every.max():.2g}")


@pytest.mark.slow
def test_pairs_of_traces(tmp_path):
    """DPO of conversations that share a step: images stand in the prompt and behind it."""
    write_looks(tmp_path, problems=4)
    pairs = str(tmp_path / "pairs.jsonl")
    recipe = recipe_of(
        tmp_path, ranks=2, prompt=512, response=512, policy={"path": "builtin:digits"},
        task={"name": "pairs", "train": pairs}, method={"name": "dpo"},
        learner={"groups_per_step": 2},
    )  # fmt: skip
    figures, _ = run_verl(tmp_path, recipe)
    policy, told = learn_again(tmp_path, recipe, [])
    for ours, theirs in zip(told, (figures[1], figures[2]), strict=True):
        assert theirs["actor/grad_norm"] == pytest.approx(ours["grad_norm"], rel=1e-4)
        assert theirs["selfverify/pairs/loss"] == pytest.approx(ours["loss"], abs=1e-5)
    assert figures[2]["selfverify/pairs/margin"] > 0 == figures[1]["selfverify/lost"]
    compare(policy, tmp_path, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["colocate", "async"])
def test_sampling_ahead(tmp_path, mode):
    """The second batch is sampled by the first weights, and its tokens have importance weights. Servers of
    their own get the weights by a file."""
    servers = {"nnodes": 1, "n_gpus_per_node": 1, "checkpoint_engine.backend": "file"}
    options = {f"actor_rollout_ref.rollout.{name}": value for name, value in servers.items()}
    recipe = recipe_of(
        tmp_path, mode=mode, options=options if mode == "async" else {},
        policy={"path": "builtin:digits"}, task={"name": "digits-pick"},
        method={"name": "grpo", "kl": 0.0}, sampling={"group_size": 4, "max_new_tokens": 48, "top_p": 1.0},
        learner={"loss": {}}, evaluation={"samples": 1},
    )  # fmt: skip
    figures, records = run_verl(tmp_path, recipe)
    assert [figures[n]["training/off_policy/trajectory_staleness/max"] for n in (1, 2)] == [0, 1]
    assert all(figures[n]["actor/grad_norm"] > 0 and figures[n]["selfverify/lost"] == 0 for n in (1, 2))
    second = [torch.tensor(a) - torch.tensor(b) for a, b in zip(
        records[1]["old_log_probs"], records[1]["rollout_log_probs"], strict=True
    )]  # fmt: skip
    assert max(float(gap.abs().max()) for gap in second) > 1e-5, "the weights have moved since"
