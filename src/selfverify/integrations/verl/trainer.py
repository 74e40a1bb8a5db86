"""verl's V1 trainers with our credit and our loss, under the names that ``trainer.v1.trainer_mode`` takes.

``VERL_USE_EXTERNAL_MODULES`` names this module, which registers the agent loop, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import ray
import torch
import transfer_queue
from safetensors.torch import save_file
from tensordict import TensorDict
from verl.trainer.ppo import v1
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding, response_to_nested

from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.score_tokens import ScoreReading, ScoreTree
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_method
from selfverify.integrations.verl import upstream as upstream
from selfverify.integrations.verl.loop import EpisodeLoop as EpisodeLoop
from selfverify.integrations.verl.streams import (
    ADVANTAGE,
    CHOSEN,
    FIELD,
    KL_COEF,
    SHARE,
    WEIGHT,
    Row,
    in_groups,
    optimiser_batches,
    row_streams,
)
from selfverify.objectives import choice_surrogate, importance_weight, surrogate
from selfverify.policy.adapters import WEIGHTS_FILE
from selfverify.policy.families import family_of
from selfverify.policy.scores import score_tree
from selfverify.rollouts.score_reading import before_score
from selfverify.trainer.optim import learning_rate_factor

CHOICES = "selfverify_choices"
"""The name in a model's outputs of the losses of tokens that learn from all their alternatives."""


