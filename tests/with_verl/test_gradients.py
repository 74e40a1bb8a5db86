"""What verl's training worker learns from all scores of an answer, and from pairs, are our own gradients."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tensordict import NonTensorData, NonTensorStack
from transformers import AutoModelForImageTextToText, AutoProcessor
from verl.utils import tensordict_utils
from verl.workers.utils.padding import no_padding_2_padding
from workers import batch, image_positions, nested, stand_alone, worker

from selfverify.core.config import EngineConfig, SamplingConfig
from selfverify.core.score_tokens import ScoreReading
from selfverify.core.trajectory import OBSERVATION, Finish, Segment, valid_trajectories
from selfverify.experiments.recipe import load_recipe, recipe_task
from selfverify.experiments.registry import make_method
from selfverify.integrations.verl import trainer
from selfverify.integrations.verl.launch import VENDOR, verl_config
from selfverify.integrations.verl.streams import CHOSEN, Row, row_streams
from selfverify.policy.loading import resolve
from selfverify.policy.policy import Policy
from selfverify.policy.scores import score_tree
from selfverify.rollouts.score_reading import before_score
from selfverify.trainer.batch import select
from selfverify.trainer.loss import LossComputer, fixed_logprobs
from updating import update

PATH, HEAT = "builtin:digits", 0.8
CHANGES = [
    "method.verification_credit=expected",
    "method.kl=0.0",
    "method.score_kl=0.0",
    "learner.optim.learning_rate=1e-4",
]
RECIPE = load_recipe("adpo-digits", CHANGES)
CLIP = SimpleNamespace(clip_ratio_low=0.2, clip_ratio_high=0.2)


@pytest.fixture(scope="module")
def sampled():
    """Three groups of four with the readings of our own sampler; one answer has no score, one is lost."""
    policy, task = Policy.load(PATH, device="cpu"), recipe_task(RECIPE)
    method = make_method(RECIPE.method.name, **RECIPE.method.options)
    problems = [task.problem("train", 3, index) for index in range(3)]
    sampling = SamplingConfig(group_size=4, max_new_tokens=48, temperature=HEAT)
    rolled = method.rollout(policy, task, problems, [5, 6, 7], sampling)
    policy.model.eval()
    groups = [group.trajectories for group in rolled.groups]
    written = {t.scores["sampled"] for row in groups for t in row if "sampled" in t.scores}
    assert len(written) > 3
    groups[0][1].scores.clear()
    groups[0][1].segments[-1].parsed = None
    groups[1][2].segments[-1].finish = Finish.ERROR
    return policy, method, rolled, [t.segments[-1].parsed for row in groups for t in row]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    stand_alone(monkeypatch)


def rows_of(rolled):
    """The rows as verl's agent loop would have written them."""
    model, processor = (
        AutoModelForImageTextToText.from_pretrained(resolve(PATH)),
        AutoProcessor.from_pretrained(resolve(PATH)),
    )
    prompts, responses, images = [], [], []
    for prompt, group in zip(rolled.prompts, rolled.groups, strict=True):
        made = dict(processor.image_processor(images=prompt.pictures, return_tensors="pt"))
        for trajectory in group.trajectories:
            prompts.append(torch.tensor(prompt.ids.tolist()))
            responses.append(torch.tensor(trajectory.tokens))
            images.append(made)
    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    positions = image_positions(model, whole, [image["image_grid_thw"] for image in images])
    data = batch(prompts, responses, positions)
    data["multi_modal_inputs"] = NonTensorStack(*map(NonTensorData, images))
    return data


def learner(vendor, rows, recipe=RECIPE, model=None):
    def loss(config, **given):
        return trainer.policy_loss(CLIP, **given)

    size = {"micro_batch_size_per_gpu": rows, "infer_micro_batch_size_per_gpu": 6}
    made = worker(resolve(PATH), vendor, loss, model, **size)
    held = SimpleNamespace(worker_dict={"actor": SimpleNamespace(actor=made)})
    trainer.prepare(held, recipe)
    return made, held


