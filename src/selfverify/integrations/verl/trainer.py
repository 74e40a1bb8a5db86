"""verl's V1 trainers with our credit and our loss, under the names that ``trainer.v1.trainer_mode`` takes.

``VERL_USE_EXTERNAL_MODULES`` names this module, which registers the agent loop, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import torch
import transfer_queue
from tensordict import TensorDict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from selfverify.integrations.verl.loop import EpisodeLoop as EpisodeLoop
from selfverify.integrations.verl.streams import (
    ADVANTAGE,
    FIELD,
    KL_COEF,
    WEIGHT,
    optimiser_batches,
    row_streams,
    settings_of,
)
from selfverify.objectives import importance_weight, surrogate


def policy_loss(
    config: Any,
    model_output: dict[str, Any],
    data: TensorDict,
    dp_group: Any = None,
    ratio: Literal["token", "trajectory"] = "token",
    importance_cap: float | None = None,
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """Return a micro-batch's part of the loss, which stands in the place of verl's ``ppo_loss``.

    verl's own loss is not enough: it has one KL coefficient, no denominator by channel, counts groups that
    teach nothing in its denominators, and clips large ratios a second time.

    Args:
        config: verl's ``ActorConfig``; of it the clip ratios count.
        model_output: ``log_probs`` as verl's engines give them: nested, of prompt and response.
        data: The micro-batch, with our streams.
        dp_group: Not used: the streams are divided by whole batches already.
        ratio: Of each token, or of its trajectory (SmartSnap Eq. 1).
        importance_cap: The largest weight ``exp(old - sampler)`` of a token where another engine has sampled;
            None leaves the weights out.
    """
    logprobs_nr = no_padding_2_padding(model_output["log_probs"], data)
    ranks = tensordict_utils.get_non_tensor_data(data, "dp_size", 1)
    names = ["response_mask", "old_log_probs", ADVANTAGE, KL_COEF, WEIGHT]
    names += [name for name in ("ref_log_prob", "rollout_log_probs") if name in data]
    streams = data.select(*names).to_padded_tensor()
    said_nr, weight_nr, kl_nr = streams["response_mask"].bool(), streams[WEIGHT], streams[KL_COEF]
    trained_nr = weight_nr != 0
    old_nr = torch.where(said_nr, streams["old_log_probs"], 0.0)
    foreign_nr = streams.get("rollout_log_probs", None) if importance_cap is not None else None
    terms = surrogate(
        torch.where(said_nr, logprobs_nr, 0.0),
        old_nr,
        streams[ADVANTAGE],
        clip_low=config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low,
        clip_high=config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high,
        ref_logprobs=streams.get("ref_log_prob", None),
        kl_coef=kl_nr,
        weight=None if foreign_nr is None else importance_weight(old_nr, foreign_nr, importance_cap or 0.0),
        trajectories=trained_nr if ratio == "trajectory" else None,
    )
    loss = (weight_nr * terms.loss).sum() * ranks  # FSDP takes the mean of gradients over ranks
    kl = (weight_nr * kl_nr * terms.kl).sum().detach() * ranks
    clipped = (terms.clipped & trained_nr).sum() / trained_nr.sum().clamp(min=1)
    return loss, {
        "actor/pg_loss": Metric(value=loss.detach(), aggregation=AggregationType.SUM),
        "actor/selfverify_kl_loss": Metric(value=kl, aggregation=AggregationType.SUM),
        "actor/selfverify_clipped": Metric(value=clipped, aggregation=AggregationType.MEAN),
    }


class SelfVerifyMixin:
    """Gives credit by a method of ours to whole groups, and lets workers learn by our loss."""

    MODE: ClassVar[str]
    """verl's own name of the mode: its base class decides by it."""

    def __init__(self, config: Any) -> None:
        config.trainer.v1.trainer_mode = self.MODE  # our name has chosen the class
        super().__init__(config)  # type: ignore[call-arg]

    def _setup(self) -> None:
        super()._setup()  # type: ignore[misc]
        config: Any = self.config  # type: ignore[attr-defined]
        self.settings = settings_of(config)
        loss = self.settings.loss
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        workers: Any = self.actor_rollout_wg  # type: ignore[attr-defined]
        workers.set_loss_fn(
            partial(policy_loss, config=actor, ratio=loss.ratio, importance_cap=loss.importance_cap)
        )

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Write the streams of a rollout in the place of verl's advantages."""
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = transfer_queue.kv_batch_get(select_fields=["uid", "response_mask", "extra_fields"], **where)
        is_padding = [tag.get("is_padding", False) for tag in batch.tags]
        rows = [
            None if pads else extra[FIELD]
            for pads, extra in zip(is_padding, list(data["extra_fields"]), strict=True)
        ]
        config: Any = self.config  # type: ignore[attr-defined]
        workers: Any = self.actor_rollout_wg  # type: ignore[attr-defined]
        ranks = max(workers._dispatch_info["actor"]) + 1
        size = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        mask = data["response_mask"]
        loss = self.settings.loss
        streams, groups = row_streams(
            self.settings.method,
            rows,
            list(data["uid"]),
            mask.to_padded_tensor(0),
            optimiser_batches(len(rows), ranks, size),
            loss.denominator,
            loss.drop_truncated,
        )
        own = self.settings.method.metrics(groups)
        metrics.update({f"selfverify/{name}": value for name, value in own.items()})
        streams |= {"advantages": streams[ADVANTAGE], "returns": streams[ADVANTAGE]}  # for verl's own metrics
        nested = {name: response_to_nested(stream_nr, mask) for name, stream_nr in streams.items()}
        return transfer_queue.kv_batch_put(fields=TensorDict(nested, batch_size=len(batch)), **where)


@register_trainer("selfverify")
class SelfVerifyTrainer(SelfVerifyMixin, PPOTrainerSync):
    """Samples, then learns, on the same devices."""

    MODE = "sync"


@register_trainer("selfverify_colocate")
class SelfVerifyColocateTrainer(SelfVerifyMixin, PPOTrainerColocateAsync):
    """Samples the next batch ahead, on the same devices."""

    MODE = "colocate_async"


@register_trainer("selfverify_async")
class SelfVerifyAsyncTrainer(SelfVerifyMixin, PPOTrainerSeparateAsync):
    """Samples on devices of their own. It was never run: its weights travel by NCCL or NIXL."""

    MODE = "separate_async"
