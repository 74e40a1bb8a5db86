"""verl's V1 trainers with our credit and our loss, under the names that ``trainer.v1.trainer_mode`` takes.

``VERL_USE_EXTERNAL_MODULES`` names this module, which registers the agent loop, too.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Literal

import ray
import torch
import transfer_queue
from tensordict import TensorDict
from verl.trainer.ppo import v1
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_method
from selfverify.integrations.verl import upstream as upstream
from selfverify.integrations.verl.loop import EpisodeLoop as EpisodeLoop
from selfverify.integrations.verl.streams import (
    ADVANTAGE,
    FIELD,
    KL_COEF,
    WEIGHT,
    in_groups,
    optimiser_batches,
    row_streams,
)
from selfverify.objectives import importance_weight, surrogate
from selfverify.policy.families import family_of
from selfverify.trainer.optim import learning_rate_factor


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
        clip_low=config.clip_ratio_low,
        clip_high=config.clip_ratio_high,
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


def prepare(worker: Any, recipe: Recipe) -> None:
    """Freeze the vision tower as the recipe has it, and give the learning rate our own trainer's course.

    verl moves the rate once for each rollout, so that all updates of a rollout have the rate of the first.

    Args:
        worker: A process that holds the model, with verl's engine.
        recipe: The recipe.
    """
    learner, policy = recipe.learner, recipe.policy
    factor, updates = learning_rate_factor(learner), learner.batch.updates_per_rollout
    updates *= learner.batch.inner_epochs
    for role in worker.worker_dict.values():
        engine = role.actor.engine
        if not policy.train_vision and policy.lora is None:
            for parameter in family_of(engine.module).vision_parameters(engine.module):
                parameter.requires_grad_(False)
        scheduler, groups = engine.lr_scheduler, engine.optimizer.param_groups
        scheduler.lr_lambdas = [lambda step: factor(step * updates)] * len(groups)
        for group, rate in zip(groups, scheduler.base_lrs, strict=True):
            group["lr"] = rate * factor(scheduler.last_epoch * updates)


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
        self.recipe = recipe = Recipe.model_validate_json(config.algorithm.selfverify)
        self.method, loss = make_method(recipe.method.name, **recipe.method.options), recipe.learner.loss
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        workers: Any = self.actor_rollout_wg  # type: ignore[attr-defined]
        workers.set_loss_fn(
            partial(policy_loss, config=actor, ratio=loss.ratio, importance_cap=loss.importance_cap)
        )
        ray.get([worker.__ray_call__.remote(prepare, recipe) for worker in workers.workers])

    def _balance_batch(self, batch: Any, *given: Any, **more: Any) -> Any:
        """Keep the rows of a group together: its optimiser step is then one, and its prompt can be shared."""
        batch = super()._balance_batch(batch, *given, **more)  # type: ignore[misc]
        names = [key.split("_")[0] for key in batch.keys]
        batch.reorder(in_groups(names, [tag["seq_len"] for tag in batch.tags], self._ranks()))
        return batch

    def _ranks(self) -> int:
        workers: Any = self.actor_rollout_wg  # type: ignore[attr-defined]
        return int(max(workers._dispatch_info["actor"])) + 1

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Write the streams of a rollout in the place of verl's advantages.

        Raises:
            SelfVerifyError: A conversation has ended by an error that is not its episode's, or no problem of
                the step can be used.
        """
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        fields = ["uid", "responses", "response_mask", "extra_fields"]
        data = transfer_queue.kv_batch_get(select_fields=fields, **where)
        rows = [
            None if tag.get("is_padding", False) else extra[FIELD]
            for tag, extra in zip(batch.tags, list(data["extra_fields"]), strict=True)
        ]
        config: Any = self.config  # type: ignore[attr-defined]
        real, groups = [row for row in rows if row is not None], config.data.train_batch_size
        asked = groups * config.actor_rollout_ref.rollout.n
        if fatal := [row["fatal"] for row in real if "fatal" in row]:
            raise SelfVerifyError(f"{len(fatal)} of {len(real)} conversations cannot be held: {fatal[0]}")
        if self.MODE == "sync" and len(real) < asked:
            raise SelfVerifyError(f"{asked - len(real)} of {asked} conversations failed in verl; see its log")
        if all("skipped" in row for row in real):
            raise DataError(f"no problem of this step can be used; the last: {real[-1]['skipped']}")
        size = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        streams, figures = row_streams(
            self.method,
            rows,
            [response.tolist() for response in data["responses"].unbind()],
            list(data["uid"]),
            optimiser_batches(len(rows), self._ranks(), size),
            self.recipe.learner.loss,
            self.global_steps - 1,  # type: ignore[attr-defined]
        )
        metrics.update({f"selfverify/{name}": value for name, value in figures.items()})
        streams |= {"advantages": streams[ADVANTAGE], "returns": streams[ADVANTAGE]}  # for verl's own metrics
        mask = data["response_mask"]
        nested = {name: response_to_nested(stream_nr, mask) for name, stream_nr in streams.items()}
        return transfer_queue.kv_batch_put(fields=TensorDict(nested, batch_size=len(batch)), **where)


@v1.register_trainer("selfverify")
class SelfVerifyTrainer(SelfVerifyMixin, v1.PPOTrainerSync):
    """Samples, then learns, on the same devices."""

    MODE = "sync"


@v1.register_trainer("selfverify_colocate")
class SelfVerifyColocateTrainer(SelfVerifyMixin, v1.PPOTrainerColocateAsync):
    """Samples the next batch ahead, on the same devices."""

    MODE = "colocate_async"


@v1.register_trainer("selfverify_async")
class SelfVerifyAsyncTrainer(SelfVerifyMixin, v1.PPOTrainerSeparateAsync):
    """Samples on devices of their own. It was never run: its weights travel by NCCL or NIXL."""

    MODE = "separate_async"