def gradient_of(made, data, streams, old, monkeypatch):
    """The loss of a batch in verl, and its gradient, before anything clips it."""
    lengths = [len(row) for row in old]
    for name, stream in streams.items():
        rows = [row[:length] for row, length in zip(stream, lengths, strict=True)]
        data[name] = stream if name in CHOSEN else nested(rows)
    data["response_mask"] = nested([torch.ones(length, dtype=torch.long) for length in lengths])
    data["old_log_probs"] = nested(old)
    tensordict_utils.assign_non_tensor(data, temperature=HEAT)
    gradients = {}

    def look():
        for name, parameter in made.engine.module.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.full_tensor().clone()
        return torch.tensor(0.0)

    monkeypatch.setattr(made.engine, "optimizer_step", look)
    metrics = tensordict_utils.get(made.train_batch(data), "metrics")
    return metrics["loss"], gradients


def own_gradient(policy, groups, **given):
    loss = RECIPE.learner.loss
    clips = {"loss__clip_low": 0.2, "loss__clip_high": 0.2, "loss__denominator": loss.denominator}
    totals = update(policy, groups, temperature=HEAT, **clips, **given)
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    return totals, found


def compare(gradients, own, **most):
    assert own.keys() == gradients.keys() and len(own) > 20
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, own[name], **most)


@pytest.mark.parametrize("vendor", ["none", VENDOR])
def test_all_scores_of_an_answer(sampled, monkeypatch, vendor):
    policy, method, rolled, known = sampled
    flat = [t for group in rolled.groups for t in group.trajectories]
    tree, data, (made, held) = score_tree(policy.tokenizer), rows_of(rolled), learner(vendor, 4)

    def stored(keys, partition_id, select_fields):
        assert (keys, partition_id) == (["a"] * len(flat), "train")
        return data.select(*select_fields)

    monkeypatch.setattr(trainer.transfer_queue, "kv_batch_get", stored)
    heads = [before_score(t) for t in flat]
    starts = [-1 if head is None else len(head) for head in heads]
    read = trainer.read_scores(held, ["a"] * len(flat), "train", starts, tree, HEAT)
    for own, branches in zip(known, read, strict=True):
        assert branches.keys() == (own.probabilities.keys() if own else set())
        for at, shares in branches.items():
            assert shares == pytest.approx(own.probabilities[at], abs=2e-5)

    # Old probabilities that are not the new ones, so that ratios are clipped.
    far = [
        {at: {token: 0.6 * p + 0.4 / len(row) for token, p in row.items()} for at, row in branches.items()}
        for branches in read
    ]
    readings = [ScoreReading(tree, branches) if branches else None for branches in far]
    for trajectory, reading in zip(flat, readings, strict=True):
        trajectory.segments[-1].parsed = reading
    credits = [method.credit(group, valid_trajectories(group, False)) for group in rolled.groups]
    kept, _ = select(rolled, credits, True)
    streams, _ = row_streams(
        method, [Row(t) for t in flat],
        [group.problem.id for group in rolled.groups for _ in group.trajectories], [range(len(flat))],
        RECIPE.learner.loss, readings=readings,
    )  # fmt: skip
    loss, gradients = gradient_of(made, data, streams, [torch.tensor(t.logprobs) for t in flat], monkeypatch)
    old = [group.sampler_logprobs_gr for group in kept]
    totals, own = own_gradient(policy, kept, old=old)
    assert sum(len(group.choices.rows) for group in kept) > 10 and totals.largest["ratio"] > 1.2
    assert loss == pytest.approx(totals.sums["loss"], abs=1e-5)
    compare(gradients, own, atol=2e-5, rtol=1e-3)
    without = [replace(group, choices=None, choice_weight_m=None) for group in kept]
    _, other = own_gradient(policy, without, old=old)
    assert max(float((other[name] - own[name]).abs().max()) for name in own) > 1e-2, "alternatives count"


