"""The pairwise loss and its gradient are TRL's (`DPOTrainer`'s own code runs here, on log-probs)."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from rounding import assert_close
from selfverify.objectives import pairwise

DPOTrainer = pytest.importorskip("trl.trainer.dpo_trainer", exc_type=ImportError).DPOTrainer


def trl_loss(logprobs, ref, mask, beta):
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
def test_loss_gradient_and_metrics_are_trls(seed, beta):
    g = torch.Generator().manual_seed(seed)
    pairs, length = 5, 7
    new = torch.randn(2 * pairs, length, generator=g).abs().neg()
    ref = new + 0.5 * torch.randn(new.shape, generator=g)
    lengths = torch.randint(1, length + 1, (2 * pairs, 1), generator=g)
    mask = (torch.arange(length) < lengths).long()
    theirs_in, ours_in = new.clone().requires_grad_(), new.clone().requires_grad_()

    theirs, metrics = trl_loss(theirs_in, ref, mask, beta)
    in_pairs = [torch.stack(x.chunk(2), dim=1) for x in (ours_in, ref, mask)]
    preference = in_pairs[2] * torch.tensor([1.0, -1.0])[:, None]
    terms = pairwise(in_pairs[0], in_pairs[1], preference, beta)
    ours = terms.loss.mean()

    assert_close(ours, theirs)
    theirs.backward()
    ours.backward()
    assert theirs_in.grad.abs().max() > 0
    assert_close(ours_in.grad, theirs_in.grad)
    assert_close(terms.margin.mean(), metrics["rewards/margins"][0])
    assert float((terms.margin > 0).float().mean()) == pytest.approx(metrics["rewards/accuracies"][0])
