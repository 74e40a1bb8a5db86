"""Our loss as verl's engine calls it: nested micro-batches, without Ray."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss
from workers import nested

from selfverify.integrations.verl.streams import ADVANTAGE, KL_COEF, WEIGHT
from selfverify.integrations.verl.trainer import policy_loss
from selfverify.objectives import importance_weight, surrogate, token_weights

PROMPT, CUT = 3, ([0, 1, 2, 3, 4], [5, 6], [7, 8, 9, 10, 11])
CLIP = SimpleNamespace(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28)


def batch(far=0.4):
    """Twelve ragged rows: the third token of each is the environment's; rows 4 to 7 teach nothing."""
    generator = torch.Generator().manual_seed(0)

    def drawn(count, low, high):
        return low + (high - low) * torch.rand(count, generator=generator, dtype=torch.float64)

    lengths = [int(n) for n in drawn(12, 4, 12)]
    rows = {name: [] for name in ("new", "old", "ref", "sampler", "mask", ADVANTAGE, KL_COEF, WEIGHT)}
    channels, base = [], []
    for number, length in enumerate(lengths):
        mask = torch.ones(length, dtype=torch.float64)
        mask[2] = 0
        trained = mask * (number not in range(4, 8))
        old = drawn(length, -3, 0)
        for name, values in (
            ("mask", mask), ("old", old), ("new", old + far * drawn(length, -1, 1)),
            ("ref", old + 0.3 * drawn(length, -1, 1)), ("sampler", old + 0.1 * drawn(length, -1, 1)),
            (ADVANTAGE, drawn(length, -1, 1) * trained), (KL_COEF, drawn(length, 0, 0.2) * trained),
        ):  # fmt: skip
            rows[name].append(values)
        channels.append(torch.where(trained.bool(), (torch.arange(length) > 3).long(), -1))
        base.append(trained)
    return lengths, rows, channels, base


def padded(rows, value=0.0):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def in_micro_batches(loss, lengths, rows, new, names, **about):
    """The sum over micro-batches, as verl's engine forms it."""
    total = 0.0
    for cut in CUT:
        data = TensorDict({}, batch_size=len(cut))
        data["prompts"] = nested([torch.zeros(PROMPT, dtype=torch.long) for _ in cut])
        data["responses"] = nested([torch.zeros(lengths[i], dtype=torch.long) for i in cut])
        for name, key in names.items():
            data[name] = nested([rows[key][i] for i in cut])
        for name, value in about.items():
            tensordict_utils.assign_non_tensor_data(data, name, value)
        # Of prompt and response, shifted by one, as models give them.
        full = nested([torch.cat([torch.zeros(PROMPT - 1), new[i], torch.zeros(1)]) for i in cut])
        total = total + loss(model_output={"log_probs": full}, data=data)[0]
    return total


NAMES = {
    "response_mask": "mask",
    "old_log_probs": "old",
    "ref_log_prob": "ref",
    "rollout_log_probs": "sampler",
}
STREAMS = {name: name for name in (ADVANTAGE, KL_COEF, WEIGHT)}


@pytest.mark.parametrize("denominator", ["sequence", "channel", "batch", "trajectory"])
@pytest.mark.parametrize(("ratio", "cap"), [("token", None), ("token", 1.05), ("trajectory", None)])
def test_value_and_gradient_are_ours(denominator, ratio, cap):
    lengths, rows, channels, base = batch()
    weight_nr = token_weights(padded(channels, -1), padded(base), denominator)
    rows[WEIGHT] = [weight_nr[i, :length] for i, length in enumerate(lengths)]
    new = [row.clone().requires_grad_() for row in rows["new"]]
    old_nr = padded(rows["old"])
    terms = surrogate(
        padded(new), old_nr, padded(rows[ADVANTAGE]), clip_low=0.2, clip_high=0.28,
        ref_logprobs=padded(rows["ref"]), kl_coef=padded(rows[KL_COEF]),
        weight=None if cap is None else importance_weight(old_nr, padded(rows["sampler"]), cap),
        trajectories=weight_nr != 0 if ratio == "trajectory" else None,
    )  # fmt: skip
    wanted = (weight_nr * terms.loss).sum()
    gradients = torch.autograd.grad(wanted, new)

    def loss(**given):
        return policy_loss(CLIP, ratio=ratio, importance_cap=cap, **given)

    again = [row.clone().requires_grad_() for row in rows["new"]]
    found = in_micro_batches(loss, lengths, rows, again, NAMES | STREAMS, dp_size=1)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, again), gradients)


def test_why_verls_own_loss_is_not_enough():
    """A group that teaches nothing counts in its denominator, and one coefficient of KL stands for all."""
    lengths, rows, channels, base = batch()
    weight_nr = token_weights(padded(channels, -1), padded(base), "batch")
    rows[WEIGHT] = [weight_nr[i, :length] for i, length in enumerate(lengths)]
    kl = float(padded(rows[KL_COEF]).max())
    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=4, ppo_micro_batch_size_per_gpu=3, ppo_mini_batch_size=3, clip_ratio=0.2,
        clip_ratio_low=0.2, clip_ratio_high=0.28, loss_agg_mode="token-mean", use_kl_loss=True,
        kl_loss_coef=kl, kl_loss_type="low_var_kl",
    )  # fmt: skip
    new = [row.clone().requires_grad_() for row in rows["new"]]
    ours = in_micro_batches(
        lambda **given: policy_loss(CLIP, **given), lengths, rows, new, NAMES | STREAMS, dp_size=1
    )
    own = torch.cat(torch.autograd.grad(ours, new))
    counted = int(padded(rows["mask"]).sum())
    theirs = in_micro_batches(
        lambda **given: ppo_loss(config, **given), lengths, rows, new, NAMES | {"advantages": ADVANTAGE},
        dp_size=1, batch_num_tokens=counted, global_batch_size=len(lengths),
    )  # fmt: skip
    other = torch.cat(torch.autograd.grad(theirs, new))
    assert float((other - own).norm() / own.norm()) > 0.2