def test_pairs(sampled, monkeypatch):
    """DPO of conversations of several turns. Rows come in any order, and a pair is not in one micro-batch."""
    policy, _, rolled, _ = sampled
    method = make_method("dpo")
    for group in rolled.groups:
        group.trajectories = group.trajectories[:2]
        for n, t in enumerate(group.trajectories):
            shown = Segment(OBSERVATION, t.segments[0].tokens[: 3 + n], author="environment")
            again = replace(t.segments[0], turn=1, finish=Finish.STOP)
            t.segments, t.rewards, t.parsed = [t.segments[0], shown, again], {"turns": 2.0}, None
    rolled.groups[2].trajectories[0].segments[-1].finish = Finish.ERROR  # no pair any more
    credits = [method.credit(group, valid_trajectories(group, False)) for group in rolled.groups]
    kept, _ = select(rolled, credits, True)
    reference = policy.frozen_copy()
    for parameter in reference.model.parameters():
        parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape))
    computer = LossComputer(SimpleNamespace(policy=policy), RECIPE.learner, "pairwise")
    fixed = fixed_logprobs(reference, kept, computer.passes(kept), HEAT)
    flat = [t for group in rolled.groups for t in group.trajectories]
    order = [3, 0, 5, 1, 2, 4]
    made, _ = learner("none", 3)
    data = tensordict_utils.index_select_tensor_dict(rows_of(rolled), order)
    tensordict_utils.assign_non_tensor(data, temperature=HEAT, compute_loss=False)
    out = made.infer_batch(data.copy())
    old_nr = no_padding_2_padding(out["log_probs"], data)
    old = [row[: len(flat[i].tokens)] for i, row in zip(order, old_nr, strict=True)]
    ref = [fixed[i // 2][i % 2][: len(flat[i].tokens)] for i in order]
    names = [str(i // 2) for i in order]
    sides = [Row(flat[i], i % 2) for i in order]
    streams, figures = row_streams(method, sides, names, [range(6)], RECIPE.learner.loss, logprobs=[old, ref])
    _, gradients = gradient_of(made, data, streams, old, monkeypatch)
    totals, own = own_gradient(policy, kept, objective="pairwise", reference=reference)
    assert totals.sums["pairs"] == 2 and figures["pairs/loss"] == pytest.approx(totals.sums["loss"], abs=1e-5)
    assert figures["pairs/margin"] == pytest.approx(totals.sums["pairs/margin"] / 2, abs=2e-5)
    compare(gradients, own, atol=1e-5, rtol=1e-3)


def test_an_adapter_is_saved_as_we_read_it(sampled, monkeypatch, tmp_path):
    rolled, recipe = sampled[2], load_recipe("adpo-digits", [*CHANGES, "policy.lora={rank: 4, alpha: 8}"])
    config, _ = verl_config(recipe.model_copy(update={"engine": EngineConfig(gpus_per_node=1)}))
    given = {
        name: config["actor_rollout_ref"]["model"][name]
        for name in ("lora_rank", "lora_alpha", "target_modules", "exclude_modules")
    }
    made, _ = learner("none", 6, recipe, given)
    for name, parameter in made.engine.module.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.05 * torch.randn_like(parameter.data))
    made.save_checkpoint(str(tmp_path / "actor"), None, 1, 1)
    data = rows_of(rolled)
    tensordict_utils.assign_non_tensor(data, temperature=HEAT, compute_loss=False)
    found = no_padding_2_padding(made.infer_batch(data)["log_probs"], data)
    stand_alone(monkeypatch)  # a policy checks itself against the forward of transformers, not of verl
    policy = Policy.load(str(tmp_path / "actor" / "huggingface"), device="cpu")
    tokens = [[t.tokens for t in group.trajectories] for group in rolled.groups]
    with torch.no_grad():
        own = policy.logprobs(rolled.prompts, tokens, temperature=HEAT)
    lengths = [len(t.tokens) for group in rolled.groups for t in group.trajectories]
    for theirs, ours, length in zip(found, own.flatten(0, 1), lengths, strict=True):
        torch.testing.assert_close(theirs[:length], ours[:length], atol=5e-5, rtol=1e-4)