def _before(data: TensorDict, rows: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Return the places, in the flat tokens of a micro-batch, before the first token of rows' responses."""
    return (data["input_ids"].offsets()[:-1] + data["prompts"].offsets().diff() - 1)[rows]


def choice_loss(
    config: Any, data: TensorDict, logits: torch.Tensor, index: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Return the losses of a micro-batch's tokens that learn from all their alternatives, where they stand.

    Args:
        config: As in `policy_loss`.
        data: The micro-batch.
        logits: ``[1, T, V]`` behind each of its tokens.
        index: Where the tokens stand among those that have logits, if not all have.
    """
    place_nm, ids_nmk, share_nmk, worth_nmk = (torch.stack(data[name].unbind()) for name in CHOSEN)
    at = share_nmk.any(-1).nonzero(as_tuple=True)
    place_m = _before(data, at[0]) + place_nm[at]
    place_m = place_m if index is None else index[place_m]
    terms = choice_surrogate(
        logits[0, place_m].gather(-1, ids_nmk[at]).float(),
        share_nmk[at],
        worth_nmk[at],
        clip_low=config.clip_ratio_low,
        clip_high=config.clip_ratio_high,
    )
    losses = torch.zeros(logits.shape[1], device=logits.device).index_put((place_m,), terms.loss)
    return {CHOICES: losses[None]}


def policy_loss(
    config: Any,
    model_output: dict[str, Any] | None = None,
    data: Any = None,
    dp_group: Any = None,
    student_logits: torch.Tensor | None = None,
    index: torch.Tensor | None = None,
    ratio: Literal["token", "trajectory"] = "token",
    importance_cap: float | None = None,
) -> Any:
    """Return a micro-batch's part of the loss, which stands in the place of verl's ``ppo_loss``.

    verl's own loss is not enough: it has one KL coefficient, no denominator by channel, counts groups that
    teach nothing in its denominators, and clips large ratios a second time.

    Args:
        config: verl's ``ActorConfig``; of it the clip ratios count.
        model_output: ``log_probs`` as verl's engines give them: nested, of prompt and response.
        data: The micro-batch, with our streams.
        dp_group: Not used: the streams are divided by whole batches already.
        student_logits: Given where verl's engine asks for what depends on whole logits, `choice_loss`, which
            then is in ``model_output`` when it asks for the loss.
        index: See `choice_loss`.
        ratio: Of each token, or of its trajectory (SmartSnap Eq. 1).
        importance_cap: The largest weight ``exp(old - sampler)`` of a token where another engine has sampled;
            None leaves the weights out.
    """
    if student_logits is not None:
        return choice_loss(config, data, student_logits, index)
    assert model_output is not None
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
    loss = (weight_nr * terms.loss).sum()
    if SHARE in data:
        loss = loss + model_output[CHOICES].values().sum()
    loss = loss * ranks  # FSDP takes the mean of gradients over ranks
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
        engine.forward_backward_batch = partial(_with_logits, engine.forward_backward_batch)
        if policy.lora is not None:
            engine.save_checkpoint = partial(_save_adapter, engine.save_checkpoint, engine, policy.path)


def _with_logits(
    forward: Callable[..., Any], data: TensorDict, loss_function: Any, forward_only: bool = False
) -> Any:
    """Let the loss see whole logits where tokens learn from all their alternatives."""
    if SHARE in data:
        tensordict_utils.assign_non_tensor(data, distillation_use_topk=True)
    return forward(data, loss_function, forward_only)


def _save_adapter(save: Callable[..., Any], engine: Any, base: str, local_path: str, *more: Any) -> None:
    """Save a checkpoint, and in its model's folder the adapter as we read it; ``base`` is the model below."""
    save(local_path, *more)
    parameters = [(name, p) for name, p in engine.module.named_parameters() if "lora_" in name]
    weights = {name.replace(".default.", "."): p.detach().full_tensor().cpu() for name, p in parameters}
    if torch.distributed.get_rank() == 0:
        folder, config = Path(local_path) / "huggingface", engine.module.peft_config["default"]
        config.base_model_name_or_path = base
        config.save_pretrained(folder)
        save_file(weights, folder / WEIGHTS_FILE, {"format": "pt"})


Shares = dict[tuple[int, ...], dict[int, float]]
"""As `core.score_tokens.Branches`."""


def read_scores(
    worker: Any, keys: list[str], partition: str, starts: list[int], tree: ScoreTree, temperature: float
) -> list[Shares]:
    """Read how likely the model that learns finds each branch of a score, behind given answers.

    Args:
        worker: As in `prepare`.
        keys: The rows of this process.
        partition: The place in which verl keeps them.
        starts: Where in each response its score begins; -1 where there is none.
        tree: The scores.
        temperature: That of sampling.
    """
    [actor] = [role.actor for role in worker.worker_dict.values()]
    names = ["prompts", "responses", "input_ids", "position_ids", "loss_mask", "multi_modal_inputs"]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=partition, select_fields=names)
    data["start"], data["row"] = torch.tensor(starts), torch.arange(len(keys))
    scored_m = (data["start"] >= 0).nonzero()[:, 0]
    before_m = _before(data, scored_m), data["responses"].offsets()[scored_m] - 1
    found: list[Shares] = [{} for _ in keys]

    def look(data: Any = None, student_logits: Any = None, index: Any = None, **about: Any) -> Any:
        """Note shares where verl's engine asks for what depends on logits; then it asks for a loss."""
        if student_logits is None:
            return torch.tensor(0.0), {}
        rows = (data["start"] >= 0).nonzero()[:, 0]
        place_m, names = _before(data, rows) + data["start"][rows], data["row"][rows].tolist()
        for at, children in branches.items():
            here_m = place_m + len(at) if index is None else index[place_m + len(at)]
            shares = student_logits[0, here_m][:, children].float().softmax(-1).tolist()
            for row, own in zip(names, shares, strict=True):
                found[row][at] = dict(zip(children, own, strict=True))
        return {}

    learnt = actor.loss_fn
    for path in tree.paths():
        asked = data.copy()
        # Whatever was written, the model has begun to write these scores; it has not seen what follows.
        for name, first_m in zip(("input_ids", "responses"), before_m, strict=True):
            ids, place_m = data[name].values().clone(), first_m + data["start"][scored_m]
            ids[place_m[:, None] + 1 + torch.arange(len(path))] = torch.tensor(path, dtype=ids.dtype)
            asked[name] = torch.nested.nested_tensor_from_jagged(ids, data[name].offsets())
        tensordict_utils.assign_non_tensor(asked, temperature=temperature, distillation_use_topk=True)
        branches = {at: [*node.children] for at, node in tree.branchings() if path[: len(at)] == at}
        actor.loss_fn = look
        try:
            actor.infer_batch(asked)
        finally:
            actor.loss_fn = learnt
    return found


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
        learn = partial(policy_loss, config=actor)
        self.compares = self.method.objective == "pairwise"
        if not self.compares:  # what is compared was not sampled
            learn = partial(learn, ratio=loss.ratio, importance_cap=loss.importance_cap)
        workers.set_loss_fn(learn)
        ray.get([worker.__ray_call__.remote(prepare, recipe) for worker in workers.workers])

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *given: Any, **more: Any) -> Any:
        """Keep the rows of a group together: its optimiser step is then one, and its prompt can be shared."""
        batch = super()._balance_batch(batch, metrics, *given, **more)  # type: ignore[misc]
        names, lengths = [key.split("_")[0] for key in batch.keys], [tag["seq_len"] for tag in batch.tags]
        order = in_groups(names, lengths, self._ranks())
        batch.reorder(order)
        by_rank = torch.tensor(lengths)[order].view(self._ranks(), -1).sum(-1)
        metrics["global_seqlen/balanced_min"] = int(by_rank.min())
        metrics["global_seqlen/balanced_max"] = int(by_rank.max())
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
        known = ["old_log_probs", "ref_log_prob"] if self.compares else []
        fields = ["uid", "response_mask", "extra_fields", *known]
        data = transfer_queue.kv_batch_get(select_fields=fields, **where)
        rows: list[Row | None] = [
            None if tag.get("is_padding", False) else extra[FIELD]
            for tag, extra in zip(batch.tags, list(data["extra_fields"]), strict=True)
        ]
        config: Any = self.config  # type: ignore[attr-defined]
        real, groups = [row for row in rows if row is not None], config.data.train_batch_size
        asked = groups * config.actor_rollout_ref.rollout.n
        if fatal := [row.fatal for row in real if row.fatal]:
            raise SelfVerifyError(f"{len(fatal)} of {len(real)} conversations cannot be held: {fatal[0]}")
        if self.MODE == "sync" and len(real) < asked:
            raise SelfVerifyError(f"{asked - len(real)} of {asked} conversations failed in verl; see its log")
        if all(row.skipped for row in real):
            raise DataError(f"no problem of this step can be used; the last: {real[-1].skipped}")
        size = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
        streams, figures = row_streams(
            self.method,
            rows,
            list(data["uid"]),
            optimiser_batches(len(rows), self._ranks(), size),
            self.recipe.learner.loss,
            self.global_steps - 1,  # type: ignore[attr-defined]
            self._readings(batch, rows) if self.method.config.reads_scores else None,
            [data[name].unbind() for name in known],
        )
        metrics.update({f"selfverify/{name}": value for name, value in figures.items()})
        streams |= {"advantages": streams[ADVANTAGE], "returns": streams[ADVANTAGE]}  # for verl's own metrics
        mask = data["response_mask"]
        nested = {
            name: response_to_nested(stream, mask) if name not in CHOSEN else stream
            for name, stream in streams.items()
        }
        return transfer_queue.kv_batch_put(fields=TensorDict(nested, batch_size=len(batch)), **where)

    def _readings(self, batch: Any, rows: Sequence[Row | None]) -> list[ScoreReading | None]:
        """Let the workers read the scores of a rollout's rows."""
        tree, workers = score_tree(self.tokenizer), self.actor_rollout_wg  # type: ignore[attr-defined]
        starts, longest = [-1] * len(rows), max(map(len, tree.paths()))
        for number, row in enumerate(rows):
            head = None if row is None else before_score(row.trajectory)
            if row is not None and head is not None and len(row.trajectory.tokens) > len(head) + longest:
                starts[number] = len(head)
        ranks, size = workers._dispatch_info["actor"], len(rows) // self._ranks()
        temperature = self.config.actor_rollout_ref.rollout.temperature  # type: ignore[attr-defined]
        asked = []
        for worker, rank in zip(workers.workers, ranks, strict=True):
            part = slice(rank * size, (rank + 1) * size)
            own = batch.keys[part], batch.partition_id, starts[part]
            asked.append(worker.__ray_call__.remote(read_scores, *own, tree, temperature))
        found = dict(zip(ranks, ray.get(asked), strict=True))
        read = [branches for rank in sorted(found) for branches in found[rank]]
        return [ScoreReading(tree, branches) if branches else None for branches in read]


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
    """Samples on devices of their own, to which weights travel (by NCCL or NIXL; none of these was run)."""

    MODE = "separate_async"
