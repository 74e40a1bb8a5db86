"""Writes down each step's rows as its credit gets them, and an adapter as it begins.

``VERL_USE_EXTERNAL_MODULES`` names this module.
"""

import os
from pathlib import Path

import torch
import transfer_queue

from selfverify.integrations.verl import shared_engine, trainer
from selfverify.integrations.verl.streams import FIELD, optimiser_batches
from selfverify.integrations.verl.trainer import SelfVerifyMixin

ROWS = ("prompts", "responses", "response_mask", "old_log_probs", "rollout_log_probs", "ref_log_prob")
asked = SelfVerifyMixin._compute_advantage


def record(self, batch, metrics):
    found = asked(self, batch, metrics)
    names = [name for name in ROWS if name != "ref_log_prob" or self.use_reference_policy]
    where = {"keys": batch.keys, "partition_id": batch.partition_id}
    data = transfer_queue.kv_batch_get(select_fields=[*names, "uid", "index", "extra_fields"], **where)
    actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
    rows = {name: [row.tolist() for row in data[name].unbind()] for name in names}
    rows |= {"uid": list(data["uid"]), "index": [int(index) for index in data["index"]]}
    rows["trajectories"] = [extra[FIELD].trajectory for extra in data["extra_fields"]]
    rows["parts"] = optimiser_batches(len(rows["uid"]), self._ranks(), actor.ppo_mini_batch_size * rollout.n)
    torch.save(rows, Path(os.environ["SELFVERIFY_RECORD"]) / f"step-{self.global_steps}.pt")
    return found


SelfVerifyMixin._compute_advantage = record
prepare = trainer.prepare


def prepare_and_save(worker, recipe):
    prepare(worker, recipe)
    if recipe.policy.lora is not None:
        [actor] = [role.actor for role in worker.worker_dict.values()]
        actor.engine.save_checkpoint(str(Path(os.environ["SELFVERIFY_RECORD"]) / "start"))


trainer.prepare = prepare_and_save

if "VERL_ENGINE_VENDOR" in os.environ:
    pack = shared_engine.pack

    def note(groups, prompts, *given):
        said = f"{len(groups)} prompts for {len(prompts)} rows"
        (Path(os.environ["SELFVERIFY_RECORD"]) / "packed").write_text(said)
        return pack(groups, prompts, *given)

    shared_engine.pack = note
