"""Advantages, losses and their gradients are TRL's (TRL's own code runs here, on fixed log-probs)."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rounding import assert_close
from selfverify.objectives import (
    UNTRAINED,
    group_advantage,
    importance_weight,
    pairwise,
    surrogate,
    token_weights,
)

grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer", exc_type=ImportError)
GRPOTrainer = grpo_trainer.GRPOTrainer


def trl_advantage(rewards):
    """TRL's default: `sum_then_normalize`, `scale_rewards="group"` (`_generate_and_score_completions`)."""
    std = grpo_trainer.nanstd(rewards, dim=1).unsqueeze(1)
    return torch.nan_to_num((rewards - torch.nanmean(rewards, dim=1, keepdim=True)) / (std + 1e-4), nan=0.0)


def trl_loss(logprobs, old, ref, advantages, mask, loss_type, epsilon_high=0.2, importance=None, beta=0.01):
    """`GRPOTrainer._compute_loss` itself, with a stand-in trainer whose model returns ``logprobs``."""
    logps = logprobs, torch.zeros_like(logprobs), None
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: logps,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=True
        ),
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)}, aux_loss_enabled=False,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, importance_sampling_level="token",
        beta=beta, epsilon_low=0.2, epsilon_high=epsilon_high, loss_type=loss_type,
        use_vllm=importance is not None, vllm_importance_sampling_correction=importance is not None,
        current_gradient_accumulation_steps=1, _entropy_bonus_enabled=False,
    )  # fmt: skip
    tokens = torch.zeros(mask.shape, dtype=torch.long)
    inputs = {
        "prompt_ids": tokens[:, :1], "prompt_mask": torch.ones_like(tokens[:, :1]), "completion_ids": tokens,
        "completion_mask": mask, "advantages": advantages, "old_per_token_logps": old,
        "ref_per_token_logps": ref, "num_items_in_batch": mask.sum(), "importance_sampling_ratio": importance,
    }  # fmt: skip
    return GRPOTrainer._compute_loss(trainer, None, inputs), trainer._metrics["train"]


def batch(seed=0, groups=3, size=4, length=9):
    g = torch.Generator().manual_seed(seed)
    rows = groups * size
    logprobs = torch.randn(rows, length, generator=g).abs().neg()
    old = logprobs + 0.3 * torch.randn(rows, length, generator=g)
    ref = logprobs + 0.3 * torch.randn(rows, length, generator=g)
    lengths = torch.randint(1, length + 1, (rows,), generator=g)
    mask = (torch.arange(length) < lengths.unsqueeze(1)).long()
    rewards = torch.rand(groups, size, generator=g).round(decimals=1)
    return logprobs, old, ref, mask, rewards


def assert_same(ours, theirs, ours_in, theirs_in):
    """The losses, and their gradients."""
    assert_close(ours, theirs)
    theirs.backward()
    ours.backward()
    assert theirs_in.grad.abs().max() > 0
    assert_close(ours_in.grad, theirs_in.grad)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_trls(seed):
    rewards = batch(seed, groups=6, size=8)[-1]
    assert_close(group_advantage(rewards), trl_advantage(rewards))
    rewards[0, 3] = float("nan")  # what TRL gives a completion that no reward function could score
    assert_close(group_advantage(rewards), trl_advantage(rewards))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("loss_type", "denominator"), [("grpo", "sequence"), ("dapo", "batch")])
@pytest.mark.parametrize("epsilon_high", [0.2, 0.28])
def test_loss_gradient_and_metrics_are_trls(seed, loss_type, denominator, epsilon_high):
    logprobs, old, ref, mask, rewards = batch(seed)
    advantage = group_advantage(rewards).flatten()
    theirs_in, ours_in = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()

    theirs, metrics = trl_loss(theirs_in, old, ref, advantage, mask, loss_type, epsilon_high)
    weights = token_weights(torch.where(mask.bool(), 0, UNTRAINED), torch.ones(mask.shape), denominator)
    terms = surrogate(
        ours_in, old, advantage.unsqueeze(1), clip_high=epsilon_high, ref_logprobs=ref, kl_coef=0.01
    )
    assert_same((weights * terms.loss).sum(), theirs, ours_in, theirs_in)
    tokens = mask.sum()
    assert_close((terms.kl * mask).sum() / tokens, metrics["kl"][0])
    # TRL divides these counts in float32.
    clipped = float((terms.clipped * mask).sum() / tokens)
    assert clipped == pytest.approx(metrics["clip_ratio/region_mean"][0], rel=1e-4)
    assert metrics["clip_ratio/region_mean"][0] > 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cap", [1.1, 1.3])
def test_loss_on_another_engines_samples_is_trls(seed, cap):
    """TRL's ``vllm_importance_sampling_mode="token_truncate"``, which leaves the KL term without a weight."""
    logprobs, old, ref, mask, rewards = batch(seed)
    sampler = old + 0.3 * torch.randn(old.shape, generator=torch.Generator().manual_seed(seed))
    sampler[0, 0] = torch.nan
    theirs_ratio = torch.exp(torch.nan_to_num((old - sampler) * mask, nan=0.0)).clamp(min=None, max=cap)
    assert (theirs_ratio == cap).any()
    advantage = group_advantage(rewards).flatten()
    theirs_in, ours_in = logprobs.clone().requires_grad_(), logprobs.clone().requires_grad_()

    theirs, _ = trl_loss(theirs_in, old, ref, advantage, mask, "grpo", importance=theirs_ratio)
    weights = token_weights(torch.where(mask.bool(), 0, UNTRAINED), torch.ones(mask.shape))
    weight = importance_weight(old, sampler, cap)
    terms = surrogate(ours_in, old, advantage.unsqueeze(1), ref_logprobs=ref, kl_coef=0.01, weight=weight)
    assert_same((weights * terms.loss).sum(), theirs, ours_in, theirs_in)
    uncorrected, _ = trl_loss(logprobs, old, ref, advantage, mask, "grpo")
    assert abs(uncorrected - theirs) > 1e-4


# --- pairs --------------------------------------------------------------------------------------------------


DPOTrainer = pytest.importorskip("trl.trainer.dpo_trainer", exc_type=ImportError).DPOTrainer


def trl_pairwise_loss(logprobs, ref, mask, beta):
    """`DPOTrainer._compute_loss` itself, with a stand-in model that returns ``logprobs`` [2 B, R].

    Chosen responses come first, then the rejected ones, as in TRL's batches.
    """
    whole = torch.nn.functional.pad(mask, (1, 0))  # a prompt of one token
    zeros = torch.zeros_like(logprobs)

    def model(**inputs):
        # TRL's head gives 0 where the labels are masked.
        outputs = {"log_probs": logprobs * mask, "entropy": zeros, "mean_logits": zeros, "is_top1": zeros > 0}
        return SimpleNamespace(**outputs)

    chosen, rejected = (ref * mask).sum(1).chunk(2)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        aux_loss_enabled=False, ld_alpha=None, precompute_ref_logps=True, f_divergence_type="reverse_kl",
        loss_types=["sigmoid"], loss_weights=[1.0], beta=beta, label_smoothing=0.0, use_weighting=False,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    inputs = {
        "input_ids": whole, "attention_mask": torch.ones_like(whole), "completion_mask": whole,
        "ref_chosen_logps": chosen, "ref_rejected_logps": rejected,
    }  # fmt: skip
    return DPOTrainer._compute_loss(trainer, model, inputs, False), trainer._metrics["train"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beta", [0.1, 0.7])
def test_pairwise_loss_gradient_and_metrics_are_trls(seed, beta):
    g = torch.Generator().manual_seed(seed)
    pairs, length = 5, 7
    new = torch.randn(2 * pairs, length, generator=g).abs().neg()
    ref = new + 0.5 * torch.randn(new.shape, generator=g)
    lengths = torch.randint(1, length + 1, (2 * pairs, 1), generator=g)
    mask = (torch.arange(length) < lengths).long()
    theirs_in, ours_in = new.clone().requires_grad_(), new.clone().requires_grad_()

    theirs, metrics = trl_pairwise_loss(theirs_in, ref, mask, beta)
    in_pairs = [torch.stack(x.chunk(2), dim=1) for x in (ours_in, ref, mask)]
    preference = in_pairs[2] * torch.tensor([1.0, -1.0])[:, None]
    terms = pairwise(in_pairs[0], in_pairs[1], preference, beta)
    assert_same(terms.loss.mean(), theirs, ours_in, theirs_in)
    assert_close(terms.margin.mean(), metrics["rewards/margins"][0])
    assert float((terms.margin > 0).float().mean()) == pytest.approx(metrics["rewards/accuracies"][0])
